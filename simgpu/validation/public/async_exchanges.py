"""What exchanges of a layer that several GPUs share take, one after another or overlapped with products.

Without overlap each is NCCL's collective, waited for, and a copy: tokens of a sample are the second dimension, along
which DTensor gathers and scatters by a copy of the whole.

Overlapped ("async tensor parallelism") they are as in PyTorch 2.13, `_inductor/fx_passes/micro_pipeline_tp.py` (which
pairs) and `distributed/_symmetric_memory` (how they run). A pair is a gather with the products whose first factor it
is, or one product with the scatter of its result, in a compiled layer. Sums of several products, which are the
gradients of a layer's inputs, and conversions of gathered values to float8 stand between, and such exchanges stay as
they are; so does the scatter of a product that has a gather.

Of n parts of a product, each is computed when its tokens have come, or copied when it is computed: the first or the
last part overlaps with no copy (`overlapped_ns`). Copies need no multiprocessors, and go at the rate that the node
states for its links. A gather first copies the GPU's own part into a buffer; a scatter adds the parts in the end. What
other products read of a gathered tensor is copied once more into their order of tokens.

Ignored: barriers among GPUs, and that a product of n parts may be slower than a whole one, which two streams of such
parts are to avoid. The passes of the PyTorch of each measurement (December 2024, June 2025) were not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.spec import NodeSpec
from simgpu.trace.model import BlockKind, Kernel, Trace
from simgpu.workloads.compiled.fused import FUSED
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import Operation, OperationKind
from simgpu.workloads.timemodel.prices import Prices

_KINDS = {
    "_c10d_functional::all_gather_into_tensor": Collective.ALL_GATHER,
    "_c10d_functional::reduce_scatter_tensor": Collective.REDUCE_SCATTER,
}
#: The word of `PublishedRow.uses`.
ASYNC = "async tensor parallelism"
_PRODUCTS = frozenset({"aten::mm", "aten::_scaled_mm"})


def is_exchange(kernel: Kernel) -> bool:
    """Whether GPUs exchange something in an operator."""
    return kernel.op in _KINDS


def overlapped_ns(products: int, exchange: int, parts: int) -> int:
    """The time of products in parts with the copies of all parts but the GPU's own. products, exchange: ns.

    exchange: of all copies, one after another.

    >>> overlapped_ns(800, 350, 8), overlapped_ns(800, 1400, 8)  # copies overlap; copies set the time
    (800, 1500)
    """
    return max(products, -(-products // parts) + exchange)


@dataclass(frozen=True, slots=True)
class SplitTime:
    """Prices exchanges of a group. parts: its GPUs. overlapped: whether exchanges overlap with products where they can.

    Times are nanoseconds, sizes bytes of all that is gathered or scattered.
    """

    node: NodeSpec
    prices: Prices
    parts: int
    overlapped: bool

    def durations(self, trace: Trace, computed: Sequence[int]) -> list[int]:
        """The durations of all kernels; an exchange's contains those of the products that it overlaps with.

        computed: the durations of kernels that are no exchanges.
        """
        durations = list(computed)
        sizes = {block.id: block.bytes for block in trace.blocks}
        paired: set[int] = set()
        for number, (pair, is_read) in sorted(_pairs(trace).items()):
            kernel = trace.kernels[number]
            kind = _KINDS[kernel.op]
            size = sizes[(kernel.writes if kind is Collective.ALL_GATHER else kernel.reads)[0]]
            if not (self.overlapped and pair) or paired.intersection(pair):
                durations[number] = self.alone_ns(kind, size)
                continue
            products = sum(durations[each] for each in pair)
            durations[number] = self.paired_ns(kind, size, products) + (self._copy_ns(2 * size) if is_read else 0)
            paired.update(pair)
            for each in pair:
                durations[each] = 0
        return durations

    def alone_ns(self, kind: Collective, size: int) -> int:
        """A collective and the copy of the whole before or after it."""
        return collective_ns(kind, size, Group(self.parts), self.node) + self._copy_ns(2 * size)

    def paired_ns(self, kind: Collective, size: int, products: int) -> int:
        """An exchange and its products, which take `products` alone."""
        assert self.node.peers is not None
        part = size // self.parts
        copies = round((size - part) * 1e9 / self.node.peers.bandwidth)
        around = self._copy_ns(2 * part if kind is Collective.ALL_GATHER else size + part)
        return overlapped_ns(products, copies, self.parts) + around

    def _copy_ns(self, moved: int) -> int:
        """Bytes to and from device memory."""
        return self.prices.duration_ns(Operation(OperationKind.COPY, flops=0, bytes=moved, results=0))


def _pairs(trace: Trace) -> dict[int, tuple[list[int], bool]]:
    """By an exchange's place in the trace: the products of its pair, and whether others read what is gathered."""
    kernels, kinds = trace.kernels, {block.id: block.kind for block in trace.blocks}
    last: dict[str, int] = {}
    readers: dict[int, list[int]] = {}
    pairs: dict[int, tuple[list[int], bool]] = {}
    for number, kernel in enumerate(kernels):
        for block in dict.fromkeys(kernel.reads):
            if last.get(block) in readers:
                readers[last[block]].append(number)
        if kernel.op in _KINDS:
            producer = last.get(kernel.reads[0])
            is_pair = producer is not None and kernels[producer].op in _PRODUCTS and _is_compiled(kernel)
            pairs[number] = ([producer] if producer is not None and is_pair else [], False)
            if _KINDS[kernel.op] is Collective.ALL_GATHER:
                readers[number] = []
        last |= dict.fromkeys(kernel.writes, number)
    for number, users in readers.items():
        whole, is_compiled = kernels[number].writes[0], _is_compiled(kernels[number])
        products = [each for each in users if is_compiled and kernels[each].op in _PRODUCTS]
        first = [each for each in products if kernels[each].reads[0] == whole]
        pair = [each for each in first if kinds[kernels[each].writes[0]] is not BlockKind.WEIGHT_GRADIENT]
        pairs[number] = (pair, len(users) > len(pair))
    return pairs


def _is_compiled(kernel: Kernel) -> bool:
    return (kernel.layer or "").startswith("layers.")


def once(trace: Trace, graph: Callable[[Kernel], object]) -> Trace:
    """The trace without operators that repeat another of the same compiled graph and phase on the same values.

    TorchInductor's graphs have each once (`torch._functorch.compile_utils.fx_graph_cse`), such as the conversion to
    float8 of what three products read. Two operators are taken to be the same if they have the same name, read the same
    values and write as many bytes. Only those that move values or compute them one by one or row by row are compared.

    graph: as in `simgpu.workloads.compiled.fused.fused_durations`.
    """
    sizes = {block.id: block.bytes for block in trace.blocks}
    versions: dict[str, int] = {}
    first: dict[object, tuple[Kernel, int]] = {}
    instead: dict[str, str] = {}
    kept = []
    for number, kernel in enumerate(trace.kernels):
        kernel = replace(kernel, reads=tuple(instead.get(block, block) for block in kernel.reads))
        if graph(kernel) is not None and kind_of(kernel.op) in FUSED and not set(kernel.reads) & set(kernel.writes):
            values = tuple((block, versions.get(block)) for block in kernel.reads)
            key = (graph(kernel), kernel.phase, kernel.op, values, tuple(sizes[block] for block in kernel.writes))
            other, at = first.setdefault(key, (kernel, number))
            if at < number and all(versions[block] == at for block in other.writes):
                instead |= dict(zip(kernel.writes, other.writes, strict=True))
                continue
        for block in kernel.writes:
            versions[block] = number
            instead.pop(block, None)
        kept.append(kernel)
    return replace(trace, kernels=tuple(kept))
