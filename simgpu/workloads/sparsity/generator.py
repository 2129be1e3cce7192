"""Modelled sparsity of a trace's feature maps, by epoch.

ReLUs produce zeros; the model propagates them through the other operators of the forward pass:

* A ReLU's result follows a curve of the network's profile. The first ReLU has its own curve; ReLUs after convolutions
  interpolate between the shallow and the deep curve by depth; ReLUs after linear layers have another curve; a profile
  may have curves for single layers.
* Max and average pooling return zero only if the entire window is zero, so their result is denser than their input:
  sparsity s becomes s^(w^(1 - c)) for w input values per result. At clustering c = 0 the w values are independent; at
  c = 1 a window is either all zero or has no zeros. w is the kernel's operations per result; if not recorded, the ratio
  of input and result size, which is too small for overlapping windows.
* Dropout adds zeros, up to cDMA's maximum of 93% (section IV-B). A concatenation has the mean of its parts, weighted by
  size. Copies and local response normalization keep the sparsity of their input.
* All other operators (convolutions, other normalizations, sums) count as dense and get no row.

Sparsities are rounded to six digits, because the last bits of powers depend on the platform's math library; a value
close to a rounding boundary may still differ.

Sources: cDMA (Rhu et al., HPCA 2018) section IV for the shape of curves and the effect of pooling; CSWAP (Chen et al.,
CLUSTER 2021) sections II-B and V-B for VGG-16. Curves span the requested epochs.

A profile belongs to the paper that trained the networks: cDMA's VGG-16 is not CSWAP's, whose ReLU4 becomes ever
sparser. VGG-16 follows CSWAP where nothing else is asked for, other networks cDMA. Each profile is a checked file with
the source of each number. Imports pydantic, so import it lazily.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simgpu.errors import InputError, did_you_mean
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, SparsitySample, Trace
from simgpu.trace.operators import OpClass, op_class

_DIGITS = 6
_RELU = re.compile(r"(^|[^a-z])(relu|relu6|threshold)_?([^a-z_]|$)")
_KEEPS_ZEROS = re.compile(r"clone|copy|contiguous|permute|transpose|flatten|reshape|local_?response|(^|[^a-z])lrn")
_JOINS = re.compile(r"(^|[^a-z])(cat|concat|concatenate)_?([^a-z]|$)")


def with_sparsity(trace: Trace, epochs: int, profile: str | SparsityProfile | None = None) -> Trace:
    """The trace with modelled sparsity for epochs 0 .. epochs - 1, which replaces existing rows; its notes state this.

    profile: name of a shipped profile, or a profile; by default that of the trace's model, else the general one.
    Raises `InputError` for an unknown profile, fewer than one epoch, or a trace without a ReLU.

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
    name, result = (chosen, load_profile(chosen)) if isinstance(chosen, str) else ("its own", chosen)
    flow = _Flow.of(trace, result)
    if not flow.relus:
        remedy = "only networks with ReLU have sparse feature maps (cDMA section III)"
        raise InputError.single(trace.name or "trace", "kernels", "the forward pass has no ReLU", remedy)
    rows: defaultdict[str, list[SparsitySample]] = defaultdict(list)
    for epoch in range(epochs):
        for block, share in flow.at(epoch / max(1, epochs - 1)).items():
            rows[block].append(SparsitySample(block, epoch, round(share, _DIGITS)))
    description = f"Sparsity is modelled (profile {name}, {epochs} epochs)."
    modelled = trace.info.modelled if trace.info.origin is Origin.MODELLED else "sparsity"
    info = replace(trace.info, notes=f"{trace.info.notes} {description}".strip(), modelled=modelled)
    ordered = [sample for block in trace.blocks for sample in rows[block.id]]
    return replace(trace, info=info, sparsity=tuple(ordered))


def mean_sparsity(trace: Trace) -> float:
    """Mean sparsity of all blocks with a sparsity, weighted by bytes, over all epochs (cDMA section IV).

    >>> from simgpu import load_trace
    >>> 0 < mean_sparsity(load_trace("vgg11-cifar-cpu")) < 1
    True
    """
    table = trace.block_by_id
    total = sum(table[sample.block].bytes for sample in trace.sparsity)
    return sum(sample.sparsity * table[sample.block].bytes for sample in trace.sparsity) / total


@dataclass(frozen=True)
class _Flow:
    """Propagates zeros through the forward pass.

    relus: by kernel position, the ReLU's layer, whether it follows a linear layer, and its rank among the ReLUs that
    follow convolutions.
    """

    trace: Trace
    profile: SparsityProfile
    table: dict[str, Block]
    relus: dict[int, tuple[str, bool, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, profile: SparsityProfile) -> _Flow:
        """Finds the ReLUs and the layers that they follow."""
        flow = cls(trace, profile, dict(trace.block_by_id))
        producer: dict[str, OpClass] = {}
        convolutions = 0
        for k, kernel in enumerate(trace.kernels):
            if kernel.phase is not Phase.FORWARD:
                continue
            own = op_class(kernel.op)
            source = next((producer[name] for name in kernel.reads if name in producer), OpClass.OTHER)
            layer_class = own if own in (OpClass.CONVOLUTION, OpClass.LINEAR) else source
            producer.update(dict.fromkeys(kernel.writes, layer_class))
            if _is_relu(kernel):
                is_linear = layer_class is OpClass.LINEAR
                flow.relus[k] = (kernel.layer or "", is_linear, convolutions)
                convolutions += not is_linear
        return flow

    def at(self, share: float) -> dict[str, float]:
        """Sparsity of every block that has zeros at the end of forward, after this fraction of training."""
        result: dict[str, float] = {}
        for k, kernel in enumerate(self.trace.kernels):
            if kernel.phase is not Phase.FORWARD:
                continue
            maps = [name for name in kernel.writes if self.table[name].kind is BlockKind.ACTIVATION]
            sparsity = self._after(k, kernel, maps[0], result, share) if maps else None
            for name in maps:
                result.pop(name, None)
            if sparsity is not None:
                result[maps[0]] = sparsity
        return result

    def _after(self, k: int, kernel: Kernel, result: str, sparse: dict[str, float], share: float) -> float | None:
        """Sparsity of a kernel's result; None if it is dense. sparse: sparsity of earlier blocks."""
        if k in self.relus:
            return self._curve(*self.relus[k], share)
        sources = [name for name in kernel.reads if name in sparse]
        if _JOINS.search(kernel.op):
            parts = [self.table[name].bytes for name in kernel.reads]
            zeros = sum(self.table[name].bytes * sparse[name] for name in sources)
            return zeros / sum(parts) if sources else None
        if not sources:
            return None
        before = sparse[sources[0]]
        kernel_class = op_class(kernel.op)
        if kernel_class is OpClass.POOLING:
            window = _window(kernel, self.table[sources[0]], self.table[result])
            return float(before ** (window ** (1 - self.profile.pool_clustering)))
        if kernel_class is OpClass.DROPOUT:
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
    """Input values per result of a pooling: its operations per result if recorded, else the ratio of sizes."""
    if kernel.flops and result.shape:
        return max(1.0, kernel.flops / prod(result.shape))
    return max(1.0, source.bytes / max(1, result.bytes))


def _is_relu(kernel: Kernel) -> bool:
    return _RELU.search(kernel.op.lower()) is not None


SCHEMA = "simgpu.sparsity/1"
FOLDER = Path(__file__).with_name("profiles")

#: The profile of networks without their own.
GENERAL = "cdma"

#: Largest modelled sparsity: the maximum that cDMA (section IV-B) reports.
EMPTIEST = 0.93

Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


class SparsityCurve(FileModel):
    """Sparsity over training: from `start` to an extreme `turn` at the fraction `turn_at`, then to `end`.

    In both parts the change is fast first and slower later, like activation density in cDMA (section IV-B, figure 7). A
    `turn` above both ends gives a U-shaped density.

    >>> curve = SparsityCurve(start=0.5, turn=0.8, turn_at=0.25, end=0.6)
    >>> [round(curve.at(share), 3) for share in (0, 0.125, 0.25, 0.5, 1)]
    [0.5, 0.725, 0.8, 0.689, 0.6]
    """

    start: Share
    turn: Share
    turn_at: Share
    end: Share

    def at(self, share: float) -> float:
        """Sparsity after this fraction of training, from 0 to 1."""
        if share < self.turn_at:
            return self.start + (self.turn - self.start) * _fast_then_slow(share / self.turn_at)
        if self.turn_at == 1:
            return self.turn
        return self.turn + (self.end - self.turn) * _fast_then_slow((share - self.turn_at) / (1 - self.turn_at))

    def deepened(self, factor: float) -> SparsityCurve:
        """The curve with the distances of turn and end from the start scaled by `factor`, within 0 and `EMPTIEST`."""
        turn, end = (
            max(0.0, min(EMPTIEST, self.start + factor * (value - self.start))) for value in (self.turn, self.end)
        )
        return SparsityCurve(start=self.start, turn=turn, turn_at=self.turn_at, end=end)


def _fast_then_slow(x: float) -> float:
    return 1 - (1 - x) ** 2


class SparsityProfile(FileModel):
    """Parameters of a network's sparsity; `simgpu.workloads.sparsity.generator` describes their use."""

    schema_: Literal["simgpu.sparsity/1"] = Field(alias="schema")
    networks: tuple[Text, ...] = Field(strict=False, description="models that it applies to, as named in the model zoo")
    first: SparsityCurve = Field(description="curve of the first ReLU")
    shallow: SparsityCurve = Field(description="curve of the second ReLU; later ones interpolate to deep by depth")
    deep: SparsityCurve = Field(description="curve of the last ReLU that follows a convolution")
    linear: SparsityCurve = Field(description="curve of ReLUs that follow a linear layer")
    depths: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="by model: factor that scales shallow and deep around their starts; fitted to a network-wide mean",
    )
    layers: dict[str, SparsityCurve] = Field(default_factory=dict, description="curves of single ReLUs, by layer name")
    pool_clustering: Share = Field(description="clustering of zeros; 0: independent, 1: windows have all zeros or none")
    dropout: Share = Field(default=0.5, description="fraction of values that a dropout sets to zero")
    sources: dict[str, Text]


@cache
def load_profile(name: str, folder: Path = FOLDER) -> SparsityProfile:
    """A shipped profile by its name. Raises `InputError` for an unknown name or an invalid file.

    >>> load_profile("cswap").first.at(0.5)
    0.5
    """
    path = folder / f"{name}.yaml"
    if not path.exists():
        raise InputError.single("sparsity", "profile", f"unknown profile '{name}'", did_you_mean(name, profile_names()))
    document = read_yaml_mapping(path, SCHEMA)
    return validate(SparsityProfile, document.values, lambda place: (document.file, document.place(place)))


def profile_for(model: str) -> str:
    """Name of the profile that lists a model, else of the general one.

    >>> profile_for("vgg16"), profile_for("a model of one's own")
    ('cswap', 'cdma')
    """
    return next((name for name in profile_names() if model in load_profile(name).networks), GENERAL)


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles.

    >>> profile_names()
    ('cdma', 'cswap')
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
