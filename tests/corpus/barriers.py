"""What can be wrong with the barrier of a ring, whatever follows it."""

from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import tell

FLAWS = {
    "without_barrier": ("RS402", "the next device may not have entered"),
    "barrier_reversed": ("RS524", "each hears of the device that writes to it, not of the one that it writes to"),
    "barrier_with_oneself": ("RS524", "each signals itself"),
    "barrier_not_waited_for": ("RS402 RS502", "the signal is given, and nobody takes it"),
    "barrier_starves": ("RS501", "two signals are waited for, and one comes"),
    "barrier_doubled": ("RS402 RS502", "the spare signal of one call opens the next call too soon"),
    "barrier_after_start": ("RS402", "the first block goes out before the barrier"),
    "barrier_skipped_by_one": ("RS501", "the last device waits for the first one, which does not signal"),
    "barrier_doubled_by_one": ("RS504", "the first device signals twice, so the last one has a signal left"),
}


def admit(flaw: str | None, i: Any, left: Any, onward: Any) -> None:
    """Each device signals the one that writes to it, and waits for the one that it writes to; or one of the flaws."""
    if flaw == "without_barrier":
        return
    barrier = pltpu.get_barrier_semaphore()
    units = 2 if flaw == "barrier_doubled" else 1
    to = {"barrier_reversed": onward, "barrier_with_oneself": i}.get(flaw or "", left)
    if flaw == "barrier_skipped_by_one":
        pl.when(i != 0)(lambda: tell(barrier, to))
    else:
        tell(barrier, to, units)
    if flaw == "barrier_doubled_by_one":
        pl.when(i == 0)(lambda: tell(barrier, to))
    if flaw != "barrier_not_waited_for":
        pl.semaphore_wait(barrier, 2 if flaw == "barrier_starves" else 1)
