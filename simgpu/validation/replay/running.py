"""Replaying a program: measure the device's link, simulate the program on it once more, issue it, compare.

The node that a program was simulated for is not the machine at hand. So the same program is simulated again, kernels as
long as they were, on a link as fast as the one that was measured; what the device does is held to that. Where both
directions are busy at once, the link is taken for full or half duplex, whichever is nearer to what was measured
(`simgpu.validation.calibration.duplex_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simgpu.hardware.spec import LinkSpec, NodeSpec
from simgpu.machine.run import POOLS, run_program
from simgpu.program.instructions import CopyIn, CopyOut
from simgpu.recorder.machine.bandwidth import DEFAULT_SIZES
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.units import BYTE_UNITS
from simgpu.validation.calibration import duplex_of
from simgpu.validation.devices import Device, open_device
from simgpu.validation.measured import MeasuredMachine
from simgpu.validation.replay.issue import Issued, Limits, issue
from simgpu.validation.replay.order import issue_order
from simgpu.validation.replay.outcome import Outcome, Side, besides
from simgpu.validation.replay.program import SimulatedProgram, read_program
from simgpu.validation.replay.room import check_room

DEFAULT_REPETITIONS = 20
#: Iterations before those that count: memory and clocks of the device come up in them.
WARM_UP = 3
_COPIES = 10
#: Bytes of the largest copy that is measured, at least.
_LEAST = 64 * BYTE_UNITS["MiB"]


def replay(
    program: SimulatedProgram | str | Path,
    *,
    device: str = "cuda",
    repetitions: int = DEFAULT_REPETITIONS,
    progress: Callable[[str], None] = lambda what: None,
) -> Outcome:
    """Issue a program to a real device and compare it with its simulation.

    program: or the folder of one policy that `simgpu run SCENARIO -o DIR` wrote. device: ``cuda``, ``cuda:N`` or
    ``cpu``. repetitions: steady iterations, whose median counts.

    Raises `InputError` for a damaged folder, a device that is not there or too small, and a program that no real device
    runs; `MissingExtraError` without PyTorch; `OutOfMemoryError` where the program does not come to an end on the
    measured link.
    """
    found = program if isinstance(program, SimulatedProgram) else read_program(program)
    with closing(open_device(device)) as opened:
        from simgpu.validation.harness.machine import measure_machine

        progress(f"measuring copies of {opened.name}")
        machine = measure_machine(opened, sizes=_sizes(found), repetitions=_COPIES)
        return replay_on(found, opened, machine, repetitions=repetitions, progress=progress)


def replay_on(
    found: SimulatedProgram,
    device: Device,
    machine: MeasuredMachine,
    *,
    repetitions: int = DEFAULT_REPETITIONS,
    progress: Callable[[str], None] = lambda what: None,
) -> Outcome:
    """Replay a program on a device whose links have been measured; otherwise as `replay`."""
    iterations = WARM_UP + repetitions + 1
    node = node_of(found, machine)
    progress("simulating the program on the measured link")
    run = run_program(found.program, found.graph, node, budget=found.budget, iterations=iterations, pool=found.pool)
    peak = int(run.timeline.device_memory.used.max(initial=0))
    pinned = int(run.timeline.host_memory.used.max(initial=0))
    free = check_room(device, peak, pinned)
    # The host may run ahead of the device as far as there is memory. Without a budget that is as far as is needed.
    limit = peak if found.budget is None else min(found.budget, max(free, peak))
    pool = POOLS[found.pool](found.budget, node.gpu.alignment)
    steps = list(issue_order(found.program, found.graph, run.timeline, pool, node.host.pinned_memory))
    progress(f"running {iterations} iterations on {device.name}")
    limits = Limits(limit, node.host.pinned_memory, node.gpu.alignment)
    issued = issue(steps, found.program, found.graph, device, limits, iterations)
    return Outcome(
        program=found,
        machine=machine,
        measured=_measured(issued),
        simulated=_simulated(run.timeline),
        steady=run.steady,
        warm_up=WARM_UP,
        limit_bytes=limit,
        allocated_bytes=issued.allocated_bytes,
        beside=besides(issued.spans, run.timeline),
    )


def node_of(found: SimulatedProgram, machine: MeasuredMachine) -> NodeSpec:
    """The program's node with the link and the copy engines that were measured."""
    copies, node = machine.copies, found.node
    link = LinkSpec("measured", copies.d2h, copies.h2d, copies.latency_ns, duplex_of(copies))
    return replace(node, name=machine.device, gpu=replace(node.gpu, copy_engines=machine.copy_engines), link=link)


def _sizes(found: SimulatedProgram) -> tuple[int, ...]:
    """Which copies to measure: small ones, for the latency, up to one as large as the largest of the program.

    One that does not fit into a processor's cache is always among them, else a CPU would tell the speed of its cache.
    """
    copied = {
        instruction.host_block if isinstance(instruction, CopyOut) else instruction.block
        for segment in found.program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, CopyOut | CopyIn)
    }
    largest = max([_LEAST, *(found.graph.copy_sizes[b] for b in copied)])
    enough = next((place for place, size in enumerate(DEFAULT_SIZES) if size >= largest), len(DEFAULT_SIZES))
    return DEFAULT_SIZES[: enough + 1]


def _measured(issued: Issued) -> Side:
    return Side(_counted(issued.iteration_ends_ns), issued.peak_bytes, issued.d2h_bytes, issued.h2d_bytes)


def _simulated(timeline: Timeline) -> Side:
    last = timeline.iteration == len(timeline.iteration_ends_ns) - 1
    out, back = (
        int(timeline.bytes[last & (timeline.kind == kind)].sum()) for kind in (SpanKind.COPY_D2H, SpanKind.COPY_H2D)
    )
    peak = int(timeline.device_memory.used.max(initial=0))
    return Side(_counted(timeline.iteration_ends_ns), peak, out, back)


def _counted(ends: tuple[int, ...]) -> tuple[int, ...]:
    """The steady iterations: without those to warm up, and without the last one, which is watched."""
    return tuple(end - begin for begin, end in pairwise(ends[WARM_UP - 1 : -1]))
