"""Memory lower bounds of an iteration, and its memory without offloading (moDNN, TPDS 2019).

The paper bounds the graph without its weight updates (BP3). Here they are tasks like the others, because an optimizer's
temporary results need memory too, and a single kernel may update all weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.split import split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Role, TaskAlgorithm, Tdfg
from simgpu.trace.model import BlockKind


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """An amount of memory, and its composition.

    bytes: with padding. kernel: position of the limiting task, None where no task limits it. shares: its bytes by kind
    of block, largest first, including the workspace; kinds without bytes are omitted.
    """

    bytes: int
    kernel: int | None
    shares: Mapping[BlockKind, int]


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """The memory of an iteration without offloading, and its lower bounds.

    all_at_once: moDNN's ideal memory, at the iteration's own batch. bound: equation 7. offloaded: the same where always
    resident blocks may be offloaded too, and without_updates: that for the paper's tasks only, without BP3. The last
    three are for `batch` samples at a time: 1, or the full batch where the iteration cannot be rescaled, for the reason
    in `whole_batch_reason`. graph: the iteration at that batch, whose kernels the bounds name.
    """

    all_at_once: MemoryBound
    bound: MemoryBound
    offloaded: MemoryBound
    without_updates: MemoryBound
    batch: int
    graph: TaskGraph
    whole_batch_reason: str = ""


def task_bytes(tdfg: Tdfg, k: int, algorithm: TaskAlgorithm) -> int:
    """Equation 6: bytes that task k needs with this algorithm, in addition to what is always resident.

    >>> from simgpu.trace.chain import chain
    >>> tdfg = Tdfg.of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200])))
    >>> [task_bytes(tdfg, k, tdfg.smallest(k)) for k in range(4)]
    [300, 200, 200, 100]
    """
    return tdfg.bytes_of(tdfg.data(k)) + algorithm.workspace


def lower_bound(tdfg: Tdfg) -> MemoryBound:
    """Equation 7 at the graph's own batch: what is always resident plus the largest need of a task.

    Every task runs with its smallest workspace.

    >>> from simgpu.trace.chain import chain
    >>> bound = lower_bound(Tdfg.of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200]))))
    >>> bound.bytes, bound.kernel, {kind.value: size for kind, size in bound.shares.items()}
    (300, 0, {'activation': 200, 'input': 100})
    """
    k = max(range(len(tdfg.kinds)), key=lambda k: task_bytes(tdfg, k, tdfg.smallest(k)))
    return _bound(tdfg, k, (*tdfg.resident, *tdfg.data(k)), tdfg.smallest(k).workspace)


def lower_bound_offloaded(tdfg: Tdfg, *, updates: bool = True) -> MemoryBound:
    """The lower bound where weights and other resident blocks can be offloaded too (end of section 5.1.1).

    updates: whether BP3 counts. Without it, as in the published graph, weights may be updated one at a time, and a
    graph that consists of updates needs no bytes.
    """
    tasks = range(len(tdfg.kinds)) if updates else tdfg.tasks
    needs = {k: tdfg.bytes_of(_touched(tdfg, k)) + tdfg.smallest(k).workspace for k in tasks}
    if not needs:
        return _bound(tdfg, None, (), 0)
    k = max(needs, key=lambda k: needs[k])
    return _bound(tdfg, k, _touched(tdfg, k), tdfg.smallest(k).workspace)


def all_at_once(tdfg: Tdfg) -> MemoryBound:
    """moDNN's ideal memory (section 7): all tensors at once, and the largest workspace of the fastest algorithms.

    It is more than the peak of the policy `ideal`, whose tensors are freed as the recording frees them. kernel: the
    task of that workspace, None where no task has any.

    >>> from simgpu.trace.chain import chain
    >>> all_at_once(Tdfg.of(TaskGraph.of(chain([5, 7], [10, 14], [100, 200])))).bytes
    300
    """
    data = [b for b, role in enumerate(tdfg.roles) if role is not Role.WORKSPACE and _exists(tdfg.graph, b)]
    k = max(range(len(tdfg.kinds)), key=lambda k: tdfg.fastest(k).workspace)
    workspace = tdfg.fastest(k).workspace
    return _bound(tdfg, k if workspace else None, data, workspace)


def memory_bounds(graph: TaskGraph, alignment: int = 1) -> MemoryBounds:
    """All bounds of an iteration; the lower bounds are for one sample at a time where the batch can be partitioned.

    alignment: the size of each block is rounded up to a multiple of this number of bytes.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([50, 70], [100, 140], [100, 200])
    >>> bounds = memory_bounds(TaskGraph.of(replace(trace, info=replace(trace.info, batch=5))))
    >>> bounds.all_at_once.bytes, bounds.bound.bytes, bounds.batch
    (300, 60, 1)
    """
    one, why = graph, ""
    try:
        split(graph, 1)
        one = graph.at_batch(1)
    except InputError as error:
        why = first_reason(error)
    full_batch = Tdfg.of(graph, alignment)
    tdfg = full_batch if one is graph else Tdfg.of(one, alignment)
    return MemoryBounds(
        all_at_once(full_batch),
        lower_bound(tdfg),
        lower_bound_offloaded(tdfg),
        lower_bound_offloaded(tdfg, updates=False),
        one.trace.info.batch,
        one,
        why,
    )


def first_reason(error: InputError) -> str:
    """Why an iteration cannot be rescaled to another batch, in one line."""
    return str(replace(error.problems[0], remedy=""))


def check_bound(graph: TaskGraph, budget: int, alignment: int = 1) -> None:
    """Raise `OutOfMemoryError` naming the task where `budget` bytes are below the bound at the graph's own batch."""
    tdfg = Tdfg.of(graph, alignment)
    bound = lower_bound(tdfg)
    if bound.kernel is None or bound.bytes <= budget:
        return
    k = bound.kernel
    kernel = graph.kernels[k]
    held = [(graph.blocks[b].id, tdfg.sizes[b]) for b in (*tdfg.resident, *tdfg.data(k))]
    if workspace := tdfg.smallest(k).workspace:
        held.append((f"workspace of {kernel.id}", workspace))
    holders = tuple(sorted((each for each in held if each[1]), key=lambda each: (-each[1], each[0])))
    waiting = f"kernel {kernel.id} ({kernel.op}) with all persistent blocks"
    raise OutOfMemoryError(waiting, "device", bound.bytes, budget, budget, budget, 0, holders, kernel.id)


def _touched(tdfg: Tdfg, k: int) -> tuple[int, ...]:
    """All blocks of a task without its workspace, including resident ones."""
    graph = tdfg.graph
    return tuple(b for b in dict.fromkeys((*graph.reads[k], *graph.writes[k])) if tdfg.roles[b] is not Role.WORKSPACE)


def _exists(graph: TaskGraph, b: int) -> bool:
    return bool(graph.uses[b]) or graph.births[b] is not None


def _bound(tdfg: Tdfg, k: int | None, blocks: Iterable[int], workspace: int) -> MemoryBound:
    shares: Counter[BlockKind] = Counter()
    for b in blocks:
        shares[tdfg.graph.blocks[b].kind] += tdfg.sizes[b]
    shares[BlockKind.WORKSPACE] += workspace
    ordered = sorted(((kind, size) for kind, size in shares.items() if size), key=lambda each: (-each[1], each[0]))
    return MemoryBound(sum(shares.values()), k, dict(ordered))
