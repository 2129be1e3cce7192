"""Signals that end the program, raised as exceptions so that incomplete outputs are removed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from simgpu.errors import Terminated

#: The exit code of a program that a signal ended is this plus the signal's number.
ENDED_BY_SIGNAL = 128
#: Signals sent by `kill`, batch systems and closing terminals. Not available on every system.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


#: Seconds after which a dropped Ctrl-C is raised again.
_RETRY_S = 0.01

_interrupted = threading.Event()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles Ctrl-C like Python, and records it."""
    _interrupted.set()
    raise KeyboardInterrupt


def insist() -> None:
    """Raises KeyboardInterrupt again if a Ctrl-C was dropped.

    Some compiled code drops exceptions that Python raises within it.
    """
    if _interrupted.is_set() and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def _interrupt_again() -> None:
    """Sends SIGINT again if the command is still running."""
    if _interrupted.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt, and other terminating signals raise SystemExit.

    Ignored signals (``nohup``, background jobs of scripts) and signals with other handlers are not changed. Has no
    effect outside the main thread, because Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own_pid = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own_pid:  # a forked process has nothing to clean up
            os._exit(ENDED_BY_SIGNAL + number)
        raise Terminated(ENDED_BY_SIGNAL + number)

    previous_hook = sys.unraisablehook

    def raise_again(unraisable: sys.UnraisableHookArgs) -> None:
        # Python drops exceptions raised in finalizers; the interrupt is then sent again a little later.
        if isinstance(unraisable.exc_value, KeyboardInterrupt) and _interrupted.is_set():
            threading.Timer(_RETRY_S, _interrupt_again).start()
        else:
            previous_hook(unraisable)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    _interrupted.clear()
    try:
        if before[signal.SIGINT] not in (signal.SIG_IGN, None):
            signal.signal(signal.SIGINT, interrupt)
            sys.unraisablehook = raise_again
        for number in _ENDING:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # handlers not set from Python cannot be restored
                signal.signal(number, handler)
        sys.unraisablehook = previous_hook
        _interrupted.clear()
