"""What is said beside an imported profile: what was left out of it, and what it does not tell."""

from __future__ import annotations

from simgpu.importers.kineto.allocations import DeviceMemory
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.iteration import launched_at
from simgpu.importers.kineto.profile import Op
from simgpu.units import format_bytes, format_time


def notes(attribution: Attribution, memory: DeviceMemory | None, overlap: int, is_joined: bool) -> str:
    """What a reader of the trace should know. overlap: of kernels on their own stream, ns."""
    iteration, profile = attribution.iteration, attribution.profile
    told = []
    if iteration.number is not None:
        told.append(f"Iteration {iteration.number} of the {iteration.marks} that the recording marks.")
    left_out = [event for event in profile.left_out if iteration.contains(launched_at(event, profile))]
    if left_out:
        lasted = format_time(sum(event.duration for event in left_out))
        told.append(f"Copies over the link and fills of memory are left out: {len(left_out)}, {lasted} in all.")
    if overlap:
        told.append(f"Kernels that overlap on their own stream, counted twice: {format_time(overlap)}.")
    if unlaunched := sum(kernel.correlation not in profile.launches for kernel in iteration.kernels):
        told.append(f"Kernels whose launch was not recorded: {unlaunched}.")
    if untold := sum(not launched.is_phase_told for launched in attribution.launched):
        remedy = (
            "; record with ProfilerActivity.CPU to have them" if not any(map(_is_operator, attribution.ops)) else ""
        )
        told.append(f"Kernels whose phase is not recorded: {untold}; they count as forward{remedy}.")
    told.append(_memory_note(is_joined, memory))
    return " ".join(told)


def _is_operator(op: Op) -> bool:
    return not op.is_annotation


def _memory_note(is_joined: bool, memory: DeviceMemory | None) -> str:
    if memory is None and not is_joined:
        return (
            "The profile has neither memory events (profile_memory=True) nor an execution trace beside it, so there "
            "are no blocks and questions of memory cannot be answered."
        )
    if memory is None:
        return "Blocks are the storages of the execution trace; lifetimes are not recorded (profile_memory=True)."
    held = "" if memory.held_before < 0 else f" Held when the first kernel ran: {format_bytes(memory.held_before)}."
    if is_joined:
        return f"Blocks are the storages of the execution trace, their lifetimes are from memory events.{held}"
    return (
        "Blocks are the allocations that the profiler saw, written by the operator that made them; which kernels read "
        f"them is not recorded, so policies that follow reads cannot be judged with this trace.{held}"
    )
