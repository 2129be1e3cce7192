"""Runs points of a sweep on the workers of a Dask cluster. Needs distributed (extra `dask`), imported on first use."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError, Problem
from simgpu.experiments.processes import AHEAD, as_finished
from simgpu.experiments.sweep.fingerprint import differences, fingerprint
from simgpu.experiments.sweep.point import PointRows, RunPoint, died, run_point
from simgpu.version import __version__

if TYPE_CHECKING:
    from distributed import Client

    from simgpu.experiments.scenarios.sweep import Points, Sweep

_DIED = "the workers that ran it died: the system may have ended them for lack of memory"
_PATIENCE = "20s"


@dataclass(frozen=True, eq=False)
class Shared:
    """The data that every worker receives once. version, inputs, code: those of this machine."""

    sweep: Sweep
    run: RunPoint
    version: str
    inputs: dict[str, str]
    code: dict[str, Any]


def on_cluster(
    sweep: Sweep, points: Iterable[int], cluster: str | Client, run: RunPoint = run_point
) -> Generator[PointRows, None, None]:
    """Run the points on the workers of a cluster and yield each as it finishes. Few are submitted at a time.

    cluster: the address of the scheduler, or a client

    Raises `MissingExtraError` without distributed, and `InputError` if the cluster does not answer, has no workers, or
    a worker has another simgpu or other files.
    """
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise MissingExtraError("running a sweep on a cluster", "distributed", "dask") from error
    client = _client(distributed, cluster)
    try:
        shared = Shared(sweep, run, __version__, sweep.inputs(), fingerprint(sweep))
        threads = _checked(client, shared)
        executor = client.get_executor(pure=False)
        try:
            sent = client.scatter(shared, broadcast=True, hash=False)
            for point, future in as_finished(partial(executor.submit, _run, sent), points, AHEAD * threads):
                yield _outcome(future, point)
        finally:
            executor.shutdown(wait=False)
    finally:
        if client is not cluster:
            client.close()


def _client(distributed: Any, cluster: str | Client) -> Any:
    if not isinstance(cluster, str):
        return cluster
    try:
        # A client with an invalid address raises the same error, but delays the exit of the program.
        distributed.comm.resolve_address(cluster)
        return distributed.Client(cluster, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        what = f"no Dask cluster answers there: {error}"
        remedy = "give the address that its scheduler prints, such as tcp://10.0.0.1:8786"
        raise InputError.single("", f"cluster {cluster}", what, remedy) from error


def _checked(client: Any, shared: Shared) -> int:
    """The number of threads of all workers. Raises `InputError` with the workers that differ from this machine."""
    pickled = pickle.dumps(shared.sweep)

    def describe() -> tuple[str, dict[str, str], dict[str, Any]]:
        # A local function is pickled by value, so that a worker without simgpu can still answer.
        import pickle

        try:
            from simgpu.version import __version__
        except ImportError:
            return "", {}, {}
        try:
            from simgpu.experiments.sweep.fingerprint import fingerprint

            sweep = pickle.loads(pickled)
            return __version__, sweep.inputs(), fingerprint(sweep)
        except (ImportError, AttributeError):  # another version may have other modules
            return __version__, {}, {}

    answers = client.run(describe, on_error="return")
    if not answers:
        raise InputError.single("", "cluster", "has no workers", "start some: dask worker ADDRESS")
    problems = [
        problem for worker, answer in sorted(answers.items()) for problem in _differences(worker, answer, shared)
    ]
    if problems:
        raise InputError(problems)
    return sum(client.nthreads().values())


def _differences(worker: str, answer: object, shared: Shared) -> Iterator[Problem]:
    """How a worker differs from this machine. answer: its version, digests and fingerprint, or the error."""
    place = f"worker {worker}"
    if not isinstance(answer, tuple):
        yield Problem("", place, f"does not answer: {answer!r}", "look at its log")
        return
    version, inputs, code = answer
    if version != shared.version:
        what = f"has simgpu {version}, this machine has {shared.version}" if version else "cannot import simgpu"
        yield Problem("", place, what, f"install simgpu {shared.version} there")
        return
    for name, digest in shared.inputs.items():
        if (there := inputs.get(name, "missing")) != digest:
            what = f"{name} {'is missing there' if there == 'missing' else 'has other files there'}"
            yield Problem("", place, what, "give all machines the same files at the same path")
    if not code:
        yield Problem("", place, "has other modules of simgpu", "install the versions of this machine there")
    elif why := differences(shared.code, code):
        what = f"has other code or libraries: {'; '.join(f'{each}' for each in why)}"
        yield Problem("", place, what, "install the versions of this machine there, and restart the worker")


def _here(sweep: Sweep) -> tuple[str, dict[str, str], dict[str, Any]]:
    return __version__, sweep.inputs(), fingerprint(sweep)


_opened: tuple[Shared, Points] | None = None
_lock = Lock()


def _run(shared: Shared, point: int) -> PointRows:
    """Run a point on a worker, reusing loaded traces and nodes. Also checks workers that joined later."""
    global _opened
    with _lock:
        if _opened is None or _opened[0] is not shared:
            from distributed import get_worker

            problems = list(_differences(get_worker().address, _here(shared.sweep), shared))
            if problems:
                raise InputError(problems)
            _opened = shared, shared.sweep.points()
        points = _opened[1]
    return shared.run(points, point)


def _outcome(future: Future[PointRows], point: int) -> PointRows:
    """The rows of a point, or a row with an error if its workers died."""
    from distributed.scheduler import KilledWorker

    if future.cancelled() or isinstance(future.exception(), KilledWorker):
        return died(point, _DIED)
    return future.result()
