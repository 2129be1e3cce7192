"""Replays a program: measures the device's link, simulates the program on that link, issues it, compares both.

The program's node is not the machine at hand. So the program is simulated again with unchanged kernel times on the
measured link, and compared with that simulation. The link is full or half duplex, whichever is closer to the measured
bidirectional bandwidths (`simgpu.validation.calibration.duplex_of`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import DEVICE, HOST, LinkSpec, NodeSpec
from simgpu.io.free_memory import available_memory
from simgpu.machine.run import POOLS, run_program
from simgpu.program.instructions import Copy
from simgpu.recorder.machine.bandwidth import DEFAULT_SIZES
from simgpu.timeline.model import Timeline
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.units import BYTE_UNITS, format_bytes
from simgpu.validation.calibration import duplex_of
from simgpu.validation.devices import Device, open_device
from simgpu.validation.measured import MeasuredMachine
from simgpu.validation.replay.issue import Issued, Limits, issue
from simgpu.validation.replay.order import issue_order
from simgpu.validation.replay.outcome import Outcome, Side, compare_replay
from simgpu.validation.replay.program import SimulatedProgram, read_program

DEFAULT_REPETITIONS = 20
#: Iterations before the measured ones, in which the device allocates memory and raises its clock.
WARMUP = 3
_COPIES = 10
#: Minimum size of the largest measured copy, bytes.
_LEAST = 64 * BYTE_UNITS["MiB"]


def replay(
    program: SimulatedProgram | str | Path,
    *,
    device: str = "cuda",
    repetitions: int = DEFAULT_REPETITIONS,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Issues a program to a real device and compares it with its simulation.

    program: a program, or the folder of one policy that `simgpu run SCENARIO -o DIR` wrote.
    device: ``cuda``, ``cuda:N`` or ``cpu``.
    repetitions: measured steady iterations; the median is compared.

    Raises `InputError` for a damaged folder, a missing or too small device, and a program that no real device can run;
    `MissingExtraError` without PyTorch; `OutOfMemoryError` if the program does not complete on the measured link.
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
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Replays a program on a device with a measured link; otherwise as `replay`."""
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
    peak = int(run.timeline.memory(DEVICE).used.max(initial=0))
    pinned = int(run.timeline.memory(HOST).used.max(initial=0))
    free = check_memory(device, peak, pinned)
    # Memory limits how far the host runs ahead of the device. Without a budget, the simulated peak is enough.
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
    """The program's node with the measured link and copy engines."""
    copies, node = machine.copies, simulated_program.node
    link = LinkSpec("measured", copies.d2h, copies.h2d, copies.latency_ns, duplex_of(copies))
    return replace(node, name=machine.device, gpu=replace(node.gpu, copy_engines=machine.copy_engines), link=link)


def _sizes(simulated_program: SimulatedProgram) -> tuple[int, ...]:
    """Sizes of the copies to measure, from small ones (for the latency) up to the program's largest copy.

    At least one size exceeds a processor's cache; otherwise a CPU would measure its cache bandwidth.
    """
    copied = {
        instruction.copied
        for segment in simulated_program.program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, Copy)
    }
    largest = max([_LEAST, *(simulated_program.graph.copy_sizes[b] for b in copied)])
    last = next((place for place, size in enumerate(DEFAULT_SIZES) if size >= largest), len(DEFAULT_SIZES))
    return DEFAULT_SIZES[: last + 1]


def _measured(issued: Issued) -> Side:
    return Side(_counted(issued.iteration_ends_ns), issued.peak_bytes, issued.d2h_bytes, issued.h2d_bytes)


def _simulated(timeline: Timeline) -> Side:
    last = timeline.iteration == len(timeline.iteration_ends_ns) - 1
    d2h_bytes, h2d_bytes = (int(timeline.bytes[last & timeline.copies(engine)].sum()) for engine in OWN_ENGINES)
    peak = int(timeline.memory(DEVICE).used.max(initial=0))
    return Side(_counted(timeline.iteration_ends_ns), peak, d2h_bytes, h2d_bytes)


def _counted(ends: tuple[int, ...]) -> tuple[int, ...]:
    """Times of the measured iterations: without warm-up, and without the last one, whose spans are recorded."""
    return tuple(end - begin for begin, end in pairwise(ends[WARMUP - 1 : -1]))


def check_memory(device: Device, needed: int, pinned: int) -> int:
    """Returns the free bytes on the device.

    needed: bytes of device memory.
    pinned: bytes of host memory.

    Raises `InputError` if less than either is free; on a CPU both are the same memory.
    """
    host = _free_on_host()
    free = free_on(device)
    problems = []
    if device.kind == "cpu" and needed + pinned > host:
        text = f"needs {format_bytes(needed)} as device memory and {format_bytes(pinned)} as host memory"
        problems.append(f"{text}, but this machine has {format_bytes(host)} free for both")
    elif device.kind != "cpu":
        if needed > free:
            problems.append(f"needs {format_bytes(needed)}, but {device.name} has {format_bytes(free)} free")
        if pinned > host:
            text = f"needs {format_bytes(pinned)} of host memory"
            problems.append(f"{text}, but this machine has {format_bytes(host)} free")
    if problems:
        remedy = "simulate it with a smaller budget or a smaller batch"
        raise InputError([Problem("program", "memory", problem, remedy) for problem in problems])
    return free


def free_on(device: Device) -> int:
    """Free bytes of device memory; on a CPU, of the host."""
    if device.kind == "cpu":
        return _free_on_host()
    import torch

    torch.cuda.empty_cache()  # otherwise the buffers of the link measurement count as used
    free: int = torch.cuda.mem_get_info(device.torch_device)[0]
    return free


def _free_on_host() -> int:
    """Bytes available to this process; the machine's total memory if the system does not report it."""
    free = available_memory()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if free is None else free
