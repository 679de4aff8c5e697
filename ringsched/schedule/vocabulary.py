"""The words of a schedule file: its keys, which of them belong together, and which names are taken."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from difflib import get_close_matches

FILE_KEYS = (
    "schedule",
    "description",
    "collective",
    "topology",
    "params",
    "tables",
    "chunks",
    "compute",
    "steps",
    "lowering",
)
CHAIN_KEYS = ("schedule", "description", "topology", "params", "activation", "chain")
ACTIVATIONS = ("sharded", "whole")
LINK_KEYS = ("use", "epilogue")
EPILOGUES = ("gelu", "gelu_exact", "silu", "relu")
TRANSFER_KEYS = ("send", "each", "from", "to", "op", "when")
ITEM_KEYS: dict[str, tuple[str, ...]] = {
    "<transfer>": TRANSFER_KEYS,
    "<step>": ("step",),
    "<loop>": ("for", "do"),
    "<use>": ("use", "with", "on"),
    "<beside>": ("beside",),
    "<synth>": ("synth",),
}
ITEM_NAMES = {
    "<transfer>": "a transfer",
    "<step>": "a step",
    "<loop>": "a loop",
    "<use>": "a `use:`",
    "<beside>": "a `beside:`",
    "<synth>": "a `synth:`",
}
LOWERING_KEYS = ("slots", "semaphores", "memory", "unroll", "barrier")
COMPUTE_KEYS = ("multiply", "shard", "overlap")
MOMENTS = ("on arrival", "before sending")
SHARDS = ("rows", "features")
CONSTRUCTED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce")  # what `synth:` makes
OVERLAPS = ("full", "none")
TOPOLOGIES = ("ring", "line", "mesh", "torus", "links")
SPEEDS = ("bandwidth", "latency")
TOPOLOGY_KEYS = (*TOPOLOGIES, "twist", *SPEEDS, "routed")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", *ROOTED, "permute", "none")
COORDINATES = ("x", "y", "z")
RESERVED = ("r", *COORDINATES, "chunk", "min", "max")
# keys that name the kind of an item, the most telling first
_MARKERS = (
    ("for", "<loop>"),
    ("use", "<use>"),
    ("beside", "<beside>"),
    ("step", "<step>"),
    ("synth", "<synth>"),
    ("send", "<transfer>"),
)


def item_kind(value: object) -> str | None:
    """Which kind of item a mapping means to be, misspelt keys included; None where nothing tells."""
    if not isinstance(value, dict):
        return None
    keys = [str(key) for key in value]
    for marker, kind in _MARKERS:
        if marker in keys:
            return kind
    scores = {kind: len(set(own) & set(keys)) for kind, own in ITEM_KEYS.items()}
    best = max(scores, key=lambda kind: scores[kind])
    if scores[best]:
        return best
    for key in keys:
        near = closest(key, [marker for marker, _ in _MARKERS], cutoff=0.7)
        if near:
            return dict(_MARKERS)[near]
    return None


def closest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that `word` probably means; case and dashes count for nothing."""
    table: dict[str, str] = {}
    for choice in choices:
        table.setdefault(choice.lower().replace("-", "_"), choice)
    plain = word.lower().replace("-", "_")
    found = get_close_matches(plain, list(table), n=1, cutoff=cutoff)
    return table[found[0]] if found else None


def listed(words: Iterable[str], last: str = "and") -> str:
    """`a, b and c`, each in backquotes."""
    quoted = [f"`{word}`" for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def name_fault(name: str) -> str | None:
    """Why `name` cannot name a schedule (or a parameter, see `RESERVED`): a phrase, or None if it can."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        return "a name consists of letters, digits and underscores and does not start with a digit"
    if keyword.iskeyword(name):
        return f"`{name}` is a keyword of Python, in which the kernel is written"
    if len(name) > 100:
        return "a name has at most 100 characters"
    return None
