"""Sub-batches: one iteration as several rounds of forward and backward over parts of the batch (moDNN, section 5.1.2).

A split graph renumbers kernels and blocks, so this transform comes before all others.

A round runs forward and backward of one sub-batch. Where the sub-batch does not divide the batch, a smaller round of
its own kernels and blocks follows; then the optimizer runs once. Gradients of weights are summed over the rounds: each
kernel that begins such a sum adds to the result of earlier rounds at no cost (cuBLAS and cuDNN can), so these
blocks stay in memory as the weights do. Inputs and labels are initialized again in each round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simgpu.errors import InputError
from simgpu.graph.taskgraph import Round, TaskGraph
from simgpu.graph.tdfg import HOST_INPUTS, Tdfg
from simgpu.trace.model import RELEASED_AT_END, AlgorithmChoice, Block, Kernel, Phase, SavedTensor, Trace


@dataclass(frozen=True, slots=True)
class Split:
    """Run the iteration in sub-batches of `batch` samples: see `split`."""

    batch: int

    def apply(self, graph: TaskGraph) -> TaskGraph:
        """The graph of the same iteration in rounds."""
        return split(graph, self.batch)


def split(graph: TaskGraph, batch: int) -> TaskGraph:
    """The same iteration in sub-batches of `batch` samples, the last of which may be smaller.

    Kernels and blocks of the smaller last round are called ``<id>@<samples>``. Costs of encoding are unknown for
    a split graph. Raises `InputError` for a sub-batch that does not fit the batch, for a trace that cannot be rescaled
    to another batch and, if the batch is partitioned, for one whose optimizer does not come last.

    >>> from simgpu.trace.chain import chain
    >>> trace = chain([50, 70], [100, 140], [100, 200])
    >>> graph = TaskGraph.of(replace(trace, info=replace(trace.info, batch=5)))
    >>> parts = split(graph, 2)
    >>> parts.rounds
    (Round(first=0, stop=4, repeat=2), Round(first=4, stop=8, repeat=1))
    >>> parts.durations, parts.blocks[-1].id
    ((20, 28, 56, 40, 10, 14, 28, 20), 'g1@1')
    """
    samples = graph.trace.info.batch
    if not 1 <= batch <= samples:
        raise InputError.single("", "sub-batch", f"{batch} is no part of a batch of {samples}", f"give 1 to {samples}")
    end = end_of_backward(graph, partitioned=batch < samples)
    count, rest = divmod(samples, batch)
    full = graph.at_batch(batch)
    # Always resident: weights, their gradients, and what else is needed from round to round or by the optimizer.
    lasting = frozenset(full.blocks[b].id for b in Tdfg.of(full).resident)
    parts = [(_with_sums(round_of(full, end, lasting, ""), full, lasting), count)]
    if rest:
        last = graph.at_batch(rest)
        parts.append((_with_sums(round_of(last, end, lasting, f"@{rest}"), last, lasting), 1))
    return joined(graph, full, parts, lasting)


@dataclass(frozen=True, slots=True)
class RoundPart:
    """The kernels of one round, the blocks that live only in it, its saved tensors, its parts of the graph's arrays."""

    kernels: tuple[Kernel, ...]
    blocks: tuple[Block, ...]
    algorithms: tuple[AlgorithmChoice, ...]
    copy_sizes: tuple[int, ...]
    saved: tuple[SavedTensor, ...]


def end_of_backward(graph: TaskGraph, *, partitioned: bool) -> int:
    """Position of the first kernel of the optimizer; without partitioning and an optimizer at the end, the end."""
    phases = [kernel.phase for kernel in graph.kernels]
    end = phases.index(Phase.OPTIMIZER) if Phase.OPTIMIZER in phases else len(phases)
    if any(phase is not Phase.OPTIMIZER for phase in phases[end:]):
        if not partitioned:
            return len(phases)
        what = f"kernel '{graph.kernels[end].id}' of the optimizer runs before backward has ended"
        remedy = "a batch can be split where the optimizer comes last"
        raise InputError.single(graph.trace.name or graph.trace.info.model, "kernels.phase", what, remedy)
    return end


def round_of(graph: TaskGraph, end: int, lasting: frozenset[str], suffix: str) -> RoundPart:
    """The first `end` kernels as a round of their own; ids of what is not lasting get the suffix."""
    new = {block.id: block.id if block.id in lasting else block.id + suffix for block in graph.blocks}
    kernels = tuple(
        replace(
            kernel,
            id=kernel.id + suffix,
            reads=tuple(new[b] for b in kernel.reads),
            writes=tuple(new[b] for b in kernel.writes),
            start_ns=None,
        )
        for kernel in graph.kernels[:end]
    )
    last = kernels[-1].id if kernels else None
    names = {kernel.id for kernel in graph.kernels[:end]}
    own = [b for b, uses in enumerate(graph.uses) if graph.blocks[b].id not in lasting and uses and uses[0] < end]
    blocks = [_passing(graph, b, new, names, suffix, last) for b in own]
    algorithms = [replace(choice, kernel=choice.kernel + suffix) for choice in graph.trace.algorithms]
    return RoundPart(
        kernels,
        tuple(blocks),
        tuple(choice for choice in algorithms if choice.kernel.removesuffix(suffix) in names),
        tuple(graph.copy_sizes[b] for b in own),
        tuple(_saved(each, new, names, suffix, last) for each in graph.trace.saved),
    )


def _saved(tensor: SavedTensor, new: Mapping[str, str], names: set[str], suffix: str, last: str | None) -> SavedTensor:
    """A saved tensor of a round; autograd has freed it by the round's end."""

    def named(kernel: str | None) -> str | None:
        return kernel if kernel is None else kernel + suffix if kernel in names else last

    return replace(
        tensor,
        block=new[tensor.block],
        packed_after=named(tensor.packed_after),
        unpacked_before=named(tensor.unpacked_before),
        released_after=RELEASED_AT_END if tensor.released_after == RELEASED_AT_END else named(tensor.released_after),
        unused_after=named(tensor.unused_after),
        freed_after=named(tensor.freed_after),
    )


def _with_sums(part: RoundPart, graph: TaskGraph, lasting: frozenset[str]) -> RoundPart:
    """The round whose kernels add to the gradients of earlier rounds."""
    summed = {block.id for block in graph.blocks if block.id in lasting and not block.persistent}
    begun: set[str] = set()
    kernels = []
    for kernel in part.kernels:
        sums = [b for b in dict.fromkeys(kernel.writes) if b in summed]
        more = tuple(b for b in sums if b not in begun and b not in kernel.reads)
        begun.update(sums)
        kernels.append(replace(kernel, reads=(*kernel.reads, *more)))
    return replace(part, kernels=tuple(kernels))


def _passing(graph: TaskGraph, b: int, new: Mapping[str, str], names: set[str], suffix: str, last: str | None) -> Block:
    """A block of a round: released with the round's last kernel where the framework held it longer.

    What the host initializes for each sub-batch is released after its last use.
    """
    block = graph.blocks[b]
    if block.kind in HOST_INPUTS and block.persistent:
        release: str | None = graph.kernels[graph.uses[b][-1]].id + suffix
    elif block.release is None:
        release = None
    else:
        release = block.release + suffix if block.release in names else last
    born = None if block.host_write is None else block.host_write + suffix
    return replace(block, id=new[block.id], release=release, host_write=born)


def _outside_rounds(graph: TaskGraph, b: int, lasts: bool) -> Block:
    """A block that belongs to no round: it lasts through all of them, or only the optimizer uses it."""
    block = graph.blocks[b]
    if lasts:
        return replace(block, persistent=True, host_write=None, release=RELEASED_AT_END)
    if block.host_write is not None and graph.uses[b]:
        # What the host initializes in a round, but only the optimizer uses, is initialized for the optimizer.
        return replace(block, host_write=graph.kernels[graph.uses[b][0]].id)
    is_input = block.kind in HOST_INPUTS and block.persistent and graph.uses[b]
    return replace(block, release=graph.kernels[graph.uses[b][-1]].id) if is_input else block


def joined(
    original: TaskGraph, full: TaskGraph, parts: Sequence[tuple[RoundPart, int]], lasting: frozenset[str]
) -> TaskGraph:
    """The graph of all rounds and the optimizer.

    parts: each round, and how often it repeats. lasting: ids of the blocks that stay resident through all rounds.
    """
    rounds = [part for part, _ in parts]
    in_round = {kernel.id for kernel in rounds[0].kernels}
    update = tuple(kernel for kernel in full.kernels if kernel.id not in in_round)
    of_round = {block.id for block in rounds[0].blocks}
    others = [b for b, block in enumerate(full.blocks) if block.id not in of_round]
    outside = [_outside_rounds(full, b, full.blocks[b].id in lasting) for b in others]
    trace = Trace(
        original.trace.info,
        (*(kernel for part in rounds for kernel in part.kernels), *update),
        (*outside, *(block for part in rounds for block in part.blocks)),
        (
            *(choice for part in rounds for choice in part.algorithms),
            *(choice for choice in full.trace.algorithms if choice.kernel not in in_round),
        ),
        saved=tuple(_saved_in_order(rounds)),
        name=original.trace.name,
    )
    spans: list[Round] = []
    for kernels, count in (*((part.kernels, count) for part, count in parts), (update, 1)):
        first = spans[-1].stop if spans else 0
        if kernels:
            spans.append(Round(first, first + len(kernels), count))
    copied = (*(full.copy_sizes[b] for b in others), *(size for part in rounds for size in part.copy_sizes))
    result = replace(TaskGraph.of(trace), copy_sizes=copied, rounds=tuple(spans), exchanged=original.exchanged)
    return result if full.compression is None else full.compression.apply(result)


def _saved_in_order(rounds: Sequence[RoundPart]) -> Iterator[SavedTensor]:
    """The saved tensors of all rounds; those saved before a round's first kernel are saved after the round before."""
    before: str | None = None
    for part in rounds:
        for tensor in part.saved:
            yield replace(tensor, packed_after=before) if tensor.packed_after is None else tensor
        before = part.kernels[-1].id if part.kernels else before
