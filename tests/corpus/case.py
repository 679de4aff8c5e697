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
    """`codes`: those that the audit must give, all of them, for the reason told. `line`: text that it must point at."""

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


def right(name: str, function: Callable[..., Any], reason: str, **more: Any) -> Case:
    return Case(name=name, function=function, verdict="right", reason=reason, **more)


def wrong(name: str, function: Callable[..., Any], reason: str, *codes: str, **more: Any) -> Case:
    return Case(name=name, function=function, verdict="wrong", reason=reason, codes=frozenset(codes), **more)


def undecided(name: str, function: Callable[..., Any], reason: str, **more: Any) -> Case:
    codes = frozenset({"RS702"})
    return Case(name=name, function=function, verdict="undecided", reason=reason, codes=codes, **more)


def call(
    kernel: Callable[..., Any],
    *,
    out: tuple[int, ...] = BLOCK,
    scratch: tuple[Any, ...] = (),
    barrier: bool = True,
    memory: Any = pltpu.VMEM,
    **options: Any,
) -> Callable[..., Any]:
    """The function that runs a kernel on whole operands in `memory`."""

    def function(*operands: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(out, jnp.float32),
            in_specs=[pl.BlockSpec(memory_space=memory)] * len(operands),
            out_specs=pl.BlockSpec(memory_space=memory),
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(collective_id=0 if barrier else None),
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
