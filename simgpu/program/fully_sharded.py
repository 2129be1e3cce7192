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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from simgpu.graph.collectives import WithCollectives
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.collectives import Collective
from simgpu.program.collectives import Code, CollectiveWriter, Position, check_leaves_shared
from simgpu.program.instructions import Acquire, Await, Launch, Program, Release, Signal
from simgpu.program.shards import ExchangeCosts, Shards
from simgpu.program.weight_groups import ROOT, WeightGroups, require_one_pass
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
    micro-batches.
    """
    last = transformed(graph, program.transforms)
    shards = Shards.of(last, costs.group.ranks, single=single)
    lasting = (*shards.weights, *(b for update in shards.updates for b in update.state))
    check_leaves_shared(program, last, {*lasting, *(update.gradient for update in shards.updates)}, lasting)
    require_one_pass(program, last, "each of which would reduce its gradients")
    groups = WeightGroups.of(program, last, group_of, shards.weights, shards.end)
    return _Writer(program, last, shards, groups, costs, reshard_after_forward).program_with_shards()


class _Gather(NamedTuple):
    """A group's weights are there from `first`, a position of the code, to the launch `last`; again: for backward."""

    name: str
    first: int
    last: int
    again: bool


class _Writer:
    """Writes the program. members, trained: the weights of each group, and those that have gradients, with these.
    shard: the block of each weight's shard, then of each gradient's. buffers: of each group's all-gather."""

    def __init__(
        self,
        program: Program,
        graph: TaskGraph,
        shards: Shards,
        groups: WeightGroups,
        costs: ExchangeCosts,
        reshard: bool,
    ) -> None:
        self.graph, self.shards, self.groups, self.costs = graph, shards, groups, costs
        self.writer = writer = CollectiveWriter(program, graph)
        self.members: dict[str, list[int]] = {}
        for b, name in groups.of_weight.items():
            self.members.setdefault(name, []).append(b)
        self.trained: dict[str, dict[int, int]] = {}
        for weight, gradient, _ in shards.updates:
            self.trained.setdefault(groups.of_weight[weight], {})[weight] = gradient
        self.shard = {
            w: writer.block(f"{graph.blocks[w].id}:shard", shards.kept[w], BlockKind.WEIGHT, lasts=True)
            for w in shards.weights
        }
        self.buffers = {
            name: writer.block(f"gathered {_label(name)}", shards.padded(weights))
            for name, weights in self.members.items()
        }
        windows = (
            _Gather(name, groups.before(first), last, n == 1)
            for name in self.members
            for n, (first, last) in enumerate(groups.windows(name, leave_between=reshard))
        )
        self.gathers = sorted(windows, key=lambda each: (each.first, each.name != ROOT))
        writer.before[0].append(Signal(writer.event("begun")))

    def program_with_shards(self) -> Program:
        """The changed program."""
        writer, shards = self.writer, self.shards
        for n in range(len(self.gathers)):
            self._gather(n)
        trained = self.trained.items()
        ends = {name: self.groups.end_of_backward(name, pairs.values(), self.graph) for name, pairs in trained}
        before = None
        for name in sorted(ends, key=lambda name: (ends[name], name == ROOT)):
            before = self._reduce(self.groups.after(ends[name]), name, before)
        ending: Code = [*self._wait_for(before)]
        optimizer = (at for at, i in enumerate(writer.code) if isinstance(i, Launch) and i.kernel >= shards.end)
        if (at := next(optimizer, None)) is not None:
            writer.before[self.groups.before(at)] += ending
            ending = []
        gradients = [update.gradient for update in shards.updates]
        if sums := tuple(dict.fromkeys(self.shard[b] for b in gradients)):
            ending.append(Release(sums))
        whole = tuple((w, shards.padded((w,))) for w in shards.weights)
        durations = shards.durations(self.costs.elementwise[1])
        sizes = (*whole, *shards.of_optimizer)
        how = WithCollectives((), (), sizes, tuple(self.shard.items()), durations, tuple(shards.weights))
        return writer.written(how, without=frozenset(shards.weights), released=frozenset(gradients), ending=ending)

    def _gather(self, n: int) -> None:
        """The all-gather of a group, and what compute does when it is there."""
        name, first, last, again = self.gathers[n]
        writer, weights, buffer = self.writer, tuple(self.members[name]), self.buffers[name]
        phase, size = Phase.BACKWARD if again else Phase.FORWARD, self.shards.padded(weights)
        ns, copy_ns = self.costs.collective_ns(Collective.ALL_GATHER, size), self.costs.copy_ns(size)
        gathered, copied = writer.event("gathered", n), writer.event("copied", n)
        launched, begins = self._launched(n)
        shards = [self.shard[w] for w in weights]
        gather = writer.kernel(launched, Collective.ALL_GATHER, _label(name), phase, ns, shards, (buffer,))
        copy = writer.kernel(Position(first), "split_with_sizes_copy", _label(name), phase, copy_ns, (buffer,), weights)
        allocated: Code = [] if again else [Acquire((buffer,))]
        writer.launch(launched, [Await(begins), *allocated, gather, Signal(gathered)])
        others = self.gathers[n + 1 :]
        # In backward a buffer is allocated where the host launches its all-gather.
        ahead: Code = [Acquire((self.buffers[others[0].name],))] if again and others else []
        is_last = not again and (not others or others[0].again)
        done: Code = [] if is_last else [Release((buffer,))]
        writer.before[first] += [Await(gathered), Acquire(weights), copy, *done, *ahead, Signal(copied)]
        writer.after[last].append(Release(weights))
        if is_last:
            writer.after[self._end_of_model].append(Release((buffer,)))

    def _launched(self, n: int) -> tuple[Position, int]:
        """Where the host launches an all-gather, and the event that it awaits."""
        writer, (_, first, _, again) = self.writer, self.gathers[n]
        if not again:
            return Position(first), writer.event("copied", n - 2) if n > 1 else writer.event("begun")
        if self.gathers[n - 1].again:
            return Position(self.gathers[n - 1].first), writer.event("copied", n - 1)
        position, begins = min(first, self.groups.before(self._backward)), writer.event("backward")
        writer.before[position][:0] = [Acquire((self.buffers[self.gathers[n].name],)), Signal(begins)]
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
            if (
                isinstance(i, Launch)
                and i.kernel < self.shards.end
                and any(b in weights for b in graph.reads[i.kernel])
            ):
                yield at, graph.is_forward[i.kernel] and not i.recompute

    def _reduce(self, position: int, name: str, before: tuple[str, int] | None) -> tuple[str, int]:
        """The reduce-scatter of a group's gradients; returns the group and its buffer. before: of the last one."""
        writer, pairs = self.writer, self.trained[name]
        gradients, computed = tuple(pairs.values()), self.shards.padded(pairs.values())
        size = self.shards.ranks * sum(self.shards.kept[b] for b in gradients)
        filled = writer.block(f"to reduce {_label(name)}", size)
        part = writer.block(f"gradients {_label(name)}", size // self.shards.ranks, BlockKind.WEIGHT_GRADIENT)
        self.shard.update(dict.fromkeys(gradients, part))
        at, phase = Position(position, behind=True), Phase.BACKWARD
        copy_ns = self.costs.copy_ns((computed + size) // 2)  # read in one format, written in the other
        copy = writer.kernel(at, "chunk_cat", _label(name), phase, copy_ns, gradients, (filled,))
        ns = self.costs.collective_ns(Collective.REDUCE_SCATTER, size)
        reduce = writer.kernel(at, Collective.REDUCE_SCATTER, _label(name), phase, ns, (filled,), (part,))
        ready, done = writer.event("filled", name), writer.event("reduced", name)
        writer.after[position] += [
            *self._wait_for(before),
            Acquire((filled,)),
            copy,
            Release(gradients),
            Signal(ready),
        ]
        writer.launch(at, [Await(ready), Acquire((part,)), reduce, Signal(done)])
        return name, filled

    def _wait_for(self, reduced: tuple[str, int] | None) -> Code:
        """Compute waits for a reduce-scatter, and drops its buffer."""
        if reduced is None:
            return []
        name, buffer = reduced
        return [Await(self.writer.event("reduced", name)), Release((buffer,))]


def _label(name: str) -> str:
    return name or "root"
