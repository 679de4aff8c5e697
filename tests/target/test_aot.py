"""The TPU compiler itself, on kernels small enough to read. Needs libtpu, no TPU."""

import importlib.util

import pytest

from ringsched.operand import Operand
from ringsched.target.aot import (
    TARGETS,
    TargetError,
    child_environment,
    compile_for_target,
    device_count,
    summarize,
)

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

SHIFT = """
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def shift(x, *, axis_name, interpret):
    ranks = lax.axis_size(axis_name)

    def kernel(x_ref, o_ref, send_semaphore, receive_semaphore):
        rank = lax.axis_index(axis_name)
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id={axis_name: lax.rem(rank + ranks - 1, ranks)})
        pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_remote_copy(
            x_ref, o_ref, send_semaphore, receive_semaphore, device_id={axis_name: lax.rem(rank + 1, ranks)}
        )
        copy.start()
        copy.wait()

    in_vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[in_vmem],
        out_specs=in_vmem,
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
        interpret=interpret,
        name="shift",
    )(x)
"""

MATMUL = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def matmul(a, b, *, axis_name, interpret):
    def kernel(a_ref, b_ref, o_ref):
        def column_block(j, carry):
            columns = pl.ds(pl.multiple_of(j * 256, 256), 256)
            o_ref[:, columns] = jnp.dot(a_ref[...], b_ref[:, columns], preferred_element_type=jnp.float32)
            return carry

        lax.fori_loop(0, b_ref.shape[1] // 256, column_block, 0)

    in_vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float32),
        in_specs=[in_vmem, in_vmem],
        out_specs=in_vmem,
        interpret=interpret,
        name="matmul",
    )(a, b)
"""


def compile_shift(target: str, **changes):
    arguments = {
        "source": SHIFT,
        "function": "shift",
        "sides": (4,),
        "operands": (Operand(name="x", shape=(16, 128), dtype="float32"),),
        "target": target,
        "timeout": 120,
        "check_vma": False,  # these kernels know no types
    }
    return compile_for_target(**(arguments | changes))


def error_of(target: str, **changes) -> TargetError:
    with pytest.raises(TargetError) as raised:
        compile_shift(target, **changes)
    assert raised.value.help
    return raised.value


@needs_libtpu
@pytest.mark.parametrize("target", ["v5e:2x2", "v5p:2x2x1"])
def test_a_shift_compiles(target):
    report = compile_shift(target)
    assert (report.target, report.kernel) == (target, "shift")
    assert report.compile_seconds > 0
    assert report.vmem_bytes is not None and report.vmem_bytes >= 2 * 16 * 128 * 4  # operand and result
    assert report.semaphores is not None and report.semaphores >= 2
    assert report.cycles is not None and 20 < report.cycles < 1000
    assert report.ideal_cycles is None and report.utilization is None


@needs_libtpu
@pytest.mark.parametrize("target", ["v5p:2x2x1", "v6e:2x2"])
def test_the_loop_of_a_matmul_is_counted_in_full(target):
    operands = (
        Operand(name="a", shape=(256, 512), dtype="bfloat16"),
        Operand(name="b", shape=(512, 1024), dtype="bfloat16"),
    )
    report = compile_shift(target, source=MATMUL, function="matmul", operands=operands)
    multiply_adds_a_cycle = {"v5p:2x2x1": 4 * 128 * 128, "v6e:2x2": 2 * 256 * 256 * 2}[target]
    assert report.ideal_cycles == 256 * 512 * 1024 // multiply_adds_a_cycle
    assert report.cycles is not None and report.cycles > report.ideal_cycles
    assert report.utilization == round(report.ideal_cycles / report.cycles, 4)


@pytest.mark.parametrize("target", ["v9:2x2", "v5e", "v5e:3x", "", "v5e:2x2:1", "v7x:2x2x1"])
def test_an_unknown_target(target):
    error = error_of(target)
    assert error.code == "RS601"
    assert error.message == f"unknown target {target!r}"
    assert "v5e:2x2" in error.help


def test_a_missing_compiler(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    error = error_of("v5e:2x2")
    assert (error.code, error.help) == ("RS602", "pip install 'ringsched[tpu]'")


def test_more_ranks_than_devices():
    error = error_of("v5e:2x2", sides=(8,))
    assert error.code == "RS603"
    assert error.message == "v5e:2x2 has 4 devices, the kernel is for 8 ranks"
    assert error.help == "--target v5e:2x4"
    assert error_of("v4:2x2x1", sides=(9,)).help == "choose parameters that give 1 to 8 ranks"


@needs_libtpu
def test_a_kernel_that_the_compiler_rejects():
    error = error_of("v5e:2x2", operands=(Operand(name="x", shape=(16, 128), dtype="float16"),))
    assert error.code == "RS604"
    assert "the kernel does not compile for v5e:2x2: " in error.message
    assert "Only arguments with" in error.message
    assert "MLIR" not in error.message.splitlines()[-1]


@needs_libtpu
def test_a_kernel_that_does_not_fit():
    error = error_of("v4:2x2x1", operands=(Operand(name="x", shape=(65536, 128), dtype="float32"),))
    assert error.code == "RS604"
    assert "vmem" in error.message
    assert "HBM" in error.help


@needs_libtpu
def test_a_kernel_that_cannot_be_traced():
    error = error_of("v5e:2x2", source="def shift(x, *, axis_name, interpret):\n    return x + missing\n")
    assert error.code == "RS604"
    assert "NameError: name 'missing' is not defined" in error.message


@needs_libtpu
def test_a_child_that_dies():
    error = error_of("v5e:2x2", source="import os\nos.abort()\n")
    assert error.code == "RS604"
    assert "the compiler's process ended with exit code -" in error.message


@needs_libtpu
def test_the_deadline():
    error = error_of("v5e:2x2", source="import time\ntime.sleep(60)\n", timeout=3)
    assert error.code == "RS605"
    assert "within 3 s" in error.message


def test_every_target_has_devices_and_an_accelerator_type(tmp_path):
    assert {target: device_count(target) for target in TARGETS} == {
        "v4:2x2x1": 8,
        "v5e:2x2": 4,
        "v5e:2x4": 8,
        "v5e:4x4": 16,
        "v5p:2x2x1": 4,
        "v5p:2x2x2": 8,
        "v5p:4x4x4": 64,
        "v6e:2x2": 4,
        "v6e:2x4": 8,
        "tpu7x:2x2x1": 8,
    }
    assert child_environment("v5p:2x2x1", tmp_path)["TPU_ACCELERATOR_TYPE"] == "v5p-8"
    assert child_environment("v5e:2x4", tmp_path)["TPU_ACCELERATOR_TYPE"] == "v5litepod-8"


def test_the_users_own_compiler_flags_stay(monkeypatch, tmp_path):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--some_flag=1")
    flags = child_environment("v5e:2x2", tmp_path)["LIBTPU_INIT_ARGS"].split()
    assert flags[0] == "--some_flag=1"
    assert f"--xla_jf_dump_to={tmp_path}/dump" in flags


def test_only_the_lines_of_a_message_that_say_what_is_wrong_remain():
    message = (
        "MosaicError: INTERNAL: Mosaic failed to compile TPU kernel: Invalid vector type for load\n\n"
        'The MLIR operation involved:\n  %22 = "tpu.load"(%21)\n'
    )
    assert summarize(message) == (
        "MosaicError: INTERNAL: Mosaic failed to compile TPU kernel: Invalid vector type for load"
    )
    assert len(summarize("line\n" * 50).splitlines()) == 4


@needs_libtpu
def test_several_sides_are_axes_of_the_mesh():
    source = """
from jax import lax

def twice(x, *, axis_name, interpret):
    assert axis_name == ("x", "y") and [lax.axis_size(a) for a in axis_name] == [2, 4] and x.shape == (16, 128)
    return 2 * x
"""
    report = compile_shift("v5e:2x4", source=source, function="twice", sides=(2, 4))
    assert (report.kernel, report.cycles) == ("twice", None)
