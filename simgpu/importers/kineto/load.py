"""Reading a PyTorch profiler (Kineto) recording, alone or joined with the execution trace of the same run.

The profile is read as a stream, so that only what is needed of it is held: operators, kernels, launches, memory
events and module names (`profile`). Which of its iterations is taken: `iteration`. Who launched a kernel, its phase
and its layer: `attribution`. The order on streams: `streams`. Blocks: from memory events alone (`lone_blocks`), or from
the tensors of an execution trace (`join`, `joined_blocks`, `joined_kinds`). What the recording does not tell is said
in the notes and never made up: a profile with neither memory events nor an execution trace has no blocks.

Kernels of the trace are the GPU's kernels and its copies within the device. Copies over the link and fills are not
kernels; the notes say how many there were and how long they took. Times are whole nanoseconds, from the begin of
the iteration: its mark, or its first kernel where the recording has no marks.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers import execution_trace
from simgpu.importers.execution_trace import ExecutionTrace, read_execution_trace
from simgpu.importers.json_stream import head
from simgpu.importers.kineto.allocations import Moments, device_memory
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.coverage import may_cover
from simgpu.importers.kineto.draft import Draft, block, drop_reads_of_nothing, kernels
from simgpu.importers.kineto.iteration import Iteration, iterations
from simgpu.importers.kineto.join import Nodes, join
from simgpu.importers.kineto.joined import joined_drafts
from simgpu.importers.kineto.lone_blocks import lone_blocks
from simgpu.importers.kineto.notes import notes
from simgpu.importers.kineto.profile import Profile, Span
from simgpu.importers.kineto.streams import number_streams
from simgpu.importers.names import kernel_ids
from simgpu.importers.provenance import Told
from simgpu.trace.model import BlockKind, Trace

#: What the profiler alone calls its events.
_CATEGORY = re.compile(rb'"cat"\s*:\s*"(cpu_op|user_annotation|cuda_runtime|cpu_instant_event)"')

#: No clock of a computer stood earlier than this when it recorded, ns since 1970.
_EPOCH_FROM = 10**18


def recognises(path: Path) -> bool:
    """Whether a file is JSON with a schemaVersion and traceEvents or deviceProperties, as the profiler exports it.

    Also one whose first events are the profiler's, wherever its schemaVersion stands: reading it tells what to do.
    """
    start = head(path)
    if start.lstrip()[:1] != b"{":
        return False
    if b'"schemaVersion"' in start:
        return b'"traceEvents"' in start or b'"deviceProperties"' in start
    return b'"traceEvents"' in start and _CATEGORY.search(start) is not None


def recognises_folder(path: Path) -> bool:
    """Whether a folder holds exactly one profile and exactly one execution trace."""
    return path.is_dir() and _pair(path) is not None


def _pair(folder: Path) -> tuple[Path, Path] | None:
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".json", ".json.gz")))
    profiles = [file for file in files if recognises(file)]
    traces = [file for file in files if execution_trace.recognises(file)]
    return (profiles[0], traces[0]) if len(profiles) == len(traces) == 1 else None


def load_folder(path: Path, told: Told) -> Trace:
    """The profile in a folder joined with the execution trace beside it."""
    pair = _pair(path)
    if pair is None:
        what = "does not hold exactly one profile and one execution trace"
        raise InputError.single(path, "", what, "name the profile, and give the other one with --execution-trace")
    return load(pair[0], replace(told, execution_trace=pair[1]))


def load(path: Path, told: Told) -> Trace:
    """The recording as a trace. Raises `InputError` for what cannot be followed.

    told.execution_trace: file with the tensors of the same run. told.iteration: which iteration to take.
    """
    recorded = read_execution_trace(told.execution_trace) if told.execution_trace is not None else None
    part = _choose(path, recorded, told.iteration)
    attribution, iteration, profile = part.attribution, part.attribution.iteration, part.attribution.profile
    streams, overlap = number_streams(iteration.kernels, path)
    memory, moments = device_memory(attribution), Moments(attribution)
    if part.nodes is not None:
        drafts = joined_drafts(attribution, part.nodes, memory, moments)
    else:
        drafts = lone_blocks(attribution, memory, moments) if memory is not None else []
    ids = kernel_ids(len(iteration.kernels))
    drop_reads_of_nothing(drafts)
    rows = [(draft, block(draft, attribution, moments, ids)) for draft in drafts]
    kept = [(draft, row) for draft, row in rows if row is not None]
    device = profile.devices.get(iteration.kernels[0].device)
    date = recorded.date if recorded is not None else _date(profile, iteration)
    told = replace(told, device=told.device or device, dtype=told.dtype or _dtype(drafts), date=told.date or date)
    said = notes(attribution, memory, overlap, is_joined=part.nodes is not None)
    model = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.name)
    tool = "PyTorch profiler" if recorded is None else "PyTorch profiler and execution trace"
    info = told.info(path, tool, model, told.samples(path, attribution.samples()), said)
    info = replace(info, framework_peak_bytes=memory.peak if memory is not None else None)
    return Trace(info, kernels(attribution, streams, [draft for draft, _ in kept]), tuple(row for _, row in kept))


@dataclass(frozen=True, slots=True)
class _Part:
    """The iteration that is taken; nodes: its operators in the execution trace, None without one."""

    attribution: Attribution
    nodes: Nodes | None


def _choose(path: Path, recorded: ExecutionTrace | None, wanted: int | None) -> _Part:
    """The last iteration, or the wanted one; with an execution trace, the last one that it covers."""

    def choose(steps: Sequence[Span]) -> Sequence[Span]:
        return steps if recorded is None else may_cover(path, steps, recorded)

    refusal: InputError | None = None
    for profile, iteration in iterations(path, wanted, choose):
        attribution = Attribution(profile, iteration)
        if recorded is None:
            return _Part(attribution, None)
        try:
            return _Part(attribution, join(attribution, recorded))
        except InputError as error:
            # Without its traceback, which would hold on to the iteration while the next one is read.
            refusal = refusal or error.with_traceback(None)
    raise refusal or InputError.single(path, "", "marks iterations, but none has kernels", "record it again")


def _dtype(drafts: Sequence[Draft]) -> str | None:
    """The number format of most bytes of feature maps."""
    counts: Counter[str] = Counter()
    for draft in drafts:
        if draft.kind is BlockKind.FEATURE_MAP and draft.dtype:
            counts[draft.dtype] += draft.bytes
    return max(sorted(counts), key=lambda dtype: counts[dtype], default=None)


def _date(profile: Profile, iteration: Iteration) -> str:
    """The day of the recording in UTC, where its clock counts from 1970."""
    since_1970 = profile.base_ns + iteration.kernels[0].start
    if since_1970 < _EPOCH_FROM:
        return ""
    return datetime.datetime.fromtimestamp(since_1970 // 10**9, datetime.UTC).date().isoformat()
