"""Points on a Dask cluster: the same rows as on this machine, made on others.

Imports distributed, the extra `dask`, when it is used.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError, Problem
from simgpu.experiments.processes import AHEAD
from simgpu.experiments.sweep.deciding import deciding, reasons
from simgpu.experiments.sweep.point import PointRows, Work, died, run_point
from simgpu.version import __version__

if TYPE_CHECKING:
    from distributed import Client

    from simgpu.experiments.scenarios.sweep import Points, Sweep

_DIED = "the workers that ran it died: the system may have ended them for lack of memory"
_PATIENCE = "20s"


@dataclass(frozen=True, eq=False)
class Shared:
    """What every worker gets once. version, inputs, decided: of simgpu, of what the sweep reads, and of code and
    libraries, as they are here."""

    sweep: Sweep
    work: Work
    version: str
    inputs: dict[str, str]
    decided: dict[str, Any]


def on_cluster(
    sweep: Sweep, points: Iterable[int], cluster: str | Client, work: Work = run_point
) -> Generator[PointRows, None, None]:
    """Runs the points on the workers of a Dask cluster, and gives each as it finishes; few are under way at any time.

    cluster: the address of its scheduler, or a client of it. Raises `MissingExtraError` without distributed, and
    `InputError` where the cluster does not answer, has no workers, or one of them has another simgpu or other files.
    """
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise MissingExtraError("running a sweep on a cluster", "distributed", "dask") from error
    client = _client(distributed, cluster)
    under_way: dict[Any, tuple[Any, int]] = {}
    try:
        shared = Shared(sweep, work, __version__, sweep.inputs(), deciding(sweep))
        threads = _checked(client, shared)
        held = client.scatter(shared, broadcast=True, hash=False)
        finished, remaining = distributed.as_completed(loop=client.loop), iter(points)

        def give(count: int) -> None:
            for point in islice(remaining, count):
                future = client.submit(_run, held, point, pure=False)
                under_way[future.key] = future, point
                finished.add(future)

        give(AHEAD * threads)
        for future in finished:
            _, point = under_way.pop(future.key)
            yield _outcome(future, point)
            future.release()
            give(1)
    finally:
        client.cancel([future for future, _ in under_way.values()], force=True)
        if client is not cluster:
            client.close()


def _client(distributed: Any, cluster: str | Client) -> Any:
    if not isinstance(cluster, str):
        return cluster
    try:
        # A client of what is no address would raise the same, but then hold up the end of the program.
        distributed.comm.resolve_address(cluster)
        return distributed.Client(cluster, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        what = f"no Dask cluster answers there: {error}"
        remedy = "give the address that its scheduler prints, such as tcp://10.0.0.1:8786"
        raise InputError.single("", f"cluster {cluster}", what, remedy) from error


def _checked(client: Any, shared: Shared) -> int:
    """The threads of all workers together, each of which has what is here; `InputError` names those that have not."""

    pickled = pickle.dumps(shared.sweep)

    def told() -> tuple[str, dict[str, str], dict[str, Any]]:
        # Defined here so that it travels as code: a worker that cannot import simgpu can still say so.
        import pickle

        try:
            from simgpu.version import __version__
        except ImportError:
            return "", {}, {}
        try:
            from simgpu.experiments.sweep.deciding import deciding

            sweep = pickle.loads(pickled)
            return __version__, sweep.inputs(), deciding(sweep)
        except (ImportError, AttributeError):  # another simgpu may have other modules
            return __version__, {}, {}

    answers = client.run(told, on_error="return")
    if not answers:
        raise InputError.single("", "cluster", "has no workers", "start some: dask worker ADDRESS")
    problems = [
        problem for worker, answer in sorted(answers.items()) for problem in _differences(worker, answer, shared)
    ]
    if problems:
        raise InputError(problems)
    return sum(client.nthreads().values())


def _differences(worker: str, answer: object, shared: Shared) -> Iterator[Problem]:
    """In what a worker differs from this machine. answer: its version, digests and code, or why it gave none."""
    place = f"worker {worker}"
    if not isinstance(answer, tuple):
        yield Problem("", place, f"gives no answer: {answer!r}", "look at its log")
        return
    version, inputs, decided = answer
    if version != shared.version:
        what = f"has simgpu {version}, here is {shared.version}" if version else "cannot import simgpu"
        yield Problem("", place, what, f"install simgpu {shared.version} there")
        return
    for name, digest in shared.inputs.items():
        if (there := inputs.get(name, "missing")) != digest:
            what = f"{name} {'is not there' if there == 'missing' else 'has other files there'}"
            yield Problem("", place, what, "give all machines the same files at the same path")
    if not decided:
        yield Problem("", place, "has other modules of simgpu", "install there what is installed here")
    elif why := reasons(shared.decided, decided):
        what = f"does not compute what is computed here: {'; '.join(f'{each}' for each in why)}"
        yield Problem("", place, what, "install there what is installed here, and start the worker again")


def _here(sweep: Sweep) -> tuple[str, dict[str, str], dict[str, Any]]:
    return __version__, sweep.inputs(), deciding(sweep)


_opened: tuple[Shared, Points] | None = None
_lock = Lock()


def _run(shared: Shared, point: int) -> PointRows:
    """On a worker: a point, with what earlier points have loaded. A worker that came late is checked here."""
    global _opened
    with _lock:
        if _opened is None or _opened[0] is not shared:
            from distributed import get_worker

            problems = list(_differences(get_worker().address, _here(shared.sweep), shared))
            if problems:
                raise InputError(problems)
            _opened = shared, shared.sweep.points()
        points = _opened[1]
    return shared.work(points, point)


def _outcome(future: Any, point: int) -> PointRows:
    """What a point gave; a row that says so where the workers died that ran it."""
    from distributed.scheduler import KilledWorker

    if future.status == "finished":
        found: PointRows = future.result()
        return found
    if future.status == "error":
        error = future.exception()
        if not isinstance(error, KilledWorker):
            raise error
    return died(point, _DIED)
