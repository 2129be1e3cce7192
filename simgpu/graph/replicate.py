"""Data parallelism: the tasks of one GPU replicated to several GPUs that share the weights.

A replicated graph renumbers kernels and blocks, so this transform comes after all others.

Each GPU has kernels and blocks of its own; GPU 0 keeps the names, those of GPU g are called ``<id>.gpu<g>``. A weight
that is updated is one block, with a copy in the memory of every GPU. All GPUs run forward and backward; then their
gradients are added up and the weights updated:

* `gather`: GPU 0 adds all gradients of the other GPUs to its own, one kernel for each, and then runs the recorded
  optimizer (moDNN, section 6.1; where there is none, plain gradient descent).
* `host`: for each weight the host's cores run one kernel, which adds up its gradients and updates it (section 6.2). The
  optimizer's state is in host memory, and its recorded kernels are not run.

With `none`, nothing is exchanged: each GPU runs all kernels on blocks of its own, weights too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from math import ceil

from simgpu.graph.encodings import EncodedForm
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.graph.transforms import in_versions
from simgpu.graph.updates import Update, updates_of
from simgpu.trace.model import Block, Kernel, Phase, Trace

#: The limits of a multi-GPU result.
NOT_EXCHANGED = (
    "gradients are not exchanged, and what an all-reduce takes is not included: GPUs only share switches and the host, "
    "and wait for each other when an iteration ends"
)
NO_COLLECTIVES = (
    "gradients are exchanged as in moDNN (2019), through host memory over each GPU's host link; NCCL's collectives and "
    "links between GPUs are not simulated, so this is not the speedup of multi-GPU training with them; policies ddp "
    "and fsdp simulate one GPU with them"
)


class Exchange(StrEnum):
    """Who adds up the gradients and updates the weights: GPU 0 at the end, the host during the last sub-batch, or each
    GPU its own."""

    GATHER = "gather"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Run the tasks on several GPUs: see `replicas`.

    bandwidth: bytes per second at which gradients are read and written to add them up; overhead_ns: additional time of
    each of these kernels. by_host: encoded forms of the host's codecs, whose time grows with the number of GPUs.
    """

    gpus: int
    exchange: Exchange
    bandwidth: int
    overhead_ns: int = 0
    by_host: tuple[int, ...] = ()

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph of all GPUs."""
        return replicas(graph, self).graph


@dataclass(frozen=True, slots=True)
class Replicas:
    """A replicated graph, and the position of each GPU's kernels and blocks in it.

    kernels[g][k], blocks[g][b]: number on GPU g of one GPU's kernel k or block b; None where GPU g has none.
    updates: of one GPU's weights, in its numbers. end: its first kernel that belongs to the optimizer.
    added[u][g - 1]: the kernel by which GPU 0 adds the gradient of GPU g, none where the host does it. updating[u]: the
    kernel after which weight u is new.
    """

    graph: TaskGraph
    kernels: tuple[tuple[int | None, ...], ...]
    blocks: tuple[tuple[int | None, ...], ...]
    updates: tuple[Update, ...]
    end: int
    added: tuple[tuple[int, ...], ...]
    updating: tuple[int, ...]


def replicas(graph: TaskGraph, how: Replicate) -> Replicas:
    """The tasks of `graph` on each of several GPUs, and the exchange of gradients after them.

    Raises `InputError` where the optimizer does not come last, or where no block is known as the gradient of a weight.

    >>> from simgpu.trace.model import BlockKind, Origin, TraceInfo
    >>> weight = Block("w", 100, BlockKind.WEIGHT, persistent=True)
    >>> gradient = Block("w.grad", 100, BlockKind.WEIGHT_GRADIENT)
    >>> backward = Kernel("B", "op", Phase.BACKWARD, 10, ("w",), ("w.grad",))
    >>> step = Kernel("step", "add", Phase.OPTIMIZER, 1, ("w", "w.grad"), ("w",))
    >>> info = TraceInfo("one layer", 1, "gpu", "float32", Origin.MODELLED, "by hand")
    >>> one = TaskGraph.of(Trace(info, (backward, step), (weight, gradient)))
    >>> two = replicas(one, Replicate(2, Exchange.HOST, bandwidth=10**9)).graph
    >>> [kernel.id for kernel in two.kernels], two.durations
    (['B', 'B.gpu1', 'update:w'], (10, 10, 400))
    """
    return _Replication(graph, how).replicas()


@dataclass
class _Replication:
    one: TaskGraph
    how: Replicate
    new_kernels: list[Kernel] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def replicas(self) -> Replicas:
        """All kernels of all rounds, GPU by GPU in each, then the exchange."""
        one, gpus = self.one, self.how.gpus
        alone = self.how.exchange is Exchange.NONE
        self.updates, self.end = ((), len(one.kernels)) if alone else updates_of(one)
        self.blocks, blocks, origin, encoded = self._blocks()
        self.kernels: list[list[int | None]] = [[None] * len(one.kernels) for _ in range(gpus)]
        for part in one.rounds:
            first = len(self.new_kernels)
            for gpu in range(gpus):
                for k in range(part.first, min(part.stop, self.end)):
                    self._copy(k, gpu)
            if len(self.new_kernels) > first:
                self.rounds.append(Round(first, len(self.new_kernels), part.repeat))
        begun = len(self.new_kernels)
        added, updating = self._gather() if self.how.exchange is Exchange.GATHER else self._on_host()
        if len(self.rounds) == 1 and self.rounds[0].repeat == 1:
            self.rounds = [Round(0, len(self.new_kernels), 1)]
        elif len(self.new_kernels) > begun:
            self.rounds.append(Round(begun, len(self.new_kernels), 1))
        trace = Trace(one.trace.info, tuple(self.new_kernels), blocks, name=one.trace.name)
        graph = replace(
            TaskGraph.of(trace),
            durations=tuple(self.durations),
            sizes=tuple(one.sizes[b] for b in origin),
            copy_sizes=tuple(one.copy_sizes[b] for b in origin),
            encoded=encoded,
            rounds=tuple(self.rounds),
            compressed=None if one.compressed is None else one.compressed.renumbered(self.origins, origin),
            compression=one.compression,
            plain=one.plain,
        )
        if alone and encoded:
            graph = in_versions(graph)  # framework policies read forms of blocks
        kernels = tuple(map(tuple, self.kernels))
        return Replicas(graph, kernels, self.blocks, tuple(self.updates), self.end, added, updating)

    # --- blocks ---------------------------------------------------------------------------------------------

    def _blocks(
        self,
    ) -> tuple[
        tuple[tuple[int | None, ...], ...],
        tuple[Block, ...],
        list[int],
        dict[int, EncodedForm],
    ]:
        """Numbers per GPU, the blocks of all GPUs, the block of one GPU behind each, and encoded forms."""
        one = self.one
        shared = {update.weight for update in self.updates}
        of_optimizer = {b for b, uses in enumerate(one.uses) if uses and uses[0] >= self.end}
        on_host = self.how.exchange is Exchange.HOST
        numbers: list[list[int | None]] = [
            [None if on_host and b in of_optimizer else b for b in range(len(one.blocks))]
        ]
        origin, blocks = list(range(len(one.blocks))), list(one.blocks)
        times = {form: self._codec_times(form) for form in one.encoded}
        encoded = dict(times)
        for gpu in range(1, self.how.gpus):
            mine: list[int | None] = []
            for b, block in enumerate(one.blocks):
                if b in shared:
                    mine.append(b)
                elif b in of_optimizer:
                    mine.append(None)
                else:
                    mine.append(len(blocks))
                    blocks.append(self._renamed(block, gpu))
                    origin.append(b)
            numbers.append(mine)
            for form, form_costs in times.items():
                here, of = mine[form], mine[form_costs.block]
                if here is not None and of is not None:
                    encoded[here] = form_costs._replace(block=of)
        return tuple(map(tuple, numbers)), tuple(blocks), origin, encoded

    def _codec_times(self, form: int) -> EncodedForm:
        form_costs, times = self.one.encoded[form], self.how.gpus if form in self.how.by_host else 1
        return form_costs._replace(encode_ns=form_costs.encode_ns * times, decode_ns=form_costs.decode_ns * times)

    def _renamed(self, block: Block, gpu: int) -> Block:
        known = self.one.kernel_number
        release = _name(block.release, gpu) if block.release in known else block.release
        return replace(block, id=f"{block.id}.gpu{gpu}", release=release, host_write=_name(block.host_write, gpu))

    # --- kernels --------------------------------------------------------------------------------------------

    def _copy(self, k: int, gpu: int) -> int:
        """Kernel k as GPU `gpu` runs it."""
        kernel = self.one.kernels[k]
        if gpu:
            reads, writes = self._ids(self.one.reads[k], gpu), self._ids(self.one.writes[k], gpu)
            kernel = replace(kernel, id=f"{kernel.id}.gpu{gpu}", reads=reads, writes=writes)
        self.kernels[gpu][k] = self._add(kernel, self.one.durations[k], k)
        return len(self.new_kernels) - 1

    def _ids(self, blocks: Iterable[int], gpu: int) -> tuple[str, ...]:
        return tuple(self._id(b, gpu) for b in blocks)

    def _id(self, b: int, gpu: int) -> str:
        name = self.one.blocks[b].id
        return name if gpu == 0 or self.blocks[gpu][b] == b else f"{name}.gpu{gpu}"

    def _add(self, kernel: Kernel, duration: int, origin: int | None = None) -> int:
        self.new_kernels.append(replace(kernel, start_ns=None))
        self.durations.append(duration)
        self.origins.append(origin)
        return len(self.new_kernels) - 1

    def _accumulation(self, name: str, reads: Sequence[tuple[int, int]], writes: Sequence[int]) -> int:
        """A kernel that passes over blocks once, (block, GPU), and writes those of GPU 0."""
        moved = sum(self.one.blocks[b].bytes for b in (*(b for b, _ in reads), *writes))
        names = tuple(self._id(b, gpu) for b, gpu in reads)
        kernel = Kernel(name, "accumulate", Phase.OPTIMIZER, 0, names, self._ids(writes, 0), pure=False)
        return self._add(kernel, self.how.overhead_ns + ceil(Fraction(moved * 10**9, self.how.bandwidth)))

    # --- the exchange ---------------------------------------------------------------------------------------

    def _gather(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """GPU 0 adds up all gradients, then it updates the weights."""
        one = self.one
        updating: dict[int, int] = {}
        added = tuple(self._add_up(update.gradient) for update in self.updates)
        of_weight = {update.weight: u for u, update in enumerate(self.updates)}
        for k in range(self.end, len(one.kernels)):
            number = self._copy(k, 0)
            updating.update((of_weight[b], number) for b in one.writes[k] if b in of_weight)
        for u, update in enumerate(self.updates):
            if u not in updating:
                reads = [(update.gradient, 0), (update.weight, 0)]
                name = f"update:{one.blocks[update.weight].id}"
                updating[u] = self._accumulation(name, reads, [update.weight])
        return added, tuple(updating[u] for u in range(len(self.updates)))

    def _add_up(self, gradient: int) -> tuple[int, ...]:
        return tuple(
            self._accumulation(f"accumulate:{self._id(gradient, gpu)}", [(gradient, 0), (gradient, gpu)], [gradient])
            for gpu in range(1, self.how.gpus)
        )

    def _on_host(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """One kernel for each weight."""
        updating = []
        for update in self.updates:
            updated = (update.weight, *update.state)
            reads = [*((update.gradient, gpu) for gpu in range(self.how.gpus)), *((b, 0) for b in updated)]
            updating.append(self._accumulation(f"update:{self.one.blocks[update.weight].id}", reads, updated))
        return (), tuple(updating)


def _name(name: str | None, gpu: int) -> str | None:
    return None if name is None else f"{name}.gpu{gpu}"
