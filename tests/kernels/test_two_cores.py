"""Kernels on two cores of a device, against the same in 64 bits, and the same kernels with both parts on one core.

The interpreter runs a parallel grid on as many cores as it is told, each with VMEM and semaphores of its own, and a
remote DMA goes to the same core there. But a signal that names no core goes to core 0, which on a TPU it does not; so
signals name theirs here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import slow

NAMES = (
    "all_gather_matmul_features_bidirectional",
    "all_gather_matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter_bidirectional",
    "matmul_reduce_scatter_features",
)
QUICK = [(NAMES[0], 2), (NAMES[3], 3)]
ALL = QUICK + [slow(name, n) for name in NAMES for n in (2, 3, 4) if (name, n) not in QUICK]


def module(name: str, n: int) -> Any:
    """The kernel's module, in which signals go to the core that gives them."""
    from jax.experimental import pallas as pl

    import ringsched as rs
    from ringsched.collective import as_module

    def signal(semaphore: Any, device: Any) -> None:
        pl.semaphore_signal(
            semaphore, 1, device_id=device, device_id_type=pl.DeviceIdType.MESH, core_index=pl.program_id(0)
        )

    found = as_module(rs.compile(name).source(N=n), name)
    assert callable(found._signal)
    found._signal = signal
    return found


def on_both(mode: str) -> Any:
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams(detect_races=True, dma_execution_mode=mode, num_cores_or_threads=2)


@pytest.mark.deadline(150)
@pytest.mark.parametrize(("name", "n"), ALL)
def test_products(devices: Any, name: str, n: int) -> None:
    from test_product_kernels import operands, reference, tiles
    from twins import clean, data, on_ranks

    rows, depth, cols = tiles(name)
    calls = [operands(name, n, "float32", (2 * rows, depth, cols), data, seed) for seed in (1, 2)]
    f, interpret = getattr(module(name, n), name), on_both("eager" if n == 3 else "on_wait")
    with clean():
        found = on_ranks(
            lambda calls: [f(x, w, axis_name="i", cores=2, interpret=interpret) for x, w in calls],
            calls,
            check_vma=False,
        )
        found = [np.asarray(y) for y in found]
    for y, (x, w) in zip(found, calls, strict=True):
        np.testing.assert_array_equal(y, reference(name, np.asarray(x), np.asarray(w)).astype(y.dtype))


@pytest.mark.deadline(150)
@pytest.mark.parametrize(("n", "mode"), [(2, "on_wait"), slow(3, "eager"), slow(4, "on_wait")])
def test_chain(devices: Any, n: int, mode: str) -> None:
    from test_chain_kernels import operands, reference
    from twins import clean, on_ranks

    it = operands(n, 2, (16, 256, 128), 7)
    f, interpret = module("tp_mlp", n).tp_mlp, on_both(mode)
    with clean():
        y = on_ranks(lambda args: f(*args, axis_name="i", cores=2, interpret=interpret), it, check_vma=False)
        y = np.asarray(y)
    np.testing.assert_allclose(y, reference(*it, "gelu"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [NAMES[0], *(slow(name) for name in NAMES[1:])])
def test_in_sequence_on_one_core(devices: Any, name: str) -> None:
    from test_product_kernels import check_exact

    check_exact(name, 3, "float32", "on_wait", (5, 70, 200), cores=2)


def test_numbers_of_cores_that_are_refused(devices: Any) -> None:
    from test_product_kernels import check_exact

    with pytest.raises(ValueError, match="all_gather_matmul runs on 1 or 2 cores of a device, not 3"):
        check_exact("all_gather_matmul", 2, "float32", "eager", (8, 128, 128), cores=3)
