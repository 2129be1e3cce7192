"""Runs numbered points of work in this process or in worker processes of `concurrent.futures`."""

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
#: Called with the number of finished points and the total.
Progress = Callable[[int, int], None]


class HasPoints(Protocol[Opened_co]):
    """Work that is divided into points. It is pickled to each worker process and opened there once."""

    def points(self) -> Opened_co:
        """The opened work, whose points are run by number."""


#: Submitted points per worker: one that runs and one that waits.
AHEAD = 2
_DIED = "the process that ran it died: the system may have ended it for lack of memory"


def check_jobs(jobs: object) -> None:
    """Raises `InputError` for a number of processes that is none."""
    if type(jobs) is not int or jobs < 1:
        what = f"{jobs!r} is not a whole number of at least 1"
        raise InputError.single("", "argument jobs", what, "give the number of worker processes")


def in_jobs(
    work: HasPoints[Opened],
    points: Iterable[int],
    jobs: int,
    run: Callable[[Opened, int], Outcome],
    died: Callable[[int, str], Outcome],
) -> Generator[Outcome, None, None]:
    """Run the points in worker processes, or in this process if `jobs` is 1, and yield each outcome."""
    return in_this_process(work, points, run) if jobs == 1 else in_processes(work, points, jobs, run, died)


def in_this_process(
    work: HasPoints[Opened], points: Iterable[int], run: Callable[[Opened, int], Outcome]
) -> Generator[Outcome, None, None]:
    """Run the points one after the other."""
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
    """Run the points in `jobs` worker processes and yield each outcome as it finishes. Few are submitted at a time.

    When a process dies, its pool loses all submitted points. Each of them then runs again in its own process. If that
    dies too, `died` returns the outcome for the point and the reason.
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
    """Submit points, at most `ahead` at any time, and yield each with its future as it finishes."""
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
    """Yield a function that submits a point to new worker processes. They exit with the block or with this process.

    Raises `InputError` if they cannot be started.
    """
    context = get_context("spawn")
    # Nothing is ever sent: workers exit when the parent's end of the pipe closes, even if the parent is killed.
    lifeline, parent_end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(lifeline, work, run))
    try:
        try:
            _submit(executor, _ready).result()
        except BrokenProcessPool as error:
            what = "cannot be started: a new process exits at once; the system may lack memory"
            remedy = "run it with jobs=1, in this process"
            raise InputError.single("", "processes", what, remedy) from error
        yield partial(_submit, executor, _run)
    finally:
        parent_end.close()
        executor.shutdown(cancel_futures=True)


def _submit(executor: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Submit a call. If the pool has lost a process, the future holds that error. May start a process."""
    try:
        with _interrupts_later(), _without_the_script():
            return executor.submit(function, *arguments)
    except BrokenProcessPool as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C until the block ends, and block it in processes that start in the block.

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
    """Keep processes that start in the block from importing the main script, which would run it again.

    Points need nothing from the script, so it needs no `if __name__ == "__main__":`.
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
    """Initialize a new worker process."""
    global _points, _run_point
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on systems where it is not blocked at the start
    Thread(target=_exit_with, args=(lifeline,), daemon=True).start()
    _points, _run_point = work.points(), run


def _exit_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _ready() -> None:
    """Do nothing: its completion shows that a worker process has started."""


def _run(point: int) -> Any:
    return _run_point(_points, point)
