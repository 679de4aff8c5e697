"""`debug=True`: the kernel prints rank, step and chunk of each transfer as it starts."""

from __future__ import annotations

from typing import Any

import pytest

N = 4


def test_prints_rank_step_and_chunk(devices: Any) -> None:
    from twins import Interpreted, data, on_ranks, printed, same, twin

    gather = Interpreted("all_gather", debug=True)
    x = data((N, 8, 128))
    with printed() as text:
        y = on_ranks(lambda x: gather(x, axis_name="i"), x)
        y.block_until_ready()
    same(y, on_ranks(twin("all_gather"), x))
    want = {
        f"all_gather: rank {r}, s = {s}: chunk[{(r - s) % N}] -> rank {(r + 1) % N}" for r in range(N) for s in range(3)
    }
    lines = text().splitlines()
    assert set(lines) == want
    assert len(lines) == len(want)


@pytest.mark.slow
def test_rolled_loops_print_their_step(devices: Any) -> None:
    from twins import Interpreted, data, on_ranks, printed

    n = 10
    scatter = Interpreted("reduce_scatter", debug=True)
    with printed() as text:
        on_ranks(lambda x: scatter(x, axis_name="i"), data((n, n, 3))).block_until_ready()
    want = {
        f"reduce_scatter: rank {r}, s = {s}: chunk[{(r - s - 1) % n}] -> rank {(r + 1) % n}, to be added"
        for r in range(n)
        for s in range(n - 1)
    }
    assert set(text().splitlines()) == want
