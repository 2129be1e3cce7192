"""An optimizer that updates some weights on the host: one kernel of the host for each, instead of the GPU's kernels.

The transform numbers the optimizer's kernels anew, so it comes after all others. Blocks keep their numbers.

* A kernel of the optimizer that accesses blocks of such weights alone does not run. One that updates others too, as
  PyTorch's multi-tensor kernels do, runs without these blocks, and takes time in proportion to its bytes.
* What only such kernels wrote is no longer allocated on the GPU.
* The host's kernel reads the gradient, the weight and its optimizer state, and writes the weight and its state, each
  once, as PyTorch's fused AdamW does on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import in_versions
from simgpu.graph.updates import Update, updates_of
from simgpu.trace.model import RELEASED_AT_END, Kernel, Phase, Trace


@dataclass(frozen=True, slots=True)
class UpdateOnHost:
    """Update these weights, by position, on the host: see `host_updates`.

    bandwidth: bytes per second that the host reads and writes in an update.
    """

    weights: tuple[int, ...]
    bandwidth: int

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph with these updates on the host."""
        return host_updates(graph, self).graph


@dataclass(frozen=True, slots=True)
class HostUpdates:
    """A graph with updates on the host, and where things are in it.

    kernels[k]: the new number of kernel k, None where it does not run. end: the first kernel of the optimizer, with the
    same number in both graphs. updates: of the weights that the host updates; updating: the kernels that do so, in the
    same order. gone: blocks that are not on the GPU any more.
    """

    graph: TaskGraph
    kernels: tuple[int | None, ...]
    end: int
    updates: tuple[Update, ...]
    updating: tuple[int, ...]
    gone: frozenset[int]


def host_updates(graph: TaskGraph, how: UpdateOnHost) -> HostUpdates:
    """The tasks with the updates of some weights on the host.

    Raises `InputError` as `updates_of` does.

    >>> from simgpu.trace.model import Block, BlockKind, Origin, TraceInfo
    >>> weight = Block("w", 100, BlockKind.WEIGHT, persistent=True)
    >>> state = Block("w.momentum", 100, BlockKind.OPTIMIZER_STATE, persistent=True)
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 10, ("w",), ("w.grad",))
    >>> step = Kernel("step", "sgd", Phase.OPTIMIZER, 1, ("w", "w.grad", "w.momentum"), ("w", "w.momentum"))
    >>> info = TraceInfo("one layer", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> blocks = (weight, Block("w.grad", 100, BlockKind.WEIGHT_GRADIENT), state)
    >>> graph = TaskGraph.of(Trace(info, (backward, step), blocks))
    >>> hosted = host_updates(graph, UpdateOnHost((0,), bandwidth=10**9))
    >>> [kernel.id for kernel in hosted.graph.kernels], hosted.graph.durations, sorted(hosted.gone)
    (['B', 'update:w'], (10, 500), [2])
    """
    # Planner, check and machine follow the same updates of a graph.
    last: tuple[UpdateOnHost, HostUpdates] | None = graph.kept.get(("host updates",))
    if last is None or last[0] != how:
        last = graph.kept["host updates",] = how, _Hosting(graph, how).result()
    return last[1]


@dataclass
class _Hosting:
    """of_host, of_gpu: weights, gradients and states of the updates on the host, and of all others."""

    one: TaskGraph
    how: UpdateOnHost
    new_kernels: list[Kernel] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        every, self.end = updates_of(self.one)
        # Updates are on a stream of their own: they run while the GPU does.
        self.stream = 1 + max((kernel.stream for kernel in self.one.kernels), default=0)
        chosen = set(self.how.weights)
        self.updates = tuple(update for update in every if update.weight in chosen)
        self.of_host = set(_blocks_of(self.updates))
        self.of_gpu = set(_blocks_of(update for update in every if update.weight not in chosen))

    def result(self) -> HostUpdates:
        one = self.one
        for k in range(self.end):
            self._add(one.kernels[k], one.durations[k], k)
        absent = self._of_optimizer()
        updating = tuple(self._update(update) for update in self.updates)
        numbers: list[int | None] = [None] * len(one.kernels)
        for number, origin in enumerate(self.origins):
            if origin is not None:
                numbers[origin] = number
        gone = frozenset(absent - {b for u in self.updates for b in (u.weight, u.gradient)})
        return HostUpdates(self._graph(numbers), tuple(numbers), self.end, self.updates, updating, gone)

    def _of_optimizer(self) -> set[int]:
        """Add the GPU's own kernels of the optimizer; returns the blocks that these do not access any more."""
        one, absent = self.one, set(self.of_host)
        for k in range(self.end, len(one.kernels)):
            accessed = (*one.reads[k], *one.writes[k])
            if absent.isdisjoint(accessed):
                self._add(one.kernels[k], one.durations[k], k)
            elif self.of_gpu.isdisjoint(accessed):
                absent.update(b for b in one.writes[k] if one.uses[b][0] >= self.end and not one.blocks[b].persistent)
            else:
                self._add(*self._without(k, absent), k)
        return absent

    def _without(self, k: int, absent: set[int]) -> tuple[Kernel, int]:
        """Kernel k without these blocks, and its time."""
        one, sizes = self.one, self.one.sizes
        reads, writes = ([b for b in blocks if b not in absent] for blocks in (one.reads[k], one.writes[k]))
        moved, before = (
            sum(sizes[b] for b in blocks) for blocks in ((*reads, *writes), (*one.reads[k], *one.writes[k]))
        )
        names = [tuple(one.blocks[b].id for b in blocks) for blocks in (reads, writes)]
        kernel = replace(one.kernels[k], reads=names[0], writes=names[1])
        return kernel, ceil(Fraction(one.durations[k] * moved, before)) if before else one.durations[k]

    def _update(self, update: Update) -> int:
        """Add the host's kernel for a weight."""
        blocks = self.one.blocks
        changed = (update.weight, *update.state)
        read = (update.gradient, *changed)
        moved = sum(blocks[b].bytes for b in (*read, *changed))
        reads, writes = (tuple(blocks[b].id for b in each) for each in (read, changed))
        name = f"update:{blocks[update.weight].id}"
        layer = blocks[update.weight].layer
        kernel = Kernel(name, "update", Phase.OPTIMIZER, 0, reads, writes, layer, self.stream, pure=False)
        return self._add(kernel, ceil(Fraction(moved * 10**9, self.how.bandwidth)))

    def _add(self, kernel: Kernel, duration: int, origin: int | None = None) -> int:
        self.new_kernels.append(kernel if kernel.start_ns is None else replace(kernel, start_ns=None))
        self.durations.append(duration)
        self.origins.append(origin)
        return len(self.new_kernels) - 1

    def _graph(self, numbers: list[int | None]) -> TaskGraph:
        one = self.one
        left_out = {kernel.id for kernel, number in zip(one.kernels, numbers, strict=True) if number is None}
        blocks = tuple(
            replace(
                block,
                release=RELEASED_AT_END if block.release in left_out else block.release,
                host_write=None if block.host_write in left_out else block.host_write,
            )
            if block.release in left_out or block.host_write in left_out
            else block
            for block in one.blocks
        )
        new = TaskGraph.of(Trace(one.trace.info, tuple(self.new_kernels), blocks, name=one.trace.name))
        *earlier, last = one.rounds
        changed = replace(
            new,
            durations=tuple(self.durations),
            sizes=one.sizes,
            copy_sizes=one.copy_sizes,
            costs=one.costs,
            encoded=one.encoded,
            rounds=(*earlier, last._replace(stop=len(self.new_kernels))),
            compressed=None if one.compressed is None else one.compressed.renumbered(self.origins, range(len(blocks))),
            compression=one.compression,
            plain=one.plain,
        )
        return in_versions(changed)


def _blocks_of(updates: Iterable[Update]) -> Iterator[int]:
    for weight, gradient, state in updates:
        yield from (weight, gradient, *state)
