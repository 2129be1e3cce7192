"""Recordings made of simulated runs, so that every error of a comparison is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simgpu.simulation.result import Result
from simgpu.trace.chain import chain
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from simgpu.validation.calibration import calibrate, persistent_bytes
from simgpu.validation.comparison import simulate_counterpart
from simgpu.validation.measured import (
    Case,
    Copies,
    MeasuredKind,
    MeasuredMachine,
    MeasuredRun,
    MeasuredSpan,
    Method,
    Recording,
)

MIB = 2**20
COPIES = Copies(
    d2h=25 * 10**9,
    h2d=24 * 10**9,
    bidirectional_d2h=21 * 10**9,
    bidirectional_h2d=20 * 10**9,
    latency_ns=4_000,
    blocking_ns=11_000,
)
MACHINE = MeasuredMachine(
    "Example GPU 80GB",
    "cuda",
    memory=80 * 2**30,
    alignment=512,
    copy_engines=2,
    copies=COPIES,
    launch_ns=3_500,
    host="an example processor",
    date="2026-01-31",
    versions={"driver": "550.54", "CUDA": "12.8", "PyTorch": "2.13.0", "Python": "3.11.7", "simgpu": "0.1.0"},
)
#: Of the methods whose counterpart is a policy.
SETTINGS: Mapping[Method, Mapping[str, Any]] = {
    Method.PLAIN: {},
    Method.CHECKPOINT: {"blocks": ("L1", "L2", "L3")},
    Method.SAVE_ON_CPU: {},
    Method.ASYNC_OFFLOAD: {"prefetch": 1, "stash": 1, "min_bytes": MIB},
}
KINDS = {
    "compute": (MeasuredKind.KERNEL, "compute"),
    "recompute": (MeasuredKind.KERNEL, "compute"),
    "copy_d2h": (MeasuredKind.COPY_D2H, "d2h"),
    "copy_h2d": (MeasuredKind.COPY_H2D, "h2d"),
}


def example_trace(scale: int = 1) -> Trace:
    """Four layers of two kernels each way and an optimizer: an activation next to every weighted result."""
    layers = [(900, 40 * MIB), (1200, 30 * MIB), (1000, 20 * MIB), (700, 10 * MIB)]
    kernels: list[Kernel] = []
    blocks = [Block("x", 8 * MIB * scale, BlockKind.INPUT, persistent=True)]
    before = "x"
    for n, (time, size) in enumerate(layers, 1):
        weight, conv, act = f"w{n}", f"c{n}", f"a{n}"
        blocks += [
            Block(weight, 2 * MIB, BlockKind.WEIGHT, persistent=True, layer=f"L{n}"),
            Block(conv, size * scale, BlockKind.ACTIVATION, layer=f"L{n}"),
            Block(act, size * scale + 100, BlockKind.ACTIVATION, layer=f"L{n}"),
            Block(f"gw{n}", 2 * MIB, BlockKind.WEIGHT_GRADIENT, layer=f"L{n}"),
            Block(f"gc{n}", size * scale, BlockKind.GRADIENT, layer=f"L{n}"),
            Block(f"ga{n}", size * scale, BlockKind.GRADIENT, layer=f"L{n}"),
        ]
        kernels += [
            _kernel(f"F{n}c", "aten::convolution", Phase.FORWARD, time * scale, (before, weight), (conv,), n),
            _kernel(f"F{n}a", "aten::relu", Phase.FORWARD, time * scale // 9, (conv,), (act,), n),
        ]
        before = act
    for n in range(len(layers), 0, -1):
        time, source = layers[n - 1][0] * scale, f"a{n - 1}" if n > 1 else "x"
        gradient = (f"gc{n + 1}",) if n < len(layers) else ()
        kernels += [
            _kernel(
                f"B{n}a", "aten::threshold_backward", Phase.BACKWARD, time // 9, (f"a{n}", *gradient), (f"ga{n}",), n
            ),
            _kernel(
                f"B{n}c",
                "aten::convolution_backward",
                Phase.BACKWARD,
                2 * time,
                (f"ga{n}", source, f"w{n}"),
                (f"gc{n}", f"gw{n}"),
                n,
            ),
        ]
    weights = tuple(f"w{n}" for n in range(1, len(layers) + 1))
    gradients = tuple(f"g{weight}" for weight in weights)
    kernels.append(Kernel("O", "aten::_foreach_add_", Phase.OPTIMIZER, 50_000, (*weights, *gradients), weights))
    info = replace(chain([1], [1], [1]).info, model="example", batch=8 * scale)
    return Trace(info, tuple(kernels), tuple(blocks), name=f"example-b{8 * scale}")


def _kernel(
    id_: str, op: str, phase: Phase, time_us: int, reads: tuple[str, ...], writes: tuple[str, ...], n: int
) -> Kernel:
    return Kernel(id_, op, phase, time_us * 1000, reads, writes, f"L{n}", pure=True)


def spans_of(result: Result) -> tuple[MeasuredSpan, ...]:
    """The last iteration of a simulated run in the form of a device's recording, one kernel per call."""
    start, end = result.timeline.window(-1)
    ops = {kernel.id: kernel.op for kernel in result.graph.kernels}
    measured_spans: list[MeasuredSpan] = []
    calls = 0
    for span in result.timeline:
        if span.label in KINDS and start <= span.start_ns < end:
            kind, stream = KINDS[span.label]
            kernel = kind is MeasuredKind.KERNEL
            op, call = (ops[span.name], calls) if kernel else ("", -1)
            times = span.start_ns - start, span.end_ns - start
            measured_spans.append(
                MeasuredSpan(stream, kind, f"{kind}_{op}", op, call, *times, 0 if kernel else span.bytes)
            )
            calls += kernel
    return tuple(measured_spans)


def example_run(
    trace: Trace, method: Method, *, machine: MeasuredMachine = MACHINE, held: int = 3 * MIB, timeline: bool = True
) -> MeasuredRun:
    """What the counterpart of a method says, as if it had been measured on the device.

    held: device memory in use when a step begins, beyond the trace's persistent blocks.
    """
    before = persistent_bytes(trace, machine.alignment) + held
    plain = MeasuredRun(Method.PLAIN, {}, (trace.compute_ns,), before, before, 0, 0)
    counterpart = simulate_counterpart(calibrate(machine, trace, plain), method, SETTINGS[method])
    assert counterpart.numbers is not None and counterpart.result is not None, counterpart.reason
    step = counterpart.numbers.step_ns
    steps = (step, *(step + sign * step * part // 1000 for part in range(1, 11) for sign in (-1, 1)))
    spans = spans_of(counterpart.result) if timeline else ()
    return MeasuredRun(
        method,
        SETTINGS[method],
        steps,
        counterpart.numbers.peak_bytes,
        before,
        counterpart.numbers.d2h_bytes,
        counterpart.numbers.h2d_bytes,
        spans,
    )


def example_case(scale: int = 1, *, methods: tuple[Method, ...] = tuple(SETTINGS), **settings: Any) -> Case:
    """A case of which every run is what its counterpart says."""
    trace = example_trace(scale)
    return Case("example", 8 * scale, trace, {method: example_run(trace, method, **settings) for method in methods})


def recording_of(*cases: Case, machine: MeasuredMachine = MACHINE) -> Recording:
    """A recording of these cases."""
    return Recording("made", machine, cases)
