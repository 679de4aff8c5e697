"""Tiles that a kernel itself streams from HBM through VMEM and back, two at a time; and what can be wrong in it."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COLS, COUNTER, DMA, ROWS, flawed, right, undecided, wrong

TILES = 4
F32 = jnp.float32
SMALL = {"mesh": {"i": 2}, "args": (f"f32[{2 * TILES},{ROWS},{COLS}]",)}

SYNCHRONISATION = {
    "one_slot": ("RS401", "a tile is loaded over the one before"),
    "one_load_semaphore": ("RS405", "the tile after can satisfy the wait for this one"),
    "load_not_waited": ("RS404 RS502", "a tile is used that may not have come"),
    "load_waited_late": ("RS404", "a tile is used before it is waited for"),
    "other_slot": ("RS404", "the slot is used that the next tile is just loaded into"),
    "store_not_waited": ("RS401 RS403 RS502", "a tile is overwritten while it is stored"),
    "store_waited_late": ("RS401", "a tile is overwritten before its store is waited for"),
    "one_store_semaphore": ("RS405", "the store of a later tile can satisfy the wait for that of an earlier one"),
    "last_stores_not_waited": ("RS403 RS502", "the kernel may end before the last tiles are stored"),
    "loaded_past_the_end": ("RS431", "a tile is loaded ahead that does not exist", "start"),
    "slot_past_the_end": ("RS431", "there are two slots, and the third is asked for", "start"),
    "semaphore_past_the_end": ("RS431", "there are two semaphores, and the third is asked for"),
    "rows_past_the_end": ("RS431", "a tile begins in the last rows and ends behind them", "start"),
    "half_a_tile": ("RS432", "half a tile into a whole slot"),
    "wait_for_half": ("RS505", "each wait is for half a tile"),
    "waited_twice": ("RS501", "each load is waited for twice"),
    "into_operand": ("RS433", "tiles are stored where they came from"),
}

VALUES = {
    "first_tile_only": ("RS801", "tile 0 is loaded each time"),
    "backward": ("RS801", "tiles are stored in reverse order"),
    "last_missing": ("RS435", "the last tile is left out"),
    "unscaled": ("RS801", "tiles are copied as they are"),
    "stale": ("RS801", "the tile before is used, in the other slot"),
    "half_computed": ("RS802", "the lower half of each tile is never computed"),
}


def stream(flaw):
    """Twice each tile. While tile t is worked on, tile t + 1 comes, and tile t - 1 goes."""
    tiles = TILES - 1 if flaw == "last_missing" else TILES

    def kernel(x_ref, o_ref, came, gone, load_done, store_done):
        def load(t):
            k = 0 if flaw == "one_slot" else t % 2
            tile = x_ref.at[0 if flaw == "first_tile_only" else t]
            slot = came.at[t if flaw == "slot_past_the_end" else k]
            if flaw == "half_a_tile":
                tile = tile.at[pl.ds(0, ROWS // 2)]
            if flaw == "rows_past_the_end":
                tile = x_ref.at[t, pl.ds(lax.axis_index("i"), ROWS)]
            s = {"one_load_semaphore": 0, "semaphore_past_the_end": t}.get(flaw, k)
            return pltpu.make_async_copy(tile, slot, load_done.at[s])

        def store(t):
            target = x_ref if flaw == "into_operand" else o_ref
            place = target.at[TILES - 1 - t if flaw == "backward" else t]
            return pltpu.make_async_copy(
                gone.at[t % 2], place, store_done.at[0 if flaw == "one_store_semaphore" else t % 2]
            )

        def wait_for(t):
            if flaw == "wait_for_half":
                half = came.at[t % 2, pl.ds(0, ROWS // 2)]
                pltpu.make_async_copy(half, half, load_done.at[t % 2]).wait()
            elif flaw != "load_not_waited":
                load(t).wait()
            if flaw == "waited_twice":
                load(t).wait()

        load(0).start()
        for t in range(tiles):
            if t + 1 < tiles or flaw == "loaded_past_the_end":
                load(t + 1).start()
            if flaw != "load_waited_late":
                wait_for(t)
            waits = t >= 2 and flaw not in ("store_not_waited", "last_stores_not_waited")
            if waits and flaw != "store_waited_late":
                store(t - 2).wait()
            work(flaw, t, came, gone)
            if waits and flaw == "store_waited_late":
                store(t - 2).wait()
            if flaw == "load_waited_late":
                wait_for(t)
            store(t).start()
            if flaw == "last_stores_not_waited" and t >= 1:
                store(t - 1).wait()
        if flaw not in ("store_not_waited", "last_stores_not_waited"):
            store(tiles - 2).wait()
            store(tiles - 1).wait()

    return streaming(kernel)


def work(flaw, t, came, gone):
    k = {"one_slot": 0, "other_slot": (t + 1) % 2}.get(flaw, t % 2)
    if flaw == "stale" and t == TILES - 1:
        k = (t + 1) % 2
    if flaw == "half_computed":
        gone[t % 2, pl.ds(0, ROWS // 2)] = 2 * came[k, pl.ds(0, ROWS // 2)]
    else:
        gone[t % 2] = came[k] if flaw == "unscaled" else 2 * came[k]


def streaming(kernel, *more, slots=2):
    def function(x):
        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        two = pltpu.VMEM((slots, *BLOCK), F32)
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[hbm],
            out_specs=hbm,
            scratch_shapes=[two, two, DMA((2,)), DMA((2,)), *more],
        )(x)

    return function


def doubled(x):
    return 2 * x


def rolled_kernel(x_ref, o_ref, came, gone, load_done, store_done, *, loop):
    """The same in a loop of the kernel."""

    def load(t):
        return pltpu.make_async_copy(x_ref.at[t], came.at[lax.rem(t, 2)], load_done.at[lax.rem(t, 2)])

    def store(t):
        return pltpu.make_async_copy(gone.at[lax.rem(t, 2)], o_ref.at[t], store_done.at[lax.rem(t, 2)])

    def body(t, _):
        pl.when(t + 1 < TILES)(lambda: load(t + 1).start())
        load(t).wait()
        pl.when(t >= 2)(lambda: store(t - 2).wait())
        gone[lax.rem(t, 2)] = 2 * came[lax.rem(t, 2)]
        store(t).start()
        return 0

    load(0).start()
    loop(body)
    store(TILES - 2).wait()
    store(TILES - 1).wait()


def for_loop(body):
    lax.fori_loop(0, TILES, body, 0)


def while_loop(body):
    lax.while_loop(lambda t: t < TILES, lambda t: body(t, 0) + t + 1, 0)


def scan_loop(body):
    lax.scan(lambda carry, t: (body(t, carry), None), 0, jnp.arange(TILES))


def rolled(loop):
    def kernel(*refs):
        rolled_kernel(*refs, loop=loop)

    return streaming(kernel)


def counted(flaw):
    """Which slot is next is kept in scalar memory."""

    def kernel(x_ref, o_ref, came, gone, load_done, store_done, count):
        if flaw != "not_started":
            count[0] = 0
        for t in range(TILES):
            k = count[0] if flaw == "not_wrapped" else lax.rem(count[0], 2)
            copies = (
                pltpu.make_async_copy(x_ref.at[t], came.at[k], load_done.at[0]),
                pltpu.make_async_copy(gone.at[k], o_ref.at[t], store_done.at[0]),
            )
            copies[0].start()
            copies[0].wait()
            gone[k] = 2 * came[k]
            copies[1].start()
            copies[1].wait()
            count[0] = count[0] + 1

    return streaming(kernel, pltpu.SMEM((1,), jnp.int32))


def scoped(flaw):
    """The slots exist only in a run_scoped for each tile."""

    def kernel(x_ref, o_ref, came, gone, load_done, store_done):
        def tile(t):
            def body(buffer, done):
                load = pltpu.make_async_copy(x_ref.at[t], buffer, done)
                load.start()
                load.wait()
                buffer[...] = 2 * buffer[...]
                store = pltpu.make_async_copy(buffer, o_ref.at[t], store_done.at[0])
                store.start()
                if flaw is None:
                    store.wait()

            pl.run_scoped(body, pltpu.VMEM(BLOCK, F32), DMA)
            if flaw == "waited_outside":
                pltpu.make_async_copy(gone.at[0], o_ref.at[t], store_done.at[0]).wait()

        pl.loop(0, TILES)(tile)

    return streaming(kernel)


def signalled_kernel(x_ref, o_ref, came, gone, load_done, store_done, ready):
    """A device may signal and wait on a semaphore of its own."""
    for t in range(TILES):
        copy = pltpu.make_async_copy(x_ref.at[t], o_ref.at[t], load_done.at[0])
        copy.start()
        pl.semaphore_signal(ready, 2)
        pl.semaphore_wait(ready, 1)
        copy.wait()
        pl.semaphore_wait(ready, 1)
    came[0] = gone[0]


def cleared_by_dma_kernel(x_ref, o_ref, came, gone, load_done, store_done):
    """The result is cleared by one DMA while another fills it."""
    came[0] = jnp.zeros(BLOCK)
    clear = pltpu.make_async_copy(came.at[0], o_ref.at[0], store_done.at[0])
    clear.start()
    fill = pltpu.make_async_copy(x_ref, o_ref, load_done.at[0])
    fill.start()
    clear.wait()
    fill.wait()
    gone[0] = came[0]


CASES = (
    right("stream", stream(None), "two slots, two semaphores each way", expect=doubled, **SMALL),
    *flawed("stream", stream, SYNCHRONISATION, **SMALL),
    *flawed("stream", stream, VALUES, expect=doubled, **SMALL),
    *(
        right(f"stream_{loop.__name__}", rolled(loop), "the same in a loop", expect=doubled, **SMALL)
        for loop in (for_loop, while_loop, scan_loop)
    ),
    right("stream_counted", counted(None), "an index out of scalar memory", expect=doubled, **SMALL),
    wrong("stream_counted_not_wrapped", counted("not_wrapped"), "the third slot", "RS431", **SMALL),
    undecided("stream_counted_not_started", counted("not_started"), "the count starts anywhere", **SMALL),
    right("stream_scoped", scoped(None), "all is waited for within the scope", expect=doubled, **SMALL),
    wrong(
        "stream_scoped_waited_outside", scoped("waited_outside"), "the scope ends while it is read", "RS403", **SMALL
    ),
    right(
        "stream_signalled", streaming(signalled_kernel, COUNTER), "two given, two taken", expect=lambda x: x, **SMALL
    ),
    wrong("stream_cleared_by_dma", streaming(cleared_by_dma_kernel), "two DMAs into one place", "RS401", **SMALL),
)
