"""The result of a run: its timeline, metrics and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simgpu.analysis.compression import Compression
from simgpu.analysis.metrics import Metrics, measure
from simgpu.analysis.power import measure_power, power_curve
from simgpu.analysis.tables import facts_html, facts_text
from simgpu.compression.buddy.drift import moments_of
from simgpu.errors import InputError
from simgpu.garbage import no_collection
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.work import WorkDone, missing_work, work_of
from simgpu.hardware.spec import BuddyMode, NodeSpec
from simgpu.memory.caching.settings import AllocatorSettings, parse
from simgpu.policies.base import plain_parameters
from simgpu.program.data_parallel import ParallelRun
from simgpu.program.instructions import Program
from simgpu.simulation.notes import allocator_text, context_text, kernel_times
from simgpu.simulation.plain_peak import budget_text, part_facts
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import engine_text
from simgpu.trace.model import Phase, TraceInfo
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result:
    """The result of running a trace on a node under a policy.

    budget: bytes of device memory for the policy. pool: ``counting``, ``addressed`` or ``caching``. allocator: settings
    of the caching allocator, empty for its defaults. context: bytes of device memory that the CUDA context takes in
    addition to the budget, 0 where a budget is given or the pool is another, None if not known. steady: whether the
    last two iterations were equal in time and in memory; the metrics are always those of the last one. ideal_ns: step
    time with unlimited memory, no transfers and the recorded algorithms; ideal_launch_ns: of it, what is due to
    launches. high_water: bytes of device memory needed,
    holes included; with the caching allocator, the peak of reserved memory. buddy_peak: peak bytes of buddy memory
    owned by live blocks. retired: instructions executed over all iterations. epoch: training epoch, which selects the
    sparsity. label: the policy with its non-default parameters, for example ``vdnn(mode=conv)``. phases: of each kernel
    by id. graph: the executed tasks, with the program's transforms. parallel_run: with data parallelism, its reference
    values; then the trace is of the full batch, the budget of each GPU, and ideal_ns of one GPU's share. notes: notes
    of the policy and the run.
    """

    trace: TraceInfo
    trace_name: str
    node: NodeSpec
    policy: str
    parameters: Mapping[str, object]
    budget: int
    pool: str
    seed: int
    iterations: int
    steady: bool | None
    ideal_ns: int
    high_water: int
    buddy_peak: int
    retired: int
    program: Program
    timeline: Timeline
    label: str
    phases: Mapping[str, Phase]
    graph: TaskGraph
    notes: tuple[str, ...] = field(default=())
    epoch: int = 0
    parallel_run: ParallelRun | None = None
    allocator: str = ""
    context: int | None = 0
    ideal_launch_ns: int = 0

    @cached_property
    def metrics(self) -> Metrics:
        """Times, bytes, memory and energy of the last iteration."""
        peak = max(int(curve.used.max(initial=0)) for curve in self.timeline.device_memories)
        lost = (self.high_water - peak) / self.high_water if self.pool != "counting" and self.high_water else None
        return measure(
            self.timeline,
            batch=self.trace.batch,
            ideal_ns=self.ideal_ns,
            links=self.node.links,
            fragmentation=lost,
            reserved_bytes=self.high_water if self.pool == "caching" else None,
            context_bytes=self.context,
            single_ideal_ns=self.parallel_run.single_ideal_ns if self.parallel_run else None,
            alone_ns=self.parallel_run.alone_ns if self.parallel_run else None,
            power=measure_power(self.timeline, self._work, self.node.gpu, self.trace.product_formats[0])
            if self._work
            else None,
            compression=self._compression,
        )

    @cached_property
    def _compression(self) -> Compression | None:
        """Metrics of compressed memory; None without it, or if only transfers are compressed."""
        memory, graph, buddy = self.graph.compressed, self.graph, self.node.gpu.buddy
        if memory is None or buddy is None or buddy.mode is not BuddyMode.CAPACITY:
            return None
        start, end = self.timeline.window(-1)
        kernels = np.isin(self.timeline.kind, (SpanKind.COMPUTE, SpanKind.RECOMPUTE))
        ran = self.timeline.name[kernels & (self.timeline.start_ns >= start) & (self.timeline.start_ns < end)].tolist()
        moments = moments_of(self.parallel_run.graph if self.parallel_run else graph)
        device = sum(moment.device for moment in moments)
        return Compression(
            ratio=sum(moment.bytes for moment in moments) / device if device else 1.0,
            overflow_share=fmean(moment.overflow for moment in moments),
            buddy_peak_bytes=self.buddy_peak,
            read_bytes=sum(memory.demands[k].read for k in ran),
            written_bytes=sum(memory.demands[k].written for k in ran),
            hit_rate=1 - memory.misses / memory.accesses if memory.accesses else 1.0,
            drift=tuple(moment.overflow for moment in moments),
        )

    @cached_property
    def _work(self) -> WorkDone | None:
        """The work of kernels, codecs and copies; None where energy is not known."""
        return work_of(self.graph) if self.node.gpu.power is not None and not missing_work(self.graph.trace) else None

    @property
    def energy_note(self) -> str:
        """The source of energy and power, or why they are unknown; empty for a GPU without power data."""
        gpu, device = self.node.gpu, self.trace.device
        if gpu.power is None:
            return ""
        if missing := missing_work(self.graph.trace):
            return f"not known: {missing}"
        source = f"modelled per component of the {gpu.name} (sources: `simgpu list nodes`)"
        return source if gpu.is_called(device) else f"{source}, with kernel times of {device}"

    @property
    def allocator_settings(self) -> AllocatorSettings | None:
        """The settings of PyTorch's allocator, None for its defaults."""
        return parse(self.allocator) if self.allocator else None

    @property
    def kernel_times(self) -> str:
        """Whose kernel times these are, where not the node's GPU's own; else empty."""
        return kernel_times(self.trace, self.node.gpu)

    @property
    def iteration_ns(self) -> int:
        """Time of the last iteration, nanoseconds, from compute end to compute end (`Timeline.iteration_ends_ns`)."""
        start, end = self.timeline.window(-1)
        return end - start

    def to_dict(self) -> dict[str, Any]:
        """Everything but the timeline as plain values, for JSON."""
        return {
            "trace": {"name": self.trace_name, **asdict(self.trace), "origin": self.trace.origin.value},
            "node": self.node.to_dict(context=self.pool == "caching"),
            "policy": self.policy,
            "parameters": plain_parameters(self.parameters),
            "budget_bytes": self.budget,
            **part_facts(self.budget),
            "pool": self.pool,
            **({"allocator": self.allocator} if self.pool == "caching" else {}),
            "seed": self.seed,
            "epoch": self.epoch,
            "iterations": self.iterations,
            "steady": self.steady,
            "ideal_ns": self.ideal_ns,
            "high_water_bytes": self.high_water,
            "retired_instructions": self.retired,
            "spans": len(self.timeline),
            "metrics": self.metrics.by_key,
            "notes": list(self.notes),
            **({"sections": [asdict(section) for section in self.program.sections]} if self.program.sections else {}),
            **({"data_parallel": asdict(self.parallel_run.how)} if self.parallel_run else {}),
            "energy_note": self.energy_note,
            "kernel_times": self.kernel_times,
        }

    @property
    def title(self) -> str:
        """One line for the head of a figure or a file: policy, trace and node."""
        return f"{self.label}: {self.trace_name or self.trace.model} on {self.node.name}"

    def plot(self, what: Literal["run", "timeline", "memory", "power"] = "run") -> Figure:
        """The last iteration as a matplotlib figure: its timeline, its memory, both (``run``), or its power.

        Raises `InputError` for the power if it is not known.
        """
        with no_collection():  # modules stay; matplotlib has many
            from simgpu.analysis.plots import plot_memory, plot_power, plot_run, plot_timeline

        title = f"{self.title}\n{self.trace.provenance}"
        if what == "power":
            if self._work is None or self.metrics.power is None:
                reason = self.energy_note or f"node {self.node.name} does not state what its GPU draws"
                raise InputError.single("", "argument what", reason, "choose a node with gpu.power, such as k40")
            curve = power_curve(self.timeline, self._work, self.node.gpu, self.trace.product_formats[0])
            return plot_power(self.timeline, curve, self.metrics.power, title=title)
        if what == "memory":
            return plot_memory(self.timeline, budget=self.budget, title=title)
        if what == "timeline":
            return plot_timeline(self.timeline, title=title, phases=self.phases)
        return plot_run(self.timeline, budget=self.budget, title=title, phases=self.phases)

    def _facts(self) -> list[tuple[str, str]]:
        metrics, together = self.metrics, self.parallel_run
        copied = metrics.copied_bytes
        on_gpus = [("gpus", f"{together.how.gpus} train together; {together.how.description}")] if together else []
        speedup = [("speedup", f"{metrics.speedup:.3f}x of ideal on one GPU")] if metrics.speedup else []
        of_what = "its share's ideal" if together else "ideal"
        return [
            ("trace", f"{self.trace.model}, batch {self.trace.batch}, {self.trace.provenance}"),
            ("node", f"{self.node.name}, {budget_text(self.budget)}, {allocator_text(self.pool, self.allocator)}"),
            *([("times", self.kernel_times)] if self.kernel_times else []),
            *on_gpus,
            ("policy", self.label),
            ("step time", format_time(metrics.iteration_ns) + (" (unsteady)" if self.steady is False else "")),
            ("throughput", f"{metrics.samples_per_s:.4g} samples/s"),
            *speedup,
            ("slowdown", f"{metrics.slowdown:.3f}x of {of_what} {format_time(self.ideal_ns)}"),
            ("transfers", ", ".join(f"{engine_text(name)} {format_bytes(size)}" for name, size in copied.items())),
            ("peak memory", format_bytes(metrics.device_peak_bytes)),
            *(
                [("reserved", f"{format_bytes(self.high_water)}; {context_text(metrics.by_key)}")]
                if self.pool == "caching"
                else []
            ),
        ]

    def __repr__(self) -> str:
        return facts_text(self._facts())

    def _repr_html_(self) -> str:
        return facts_html(self._facts())
