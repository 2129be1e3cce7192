"""``simgpu`` and ``python -m simgpu``: the command line."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130


def main() -> None:
    """Runs the command line and ends the program.

    While modules load, and while Python puts itself away, there is nothing that an interrupt would have to clean up:
    it ends the program on the spot, without a traceback from the middle of an import.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
    from simgpu.cli import main as command_line

    command_line(prog_name="simgpu")


if __name__ == "__main__":
    main()
