"""The coordinates of devices as libtpu gives them; tests/target compares them with the real ones."""

from __future__ import annotations

import itertools

# Chips in squares of 2 x 2, as they share a host, x fastest, and the squares likewise; the cores of a chip in a row.
KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}
SPLIT = ("v4", "tpu7x")  # each core is a device
SLICES = (
    "v4:2x2x1", "v4:4x4x4", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:8x8", "v5e:8x16", "v5e:16x16",
    "v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4", "v6e:2x2", "v6e:2x4", "tpu7x:2x2x1",
)  # fmt: skip
# Two of them in full, as they were read.
RECORDED = {
    "v5e:4x4": [
        (0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1),
        (0, 2), (1, 2), (0, 3), (1, 3), (2, 2), (3, 2), (2, 3), (3, 3),
    ],
    "v5p:2x2x2": [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)],
}  # fmt: skip


def positions_of(target: str) -> list[tuple[int, ...]]:
    """(x, y, z, core) of every device."""
    family, _, extents = target.partition(":")
    x, y, z = (*map(int, extents.split("x")), 1)[:3]
    found = []
    for layer, row, column in itertools.product(range(z), range(0, y, 2), range(0, x, 2)):
        for dy, dx, core in itertools.product((0, 1), (0, 1), range(2 if family in SPLIT else 1)):
            found.append((column + dx, row + dy, layer, core))
    for index, place in enumerate(RECORDED.get(target, ())):
        assert found[index] == (*(*place, 0)[:3], 0)
    return found
