"""The time of a step of a published row's loop: modelled kernels, launched one by one by the host or compiled."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, LinkSpec
from simgpu.recorder.modelled.session import ModelledSession
from simgpu.simulation.run import simulate
from simgpu.trace.model import Kernel, Phase, Trace
from simgpu.validation.public.loop import Loop, attention_as_published
from simgpu.validation.public.trainer import waits
from simgpu.workloads.compiled.fused import fused_durations
from simgpu.workloads.timemodel.attention import FlashVersion
from simgpu.workloads.timemodel.host import step_ns
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.prices import Prices


@dataclass(frozen=True)
class Runs:
    """How a loop's step runs.

    graph: names the compiled graph of a kernel, as in `fused_durations`; None where nothing is compiled. Launches of
    compiled steps take the host no time.
    updates: what overlaps, as `optimizer_on_host` has it, where the host updates the weights; None on the GPU.
    changes: of the node, such as its host's memory bandwidth, which the updates need.
    optimizer: whether what the optimizer runs on the GPU counts.
    offloaded: bytes of the tensors that a micro-batch copies to the host and back, on the stream that computes; a list
    that the loop fills while it runs; None where nothing is offloaded.
    flash: the version of flash attention.
    """

    graph: Callable[[Kernel], object] | None = None
    updates: Literal["step", "backward"] | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    optimizer: bool = True
    offloaded: Sequence[int] | None = None
    flash: FlashVersion = FlashVersion.TWO


def time_of(loop: Loop, node: str, runs: Runs) -> tuple[int, int, int]:
    """Nanoseconds of a step and of its kernels on a node's GPU, and its samples."""
    samples = loop.sequences * loop.micro_batches
    gpu = load_node(node, runs.changes).gpu
    prices = partial(time_model, flash=runs.flash)
    trace = traced(loop, gpu, prices)
    if runs.graph is not None:
        durations = fused_durations(trace, prices(gpu), runs.graph)
        kernels = zip(trace.kernels, durations, strict=True)
        trace = replace(trace, kernels=tuple(replace(kernel, duration_ns=ns) for kernel, ns in kernels))
    if runs.updates is not None:
        return *_on_host(trace, node, runs), samples
    counted = [kernel for kernel in trace.kernels if runs.optimizer or kernel.phase is not Phase.OPTIMIZER]
    durations = [kernel.duration_ns for kernel in counted]
    step = sum(durations) if runs.graph is not None else step_ns(durations, waits(trace))
    copies = loop.micro_batches * _copies_ns(runs.offloaded or (), load_node(node, runs.changes).link)
    return step + copies, sum(durations), samples


def traced(loop: Loop, gpu: GpuSpec, prices: Callable[[GpuSpec], Prices]) -> Trace:
    """The operators of a step on fake tensors, with their durations one by one."""
    session = ModelledSession(
        loop.factory,
        loop.sequences * loop.micro_batches,
        loop.optimizer,
        gpu,
        datetime.date.today().isoformat(),
        lambda _: None,
        prices,
        hold_output=loop.hold_output,
        grad_scaler=loop.grad_scaler,
        micro_batches=loop.micro_batches,
    )
    with attention_as_published():
        return session.run()


def _copies_ns(sizes: Sequence[int], link: LinkSpec) -> int:
    """The time of copies to the host and back, one after another."""
    return sum(
        link.latency_ns + round(size * 1e9 / rate)
        for size in sizes
        for rate in (link.d2h_bandwidth, link.h2d_bandwidth)
    )


def whole_model(kernel: Kernel) -> str | None:
    """The graph of a model that is compiled as a whole; the optimizer is in none."""
    return None if kernel.phase is Phase.OPTIMIZER else "model"


def _on_host(trace: Trace, node: str, runs: Runs) -> tuple[int, int]:
    """A step whose weights the host updates, launches of the GPU's kernels not counted, and the kernels on the GPU."""
    result = simulate(trace, load_node(node, runs.changes), "optimizer_on_host", parameters={"overlap": runs.updates})
    on_gpu = sum(kernel.duration_ns for kernel in trace.kernels if kernel.phase is not Phase.OPTIMIZER)
    return result.iteration_ns, on_gpu
