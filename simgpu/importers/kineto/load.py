"""Imports PyTorch profiler (Kineto) recordings, alone or joined with other recordings of the same run.

Those are the execution trace, which has the tensors, and the memory snapshot, which has the sizes of allocations as
requested and what was allocated before.

The trace's kernels are the GPU's kernels and its copies within the device. Copies over the link and memory fills are
not kernels; the notes give their number and duration. Times are integer nanoseconds from the start of the iteration:
its step annotation, or its first kernel if the recording marks no steps. The notes state what the recording does not
contain; the importer never invents it. A profile with neither memory events nor an execution trace has no blocks.

Kernels on different streams may overlap. On one stream, each kernel must start after the previous one ends; otherwise
recordings were probably merged. There are two exceptions. Times in whole microseconds are truncated, so kernels may
seem to overlap by up to 2 us. With programmatic dependent launch, a kernel starts while the previous one still runs.
The trace runs the kernels of a stream one after another, so it counts such overlap twice; overlap of more than a
twentieth of the stream's kernel time is refused.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers import execution_trace
from simgpu.importers.drafts import kernel_ids
from simgpu.importers.execution_trace import ExecutionTrace, read_execution_trace
from simgpu.importers.json_stream import head
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.blocks import (
    DeviceMemory,
    Draft,
    Moments,
    block,
    device_memory,
    kernels,
    lone_blocks,
)
from simgpu.importers.kineto.iteration import Iteration, iterations, launched_at, may_cover
from simgpu.importers.kineto.joined import Nodes, join, joined_drafts
from simgpu.importers.kineto.profile import GpuWork, Op, Profile, Span
from simgpu.importers.kineto.recorded_memory import EPOCH_FROM, recorded_memory
from simgpu.importers.options import ImportOptions
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.trace.allocations import AllocationTrace
from simgpu.trace.model import BlockKind, Trace
from simgpu.units import format_bytes, format_time

#: Event categories that only the profiler uses.
_CATEGORY = re.compile(rb'"cat"\s*:\s*"(cpu_op|user_annotation|cuda_runtime|cpu_instant_event)"')


def recognises(path: Path) -> bool:
    """Whether a file is JSON with a schemaVersion and traceEvents or deviceProperties, as exported by the profiler.

    Also accepts profiler events without a preceding schemaVersion: reading such a file reports how to repair it.
    """
    start = head(path)
    if start.lstrip()[:1] != b"{":
        return False
    if b'"schemaVersion"' in start:
        return b'"traceEvents"' in start or b'"deviceProperties"' in start
    return b'"traceEvents"' in start and _CATEGORY.search(start) is not None


def recognises_folder(path: Path) -> bool:
    """Whether a folder contains exactly one profile and exactly one execution trace."""
    return path.is_dir() and _pair(path) is not None


def _pair(folder: Path) -> tuple[Path, Path] | None:
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".json", ".json.gz")))
    profiles = [file for file in files if recognises(file)]
    traces = [file for file in files if execution_trace.recognises(file)]
    return (profiles[0], traces[0]) if len(profiles) == len(traces) == 1 else None


def load_folder(path: Path, options: ImportOptions) -> Trace:
    """Returns the profile in a folder, joined with its execution trace."""
    pair = _pair(path)
    if pair is None:
        what = "does not contain exactly one profile and one execution trace"
        raise InputError.single(path, "", what, "name the profile, and pass the other file with --execution-trace")
    return load(pair[0], replace(options, execution_trace=pair[1]))


def load(path: Path, options: ImportOptions) -> Trace:
    """Returns the recording as a trace. Raises `InputError` for an invalid recording.

    options.execution_trace: execution trace file of the same run. options.snapshot: memory snapshot of the same run.
    options.iteration: number of the iteration to import.
    """
    recorded = read_execution_trace(options.execution_trace) if options.execution_trace is not None else None
    snapshot = load_snapshot(options.snapshot, options.gpu) if options.snapshot is not None else None
    part = _choose(path, recorded, snapshot, options.iteration)
    attribution, iteration, profile = part.attribution, part.attribution.iteration, part.attribution.profile
    streams, overlap = number_streams(iteration.kernels, path)
    memory, moments = part.memory, Moments(attribution)
    if part.nodes is not None:
        drafts = joined_drafts(attribution, part.nodes, memory, moments)
    else:
        drafts = lone_blocks(attribution, memory, moments) if memory is not None else []
    ids = kernel_ids(len(iteration.kernels))
    for draft in drafts:
        if not draft.persistent:
            draft.drop_read_of_nothing()
    rows = [(draft, block(draft, attribution, moments, ids)) for draft in drafts]
    retained = [(draft, row) for draft, row in rows if row is not None]
    device = profile.devices.get(iteration.kernels[0].device)
    date = recorded.date if recorded is not None else _date(profile, iteration)
    options = replace(
        options, device=options.device or device, dtype=options.dtype or _dtype(drafts), date=options.date or date
    )
    text = notes(attribution, memory, overlap, is_joined=part.nodes is not None, of_snapshot=part.note)
    model = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.name)
    others = [("execution trace", recorded), ("memory snapshot", snapshot)]
    tool = " and ".join(["PyTorch profiler", *(name for name, other in others if other is not None)])
    info = options.info(path, tool, model, options.samples(path, attribution.samples()), text)
    info = replace(info, framework_peak_bytes=memory.peak if memory is not None else None)
    return Trace(
        info, kernels(attribution, streams, [draft for draft, _ in retained]), tuple(row for _, row in retained)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The iteration to import.

    nodes: its operators' nodes in the execution trace; None without an execution trace. memory: None if not recorded.
    note: what is known of the join with a memory snapshot, empty without one.
    """

    attribution: Attribution
    nodes: Nodes | None
    memory: DeviceMemory | None
    note: str = ""

    @classmethod
    def of(cls, attribution: Attribution, recorded: ExecutionTrace | None, snapshot: AllocationTrace | None) -> _Part:
        """An iteration with its other recordings; raises `InputError` if they do not cover it."""
        nodes = None if recorded is None else join(attribution, recorded)
        if snapshot is None:
            return cls(attribution, nodes, device_memory(attribution))
        joined = recorded_memory(attribution, snapshot)
        return cls(attribution, nodes, joined.memory, joined.note)


def _choose(path: Path, recorded: ExecutionTrace | None, snapshot: AllocationTrace | None, wanted: int | None) -> _Part:
    """The last iteration, or the one with number `wanted`; of those that the other recordings cover."""

    def choose(steps: Sequence[Span]) -> Sequence[Span]:
        return steps if recorded is None else may_cover(path, steps, recorded)

    refusal: InputError | None = None
    for profile, iteration in iterations(path, wanted, choose):
        attribution = Attribution(profile, iteration)
        try:
            return _Part.of(attribution, recorded, snapshot)
        except InputError as error:
            # Drop the traceback: it would keep this iteration in memory while the next one is read.
            refusal = refusal or error.with_traceback(None)
    raise refusal or InputError.single(path, "", "marks iterations, but none has kernels", "record it again")


def _dtype(drafts: Sequence[Draft]) -> str | None:
    """The number format of most activation bytes; None if no activation has one."""
    counts: Counter[str] = Counter()
    for draft in drafts:
        if draft.kind is BlockKind.ACTIVATION and draft.dtype:
            counts[draft.dtype] += draft.bytes
    return max(sorted(counts), key=lambda dtype: counts[dtype], default=None)


def _date(profile: Profile, iteration: Iteration) -> str:
    """The day of the recording in UTC; empty if its clock does not count from 1970."""
    since_1970 = profile.base_ns + iteration.kernels[0].start
    if since_1970 < EPOCH_FROM:
        return ""
    return datetime.datetime.fromtimestamp(since_1970 // 10**9, datetime.UTC).date().isoformat()


def notes(
    attribution: Attribution, memory: DeviceMemory | None, overlap: int, is_joined: bool, of_snapshot: str = ""
) -> str:
    """The trace's notes. overlap: overlap of kernels on the same stream, ns. of_snapshot: on the memory snapshot."""
    iteration, profile = attribution.iteration, attribution.profile
    lines = []
    if iteration.number is not None:
        lines.append(f"Iteration {iteration.number} of the {iteration.marks} that the recording marks.")
    left_out = [event for event in profile.left_out if iteration.contains(launched_at(event, profile))]
    if left_out:
        total = format_time(sum(event.duration for event in left_out))
        lines.append(f"Copies over the link and fills of memory are left out: {len(left_out)}, {total} in all.")
    if overlap:
        lines.append(f"Kernels that overlap on their own stream, counted twice: {format_time(overlap)}.")
    if unlaunched := sum(kernel.correlation not in profile.launches for kernel in iteration.kernels):
        lines.append(f"Kernels whose launch was not recorded: {unlaunched}.")
    if unknown := sum(not launched.is_phase_recorded for launched in attribution.launched):
        remedy = (
            "; record with ProfilerActivity.CPU to record phases" if not any(map(_is_operator, attribution.ops)) else ""
        )
        lines.append(f"Kernels whose phase is not recorded: {unknown}; they count as forward{remedy}.")
    lines.append(_snapshot_note(is_joined, of_snapshot) if of_snapshot else _memory_note(is_joined, memory))
    return " ".join(lines)


def _snapshot_note(is_joined: bool, of_snapshot: str) -> str:
    if is_joined:
        return f"Blocks are the storages of the execution trace. {of_snapshot}"
    return (
        f"{of_snapshot} Inferred: a block is written by the operator around its allocation, and has that operator's "
        "module as its layer, or a line of code where there is none. Which kernels read it is not recorded, so "
        "policies that depend on reads cannot be evaluated with this trace."
    )


def _is_operator(op: Op) -> bool:
    return not op.is_annotation


def _memory_note(is_joined: bool, memory: DeviceMemory | None) -> str:
    if memory is None and not is_joined:
        return (
            "The profile has neither memory events (profile_memory=True) nor an execution trace next to it, so the "
            "trace has no blocks, and memory policies cannot be evaluated with it."
        )
    if memory is None:
        return "Blocks are the storages of the execution trace; lifetimes are not recorded (profile_memory=True)."
    before = "" if memory.held_before < 0 else f" Memory from before the iteration: {format_bytes(memory.held_before)}."
    if is_joined:
        return f"Blocks are the storages of the execution trace, their lifetimes are from memory events.{before}"
    return (
        "Blocks are the recorded allocations, written by the operator that made them; which kernels read them is not "
        f"recorded, so policies that depend on reads cannot be evaluated with this trace.{before}"
    )


#: At most one part in this number of a stream's kernel time may overlap.
_PARTS = 20

_MERGED = "record each process and GPU separately and import one of them"


def number_streams(kernels: Sequence[GpuWork], path: Path) -> tuple[dict[int, int], int]:
    """Numbers streams in order of appearance; also returns the total overlap of kernels on the same stream, ns.

    kernels: in the order they ran. Raises `InputError` for two kernels that overlap on one stream but must not.
    """
    numbers: dict[int, int] = {}
    by_stream: dict[int, list[GpuWork]] = defaultdict(list)
    for kernel in kernels:
        numbers.setdefault(kernel.stream, len(numbers))
        by_stream[kernel.stream].append(kernel)
    return numbers, sum(_overlap(row, path) for row in by_stream.values())


def _overlap(row: Sequence[GpuWork], path: Path) -> int:
    """The overlap of the kernels of one stream, ns."""
    grain = 2000 if all(kernel.start % 1000 == 0 and kernel.duration % 1000 == 0 for kernel in row) else 0
    total, worst = 0, (0, row[0], row[0])
    before = row[0]
    for kernel in row[1:]:
        shared = min(before.end, kernel.end) - kernel.start
        if shared > grain:
            total += shared
            worst = max(worst, (shared, before, kernel), key=lambda pair: pair[0])
        if kernel.end + grain < before.end:
            raise _refusal(path, before, kernel, f"it ends {format_time(before.end - kernel.end)} earlier")
        before = kernel
    if total * _PARTS > sum(kernel.duration for kernel in row):
        raise _refusal(path, worst[1], worst[2], f"kernels of the stream overlap by {format_time(total)} in all")
    return total


def _refusal(path: Path, first: GpuWork, second: GpuWork, why: str) -> InputError:
    place = f"event {second.number} ({second.name[:60]})"
    what = f"overlaps event {first.number} ({first.name[:60]}) on stream {first.stream}: {why}"
    return InputError.single(path, place, what, _MERGED)
