"""The entry point: `ringsched`, and `python -m ringsched`."""

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main() -> None:
    """Runs the command line. Ctrl-C ends it quietly, from the first moment on."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))  # while modules are imported, there is nothing
    signal.signal(signal.SIGTERM, _terminated)
    from ringsched.cli import run_command

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_command(sys.argv[1:], own_process=True))


def _terminated(number: int, frame: FrameType | None) -> None:
    """Leaves nothing half written behind."""
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
