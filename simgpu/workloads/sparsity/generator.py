"""Modelled sparsity of a trace's feature maps, by epoch.

Zeros come from ReLU; what other operators make of them is followed through the forward pass:

* A ReLU's result follows a curve of the network's profile: the first ReLU its own, those after convolutions one
  between the shallow and the deep curve by their depth, those after linear layers another, single layers their own.
* Max and average pooling give a zero only where the whole window is zero, so their result is denser than their
  input: sparsity s becomes s^(w^(1 - c)) for w input values a result, from w independent values at clustering
  c = 0 to a window that is all zero or not at all at c = 1.
  w is the kernel's operations for each result; where they were not recorded it is the ratio of both sizes, which is
  too small for overlapping windows.
* Dropout adds its own zeros, up to the 93% that cDMA (section IV-B) saw at most; a concatenation has the mean of its
  parts, weighted by size; copies and local response normalization keep the zeros they are given.
* Everything else (convolutions, other normalizations, sums) is taken as dense and gets no row.

Shares are floating-point numbers, and powers come from the platform's mathematical library, whose last bits may differ
between platforms; they are rounded to six digits, so that such a difference does not show but in the rare value that
lies on the edge between two.

Sources: cDMA (Rhu et al., HPCA 2018) section IV for the shape of curves and what pooling does; CSWAP (Chen et al.,
CLUSTER 2021) sections II-B and V-B for VGG-16. Curves run from the first to the last epoch asked for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import prod

from simgpu.errors import InputError
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, SparsitySample, Trace
from simgpu.trace.operators import OpClass, op_class
from simgpu.workloads.sparsity.profile import EMPTIEST, Profile, load_profile, profile_for

_DIGITS = 6
_RELU = re.compile(r"(^|[^a-z])(relu|relu6|threshold)_?([^a-z_]|$)")
_KEEPS_ZEROS = re.compile(r"clone|copy|contiguous|permute|transpose|flatten|reshape|local_?response|(^|[^a-z])lrn")
_JOINS = re.compile(r"(^|[^a-z])(cat|concat|concatenate)_?([^a-z]|$)")


def with_sparsity(trace: Trace, epochs: int, profile: str | Profile | None = None) -> Trace:
    """The trace with modelled sparsity for epochs 0 .. epochs - 1 in place of any it had; its notes say so.

    profile: name of a shipped profile, or one of your own; by default that of the trace's model, or the general one.
    Raises `InputError`
    for an unknown profile, fewer than one epoch, or a trace without a ReLU.

    >>> from simgpu import load_trace
    >>> vgg = with_sparsity(load_trace("vgg11-cifar-cpu"), epochs=3)
    >>> [sample.sparsity for sample in vgg.sparsity if sample.block == vgg.sparsity[0].block]
    [0.5, 0.5, 0.5]
    """
    if type(epochs) is not int or epochs < 1:
        raise InputError.single(
            trace.name or "trace", "epochs", f"{epochs!r} is not a number of epochs", "give 1 or more"
        )
    chosen = profile or profile_for(trace.info.model)
    name, found = (chosen, load_profile(chosen)) if isinstance(chosen, str) else ("its own", chosen)
    flow = _Flow.of(trace, found)
    if not flow.relus:
        remedy = "only networks with ReLU have sparse feature maps (cDMA section III)"
        raise InputError.single(trace.name or "trace", "kernels", "there is no ReLU in forward", remedy)
    rows: defaultdict[str, list[SparsitySample]] = defaultdict(list)
    for epoch in range(epochs):
        for block, share in flow.at(epoch / max(1, epochs - 1)).items():
            rows[block].append(SparsitySample(block, epoch, round(share, _DIGITS)))
    told = f"Sparsity is modelled (profile {name}, {epochs} epochs)."
    modelled = trace.info.modelled if trace.info.origin is Origin.MODELLED else "sparsity"
    info = replace(trace.info, notes=f"{trace.info.notes} {told}".strip(), modelled=modelled)
    ordered = [sample for block in trace.blocks for sample in rows[block.id]]
    return replace(trace, info=info, sparsity=tuple(ordered))


def mean_sparsity(trace: Trace) -> float:
    """Share of zeros in all blocks that have one, weighted by their bytes, mean over the epochs (cDMA section IV).

    >>> from simgpu import load_trace
    >>> 0 < mean_sparsity(load_trace("vgg11-cifar-cpu")) < 1
    True
    """
    table = trace.block_by_id
    total = sum(table[sample.block].bytes for sample in trace.sparsity)
    return sum(sample.sparsity * table[sample.block].bytes for sample in trace.sparsity) / total


@dataclass(frozen=True)
class _Flow:
    """The forward pass as far as zeros go: its kernels, and which curve each ReLU follows.

    relus: by kernel position, the layer's name, whether it follows a linear layer, and its rank among the ReLUs that
    follow convolutions.
    """

    trace: Trace
    profile: Profile
    table: dict[str, Block]
    relus: dict[int, tuple[str, bool, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, profile: Profile) -> _Flow:
        """Find the ReLUs and what they follow."""
        flow = cls(trace, profile, dict(trace.block_by_id))
        maker: dict[str, OpClass] = {}
        convolutions = 0
        for k, kernel in enumerate(trace.kernels):
            if kernel.phase is not Phase.FORWARD:
                continue
            sort = op_class(kernel.op)
            source = next((maker[name] for name in kernel.reads if name in maker), OpClass.OTHER)
            made = sort if sort in (OpClass.CONVOLUTION, OpClass.LINEAR) else source
            maker.update(dict.fromkeys(kernel.writes, made))
            if _is_relu(kernel):
                is_linear = made is OpClass.LINEAR
                flow.relus[k] = (kernel.layer or "", is_linear, convolutions)
                convolutions += not is_linear
        return flow

    def at(self, share: float) -> dict[str, float]:
        """Sparsity of every block that has zeros at the end of forward, after this share of training."""
        found: dict[str, float] = {}
        for k, kernel in enumerate(self.trace.kernels):
            if kernel.phase is not Phase.FORWARD:
                continue
            maps = [name for name in kernel.writes if self.table[name].kind is BlockKind.FEATURE_MAP]
            sparsity = self._after(k, kernel, maps[0], found, share) if maps else None
            for name in maps:
                found.pop(name, None)
            if sparsity is not None:
                found[maps[0]] = sparsity
        return found

    def _after(self, k: int, kernel: Kernel, result: str, found: dict[str, float], share: float) -> float | None:
        """Sparsity of a kernel's result, None where it is dense."""
        if k in self.relus:
            return self._curve(*self.relus[k], share)
        sources = [name for name in kernel.reads if name in found]
        if _JOINS.search(kernel.op):
            parts = [self.table[name].bytes for name in kernel.reads]
            zeros = sum(self.table[name].bytes * found[name] for name in sources)
            return zeros / sum(parts) if sources else None
        if not sources:
            return None
        before = found[sources[0]]
        sort = op_class(kernel.op)
        if sort is OpClass.POOLING:
            window = _window(kernel, self.table[sources[0]], self.table[result])
            return float(before ** (window ** (1 - self.profile.pool_clustering)))
        if sort is OpClass.DROPOUT:
            return min(EMPTIEST, 1 - (1 - before) * (1 - self.profile.dropout))
        return before if _KEEPS_ZEROS.search(kernel.op) else None

    def _curve(self, layer: str, is_linear: bool, rank: int, share: float) -> float:
        profile, factor = self.profile, self.profile.depths.get(self.trace.info.model, 1.0)
        if layer in profile.layers:
            return profile.layers[layer].at(share)
        if is_linear:
            return profile.linear.at(share)
        if rank == 0:
            return profile.first.at(share)
        last = max(1, max(rank for _, linear, rank in self.relus.values() if not linear) - 1)
        depth = (rank - 1) / last
        shallow, deep = (curve.deepened(factor).at(share) for curve in (profile.shallow, profile.deep))
        return (1 - depth) * shallow + depth * deep


def _window(kernel: Kernel, source: Block, result: Block) -> float:
    """Input values for each result of a pool: its operations for each where known, else by the sizes of both."""
    if kernel.flops and result.shape:
        return max(1.0, kernel.flops / prod(result.shape))
    return max(1.0, source.bytes / max(1, result.bytes))


def _is_relu(kernel: Kernel) -> bool:
    return _RELU.search(kernel.op.lower()) is not None
