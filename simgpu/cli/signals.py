"""How signals end the program: as exceptions that unwind it, so that nothing half-written stays.

Lives here: which signal becomes which exception, for as long as a command runs. Does not live here: what is told then
and the exit code of Ctrl-C (`simgpu.cli.group`), or what is put away on the way out (`simgpu.whole`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: A shell tells a program that a signal ended by this plus the signal's number.
ENDED_BY_SIGNAL = 128
#: What `kill`, a batch system, or a terminal that closes sends. Not there on every system.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


_came = threading.Event()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, as Python handles it, and remembered."""
    _came.set()
    raise KeyboardInterrupt


def insist() -> None:
    """Raises KeyboardInterrupt again where Ctrl-C came and the command goes on all the same.

    Python raises it wherever the program happens to be, and some compiled code drops whatever is raised within it.
    """
    if _came.is_set() and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block Ctrl-C raises KeyboardInterrupt, and other signals that end the program SystemExit.

    What is ignored stays ignored (``nohup``, a job in a script's background), and what a caller handles stays his. Does
    nothing outside of the main thread, where Python hands no signals to.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    home = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != home:  # a process forked from this one, which has nothing to put away
            os._exit(ENDED_BY_SIGNAL + number)
        sys.exit(ENDED_BY_SIGNAL + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    try:
        if before[signal.SIGINT] not in (signal.SIG_IGN, None):
            signal.signal(signal.SIGINT, interrupt)
        for number in _ENDING:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, end)
        yield
    finally:
        _came.clear()
        for number, handler in before.items():
            if handler is not None:  # of a handler that was not set from Python nothing is known
                signal.signal(number, handler)
