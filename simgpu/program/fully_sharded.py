"""A program of one GPU of several that each have a part of weights, gradients and optimizer state, as with FSDP2.

`fully_sharded` changes a program that was written for one GPU with everything. Before a group of layers computes, an
all-gather fills a buffer with its weights, and a kernel copies them from there, each to memory of its own. When
backward of a group has ended, a kernel copies its gradients into a buffer, and a reduce-scatter leaves the GPU its part
of their sum. The optimizer updates the GPU's own part of the weights.

All collectives are on one stream, in the order in which the host launches them:

* In forward an all-gather may begin when the weights of the group before the last one have been copied from their
  buffer: so that of the next group runs while a group computes. The last buffer stays until the model
  has its output.
* In backward it begins when the weights of the group before have been copied, and the first one with the backward of
  the model's output; its buffer is allocated then.
* The reduce-scatter of a group comes behind the all-gather that was launched before it. Compute waits for that of the
  group before when a group's backward ends, and then drops the buffer of that one.

Each micro-batch does all of this. Behind a reduce-scatter of a later one, a kernel on the same stream adds its result
to the sum of those before, instead of the kernels that add whole gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from simgpu.errors import InputError
from simgpu.graph.collectives import WithCollectives
from simgpu.graph.passes import passes_of
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.graph.updates import updates_of
from simgpu.hardware.collectives import Collective
from simgpu.program.collectives import Code, CollectiveWriter, Position, check_leaves_shared
from simgpu.program.instructions import Acquire, Await, Launch, Program, Release, Signal
from simgpu.program.shards import ExchangeCosts, Shards
from simgpu.program.weight_groups import ROOT, WeightGroups, require_one_segment
from simgpu.trace.model import BlockKind, Phase


def fully_sharded(
    program: Program,
    graph: TaskGraph,
    group_of: Mapping[str, str],
    costs: ExchangeCosts,
    *,
    reshard_after_forward: bool,
    single: bool = False,
) -> Program:
    """The program of a GPU that has a shard of everything.

    graph: the one the program was written for, without its transforms. group_of: the group of each layer tag; all
    others are the root, whose weights stay from the first kernel to the last one of backward. reshard_after_forward:
    whether those of groups are dropped between forward and backward. single: as in `Shards`. Raises `InputError` as
    `Shards.of` does, for a program that moves what is sharded, that has addresses or acquires no memory, and for
    micro-batches that a policy has divided the batch into.
    """
    require_one_segment(program, "each of which would reduce its gradients")
    last = transformed(graph, program.transforms)
    shards = Shards.of(last, costs.group.ranks, single=single)
    lasting = (*shards.weights, *(b for update in shards.updates for b in update.state))
    gradients = {*(update.gradient for update in shards.updates), *added_gradients(last)}
    check_leaves_shared(program, last, {*lasting, *gradients}, lasting)
    passes = [range(each.first, min(each.stop, shards.end)) for each in passes_of(last)]
    groups = [WeightGroups.of(program, last, group_of, shards.weights, each) for each in passes]
    return _Writer(program, last, shards, groups, costs).program_with_shards(passes, reshard_after_forward)


class _Gather(NamedTuple):
    """A group's weights are there from `first`, a position of the code, to the launch `last`; again: for backward."""

    name: str
    first: int
    last: int
    again: bool


class _Writer:
    """Writes the program. passes: where groups compute in each micro-batch. members: the weights of each group. shard:
    the block of each weight's shard, then of each gradient's. buffers, filled, sums: of each group's all-gather and
    reduce-scatter, and its part of the gradients."""

    def __init__(
        self,
        program: Program,
        graph: TaskGraph,
        shards: Shards,
        passes: Sequence[WeightGroups],
        costs: ExchangeCosts,
    ) -> None:
        self.graph, self.shards, self.passes, self.costs = graph, shards, passes, costs
        self.writer = writer = CollectiveWriter(program, graph)
        self.members: dict[str, list[int]] = {}
        for b, name in passes[0].of_weight.items():
            self.members.setdefault(name, []).append(b)
        self.shard = {
            w: writer.block(f"{graph.blocks[w].id}:shard", shards.kept[w], BlockKind.WEIGHT, lasts=True)
            for w in shards.weights
        }
        self.buffers = {
            name: writer.block(f"gathered {_label(name)}", shards.padded(weights))
            for name, weights in self.members.items()
        }
        self.filled: dict[str, int] = {}
        self.sums: dict[str, int] = {}

    def program_with_shards(self, passes: Sequence[range], reshard: bool) -> Program:
        """The changed program."""
        writer, shards = self.writer, self.shards
        gradients = {update.gradient for update in shards.updates}
        left_out: list[int] = []
        ending: Code = []
        for number, kernels in enumerate(passes):
            added = _added_later(self.graph, kernels, gradients) if number else {}
            left_out += (k for k, _ in added.values())
            computed = {g: new for g, (_, new) in added.items()} if number else {g: g for g in gradients}
            ending = _PassWriter(self, number, kernels, computed, reshard).written(ending)
        optimizer = (at for at, i in enumerate(writer.code) if isinstance(i, Launch) and i.kernel >= shards.end)
        if (at := next(optimizer, None)) is not None:
            writer.before[self.passes[0].before(at)] += ending
            ending = []
        if self.sums:
            ending.append(Release(tuple(self.sums.values())))
        whole = tuple((w, shards.padded((w,))) for w in shards.weights)
        durations = shards.durations(self.costs.elementwise[1])
        sizes = (*whole, *shards.of_optimizer)
        how = WithCollectives(
            (), (), sizes, tuple(self.shard.items()), durations, tuple(shards.weights), tuple(left_out)
        )
        released = frozenset(self.shard).difference(shards.weights)
        return writer.written(how, without=frozenset(shards.weights), released=released, ending=ending)


class _PassWriter:
    """Writes forward and backward of one micro-batch. computed: by gradient, the block in which this one has its own.
    trained: weights that have gradients, with these blocks, by group."""

    def __init__(self, whole: _Writer, number: int, kernels: range, computed: Mapping[int, int], reshard: bool) -> None:
        self.whole, self.number, self.kernels = whole, number, kernels
        self.graph, self.shards, self.costs = whole.graph, whole.shards, whole.costs
        self.writer, self.groups = whole.writer, whole.passes[number]
        self.of = f", micro-batch {number + 1}" if number else ""
        self.trained: dict[str, list[tuple[int, int]]] = {}
        for weight, gradient, _ in self.shards.updates:
            if gradient in computed:
                name = self.groups.of_weight[weight]
                self.trained.setdefault(name, []).append((gradient, computed[gradient]))
        windows = (
            _Gather(name, self.groups.before(first), last, n == 1)
            for name in whole.members
            for n, (first, last) in enumerate(self.groups.windows(name, leave_between=reshard))
        )
        self.gathers = sorted(windows, key=lambda each: (each.first, each.name != ROOT))

    def written(self, waits: Code) -> Code:
        """Add the code of the pass, after what compute waits for before; returns what it waits for in the end."""
        writer = self.writer
        begins = self.groups.before(self.groups.whole[0]) if self.number else 0
        writer.before[begins] += [*waits, Signal(self._event("begun"))]
        for n in range(len(self.gathers)):
            self._gather(n)
        ends = {
            name: self.groups.end_of_backward(name, [new for _, new in pairs], self.graph)
            for name, pairs in self.trained.items()
        }
        before = None
        for name in sorted(ends, key=lambda name: (ends[name], name == ROOT)):
            self._reduce(self.groups.after(ends[name]), name, before)
            before = name
        return self._wait_for(before)

    def _event(self, *what: object) -> int:
        return self.writer.event(self.number, *what)

    def _gather(self, n: int) -> None:
        """The all-gather of a group, and what compute does when it is there."""
        name, first, last, again = self.gathers[n]
        writer, weights, buffer = self.writer, tuple(self.whole.members[name]), self.whole.buffers[name]
        phase, size = Phase.BACKWARD if again else Phase.FORWARD, self.shards.padded(weights)
        ns, copy_ns = self.costs.collective_ns(Collective.ALL_GATHER, size), self.costs.copy_ns(size)
        gathered, copied = self._event("gathered", n), self._event("copied", n)
        launched, begins = self._launched(n)
        shards, of = [self.whole.shard[w] for w in weights], _label(name) + self.of
        gather = writer.kernel(launched, Collective.ALL_GATHER, of, phase, ns, shards, (buffer,))
        copy = writer.kernel(Position(first), "split_with_sizes_copy", of, phase, copy_ns, (buffer,), weights)
        allocated: Code = [] if again else [Acquire((buffer,))]
        writer.launch(launched, [Await(begins), *allocated, gather, Signal(gathered)])
        others = self.gathers[n + 1 :]
        # In backward a buffer is allocated where the host launches its all-gather.
        ahead: Code = [Acquire((self.whole.buffers[others[0].name],))] if again and others else []
        is_last = not again and (not others or others[0].again)
        done: Code = [] if is_last else [Release((buffer,))]
        writer.before[first] += [Await(gathered), Acquire(weights), copy, *done, *ahead, Signal(copied)]
        writer.after[last].append(Release(weights))
        if is_last:
            writer.after[self._end_of_model].append(Release((buffer,)))

    def _launched(self, n: int) -> tuple[Position, int]:
        """Where the host launches an all-gather, and the event that it awaits."""
        name, first, _, again = self.gathers[n]
        if not again:
            return Position(first), self._event("copied", n - 2) if n > 1 else self._event("begun")
        if self.gathers[n - 1].again:
            return Position(self.gathers[n - 1].first), self._event("copied", n - 1)
        position, begins = min(first, self.groups.before(self._backward)), self._event("backward")
        self.writer.before[position][:0] = [Acquire((self.whole.buffers[name],)), Signal(begins)]
        return Position(position), begins

    @property
    def _end_of_model(self) -> int:
        """The last launch of forward that reads a weight: what follows is the loss, which no group computes."""
        return max(at for at, is_forward in self._with_weights() if is_forward)

    @property
    def _backward(self) -> int:
        """The first launch of backward that reads a weight: the gradient of the model's output is there."""
        return min(at for at, is_forward in self._with_weights() if not is_forward)

    def _with_weights(self) -> Iterator[tuple[int, bool]]:
        """Launches that read weights, and whether they are of forward."""
        graph, weights = self.graph, self.groups.of_weight
        for at, i in enumerate(self.writer.code):
            if not isinstance(i, Launch) or i.kernel not in self.kernels:
                continue
            if not weights.keys().isdisjoint(graph.reads[i.kernel]):
                yield at, graph.is_forward[i.kernel] and (not i.recompute or at < self.groups.forward_end)

    def _reduce(self, position: int, name: str, before: str | None) -> None:
        """The reduce-scatter of a group's gradients. before: the group of the last one."""
        writer, whole, shards = self.writer, self.whole, self.shards
        gradients, computed = (tuple(part) for part in zip(*self.trained[name], strict=True))
        part_size = sum(shards.kept[b] for b in gradients)
        size, label = shards.ranks * part_size, _label(name)
        if not self.number:
            whole.filled[name] = writer.block(f"to reduce {label}", size)
            whole.sums[name] = writer.block(f"gradients {label}", part_size, BlockKind.WEIGHT_GRADIENT)
        filled, total = whole.filled[name], whole.sums[name]
        part = writer.block(f"gradients {label}{self.of}", part_size) if self.number else total
        whole.shard.update(dict.fromkeys((*gradients, *computed), total))
        at, phase, of = Position(position, behind=True), Phase.BACKWARD, label + self.of
        copy_ns = self.costs.copy_ns((shards.padded(gradients) + size) // 2)  # from one format into another
        copy = writer.kernel(at, "chunk_cat", of, phase, copy_ns, computed, (filled,))
        ns = self.costs.collective_ns(Collective.REDUCE_SCATTER, size)
        reduce = writer.kernel(at, Collective.REDUCE_SCATTER, of, phase, ns, (filled,), (part,))
        ready, done = self._event("filled", name), self._event("reduced", name)
        writer.after[position] += [
            *self._wait_for(before),
            Acquire((filled,)),
            copy,
            Release(computed),
            Signal(ready),
        ]
        adding: Code = []
        if self.number:  # it reads two parts, and writes one
            add = writer.kernel(at, "add_", of, phase, self.costs.copy_ns(3 * part_size // 2), (total, part), (total,))
            adding = [add, Release((part,))]
        writer.launch(at, [Await(ready), Acquire((part,)), reduce, *adding, Signal(done)])

    def _wait_for(self, reduced: str | None) -> Code:
        """Compute waits for a reduce-scatter, and drops its buffer."""
        if reduced is None:
            return []
        return [Await(self._event("reduced", reduced)), Release((self.whole.filled[reduced],))]


def added_gradients(graph: TaskGraph) -> frozenset[int]:
    """The blocks in which later micro-batches have gradients before they are added up. Raises as `fully_sharded`."""
    updates, end = updates_of(graph)
    gradients = {update.gradient for update in updates}
    later = (range(each.first, min(each.stop, end)) for each in passes_of(graph)[1:])
    return frozenset(new for each in later for _, new in _added_later(graph, each, gradients).values())


def _added_later(graph: TaskGraph, kernels: range, gradients: Collection[int]) -> dict[int, tuple[int, int]]:
    """By gradient, the kernel of a later micro-batch that adds to it, and the block of what it adds.

    Raises `InputError` where a kernel computes in the gradient itself.
    """
    added: dict[int, tuple[int, int]] = {}
    for k in kernels:
        for g in {*graph.writes[k]}.intersection(gradients):
            new = [b for b in graph.reads[k] if b != g]
            if len(new) != 1 or graph.sizes[new[0]] != graph.sizes[g] or g not in graph.reads[k] or g in added:
                what = f"kernel '{graph.kernels[k].id}' does not just add a micro-batch's gradient to that of others"
                remedy = "model it with `simgpu zoo build --micro-batches`, or record it without micro-batches"
                raise InputError.single(graph.trace.name, "kernels", what, remedy)
            added[g] = k, new[0]
    return added


def _label(name: str) -> str:
    return name or "root"
