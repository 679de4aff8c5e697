"""What the compiler makes of a kernel: a barrier that it adds, flags of scopes, windows of aliases; and pl.kernel."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COUNTER, DMA, admit, call, neighbours, push, right, shifted, tell, undecided, wrong

F32 = jnp.float32
WHOLE = pl.BlockSpec(memory_space=pltpu.VMEM)


def shift_kernel(x_ref, o_ref, sent, received):
    *_, onward = neighbours()
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()


def with_params(kernel, *scratch, **params):
    def function(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(BLOCK, F32),
            in_specs=[WHOLE],
            out_specs=WHOLE,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(**params),
        )(x)

    return function


# -- the barrier


def guarded_kernel(x_ref, o_ref, sent, received):
    """It communicates, though never."""
    o_ref[...] = x_ref[...]

    @pl.when(lax.axis_index("i") > 100)
    def _():
        shift_kernel(x_ref, o_ref, sent, received)


def signals_itself_kernel(x_ref, o_ref, ready):
    tell(ready, lax.axis_index("i"))
    pl.semaphore_wait(ready, 1)
    o_ref[...] = x_ref[...]


def signals_only_kernel(x_ref, o_ref, ready):
    *_, onward = neighbours()
    tell(ready, onward)
    pl.semaphore_wait(ready, 1)
    o_ref[...] = x_ref[...]


def barrier_not_met_kernel(x_ref, o_ref, sent, received):
    """It has a barrier of its own, which nobody else hears of."""
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1)
    pl.semaphore_wait(barrier, 1)
    shift_kernel(x_ref, o_ref, sent, received)


def barrier_unused_kernel(x_ref, o_ref, sent, received):
    pltpu.get_barrier_semaphore()
    shift_kernel(x_ref, o_ref, sent, received)


def into_operand_kernel(x_ref, o_ref, buffer, sent, received):
    """The neighbour's operand is written, perhaps before it is there."""
    *_, onward = neighbours()
    buffer[...] = jnp.zeros(BLOCK, F32)
    copy = push(buffer, x_ref, sent, received, onward)
    copy.start()
    copy.wait()
    o_ref[...] = x_ref[...]


def twice(function):
    return lambda x: function(function(x))


def some_call(x):
    """The barrier is one of all devices, and only some come."""
    shift = with_params(shift_kernel, DMA, DMA)
    return lax.cond(lax.axis_index("i") < 2, shift, lambda x: x, x)


def other_barrier_in_between(x):
    """Two kernels with the compiler's barrier, one with its own in between."""
    shift = with_params(shift_kernel, DMA, DMA)

    def own_kernel(x_ref, o_ref, sent, received):
        _, left, _ = neighbours()
        admit(left)
        shift_kernel(x_ref, o_ref, sent, received)

    return shift(call(own_kernel, scratch=(DMA, DMA))(shift(x)))


BARRIER = (
    right("added_barrier", with_params(shift_kernel, DMA, DMA), "all devices meet at the entry", expect=shifted),
    wrong(
        "added_barrier_skipped",
        with_params(shift_kernel, DMA, DMA, skip_device_barrier=True),
        "the next one may not have entered",
        "RS402",
        line="copy.start()",
    ),
    wrong(
        "added_barrier_replaced",
        with_params(shift_kernel, DMA, DMA, collective_id=3, allow_collective_id_without_custom_barrier=True),
        "with a collective_id the compiler adds none",
        "RS402",
    ),
    right("added_barrier_guarded", with_params(guarded_kernel, DMA, DMA), "it meets for nothing"),
    right("added_barrier_to_oneself", with_params(signals_itself_kernel, COUNTER), "it meets for nothing"),
    right("added_barrier_for_signals", with_params(signals_only_kernel, COUNTER), "signals count as communication"),
    wrong(
        "signals_without_barrier",
        with_params(signals_only_kernel, COUNTER, skip_device_barrier=True),
        "the signal may come before the semaphore is there",
        "RS503",
    ),
    wrong(
        "own_barrier_not_met",
        with_params(barrier_not_met_kernel, DMA, DMA, collective_id=0),
        "the compiler adds none, and its own lets everybody through",
        "RS402/RS524",
    ),
    right("own_barrier_unused", with_params(barrier_unused_kernel, DMA, DMA), "what nothing uses is dropped"),
    right("added_barrier_twice", twice(with_params(shift_kernel, DMA, DMA)), "the flag is back at zero"),
    right("added_barrier_and_own", other_barrier_in_between, "the two have nothing to do with each other"),
    wrong("added_barrier_of_some", some_call, "two devices wait for the other two", "RS501"),
    wrong(
        "into_operand_that_loads",
        with_params(into_operand_kernel, pltpu.VMEM(BLOCK, F32), DMA, DMA),
        "operands are loaded behind the barrier",
        "RS406",
    ),
)


# -- scopes


def meet_at(semaphore, *devices):
    for device in devices:
        tell(semaphore, device)
    pl.semaphore_wait(semaphore, len(devices))


def met_in_scope_kernel(x_ref, o_ref, sent, received, *, first):
    """Neighbours meet on the barrier semaphore, then once more on one of a scope."""
    _, left, onward = neighbours()
    if first:
        meet_at(pltpu.get_barrier_semaphore(), left, onward)
    pl.run_scoped(lambda s: meet_at(s, left, onward), COUNTER)
    shift_kernel(x_ref, o_ref, sent, received)


def two_scopes_kernel(x_ref, o_ref, sent, received, *, nested, kept):
    """A device says that it is ready in the first scope. Its left neighbour says something else in the second."""
    _, left, onward = neighbours()
    meet_at(pltpu.get_barrier_semaphore(), left, onward)
    o_ref[...] = jnp.zeros(BLOCK, F32)
    copy = push(x_ref, o_ref, sent, received, onward)

    def second(s):
        tell(s, onward)
        pl.semaphore_wait(s, 1)

    def first(s):
        tell(s, left)
        pl.semaphore_wait(s, 1)
        copy.start()
        if nested:
            pl.run_scoped(second, COUNTER)

    pl.run_scoped(first, COUNTER)
    if kept:
        second(*kept)
    elif not nested:
        pl.run_scoped(second, COUNTER)
    copy.wait()


def second_kept_kernel(x_ref, o_ref, sent, received, kept):
    two_scopes_kernel(x_ref, o_ref, sent, received, nested=False, kept=[kept])


def scoped_round_kernel(x_ref, o_ref, sent, received, ready, *, waits):
    """Memory of a scope that is entered twice: the second block is sent when the first has been read, or before."""
    _, left, onward = neighbours()
    meet_at(pltpu.get_barrier_semaphore(), left, onward)
    o_ref[...] = jnp.zeros(BLOCK, F32)

    @pl.loop(0, 2)
    def _(_):
        def body(buffer):
            if waits:
                tell(ready, left)
                pl.semaphore_wait(ready, 1)
            copy = push(x_ref, buffer, sent, received, onward)
            copy.start()
            copy.wait()
            o_ref[...] += buffer[...]

        pl.run_scoped(body, pltpu.VMEM(BLOCK, F32))


SCRATCH = {"scratch": (DMA, DMA)}
SCOPES = (
    right(
        "met_in_scope",
        call(partial(met_in_scope_kernel, first=True), **SCRATCH),
        "a signal that comes before the scope is counted, and everybody is in the kernel",
        expect=shifted,
    ),
    wrong(
        "met_in_scope_alone",
        with_params(partial(met_in_scope_kernel, first=False), DMA, DMA, skip_device_barrier=True),
        "the first signal may come before the kernel is entered",
        "RS503",
    ),
    undecided(
        "scopes_in_a_row",
        call(partial(two_scopes_kernel, nested=False, kept=()), **SCRATCH),
        "the signal for the second may be taken in the first: they are one flag",
    ),
    right(
        "scopes_in_each_other",
        call(partial(two_scopes_kernel, nested=True, kept=()), **SCRATCH),
        "flags of their own",
    ),
    right(
        "scope_and_scratch",
        call(second_kept_kernel, scratch=(DMA, DMA, COUNTER)),
        "flags of their own",
    ),
    right(
        "scoped_rounds",
        call(partial(scoped_round_kernel, waits=True), scratch=(DMA, DMA, COUNTER)),
        "each is asked for, in the scope that it goes to",
        expect=lambda x: 2 * shifted(x),
    ),
    wrong(
        "scoped_rounds_unasked",
        call(partial(scoped_round_kernel, waits=False), scratch=(DMA, DMA, COUNTER)),
        "the second block comes while the first is read",
        "RS402",
    ),
)


# -- aliases


def reads_result_kernel(x_ref, o_ref):
    o_ref[...] = o_ref[...] + 1


def adds_to_result_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def aliased(kernel):
    return call(kernel, barrier=None, input_output_aliases={0: 0})


ALIASES = (
    right("alias_in_vmem", aliased(adds_to_result_kernel), "each has a window of its own", expect=lambda x: x + 1),
    wrong(
        "alias_read_in_vmem", aliased(reads_result_kernel), "the operand is loaded into its own window only", "RS802"
    ),
)


# -- other ways to call a kernel


def on_core(cores=1):
    return pltpu.create_tensorcore_mesh("c", num_cores=cores)


def by_core_map(kernel, x, cores=1, **params):
    x_ref, o_ref = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))

    @pl.core_map(on_core(cores), compiler_params=pltpu.CompilerParams(**params))
    def _():
        pl.run_scoped(lambda *semaphores: kernel(x_ref, o_ref, *semaphores), DMA, DMA)

    return jax.freeze(o_ref)


def by_kernel(kernel, x, cores=1, **params):
    return pl.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=on_core(cores),
        scratch_types=[DMA, DMA],
        compiler_params=pltpu.CompilerParams(**params),
    )(x)


def never_received_kernel(x_ref, o_ref, sent, received):
    *_, onward = neighbours()
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait_send()


def beside(function):
    return lambda x: function(call(shift_kernel, barrier=None, **SCRATCH)(x))


def under_run_state(kernel):
    def body(ref):
        ref[...] = call(kernel, barrier=None, **SCRATCH)(ref[...])

    return pl.run_state(body)


def several_refs(x):
    """What a ref holds goes through two kernels."""
    x_ref = jax.new_ref(x)
    x_ref[...] = call(shift_kernel, barrier=None, **SCRATCH)(x_ref[...])
    return by_core_map(shift_kernel, jax.freeze(x_ref))


OTHERS = (
    right("core_map", partial(by_core_map, shift_kernel), "a kernel like others", expect=shifted),
    wrong("core_map_skips", partial(by_core_map, shift_kernel, skip_device_barrier=True), "no barrier", "RS402"),
    wrong("core_map_unwaited", beside(partial(by_core_map, never_received_kernel)), "nobody waits", "RS403", "RS502"),
    undecided("core_map_two_cores", partial(by_core_map, shift_kernel, cores=2), "how two cores share it"),
    right("pl_kernel", partial(by_kernel, shift_kernel), "a kernel like others", expect=shifted),
    wrong("pl_kernel_unwaited", beside(partial(by_kernel, never_received_kernel)), "nobody waits", "RS403", "RS502"),
    right("run_state", under_run_state(shift_kernel), "a kernel like others", expect=shifted),
    wrong("run_state_unwaited", under_run_state(never_received_kernel), "nobody waits", "RS403", "RS502"),
    right("refs_outside", several_refs, "a ref is followed from kernel to kernel", expect=partial(shifted, by=2)),
)

CASES = (*BARRIER, *SCOPES, *ALIASES, *OTHERS)
