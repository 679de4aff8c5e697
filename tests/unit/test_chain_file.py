"""Chains: what a file may say, and whether links fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import ACTIVATIONS, FEATURES, text

from ringsched.diagnostics import DiagnosticError, render
from ringsched.pipeline import open_schedule, prove
from ringsched.program.printer import print_program
from ringsched.schedule.loader import load, sources
from ringsched.schedule.printer import format_text, print_schedule
from ringsched.schedule.schedule import Chain


def refused(content: str) -> str:
    """The messages without colour."""
    with pytest.raises(DiagnosticError) as caught:
        prove(load("chain.yaml", content))
    found = caught.value.diagnostics
    return "\n".join(render(d, sources(found, {"chain.yaml": content})) for d in found)


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "activation"), [("tp_mlp", "sharded"), ("tp_mlp_whole", "whole")])
def test_the_shipped_ones(name: str, activation: str) -> None:
    chain = open_schedule(name, {"N": 8})
    assert isinstance(chain, Chain) and chain.activation == activation
    assert [link.epilogue for link in chain.links] == ["gelu", None]
    assert [p.value for p in chain.parameters] == [8]
    source = Path(chain.path).read_text(encoding="utf-8")
    assert format_text(source, chain.path) == source


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_printed_and_loaded_again(activation: str) -> None:
    content = text(*FEATURES, activation=activation)
    chain = load("chain.yaml", content.replace("scatter_features", "scatter_features\n    epilogue: silu"))
    assert isinstance(chain, Chain)
    assert (chain.links[1].epilogue, chain.activation) == ("silu", activation)
    assert load("chain.yaml", print_schedule(chain)) == chain


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(*FEATURES) + "    epilogue: gelo\n", "RS113"),
        (text(*FEATURES) + "    with: {N: 4}\n", "unknown key `with`"),
        (text(*FEATURES) + "chunks: [N]\n", "the keys of a chain are"),
        (text("all_gather", FEATURES[1]), "RS217"),
        (text("tp_mlp", FEATURES[1]), "`tp_mlp` is a chain"),
        (text("all_gather_matmull", FEATURES[1]), "did you mean `all_gather_matmul`"),
        (text(), "`chain` is empty"),
        (text(*FEATURES, activation="hole"), "did you mean `whole`?"),
        (text(*FEATURES, activation="[whole]"), "RS113"),
    ],
)
def test_what_a_file_may_not_say(content: str, message: str) -> None:
    assert message in refused(content)


def test_a_chain_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "outer.yaml"
    file.write_text(
        "schedule: outer\ncollective: all_gather\ntopology: {ring: N}\nparams: {N: 4}\nchunks: [N]\n"
        "steps:\n  - use: tp_mlp\n"
    )
    with pytest.raises(DiagnosticError) as caught:
        load(file)
    assert caught.value.diagnostics[0].code == "RS216"


# -- do links fit? ----------------------------------------------------------------------------------------------------


def test_a_link_that_takes_something_else() -> None:
    message = refused(text("all_gather_matmul_features", "matmul_reduce_scatter"))
    assert "error[RS216]: `all_gather_matmul_features` does not fit behind `matmul_reduce_scatter`" in message
    assert "takes shards of features" in message and "gives shards of rows" in message
    assert "in the next layer" in message and "--> chain.yaml:6:10" in message


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (("all_gather_matmul", "all_gather_matmul"), "takes shards of rows"),
        (("all_gather_matmul_features", "matmul_all_reduce"), "gives the whole sum"),
        ((FEATURES[0], f"{FEATURES[1]}_bidirectional"), "gives chunks [4]"),
        ((FEATURES[1], FEATURES[0]), "RS607"),
        ((FEATURES[0],), "gives features of each rank's own"),
    ],
)
def test_links_that_do_not_fit(links: tuple[str, ...], message: str) -> None:
    assert message in refused(text(*links))


def test_other_ranks() -> None:
    message = refused(text(*FEATURES, topology="{ring: M}", params="{N: 4, M: 8}"))
    assert "RS216" in message and "it is for a ring of 4; this chain is for a ring of 8" in message


# -- the wishes of its links ------------------------------------------------------------------------------------------


def wishing(folder: Path, wish: str) -> Chain:
    """A chain of 20 ranks whose second link has a wish."""
    shipped = Path(open_schedule(f"{FEATURES[1]}_bidirectional").path).read_text(encoding="utf-8")
    (folder / "link.yaml").write_text(f"{shipped}lowering: {{{wish}}}\n", encoding="utf-8")
    file = folder / "chain.yaml"
    file.write_text(text(f"{FEATURES[0]}_bidirectional", "link.yaml", params="{N: 20}"), encoding="utf-8")
    chain = open_schedule(file)
    assert isinstance(chain, Chain)
    return chain


def test_a_wish_that_cannot_be_met(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        wishing(tmp_path, "memory: hbm")
    (found,) = caught.value.diagnostics
    assert found.code == "RS219" and found.primary is not None
    assert found.primary.span.path.endswith("link.yaml")
    assert "a chain keeps its weights in HBM by itself" in (found.help or "")


@pytest.mark.parametrize("wish", ["slots: 2", "unroll: true"])
def test_a_wish_of_a_link_is_met(tmp_path: Path, wish: str) -> None:
    usual = print_program(prove(wishing(tmp_path, "barrier: writers")).lowered.program)
    assert print_program(prove(wishing(tmp_path, wish)).lowered.program) != usual


def test_a_wish_that_is_wrong_in_a_link(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        prove(wishing(tmp_path, "slots: 1"))
    assert "leave `slots` out" in (caught.value.diagnostics[0].help or "")
