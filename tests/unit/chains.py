"""What the tests of chains share: files with the links that go together, proven."""

from __future__ import annotations

from ringsched.pipeline import ProvenChain, prove
from ringsched.program.program import Program
from ringsched.schedule.loader import load
from ringsched.schedule.schedule import Chain

FEATURES = ("all_gather_matmul_features", "matmul_reduce_scatter_features")
PAIRS = {
    "both ways": tuple(f"{name}_bidirectional" for name in FEATURES),
    "one way": FEATURES,
    "along rows": ("all_gather_matmul", "matmul_reduce_scatter"),
    "along rows, both ways": ("all_gather_matmul_bidirectional", "matmul_reduce_scatter_bidirectional"),
    "two pairs": FEATURES + FEATURES,
}


ACTIVATIONS = ("sharded", "whole")


def text(*links: str, topology: str = "{ring: N}", params: str = "{N: 4}", activation: str = "sharded") -> str:
    uses = "".join(f"  - use: {link}\n" for link in links)
    head = f"schedule: chain\ntopology: {topology}\nparams: {params}\n"
    return f"{head}activation: {activation}\nchain:\n{uses}"


def proven(links: tuple[str, ...], ranks: int, activation: str = "sharded") -> ProvenChain:
    chain = load("chain.yaml", text(*links, params=f"{{N: {ranks}}}", activation=activation))
    assert isinstance(chain, Chain)
    return prove(chain)


def program(links: tuple[str, ...], ranks: int, layers: int, activation: str = "sharded") -> Program:
    return proven(links, ranks, activation).program(layers)
