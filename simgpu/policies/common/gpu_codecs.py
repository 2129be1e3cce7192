"""Codecs that run as GPU kernels: their launch settings, and vDNN's program with tensors that they encode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.surface import ResponseSurface
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.compression.codecs.gpu.tuner import LaunchTuner
from simgpu.graph.encodings import Encoding, EncodingCosts
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.base import PlanContext
from simgpu.policies.common.compression import encoded_offloading
from simgpu.program.instructions import Program
from simgpu.program.placement import Swap

Launch = Literal["tuned", "expert", "random", "grid_search"]


@dataclass(frozen=True)
class SwappingExecutor:
    """The codecs' kernels with a launch setting for each codec on one GPU.

    surface: the times of the kernels on that GPU.
    """

    surface: ResponseSurface
    settings: Mapping[str, LaunchSetting]

    def encoding(self, block: int, codec: str) -> Encoding:
        """A block in a codec, at that codec's launch setting."""
        setting = self.settings[codec]
        return Encoding(block, codec, grid=setting.grid, threads=setting.threads)

    def program(self, graph: TaskGraph, swaps: tuple[Swap, ...], chosen: Mapping[int, str], sparse: int) -> Program:
        """vDNN's program with blocks encoded by their chosen codecs. sparse: the number of sparse tensors."""
        program = encoded_offloading(graph, swaps, {b: self.encoding(b, codec) for b, codec in chosen.items()})
        counts = Counter(chosen.values())
        by_codec = ", ".join(f"{count} by {codec} at {self.settings[codec]}" for codec, count in sorted(counts.items()))
        notes = [f"{len(chosen)} of {sparse} sparse tensors are compressed" + (f": {by_codec}" if by_codec else "")]
        if chosen:
            notes.append(f"codec times on {self.surface.gpu}: {self.surface.description}")
        return replace(program, notes=(*program.notes, *notes))


def executor_of(
    context: PlanContext, sparse: Iterable[Swap], costs: EncodingCosts, codecs: Iterable[str], launch: Launch
) -> SwappingExecutor:
    """An executor whose launch settings are chosen before training begins and kept over its epochs."""
    key = f"launch settings, {launch}"
    known: dict[str, LaunchSetting] = context.carried.setdefault(key, {})
    blocks = [context.graph.blocks[swap.block] for swap in sparse]
    tensors = tuple(SparseTensor(block.bytes, costs.sparsity(block) or 0.0) for block in blocks)
    surface = response_of(context.node.gpu)
    for codec in codecs:
        if codec not in known:
            known[codec] = _setting(context.node.gpu, codec, tensors, launch, int(context.rng.integers(2**31)))
    return SwappingExecutor(surface, known)


@lru_cache(maxsize=256)
def _setting(gpu: GpuSpec, codec: str, tensors: tuple[SparseTensor, ...], launch: Launch, seed: int) -> LaunchSetting:
    tuner = LaunchTuner(response_of(gpu), codec, tensors)
    if launch == "expert":
        return tuner.expert(gpu).setting
    if launch == "random":
        return tuner.random(seed).setting
    return (tuner.grid_search() if launch == "grid_search" else tuner.bayesian(seed)).setting
