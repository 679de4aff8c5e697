"""Names that the text of a module uses itself: no parameter and no loop variable of a schedule goes by them there."""

from __future__ import annotations

import keyword

SIDE_NAMES = ("X", "Y", "Z")  # of a topology, as kernels call them; N: of a ring

RESERVED = frozenset(
    {
        *keyword.kwlist,
        *("r", "x", "y", "z", "held", "chunks", "axes", "axis", "arrived", "pairs", "place", "routes", "turn"),
        *("out", "terms", "copy"),
        *("jax", "jnp", "lax", "math", "itertools", "functools", "NamedSharding", "P"),
        *("SIDES", "RANKS", "CHUNKS", "PARTS", "ALONG", "END", "ROOT"),
        *("len", "list", "map", "max", "min", "range", "sorted", "sum", "tuple", "zip"),
    }
)
