"""`cswap`: compress a swapped tensor on the GPU where that pays (Chen et al., IEEE CLUSTER 2021).

Three parts, as in the paper (section IV-A, figure 4):

* `TensorProfiler`: one iteration without compression measures sizes, effective bandwidths of the link and, for each
  tensor, how much computation its copies can overlap (table II). It runs once; sparsity is read every epoch.
* `ExecutionAdvisor`: equations 1-4 for each tensor and codec, with predicted codec times (section IV-C). A tensor is
  compressed when its cost T is below T', the cost without.
* `SwappingExecutor`: vDNN's program with the chosen tensors encoded and decoded on the GPU's compute stream.

The launch setting of the codec's kernels is searched once, before training begins (section IV-D).

Where the paper is open, this implementation decides:

* The inputs of convolutions are swapped, as by its vDNN (section V). The outputs of ReLU and pooling layers among them
  are sparse; one without sparsity in the trace is not compressed.
* Encoding runs on the compute stream before the layer's kernels, decoding before those of its backward step: both are
  exposed, as in equation 2.
* Equations 3 and 4 count the non-zeros only. So does the advisor for ZVC (`sizes: equations`); with `sizes: format`,
  and for other codecs, it uses the real size of the format. The machine always charges the real size.
* The advisor chooses the cheapest codec by the equations among those whose compressed size is known.
* Tensors offloaded with the same layer share its computation in proportion to their bytes; the equations assume one
  tensor per layer. Only for the equations is CSWAP never slower than vDNN or static compression.
* Uncompressed copies cost what the node charges: less with a compressing DMA engine.
* Where the uncompressed iteration does not fit, the profile uses the recorded times and the node's link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.samples import draw_samples
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.tensors import synthetic_tensors
from simgpu.compression.codecs.gpu.timemodel import CodecTimeModel
from simgpu.errors import OutOfMemoryError
from simgpu.graph.encodings import EncodingCosts
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec
from simgpu.memory.transfer import stream_ns
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.compression import (
    CODECS,
    encoded_offloading,
    encoding_costs,
    known_codecs,
    nothing_to_compress,
    sparse_swaps,
)
from simgpu.policies.common.gpu_codecs import executor_of
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program
from simgpu.program.placement import Swap
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.trace.model import Block

#: Training samples of the time model; the paper tested on the same number (section V-C).
_SAMPLES = 3000
_PROFILE = "profile of the first iteration"


def swapping_cost_ns(size: int, overlap_ns: tuple[int, int], bandwidth: tuple[int, int], codec_ns: int = 0) -> int:
    """The time that swapping a tensor adds to the iteration, nanoseconds: equation 1, with compression equations 2-4.

    size: bytes copied. overlap_ns: computation that the offload and the fetch can overlap. bandwidth: bytes per second
    out and in. codec_ns: encoding and decoding.

    >>> swapping_cost_ns(1000, overlap_ns=(600, 2000), bandwidth=(10**9, 10**9)), swapping_cost_ns(500, (600, 2000),
    ...     (10**9, 10**9), codec_ns=70)
    (400, 70)
    """
    exposed = (max(stream_ns(size, rate) - overlap, 0) for rate, overlap in zip(bandwidth, overlap_ns, strict=True))
    return codec_ns + sum(exposed)


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """The profile of the first iteration (table II). bandwidth: effective, bytes per second out and in; overlap_ns: by
    block, the computation that its offload and its fetch can overlap."""

    bandwidth: tuple[int, int]
    overlap_ns: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class TensorProfiler:
    """Measures an iteration without compression."""

    context: PlanContext

    def profile(self, swaps: Iterable[Swap]) -> NetworkProfile:
        """Run it once, or use the recorded times where it does not fit."""
        graph, swaps, link = self.context.graph, tuple(swaps), self.context.node.link
        took = dict(zip((kernel.id for kernel in graph.kernels), graph.durations, strict=True))
        bandwidth = link.d2h_bandwidth, link.h2d_bandwidth
        with suppress(OutOfMemoryError):
            timeline = self.context.trial(encoded_offloading(graph, swaps, {})).timeline
            took = _kernel_times(timeline)
            out, back = (_effective(timeline, *way) for way in zip(OWN_ENGINES, bandwidth, strict=True))
            bandwidth = out, back
        return NetworkProfile(bandwidth, _overlaps(graph, swaps, took))


def _overlaps(graph: TaskGraph, swaps: tuple[Swap, ...], took: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """The computation that each tensor's copies can overlap; tensors of one step share it by their bytes."""
    layers = graph.layers
    step_ns = [sum(took[graph.kernels[k].id] for k in range(step.first, step.stop)) for step in layers.steps]
    steps_of = {swap: (layers.step_of[swap.after], layers.step_of[swap.fetch_with]) for swap in swaps}
    out, back = Counter[int](), Counter[int]()
    for swap, (offload, fetch) in steps_of.items():
        out[offload] += graph.copy_sizes[swap.block]
        back[fetch] += graph.copy_sizes[swap.block]
    return {
        swap.block: (
            _share(step_ns[offload], graph.copy_sizes[swap.block], out[offload]),
            _share(step_ns[fetch], graph.copy_sizes[swap.block], back[fetch]),
        )
        for swap, (offload, fetch) in steps_of.items()
    }


def _share(ns: int, size: int, together: int) -> int:
    return ns * size // together if together else ns


def _kernel_times(timeline: Timeline) -> dict[str, int]:
    last = (timeline.kind == SpanKind.COMPUTE) & (timeline.iteration == timeline.iteration.max(initial=0))
    times = (timeline.end_ns - timeline.start_ns)[last]
    return {timeline.names[name]: ns for name, ns in zip(timeline.name[last].tolist(), times.tolist(), strict=True)}


def _effective(timeline: Timeline, engine: str, otherwise: int) -> int:
    """Bytes per second of all copies of one direction, with latency and waits for the other direction."""
    copies = timeline.copies(engine)
    busy = int((timeline.end_ns - timeline.start_ns)[copies].sum())
    return int(timeline.bytes[copies].sum()) * 10**9 // busy if busy else otherwise


def profile_of(context: PlanContext, swaps: Iterable[Swap]) -> NetworkProfile:
    """The network's profile, measured in the first epoch and reused in the others."""
    if _PROFILE not in context.carried:
        context.carried[_PROFILE] = TensorProfiler(context).profile(swaps)
    profile: NetworkProfile = context.carried[_PROFILE]
    return profile


@dataclass(frozen=True)
class Advice:
    """The advisor's costs of one tensor: uncompressed, and compressed by codec (ns)."""

    block: int
    plain_ns: int
    compressed_ns: Mapping[str, int]

    @property
    def codec(self) -> str | None:
        """The cheapest codec, None where compressing does not pay (T' <= T)."""
        best = min(self.compressed_ns, key=lambda codec: self.compressed_ns[codec], default=None)
        return best if best is not None and self.compressed_ns[best] < self.plain_ns else None


@dataclass(frozen=True)
class ExecutionAdvisor:
    """Equations 1-4 for every sparse tensor.

    codec_ns: predicted nanoseconds to encode and decode a block in a codec, by default 0.
    by_format: use the formats' real compressed sizes, also for ZVC.
    """

    graph: TaskGraph
    costs: EncodingCosts
    profile: NetworkProfile
    codecs: tuple[str, ...]
    codec_ns: Callable[[int, str], int] = lambda _b, _codec: 0
    by_format: bool = False

    def advise(self, swap: Swap) -> Advice:
        """The costs of one tensor."""
        block, rates = self.graph.blocks[swap.block], self.profile.bandwidth
        overlap_ns = self.profile.overlap_ns[swap.block]
        compressed = {
            codec: swapping_cost_ns(self._size(block, codec), overlap_ns, rates, self.codec_ns(swap.block, codec))
            for codec in self.codecs
            if self.costs.is_known(block, codec)
        }
        return Advice(swap.block, swapping_cost_ns(self.graph.copy_sizes[swap.block], overlap_ns, rates), compressed)

    def _size(self, block: Block, codec: str) -> int:
        sparsity = self.costs.sparsity(block)
        if codec == "zvc" and not self.by_format and sparsity is not None:
            return round(block.bytes * (1 - sparsity))
        return self.costs.encoded_bytes(block, codec)


def contenders(
    context: PlanContext, advisor: ExecutionAdvisor, sparse: Iterable[Swap], codecs: tuple[str, ...]
) -> tuple[str, ...]:
    """The first codec, and all others that are the cheapest for some tensor at their best launch settings.

    Other codecs need no search of a launch setting, which takes seconds and cannot find a better setting.
    """
    best = executor_of(context, sparse, advisor.costs, codecs, "grid_search")

    def fastest_ns(b: int, codec: str) -> int:
        block, encoding = advisor.graph.blocks[b], best.encoding(b, codec)
        return advisor.costs.encode_ns(block, encoding) + advisor.costs.decode_ns(block, encoding)

    advice = [replace(advisor, codec_ns=fastest_ns).advise(swap) for swap in sparse]
    return tuple(c for c in codecs if c == codecs[0] or any(each.codec == c for each in advice))


# Training takes time, depends on its arguments only, and is repeated with every trial, budget and epoch.


@lru_cache(maxsize=256)
def _time_model(gpu: GpuSpec, codec: str, setting: LaunchSetting) -> CodecTimeModel:
    """Trained offline on one set of samples (section V-E), so it does not draw from the run's own seed."""
    generator = np.random.default_rng(0)
    tensors = synthetic_tensors(_SAMPLES, generator)
    return CodecTimeModel.fit(draw_samples(response_of(gpu), codec, tensors, setting, generator))


@dataclass(frozen=True)
class Cswap(Policy):
    """vDNN's swaps of convolution inputs, each compressed by the GPU where the cost model says that it pays."""

    name = "cswap"
    summary = "vdnn (mode conv) that compresses on the GPU where its cost model predicts a benefit, decided every epoch"
    source = "Chen et al., IEEE CLUSTER 2021, section IV"
    libraries = ("scikit-learn", "scipy", "bayesian-optimization")

    codec: Literal["best", "zvc", "csr", "rle", "lz4"] = parameter("best", "the codec; best: the cheapest per tensor")
    launch: Literal["tuned", "expert", "random", "grid_search"] = parameter(
        "tuned", "launch setting of the codec: by Bayesian search, by an expert's rule, at random, or by trying all"
    )
    times: Literal["predicted", "exact"] = parameter(
        "predicted", "codec times that the advisor uses: of the regression, or those of the machine"
    )
    sizes: Literal["equations", "format"] = parameter(
        "equations", "a tensor's size in ZVC as the advisor counts it: its non-zeros (equations 3 and 4), or all bytes"
    )

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` where the trace has no sparsity."""
        graph = context.graph
        costs, swaps = encoding_costs(graph, self.name), Vdnn("conv").swaps(graph)
        sparse = sparse_swaps(graph, swaps, costs)
        requested = CODECS if self.codec == "best" else (self.codec,)
        codecs = known_codecs(graph, sparse, costs, requested)
        if not codecs:
            return nothing_to_compress(graph, swaps, f"no sparse tensor's size in {' or '.join(requested)} is known")
        profile = profile_of(context, swaps)
        advisor = ExecutionAdvisor(graph, costs, profile, codecs, by_format=self.sizes == "format")
        codecs = contenders(context, advisor, sparse, codecs)
        executor = executor_of(context, sparse, costs, codecs, self.launch)

        def codec_ns(b: int, codec: str) -> int:
            block, encoding = graph.blocks[b], executor.encoding(b, codec)
            if self.times == "exact":
                return costs.encode_ns(block, encoding) + costs.decode_ns(block, encoding)
            model = _time_model(context.node.gpu, codec, executor.settings[codec])
            return sum(model.predict_ns(codec, block.bytes, costs.sparsity(block) or 0.0))

        advice = [replace(advisor, codecs=codecs, codec_ns=codec_ns).advise(swap) for swap in sparse]
        chosen = {each.block: each.codec for each in advice if each.codec is not None}
        return executor.program(graph, swaps, chosen, len(sparse))
