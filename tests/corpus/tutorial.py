"""The kernels of a tutorial, with the faults that such kernels come with, and cured.

The tutorial's have no barrier, one receive slot, and one receive semaphore for all steps.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COLS, DMA, ROWS, admit, call, gathered, push, right, ring, scattered, stacked, wrong

N = 4
LAYERS = 2


def swap_pairs_kernel(x_ref, o_ref, sent, received, *, barrier):
    """0 and 1 swap, and 2 and 3."""
    i = lax.axis_index("i")
    other = i + 1 - 2 * lax.rem(i, 2)
    if barrier:
        admit(other)
    copy = push(x_ref, o_ref, sent, received, other)
    copy.start()
    copy.wait_send()
    copy.wait_recv()


def swap_pairs(*, barrier):
    def kernel(*refs):
        swap_pairs_kernel(*refs, barrier=barrier)

    return call(kernel, scratch=(DMA, DMA), barrier=barrier)


def swapped(x):
    return lax.ppermute(x, "i", [(k, k + 1 - 2 * (k % 2)) for k in range(lax.axis_size("i"))])


def gather_chunks(own, chunks, sent, received):
    """The ring all-gather that the kernels below share. `received[k]` counts step k, or every step if there is one."""
    i = lax.axis_index("i")
    onward = lax.rem(i + 1, N)
    chunks[i] = own
    for s in range(N - 1):
        mine = chunks.at[lax.rem(i + N - s, N)]
        copy = push(mine, mine, sent, received.at[s % received.shape[0]], onward)
        copy.start()
        copy.wait()


def scatter_chunks(terms, store, total, slots, sent, received):
    """The ring reduce-scatter that they share. Step k uses slot and semaphore k, or the only one."""
    i = lax.axis_index("i")
    onward, count = lax.rem(i + 1, N), slots.shape[0]
    total[...] = terms[lax.rem(i + N - 1, N)]
    for s in range(N - 1):
        copy = push(total, slots.at[s % count], sent, received.at[s % count], onward)
        copy.start()
        copy.wait()
        reduced = slots[s % count] + terms[lax.rem(i + 2 * N - 2 - s, N)]
        if s < N - 2:
            total[...] = reduced
        else:
            store(reduced)


def onto(ref):
    def store(value):
        ref[...] = value

    return store


def enter():
    i = lax.axis_index("i")
    admit(lax.rem(i + N - 1, N))


def all_gather(*, steps, barrier=True):
    def kernel(x_ref, o_ref, sent, received):
        if barrier:
            enter()
        gather_chunks(x_ref[...], o_ref, sent, received)

    return call(kernel, out=(N, *BLOCK), scratch=(DMA, DMA((steps,))), barrier=barrier)


def reduce_scatter(*, steps, barrier=True):
    def kernel(x_ref, o_ref, total, slots, sent, received):
        if barrier:
            enter()
        scatter_chunks(x_ref, onto(o_ref), total, slots, sent, received)

    return call(kernel, scratch=(*sums(steps), DMA, DMA((steps,))), barrier=barrier)


def sums(steps):
    return pltpu.VMEM(BLOCK, jnp.float32), pltpu.VMEM((steps, *BLOCK), jnp.float32)


def wide(chunks):
    """[N, rows, cols] → [rows, N * cols]"""
    return jnp.concatenate([chunks[k] for k in range(N)], axis=1)


def all_gather_matmul(*, steps, barrier=True):
    """x [rows, cols] of each device, put side by side, times w [N * cols, cols]."""

    def kernel(x_ref, w_ref, o_ref, chunks, sent, received):
        if barrier:
            enter()
        gather_chunks(x_ref[...], chunks, sent, received)
        o_ref[...] = jnp.dot(wide(chunks[...]), w_ref[...], preferred_element_type=jnp.float32)

    scratch = (pltpu.VMEM((N, *BLOCK), jnp.float32), DMA, DMA((steps,)))
    return call(kernel, scratch=scratch, barrier=barrier)


def expected_all_gather_matmul(x, w):
    return jnp.dot(lax.all_gather(x, "i", axis=1, tiled=True), w)


def matmul_reduce_scatter(*, steps, barrier=True):
    """x [rows, cols] times w [cols, N * cols], summed over the devices; each keeps its columns."""

    def kernel(x_ref, w_ref, o_ref, terms, total, slots, sent, received):
        if barrier:
            enter()
        product = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)
        for k in range(N):
            terms[k] = product[:, k * COLS : (k + 1) * COLS]
        scatter_chunks(terms, onto(o_ref), total, slots, sent, received)

    scratch = (pltpu.VMEM((N, *BLOCK), jnp.float32), *sums(steps), DMA, DMA((steps,)))
    return call(kernel, scratch=scratch, barrier=barrier)


def expected_matmul_reduce_scatter(x, w):
    return lax.psum_scatter(jnp.dot(x, w), "i", scatter_dimension=1, tiled=True)


def network(*, steps, parts, barrier=True):
    """Layers: times w1, what is positive of it times w2, summed over the devices and gathered again.

    With `parts` = LAYERS, each layer has memory and semaphores of its own; with one, all use the same.
    """

    def kernel(x_ref, w1_ref, w2_ref, o_ref, terms, shard, total, slots, gathered, sent, received):
        if barrier:
            enter()
        for layer in range(LAYERS):
            x = x_ref[...] if layer == 0 else o_ref[...]
            hidden = jnp.maximum(jnp.dot(x, w1_ref[layer], preferred_element_type=jnp.float32), 0)
            product = jnp.dot(hidden, w2_ref[layer], preferred_element_type=jnp.float32)
            for k in range(N):
                terms[k] = product[:, k * COLS : (k + 1) * COLS]
            part = layer % parts
            scatter_chunks(terms, onto(shard), total, slots.at[part], sent, received.at[part, 0])
            gather_chunks(shard[...], gathered.at[part], sent, received.at[part, 1])
            o_ref[...] = wide(gathered[part])

    scratch = (
        pltpu.VMEM((N, *BLOCK), jnp.float32),
        pltpu.VMEM(BLOCK, jnp.float32),
        pltpu.VMEM(BLOCK, jnp.float32),
        pltpu.VMEM((parts, steps, *BLOCK), jnp.float32),
        pltpu.VMEM((parts, N, *BLOCK), jnp.float32),
        DMA,
        DMA((parts, 2, steps)),
    )
    return call(kernel, out=(ROWS, N * COLS), scratch=scratch, barrier=barrier)


def expected_network(x, w1, w2):
    for layer in range(LAYERS):
        x = lax.psum(jnp.dot(jnp.maximum(jnp.dot(x, w1[layer]), 0), w2[layer]), "i")
    return x


PAIRS = ring(N)
GATHER_MATMUL = {
    "args": (f"f32[{ROWS},{N * COLS}]", f"f32[{N * COLS},{COLS}]"),
    "in_specs": ("-,i", None),
    "out_specs": None,
}
SCATTER_MATMUL = {
    "args": (f"f32[{ROWS},{N * COLS}]", f"f32[{N * COLS},{N * COLS}]"),
    "in_specs": ("-,i", "i"),
    "out_specs": "-,i",
}
NETWORK = {
    "args": (f"f32[{ROWS},{N * COLS}]", f"f32[{LAYERS},{N * COLS},{N * COLS}]", f"f32[{LAYERS},{N * COLS},{N * COLS}]"),
    "in_specs": (None, "-,-,i", "-,i"),
    "out_specs": None,
}

KERNELS = (
    ("gather", all_gather, gathered, "RS405", ring(N)),
    ("scatter", reduce_scatter, scattered, "RS401", stacked(N)),
    ("gather_matmul", all_gather_matmul, expected_all_gather_matmul, "RS405", GATHER_MATMUL),
    ("matmul_scatter", matmul_reduce_scatter, expected_matmul_reduce_scatter, "RS401", SCATTER_MATMUL),
)

CASES = (
    right("tutorial_exchange", swap_pairs(barrier=True), "each waits for its partner", expect=swapped, **PAIRS),
    wrong(
        "tutorial_exchange_without_barrier",
        swap_pairs(barrier=False),
        "the partner may not have entered",
        "RS402",
        line="copy.start()",
        **PAIRS,
    ),
    *(
        right(f"tutorial_{name}", build(steps=N - 1), "a semaphore, and a slot, for each step", expect=expect, **more)
        for name, build, expect, _, more in KERNELS
    ),
    *(
        wrong(
            f"tutorial_{name}_one_for_all_steps",
            build(steps=1),
            "what is sent at a later step is taken for what was sent before",
            code,
            line="copy.start()",
            **more,
        )
        for name, build, _, code, more in KERNELS
    ),
    *(
        wrong(
            f"tutorial_{name}_without_barrier",
            build(steps=N - 1, barrier=False),
            "the next device may not have entered",
            "RS402",
            line="copy.start()",
            **more,
        )
        for name, build, _, _, more in KERNELS
    ),
    right(
        "tutorial_network",
        network(steps=N - 1, parts=LAYERS),
        "memory and semaphores for each step of each layer",
        expect=expected_network,
        **NETWORK,
    ),
    right(
        "tutorial_network_reused",
        network(steps=N - 1, parts=1),
        "nobody is through a collective before all have begun it, so the next layer can use its memory again",
        expect=expected_network,
        **NETWORK,
    ),
    wrong(
        "tutorial_network_one_for_all_steps",
        network(steps=1, parts=1),
        "inherits the faults of both collectives",
        "RS401",
        "RS405",
        line="copy.start()",
        **NETWORK,
    ),
    wrong(
        "tutorial_network_without_barrier",
        network(steps=N - 1, parts=LAYERS, barrier=False),
        "the next device may not have entered",
        "RS402",
        **NETWORK,
    ),
)
