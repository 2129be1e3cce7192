"""Small traces, nodes and programs for hand calculations. At 1 GB/s a byte takes a nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, GpuSpec, HostSpec, LinkSpec, NodeSpec
from simgpu.machine.run import MachineRun, run_program
from simgpu.program.instructions import Instruction, Program, Segment
from simgpu.program.verify import verify
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import StreamId
from simgpu.trace.check import check_trace
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

GB = 10**9
INFO = TraceInfo("hand-made", 1, "bench", "float32", Origin.MODELLED, "by hand")
FORWARD, BACKWARD, OPTIMIZER = Phase


def kernel(
    name: str,
    ns: int = 10,
    reads: str = "",
    writes: str = "",
    *,
    phase: Phase = FORWARD,
    layer: str | None = None,
    stream: int = 0,
    pure: bool | None = True,
    op: str = "op",
) -> Kernel:
    """A kernel; `reads` and `writes` are block ids with spaces between."""
    return Kernel(name, op, phase, ns, tuple(reads.split()), tuple(writes.split()), layer, stream, pure=pure)


def block(name: str, size: int, **more: object) -> Block:
    """A block; a feature map by default."""
    kind = more.pop("kind", BlockKind.ACTIVATION)
    return Block(name, size, kind, **more)  # type: ignore[arg-type]


def held(name: str, size: int, **more: object) -> Block:
    """A persistent block with a value when the iteration begins."""
    return block(name, size, persistent=True, **more)


def trace(kernels: Sequence[Kernel], blocks: Sequence[Block], **more: object) -> Trace:
    """A checked trace."""
    built = Trace(INFO, tuple(kernels), tuple(blocks), **more)  # type: ignore[arg-type]
    assert not check_trace(built), [str(problem) for problem in check_trace(built)]
    return built


def graph(kernels: Sequence[Kernel], blocks: Sequence[Block], **more: object) -> TaskGraph:
    return TaskGraph.of(trace(kernels, blocks, **more))


def node(
    memory: int = 10**6,
    *,
    engines: int = 2,
    out: int = GB,
    back: int = GB,
    latency: int = 0,
    duplex: Duplex = Duplex.FULL,
    host: int | None = None,
    alignment: int = 1,
) -> NodeSpec:
    gpu = GpuSpec("gpu", memory, copy_engines=engines, alignment=alignment)
    return NodeSpec("bench", gpu, LinkSpec("wire", out, back, latency, duplex), HostSpec(host))


def program(
    streams: dict[StreamId, Sequence[Instruction]], resident: Sequence[int] = (), repeat: int = 1, **more: object
) -> Program:
    """A program of one segment."""
    segment = Segment({stream: tuple(code) for stream, code in streams.items()}, repeat)
    return Program((segment,), tuple(resident), **more)  # type: ignore[arg-type]


COLUMNS = ("gpu", "stream", "kind", "name", "start_ns", "end_ns", "bytes", "cause", "iteration", "resource")


def outcome(run: MachineRun) -> list[Any]:
    """Everything that a run gives but notes, comparable."""
    timeline = run.timeline
    spans = [getattr(timeline, column).tolist() for column in COLUMNS]
    curves = [
        (
            *(curve.memory, curve.gpu, curve.capacity, curve.time_ns.tolist(), curve.live.tolist()),
            *(curve.used.tolist(), None if curve.reserved is None else curve.reserved.tolist()),
        )
        for curve in timeline.memories
    ]
    names = timeline.streams, timeline.names, timeline.resources, timeline.iteration_ends_ns
    return [spans, curves, names, run.steady, run.high_water, run.retired, run.buddy_peak]


def run(
    code: Program, tasks: TaskGraph, on: NodeSpec | None = None, *, iterations: int = 1, pool: str = "counting"
) -> MachineRun:
    """Verify a program, then execute it within the node's memory, on both engines."""
    where = on or node()
    verify(code, tasks, capacity=where.budget, alignment=where.gpu.alignment)
    how: dict[str, Any] = {"budget": where.budget, "iterations": iterations, "pool": pool}
    result = run_program(code, tasks, where, engine="simpy", **how)
    assert outcome(run_program(code, tasks, where, engine="compiled", **how)) == outcome(result)
    return result


WORK = ("compute", "recompute", "copy_d2h", "copy_h2d")


def times(result: MachineRun, iteration: int = 0) -> dict[str, tuple[int, int]]:
    """Start and end of every kernel and copy of an iteration; copies are called ``out:x`` and ``in:x``."""
    prefix = {"copy_d2h": "out:", "copy_h2d": "in:"}
    return {
        prefix.get(span.label, "") + span.name: (span.start_ns, span.end_ns)
        for span in result.timeline
        if span.label in WORK and span.iteration == iteration
    }


def stalls(result: MachineRun) -> list[tuple[str, SpanKind, int, int]]:
    """Stream, kind, start and end of every wait."""
    return [(s.stream, s.label, s.start_ns, s.end_ns) for s in result.timeline if s.kind.is_stall]
