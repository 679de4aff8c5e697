"""The process in which the tests of this folder run: reads requests, calls test functions, writes what failed.

Run as a script by `conftest.py`. Interpreting kernels on 16 devices takes a pool of threads that jax sizes at its
start; importing ringsched sees to that.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path

DEVICES = 16


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything prints is no answer
    warnings.simplefilter("error")
    import ringsched  # noqa: F401  before jax starts

    folder = Path(__file__).parent
    sys.path[:0] = [str(folder), str(folder.parent)]
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    answers.write(b".")  # ready: from here on the time is the tests' own
    answers.flush()
    while True:
        try:
            path, name, arguments, deadline = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        faulthandler.dump_traceback_later(deadline, exit=False)
        pickle.dump(_call(Path(path), name, arguments), answers)
        faulthandler.cancel_dump_traceback_later()
        answers.flush()


def _call(path: Path, name: str, arguments: dict[str, object]) -> str | None:
    """What went wrong, None: nothing."""
    from jax.experimental.pallas import tpu as pltpu

    try:
        getattr(importlib.import_module(path.stem), name)(devices=None, **arguments)
    except BaseException:
        pltpu.reset_tpu_interpret_mode_state()
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    main()
