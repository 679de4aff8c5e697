"""A kernel of the corpus, and short words for writing one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS, COLS = 8, 128
BLOCK = (ROWS, COLS)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`codes`: those that the audit must give, all of them, for the reason told; of "RS401/RS406", one or the other.

    `line`: text that it must point at. `expect`: what the kernels are to compute, where that is checked.
    """

    name: str
    function: Callable[..., Any]
    verdict: str
    reason: str
    codes: frozenset[str] = frozenset()
    line: str | None = None
    mesh: Mapping[str, int] = field(default_factory=lambda: {"i": 4})
    args: tuple[str, ...] = (f"f32[{4 * ROWS},{COLS}]",)
    in_specs: Any = "i"
    out_specs: Any = "i"
    expect: Any = None
    chip: str | None = None
    cores: int = 1


def right(name: str, function: Callable[..., Any], reason: str, **more: Any) -> Case:
    return Case(name=name, function=function, verdict="right", reason=reason, **more)


def wrong(name: str, function: Callable[..., Any], reason: str, *codes: str, **more: Any) -> Case:
    return Case(name=name, function=function, verdict="wrong", reason=reason, codes=frozenset(codes), **more)


def undecided(name: str, function: Callable[..., Any], reason: str, code: str = "RS702", **more: Any) -> Case:
    codes = frozenset({code})
    return Case(name=name, function=function, verdict="undecided", reason=reason, codes=codes, **more)


# What the line is about that a finding with this code has to point at.
POINTS_AT = {
    "RS401": "start",
    "RS402": "start",
    "RS403": "start",
    "RS404": "start",
    "RS405": "start",
    "RS406": "start",
    "RS432": "start",
    "RS501": "wait",
    "RS524": "start",
}


def flawed(
    family: str, build: Callable[[str], Callable[..., Any]], flaws: Mapping[str, tuple[str, ...]], **more: Any
) -> tuple[Case, ...]:
    """A wrong case for each flaw that `build` can put into a kernel. `flaws`: name → (codes, reason), or a line too."""
    cases = []
    for flaw, (codes, reason, *line) in flaws.items():
        first = codes.split()[0]
        text = line[0] if line else POINTS_AT.get(first.split("/")[0])
        cases.append(wrong(f"{family}_{flaw}", build(flaw), reason, *codes.split(), line=text, **more))
    return tuple(cases)


def call(
    kernel: Callable[..., Any],
    *,
    out: tuple[int, ...] = BLOCK,
    scratch: tuple[Any, ...] = (),
    barrier: bool | None = True,
    memory: Any = pltpu.VMEM,
    dtype: Any = jnp.float32,
    **options: Any,
) -> Callable[..., Any]:
    """The function that runs a kernel on whole operands in `memory`.

    barrier: whether it has one of its own; None: that which the compiler adds.
    """

    def function(*operands: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(out, dtype),
            in_specs=[pl.BlockSpec(memory_space=memory)] * len(operands),
            out_specs=pl.BlockSpec(memory_space=memory),
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(
                collective_id=0 if barrier else None, skip_device_barrier=barrier is False
            ),
            **options,
        )(*operands)

    return function


def neighbours(axis: str = "i") -> tuple[Any, Any, Any]:
    """This device, its left and its right neighbour on the ring."""
    i, n = lax.axis_index(axis), lax.axis_size(axis)
    return i, lax.rem(i + n - 1, n), lax.rem(i + 1, n)


def tell(semaphore: Any, device: Any, units: int = 1) -> None:
    pl.semaphore_signal(semaphore, units, device_id={"i": device}, device_id_type=pl.DeviceIdType.MESH)


def meet(*devices: Any) -> None:
    """Signals these devices, and waits for as many signals."""
    barrier = pltpu.get_barrier_semaphore()
    for device in devices:
        tell(barrier, device)
    pl.semaphore_wait(barrier, len(devices))


def admit(*writers: Any, targets: int = 1) -> None:
    """Signals those that write here, and waits for a signal of each device that is written to."""
    barrier = pltpu.get_barrier_semaphore()
    for writer in writers:
        tell(barrier, writer)
    pl.semaphore_wait(barrier, targets)


def push(source: Any, target: Any, sent: Any, received: Any, device: Any) -> Any:
    """A copy to a device, not yet started."""
    return pltpu.make_async_remote_copy(
        source, target, sent, received, device_id={"i": device}, device_id_type=pl.DeviceIdType.MESH
    )


DMA = pltpu.SemaphoreType.DMA
COUNTER = pltpu.SemaphoreType.REGULAR


def blocks(count: int) -> Any:
    """Scratch memory for so many blocks."""
    return pltpu.VMEM((count, *BLOCK), jnp.float32)


def ring(n: int) -> dict[str, Any]:
    """n devices, each with one block."""
    return {"mesh": {"i": n}, "args": (f"f32[{n * ROWS},{COLS}]",)}


def stacked(n: int) -> dict[str, Any]:
    """n devices, each with a block for every device."""
    return {"mesh": {"i": n}, "args": (f"f32[{n * n},{ROWS},{COLS}]",)}


def gathered(x: Any) -> Any:
    return lax.all_gather(x, "i")


def summed(x: Any) -> Any:
    return lax.psum(x, "i")


def scattered(x: Any) -> Any:
    return lax.psum_scatter(x, "i")


def exchanged(x: Any) -> Any:
    return lax.all_to_all(x, "i", 0, 0)


def shifted(x: Any, by: int = 1) -> Any:
    n = lax.axis_size("i")
    return lax.ppermute(x, "i", [(k, (k + by) % n) for k in range(n)])
