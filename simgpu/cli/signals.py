"""How signals end the program: as exceptions that unwind it, so that nothing half-written stays."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from simgpu.errors import Terminated

#: A shell tells a program that a signal ended by this plus the signal's number.
ENDED_BY_SIGNAL = 128
#: What `kill`, a batch system, or a terminal that closes sends. Not there on every system.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


#: Seconds after which a Ctrl-C comes again that was dropped.
_SOON_S = 0.01

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


def _come_again() -> None:
    """Ctrl-C once more, if the command is still under way."""
    if _came.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


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
        raise Terminated(ENDED_BY_SIGNAL + number)

    dropped = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        # Where an object goes away, Python drops what is raised and goes on: then Ctrl-C comes again a little later.
        if isinstance(unraisable.exc_value, KeyboardInterrupt) and _came.is_set():
            threading.Timer(_SOON_S, _come_again).start()
        else:
            dropped(unraisable)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    _came.clear()
    try:
        if before[signal.SIGINT] not in (signal.SIG_IGN, None):
            signal.signal(signal.SIGINT, interrupt)
            sys.unraisablehook = again
        for number in _ENDING:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # of a handler that was not set from Python nothing is known
                signal.signal(number, handler)
        sys.unraisablehook = dropped
        _came.clear()
