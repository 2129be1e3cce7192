"""Replaying a program: measure the device's link, simulate the program on it once more, issue it, compare.

The node that a program was simulated for is not the machine at hand. So the same program is simulated again, kernels as
long as they were, on a link as fast as the one that was measured; what the device does is held to that. Where both
directions are busy at once, the link is taken for full or half duplex, whichever is nearer to what was measured
(`simgpu.validation.calibration.duplex_of`).

Whether a program's blocks find room on a device and its host, told before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import LinkSpec, NodeSpec
from simgpu.io.free_memory import available_memory
from simgpu.machine.run import POOLS, run_program
from simgpu.program.instructions import CopyIn, CopyOut
from simgpu.recorder.machine.bandwidth import DEFAULT_SIZES
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.units import BYTE_UNITS, format_bytes
from simgpu.validation.calibration import duplex_of
from simgpu.validation.devices import Device, open_device
from simgpu.validation.measured import MeasuredMachine
from simgpu.validation.replay.issue import Issued, Limits, issue
from simgpu.validation.replay.order import issue_order
from simgpu.validation.replay.outcome import Outcome, Side, compare_replay
from simgpu.validation.replay.program import SimulatedProgram, read_program

DEFAULT_REPETITIONS = 20
#: Iterations before those that count: memory and clocks of the device come up in them.
WARMUP = 3
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
    result = program if isinstance(program, SimulatedProgram) else read_program(program)
    with closing(open_device(device)) as opened:
        from simgpu.validation.harness.machine import measure_machine

        progress(f"measuring copies of {opened.name}")
        machine = measure_machine(opened, sizes=_sizes(result), repetitions=_COPIES)
        return replay_on(result, opened, machine, repetitions=repetitions, progress=progress)


def replay_on(
    simulated_program: SimulatedProgram,
    device: Device,
    machine: MeasuredMachine,
    *,
    repetitions: int = DEFAULT_REPETITIONS,
    progress: Callable[[str], None] = lambda what: None,
) -> Outcome:
    """Replay a program on a device whose links have been measured; otherwise as `replay`."""
    iterations = WARMUP + repetitions + 1
    node = node_of(simulated_program, machine)
    progress("simulating the program on the measured link")
    run = run_program(
        simulated_program.program,
        simulated_program.graph,
        node,
        budget=simulated_program.budget,
        iterations=iterations,
        pool=simulated_program.pool,
    )
    peak = int(run.timeline.device_memory.used.max(initial=0))
    pinned = int(run.timeline.host_memory.used.max(initial=0))
    free = check_memory(device, peak, pinned)
    # The host may run ahead of the device as far as there is memory. Without a budget that is as far as is needed.
    limit = peak if simulated_program.budget is None else min(simulated_program.budget, max(free, peak))
    pool = POOLS[simulated_program.pool](simulated_program.budget, node.gpu.alignment)
    steps = list(
        issue_order(simulated_program.program, simulated_program.graph, run.timeline, pool, node.host.pinned_memory)
    )
    progress(f"running {iterations} iterations on {device.name}")
    limits = Limits(limit, node.host.pinned_memory, node.gpu.alignment)
    issued = issue(steps, simulated_program.program, simulated_program.graph, device, limits, iterations)
    return Outcome(
        program=simulated_program,
        machine=machine,
        measured=_measured(issued),
        simulated=_simulated(run.timeline),
        steady=run.steady,
        warmup=WARMUP,
        limit_bytes=limit,
        allocated_bytes=issued.allocated_bytes,
        comparison=compare_replay(issued.spans, run.timeline),
    )


def node_of(simulated_program: SimulatedProgram, machine: MeasuredMachine) -> NodeSpec:
    """The program's node with the link and the copy engines that were measured."""
    copies, node = machine.copies, simulated_program.node
    link = LinkSpec("measured", copies.d2h, copies.h2d, copies.latency_ns, duplex_of(copies))
    return replace(node, name=machine.device, gpu=replace(node.gpu, copy_engines=machine.copy_engines), link=link)


def _sizes(simulated_program: SimulatedProgram) -> tuple[int, ...]:
    """Which copies to measure: small ones, for the latency, up to one as large as the largest of the program.

    One that does not fit into a processor's cache is always among them, else a CPU would tell the speed of its cache.
    """
    copied = {
        instruction.host_block if isinstance(instruction, CopyOut) else instruction.block
        for segment in simulated_program.program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, CopyOut | CopyIn)
    }
    largest = max([_LEAST, *(simulated_program.graph.copy_sizes[b] for b in copied)])
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
    return tuple(end - begin for begin, end in pairwise(ends[WARMUP - 1 : -1]))


def check_memory(device: Device, needed: int, pinned: int) -> int:
    """Bytes that are free on the device.

    needed: bytes of device memory; pinned: of host memory. Raises `InputError` where there is less of either; on a CPU
    both are the same memory.
    """
    host = _free_on_host()
    free = free_on(device)
    problems = []
    if device.kind == "cpu" and needed + pinned > host:
        what = f"{format_bytes(needed)} stand for device memory, {format_bytes(pinned)} for the host's"
        problems.append(f"{what}, and this machine has {format_bytes(host)} free for both")
    elif device.kind != "cpu":
        if needed > free:
            problems.append(f"its blocks take {format_bytes(needed)}, and {device.name} has {format_bytes(free)} free")
        if pinned > host:
            what = f"its blocks take {format_bytes(pinned)} of host memory"
            problems.append(f"{what}, and this machine has {format_bytes(host)} free")
    if problems:
        remedy = "simulate it with a smaller budget or a smaller batch"
        raise InputError([Problem("program", "memory", what, remedy) for what in problems])
    return free


def free_on(device: Device) -> int:
    """Bytes of device memory that nobody has taken; on a CPU what is free on the host."""
    if device.kind == "cpu":
        return _free_on_host()
    import torch

    torch.cuda.empty_cache()  # else what the link was measured with counts as taken
    free: int = torch.cuda.mem_get_info(device.torch_device)[0]
    return free


def _free_on_host() -> int:
    """Bytes that this process can use; all of the machine's memory where the system does not report it."""
    free = available_memory()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if free is None else free
