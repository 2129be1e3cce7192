"""A program of one GPU of several that train with equal weights: gradients are added up in buckets during backward.

`in_buckets` changes a program that was written for one GPU. Gradients fill a bucket in the order in which backward
completes them in the last micro-batch; when it is full, its collective runs on the stream of collectives, in the order
of buckets. Compute waits for all of them before the optimizer.

* Each GPU updates all weights (PyTorch's DistributedDataParallel): an all-reduce; then the sums are copied from the
  buckets into the gradients.
* Each updates a part (the distributed optimizer of Megatron-LM, ZeRO-1): a reduce-scatter within the bucket, which
  replaces the gradients; after the optimizer, an all-gather of the weights for each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from simgpu.graph.collectives import WithCollectives
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.graph.updates import Update
from simgpu.hardware.collectives import Collective
from simgpu.program.collectives import Code, CollectiveWriter, Position, check_leaves_shared
from simgpu.program.instructions import Await, Launch, Program, Release, Signal
from simgpu.program.shards import ExchangeCosts, Shards
from simgpu.program.weight_groups import WeightGroups, require_one_segment
from simgpu.trace.model import Block, BlockKind, Phase


@dataclass(frozen=True)
class Capacity:
    """When a bucket is full: it has at least this many bytes or, if `elements`, numbers. first: of the first one."""

    first: int
    others: int
    elements: bool = False

    def of(self, gradient: Block) -> int:
        """What a gradient counts; of unknown shape, single precision."""
        if not self.elements:
            return gradient.bytes
        return prod(gradient.shape) if gradient.shape is not None else gradient.bytes // 4


def in_buckets(
    program: Program, graph: TaskGraph, costs: ExchangeCosts, capacity: Capacity, *, shards: bool
) -> Program:
    """The program of a GPU that exchanges gradients in buckets.

    graph: the one the program was written for, without its transforms. shards: whether each GPU updates a part of the
    weights and has the optimizer state of these alone. Raises `InputError` as `Shards.of` does, for a program that
    moves weights, gradients or optimizer state itself, that has addresses or acquires no memory, and for micro-batches
    that a policy has divided the batch into.
    """
    require_one_segment(program, "of which only the last one would exchange gradients")
    last = transformed(graph, program.transforms)
    parts = Shards.of(last, costs.group.ranks, rows=False)
    lasting = {b for update in parts.updates for b in (update.weight, *update.state)}
    check_leaves_shared(program, last, lasting | {update.gradient for update in parts.updates}, lasting)
    return _Writer(program, last, parts, costs, capacity).program_with(shards=shards)


class _Writer:
    """Writes the program. groups: positions in its code. ready: where each bucket has all its gradients; bucket_of: the
    block that replaces each gradient for the optimizer; waits: code in front of it."""

    def __init__(
        self, program: Program, graph: TaskGraph, parts: Shards, costs: ExchangeCosts, capacity: Capacity
    ) -> None:
        self.graph, self.parts, self.costs = graph, parts, costs
        self.writer = CollectiveWriter(program, graph)
        self.groups = WeightGroups.of(program, graph, {}, [update.weight for update in parts.updates], range(parts.end))
        used = {u.gradient: self.groups.last_use(u.gradient, graph) for u in parts.updates}
        self.buckets = list(_full(_in_order(parts.updates, graph, used), graph, capacity))
        ready = (max(used[update.gradient][0] for update in bucket) for bucket in self.buckets)
        self.ready = list(accumulate(ready, max))
        self.bucket_of: dict[int, int] = {}
        self.waits: Code = []

    def program_with(self, *, shards: bool) -> Program:
        """The changed program."""
        writer, parts = self.writer, self.parts
        for n, bucket in enumerate(self.buckets):
            self._exchange(n, [update.gradient for update in bucket], shards)
        writer.before[self.groups.before(self._optimizer)] += self.waits
        if not shards:
            return writer.written(WithCollectives((), ()), without=(), released=(), ending=[])
        ending: Code = [Signal(writer.event("updated"))]
        writer.launch(Position(len(writer.code)), [Await(writer.event("updated"))])
        for n, bucket in enumerate(self.buckets):
            self._gather(n, [update.weight for update in bucket])
        ending.append(Await(writer.event("gathered", len(self.buckets) - 1)))
        durations = parts.durations(self.costs.elementwise[1])
        how = WithCollectives((), (), parts.of_optimizer, tuple(self.bucket_of.items()), durations)
        return writer.written(how, without=(), released=frozenset(self.bucket_of), ending=ending)

    def _exchange(self, n: int, gradients: Sequence[int], shards: bool) -> None:
        """Fill a bucket, and add up those of all GPUs."""
        writer, sizes, ranks = self.writer, self.graph.sizes, self.parts.ranks
        label, at, phase = f"bucket {n + 1}", Position(self.groups.after(self.ready[n]), behind=True), Phase.BACKWARD
        size = sum(sizes[g] for g in gradients)
        size = -(-size // ranks) * ranks if shards else size
        bucket = writer.block(label, size, BlockKind.WEIGHT_GRADIENT, lasts=True)
        copy_ns = sum(self.costs.copy_ns(sizes[g]) for g in gradients)
        fill = writer.kernel(at, "copy_", f"to {label}", phase, copy_ns, gradients, (bucket,))
        filled, done = writer.event("filled", n), writer.event("done", n)
        writer.after[at.instruction] += [fill, *([Release(tuple(gradients))] if shards else []), Signal(filled)]
        kind = Collective.REDUCE_SCATTER if shards else Collective.ALL_REDUCE
        ns = self.costs.collective_ns(kind, size)
        exchange = writer.kernel(at, kind, label, phase, ns, (bucket,), (bucket,))
        writer.launch(at, [Await(filled), exchange, Signal(done)])
        self.waits.append(Await(done))
        if shards:
            self.bucket_of.update(dict.fromkeys(gradients, bucket))
        else:
            read = writer.kernel(
                Position(self._optimizer), "copy_", f"from {label}", phase, copy_ns, (bucket,), gradients
            )
            self.waits.append(read)

    @property
    def _optimizer(self) -> int:
        """The first launch of the optimizer."""
        end, code = self.parts.end, self.writer.code
        return next(at for at, i in enumerate(code) if isinstance(i, Launch) and i.kernel >= end)

    def _gather(self, n: int, weights: Sequence[int]) -> None:
        """The new weights of a bucket, of which each GPU has updated a part."""
        writer, end = self.writer, Position(len(self.writer.code))
        ns = self.costs.collective_ns(Collective.ALL_GATHER, sum(self.graph.sizes[w] for w in weights))
        kernel = writer.kernel(end, Collective.ALL_GATHER, f"bucket {n + 1}", Phase.OPTIMIZER, ns, weights, weights)
        writer.launch(end, [kernel, Signal(writer.event("gathered", n))])


def _in_order(updates: Sequence[Update], graph: TaskGraph, used: Mapping[int, tuple[int, int]]) -> list[Update]:
    """Updates in the order in which backward completes their gradients. used: by gradient, its last launch and kernel.

    Autograd accumulates the gradients of an operator when it has computed all, that of the last parameter first.
    """
    begun: dict[str, int] = {}
    for position, k in sorted(used.values()):
        begun.setdefault(graph.layers.name_of(k), position)
    return sorted(updates, key=lambda u: (begun[graph.layers.name_of(used[u.gradient][1])], -u.weight))


def _full(updates: Sequence[Update], graph: TaskGraph, capacity: Capacity) -> Iterator[list[Update]]:
    """Updates in the order in which their gradients are ready, in buckets; the last one may not be full."""
    bucket: list[Update] = []
    limit, has = capacity.first, 0
    for update in updates:
        bucket.append(update)
        has += capacity.of(graph.blocks[update.gradient])
        if has >= limit:
            yield bucket
            bucket, limit, has = [], capacity.others, 0
    if bucket:
        yield bucket
