"""Threads for the TPU interpreter: one for each device and one more, of a pool that jax sizes from NPROC at its start.

With fewer the interpreter waits for itself for ever. Importing ringsched sets NPROC where jax has not made its
devices yet.
"""

from __future__ import annotations

import os
import sys

ENOUGH = 64


def cpus() -> int:
    """The CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def jax_has_started() -> bool:
    """Whether jax has made its devices: from then on their number, and that of the threads, is fixed."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "config"):
        return False
    devices = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError:
        return True
    return False


def provide() -> None:
    """Ask for enough threads, where that still has an effect and the user has not."""
    if "NPROC" not in os.environ and cpus() < ENOUGH and not jax_has_started():
        os.environ["NPROC"] = str(ENOUGH)
