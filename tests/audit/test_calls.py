"""How many calls in a row are looked at: as many as it takes for the units of one rank to stand in for another's."""

import jax
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import ringsched
from ringsched.auditing.audit import AuditReport

DMA = pltpu.SemaphoreType.DMA


def third(units: int, credit: bool):
    """Rank 1 waits for a unit of rank 0 and `units - 1` of rank 2, then sends to rank 2. Rank 0 waits for nothing, or,
    with `credit`, for a unit of rank 1 from the end of each call."""

    def kernel(x_ref, o_ref, sent, received, done):
        rank, barrier = lax.axis_index("i"), pltpu.get_barrier_semaphore()
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id={"i": 2})

        @pl.when(rank != 2)
        def _():
            o_ref[...] = x_ref[...]

        @pl.when(rank == 0)
        def _():
            pl.semaphore_signal(barrier, 1, device_id={"i": 1})
            if credit:
                pl.semaphore_wait(done, 1)

        @pl.when(rank == 2)
        def _():
            pl.semaphore_signal(barrier, units - 1, device_id={"i": 1})
            copy.wait_recv()

        @pl.when(rank == 1)
        def _():
            pl.semaphore_wait(barrier, units)
            copy.start()
            copy.wait_send()
            if credit:
                pl.semaphore_signal(done, 1, device_id={"i": 0})

    def call(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
            out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
            scratch_shapes=[DMA, DMA, pltpu.SemaphoreType.REGULAR],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    return call


def audited(units: int, credit: bool, calls: int | None = None) -> AuditReport:
    kernel = third(units, credit)
    return ringsched.audit(kernel, mesh_axes={"i": 3}, args=["f32[24,128]"], in_specs="i", out_specs="i", calls=calls)


@pytest.mark.parametrize("units", [2, 3, 5, 9])
def test_the_call_in_which_it_goes_wrong_is_reached(units: int) -> None:
    report = audited(units, credit=False)
    assert (report.verdict, report.calls) == ("wrong", units)
    assert "RS402" in {found.code for found in report.diagnostics}, report


def test_fewer_calls_may_be_asked_for_and_the_report_says_so() -> None:
    report = audited(5, credit=False, calls=2)
    assert report.verdict == "right" and "2 calls in a row" in str(report)
    assert audited(5, credit=False, calls=5).verdict == "wrong"


@pytest.mark.parametrize("units", [2, 3, 5])
def test_a_credit_keeps_it_right(units: int) -> None:
    report = audited(units, credit=True)
    assert report.verdict == "right", report


def test_more_units_than_calls_can_be_looked_at_is_undecided() -> None:
    report = audited(500, credit=False)
    assert report.verdict == "undecided"
    assert "RS702" in {found.code for found in report.diagnostics}


@pytest.mark.parametrize("units", [2])
@pytest.mark.parametrize("sides", [(1,), (1, 1)])
def test_a_mesh_that_the_caller_has_set_is_of_no_matter(units: int, sides: tuple[int, ...]) -> None:
    mesh = jax.make_mesh(sides, ("i", "j")[: len(sides)], devices=jax.devices()[:1])
    with jax.sharding.set_mesh(mesh):
        assert audited(units, credit=True).verdict == "right"
        assert audited(units, credit=False).verdict == "wrong"
