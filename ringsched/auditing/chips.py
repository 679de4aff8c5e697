"""What a chip has room for, by the name that JAX gives its kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jax.experimental.pallas import tpu as pltpu

from ringsched.auditing.memory import Buffer

KINDS = {"v4": "TPU v4", "v5e": "TPU v5e", "v5p": "TPU v5p", "v6e": "TPU v6e", "tpu7x": "TPU7x"}
# Explicit DMA semaphores that the compiler still takes in one kernel, found by compiling with more and more of them.
_SEMAPHORES = {"TPU v4": 431, "TPU v5e": 431, "TPU v5p": 431, "TPU v6e": 431, "TPU7x": 3830}
_VERSIONS = {
    "TPU v4": pltpu.ChipVersion.TPU_V4,
    "TPU v5e": pltpu.ChipVersion.TPU_V5E,
    "TPU v5p": pltpu.ChipVersion.TPU_V5P,
    "TPU v6e": pltpu.ChipVersion.TPU_V6E,
    "TPU7x": pltpu.ChipVersion.TPU_7X,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """`vmem`: bytes of a core. `powers`: a hop has to be by a power of two (v5e's documentation of its routing)."""

    kind: str
    vmem: int
    semaphores: int
    powers: bool


def chip_of(kind: str) -> Chip | None:
    """kind: "TPU v5p", or short "v5p"; None for one that is not known."""
    name = KINDS.get(kind, kind)
    if name not in _VERSIONS:
        return None
    info = pltpu.get_tpu_info_for_chip(_VERSIONS[name], 1)
    return Chip(kind=name, vmem=info.vmem_capacity_bytes, semaphores=_SEMAPHORES[name], powers=name == "TPU v5e")


def padded_bytes(buffer: Buffer) -> int:
    """What a buffer takes in VMEM: its last two dimensions come in tiles of 128 lanes and 32 bytes a lane."""
    *leading, rows, lanes = (1, 1, *buffer.shape)
    sublanes = max(1, 8 * 32 // max(buffer.bits, 1))
    tile_rows = math.ceil(rows / sublanes) * sublanes if rows > sublanes else _power(rows, sublanes)
    return math.prod(leading) * tile_rows * (math.ceil(lanes / 128) * 128) * buffer.bits // 8


def _power(rows: int, most: int) -> int:
    """Few rows lie in a smaller tile: the next power of two."""
    size: Any = 1
    while size < rows:
        size *= 2
    return min(int(size), most)
