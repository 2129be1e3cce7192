"""Numbered points of work in processes of this machine, or in this one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from simgpu.errors import InputError

Found = TypeVar("Found")
Opened = TypeVar("Opened")
Opened_co = TypeVar("Opened_co", covariant=True)


class Pointed(Protocol[Opened_co]):
    """What has points; it travels to each process, and is opened there once."""

    def points(self) -> Opened_co:
        """The points, to be run by their number."""


#: What a point whose process died gives: its number, and what is told of it.
Died = Callable[[int, str], Found]

#: Points given out for each process: one that runs and one that follows.
AHEAD = 2
_DIED = "the process that ran it died: the system may have ended it for lack of memory"


def in_this_process(
    whole: Pointed[Opened], points: Iterable[int], work: Callable[[Opened, int], Found]
) -> Generator[Found, None, None]:
    """Runs the points one after the other."""
    opened = whole.points()
    for point in points:
        yield work(opened, point)


def in_processes(
    whole: Pointed[Opened],
    points: Iterable[int],
    jobs: int,
    work: Callable[[Opened, int], Found],
    died: Died[Found],
) -> Generator[Found, None, None]:
    """Runs the points in so many processes, and gives each as it finishes; few are under way at any time.

    When a process dies, all others of its pool are lost with it. Then the points that were under way run alone, one
    after the other: of one that dies again, this is what is told.
    """
    remaining = iter(points)
    pool = _Pool(whole, jobs, work)
    try:
        running: dict[Future[Found], int] = {}
        while True:
            suspects = []
            for point in islice(remaining, AHEAD * jobs - len(running)):
                if (future := pool.run(point)) is None:
                    suspects.append(point)
                else:
                    running[future] = point
            if not running and not suspects:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                found, point = _outcome(future), running.pop(future)
                if found is None:
                    suspects.append(point)
                else:
                    yield found
            if suspects:
                wait(running)
                for future, point in running.items():
                    found = _outcome(future)
                    if found is None:
                        suspects.append(point)
                    else:
                        yield found
                running.clear()
                pool.end()
                yield from _one_by_one(whole, sorted(suspects), work, died)
                pool = _Pool(whole, jobs, work)
    finally:
        pool.end()


def _one_by_one(
    whole: Pointed[Opened], points: Iterable[int], work: Callable[[Opened, int], Found], died: Died[Found]
) -> Generator[Found, None, None]:
    pool = _Pool(whole, 1, work)
    try:
        for point in points:
            future = pool.run(point)
            found = None if future is None else _outcome(future)
            if found is None:
                pool.end()
                pool = _Pool(whole, 1, work)
            yield died(point, _DIED) if found is None else found
    finally:
        pool.end()


def _outcome(future: Future[Found]) -> Found | None:
    """What a point gave, None where its process died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None


class _Pool(Generic[Found]):
    """Processes that end when they are told to, or when this one ends in any way."""

    def __init__(self, whole: Pointed[Opened], jobs: int, work: Callable[[Opened, int], Found]) -> None:
        context = get_context("spawn")
        # Nothing is ever sent: that the end which is held here closes is what the processes wait for.
        lifeline, self._held = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin, initargs=(lifeline, whole, work)
        )
        try:
            with _interrupts_later(), _without_the_script():
                ready = self._executor.submit(_ready)
            ready.result()
        except BaseException as error:
            self.end()
            if not isinstance(error, BrokenProcessPool):
                raise
            what = "cannot be started: a new process ends at once; the system may lack memory"
            remedy = "run it with jobs=1, in this process"
            raise InputError.single("", "processes", what, remedy) from error

    def run(self, point: int) -> Future[Found] | None:
        """Has a point run; None where the pool has lost a process."""
        try:
            with _interrupts_later(), _without_the_script():
                return self._executor.submit(_run, point)
        except BrokenProcessPool:
            return None

    def end(self) -> None:
        """Ends the processes, whatever they are doing."""
        self._held.close()
        self._executor.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until the block is over, and never reaches a process that begins in it.

    A terminal sends it to all processes; this one ends the others, which may be in the middle of an import.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_the_script() -> Iterator[None]:
    """A process that begins in the block does not import the script that is run here, which would run it once more.

    Nothing that points are made of stands in it, so whoever calls this needs no `if __name__ == "__main__":`.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


_points: Any
_work: Callable[[Any, int], Any]


def _begin(lifeline: Connection, whole: Pointed[Opened], work: Callable[[Opened, int], Found]) -> None:
    """Makes a new process ready for points."""
    global _points, _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also where a process does not begin with it blocked
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _points, _work = whole.points(), work


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _ready() -> None:
    """Shows that a process has started."""


def _run(point: int) -> Any:
    return _work(_points, point)
