"""Numbered points of work: in this process, or in worker processes that `concurrent.futures` manages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from types import ModuleType
from typing import Any, Protocol, TypeVar

from simgpu.errors import InputError

Outcome = TypeVar("Outcome")
Opened = TypeVar("Opened")
Opened_co = TypeVar("Opened_co", covariant=True)


class HasPoints(Protocol[Opened_co]):
    """Work that is divided into points; it is pickled to each worker process, and opened there once."""

    def points(self) -> Opened_co:
        """The points, to be run by their number."""


#: Points under way for each worker: one that runs and one that waits.
AHEAD = 2
_DIED = "the process that ran it died: the system may have ended it for lack of memory"


def in_this_process(
    work: HasPoints[Opened], points: Iterable[int], run: Callable[[Opened, int], Outcome]
) -> Generator[Outcome, None, None]:
    """Runs the points one after the other."""
    opened = work.points()
    for point in points:
        yield run(opened, point)


def in_processes(
    work: HasPoints[Opened],
    points: Iterable[int],
    jobs: int,
    run: Callable[[Opened, int], Outcome],
    died: Callable[[int, str], Outcome],
) -> Generator[Outcome, None, None]:
    """Runs the points in `jobs` worker processes and yields each outcome as it finishes; few are under way at any time.

    When one process dies, its pool loses all points under way. Each of them then runs again in a process of its own;
    `died` gives the outcome of a point, with the reason, whose process dies again.
    """
    remaining = iter(points)
    lost: list[int] = [-1]
    while lost:
        lost = []
        until_lost = iter(partial(_next_unless, lost, remaining), None)
        with _workers(work, jobs, run) as submit:
            for point, future in as_finished(submit, until_lost, AHEAD * jobs):
                if isinstance(future.exception(), BrokenProcessPool):
                    lost.append(point)
                else:
                    yield future.result()
        for point in sorted(lost):
            with _workers(work, 1, run) as submit:
                future = submit(point)
                broken = isinstance(future.exception(), BrokenProcessPool)
                yield died(point, _DIED) if broken else future.result()


def _next_unless(lost: list[int], remaining: Iterator[int]) -> int | None:
    return None if lost else next(remaining, None)


def as_finished(
    submit: Callable[[int], Future[Outcome]], points: Iterable[int], ahead: int
) -> Iterator[tuple[int, Future[Outcome]]]:
    """Submits points, at most `ahead` at any time, and yields each with its future as it finishes."""
    remaining = iter(points)
    running: dict[Future[Outcome], int] = {}
    while True:
        for point in islice(remaining, ahead - len(running)):
            running[submit(point)] = point
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=running.__getitem__):
            yield running.pop(future), future


@contextmanager
def _workers(
    work: HasPoints[Opened], jobs: int, run: Callable[[Opened, int], Outcome]
) -> Iterator[Callable[[int], Future[Outcome]]]:
    """A function that submits a point to new worker processes, which exit with the block or with this process.

    `InputError` where they cannot be started.
    """
    context = get_context("spawn")
    # Nothing is ever sent: workers exit when the parent's end of the pipe closes, even where the parent is killed.
    lifeline, parent_end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(lifeline, work, run))
    try:
        try:
            _submit(executor, _ready).result()
        except BrokenProcessPool as error:
            what = "cannot be started: a new process ends at once; the system may lack memory"
            remedy = "run it with jobs=1, in this process"
            raise InputError.single("", "processes", what, remedy) from error
        yield partial(_submit, executor, _run)
    finally:
        parent_end.close()
        executor.shutdown(cancel_futures=True)


def _submit(executor: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Submits a call; where the pool has lost a process, the future has that error. May start a process."""
    try:
        with _interrupts_later(), _without_the_script():
            return executor.submit(function, *arguments)
    except BrokenProcessPool as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until the block is over, and never reaches a process that starts in it.

    A terminal sends it to all processes; only this one handles it, and ends the others.
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
    """A process that starts in the block does not import the script that runs here, which would run it once more.

    Points need nothing from the script, so its author needs no `if __name__ == "__main__":`.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


_points: Any
_run_point: Callable[[Any, int], Any]


def _begin(lifeline: Connection, work: HasPoints[Opened], run: Callable[[Opened, int], Outcome]) -> None:
    """Prepares a new worker process."""
    global _points, _run_point
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also where a process starts without it blocked
    Thread(target=_exit_with, args=(lifeline,), daemon=True).start()
    _points, _run_point = work.points(), run


def _exit_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _ready() -> None:
    """Shows that a worker process has started."""


def _run(point: int) -> Any:
    return _run_point(_points, point)
