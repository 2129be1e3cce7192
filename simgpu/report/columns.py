"""The data of the page's timeline: a run's columns as compact lists of integers.

Each name is stored once. Spans are listed by stream, ordered by time; each has the gap to the end of the previous span
and its length. Values above 2**53, the largest exact integer in JavaScript, raise `InputError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simgpu.analysis.bars import LOOKS, Look, legend_label, look_of
from simgpu.errors import InputError
from simgpu.hardware.spec import DEVICE
from simgpu.report.recorded import Ran, ReportInput
from simgpu.report.segment_map import map_colours, segment_maps
from simgpu.timeline.model import Column, MemoryCurve, Timeline
from simgpu.timeline.streams import StreamId, engine_text, track_order
from simgpu.trace.model import Block, Kernel

#: Largest integer up to which JavaScript represents all integers exactly.
EXACT = 2**53
_STREAM_TITLES = {"d2h": "D2H", "h2d": "H2D", "data": "copies"} | {
    role: role for role in ("compute", "host", "collectives")
}
#: The stream on which the host adds up the gradients of several GPUs.
_EXCHANGE = StreamId(0, "host", 1)


def page_data(recorded: ReportInput) -> dict[str, Any]:
    """Plain data for JSON: names, looks, tasks, and the spans and memory of each policy that completed.

    Raises `InputError` for times or sizes above 2**53, which a browser cannot show exactly.
    """
    strings, kinds = _StringTable(), _StringTable()
    tasks: dict[tuple[tuple[Kernel, ...], tuple[Block, ...]], int] = {}
    task_data: list[dict[str, Any]] = []
    runs = []
    for ran in recorded.runs:
        if ran.timeline is None:
            continue
        _require_exact(ran.label, ran.timeline)
        number = tasks.setdefault((ran.kernels, ran.blocks), len(tasks))
        if number == len(task_data):
            task_data.append(_tasks(ran.kernels, ran.blocks, strings))
        runs.append(_run(ran, ran.timeline, number, strings, kinds))
    engines = {name for ran in recorded.runs if ran.timeline is not None for name in ran.timeline.engines}
    colours = {"map_colours": map_colours()} if any("maps" in run for run in runs) else {}
    return {
        **colours,
        "kinds": kinds.all,
        "looks": [_look(look, sorted(engines)) for look in LOOKS],
        "tasks": task_data,
        "runs": runs,
        "words": strings.all,
    }


class _StringTable:
    """Unique strings, each with a number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._number: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        number = self._number.setdefault(text, len(self.all))
        if number == len(self.all):
            self.all.append(text)
        return number


def _require_exact(label: str, timeline: Timeline) -> None:
    sampled = (column for curve in timeline.memories for column in (curve.time_ns, curve.live, curve.used))
    reserved = (curve.reserved for curve in timeline.memories if curve.reserved is not None)
    columns = [timeline.end_ns, timeline.bytes, *sampled, *reserved]
    largest = max([*timeline.iteration_ends_ns, *(int(column.max(initial=0)) for column in columns)])
    if largest > EXACT:
        what = f"time or size {largest} exceeds 2**53: a browser cannot show it exactly"
        raise InputError.single("", label, what, "report a shorter run, or use its tables")


def _look(look: Look, engines: Iterable[str]) -> dict[str, Any]:
    label = legend_label(look, engines)
    return {"label": label, "fill": look.fill, "hatch": look.hatch[:1], "ink": look.ink, "height": look.height}


def _tasks(kernels: Sequence[Kernel], blocks: Sequence[Block], strings: _StringTable) -> dict[str, Any]:
    place = {block.id: number for number, block in enumerate(blocks)}
    return {
        "kernels": {
            "id": [strings(kernel.id) for kernel in kernels],
            "op": [strings(kernel.op) for kernel in kernels],
            "layer": [strings(kernel.layer or "") for kernel in kernels],
            "phase": [strings(kernel.phase.value) for kernel in kernels],
            "reads": [[place[name] for name in kernel.reads if name in place] for kernel in kernels],
            "writes": [[place[name] for name in kernel.writes if name in place] for kernel in kernels],
        },
        "blocks": {
            "id": [strings(block.id) for block in blocks],
            "bytes": [block.bytes for block in blocks],
            "kind": [strings(block.kind.value.replace("_", " ")) for block in blocks],
            "layer": [strings(block.layer or "") for block in blocks],
        },
    }


def _run(ran: Ran, timeline: Timeline, tasks: int, strings: _StringTable, kinds: _StringTable) -> dict[str, Any]:
    looks = _looks(timeline, ran.kernels)
    shown = sorted(set(timeline.stream.tolist()), key=lambda stream: track_order(timeline.streams[stream]))
    name = np.array([*(strings(name) for name in timeline.names), -1], dtype=np.int64)[timeline.name]
    kind = _kind_numbers(timeline, kinds)
    curves = [_memory(f"GPU {curve.gpu}", curve) for curve in timeline.device_memories]
    maps = segment_maps(ran.addresses, ran.blocks, timeline.window(-1))
    return {
        "label": ran.label,
        "tasks": tasks,
        "budget": ran.entry["budget_bytes"],
        "unlimited": timeline.memory(DEVICE).capacity is None,
        "ends": list(timeline.iteration_ends_ns),
        "streams": list(timeline.streams),
        "tracks": [_track(timeline, stream, looks, name, kind) for stream in shown],
        "memory": curves,
        "shared": [_memory(curve.memory, curve) for curve in timeline.shared_memories],
        **({"maps": maps} if maps else {}),
    }


def _kind_numbers(timeline: Timeline, kinds: _StringTable) -> Column:
    """The number of each span's kind in the page's list."""
    number = {pair: kinds(label.replace("_", " ")) for pair, label in timeline.labels.items()}
    pairs = zip(timeline.kind.tolist(), timeline.resource.tolist(), strict=True)
    return np.array([number[pair] for pair in pairs], dtype=np.int64)


def _track(timeline: Timeline, stream: int, looks: Column, name: Column, kind: Column) -> dict[str, Any]:
    mine = np.flatnonzero(timeline.stream == stream)
    start, end = timeline.start_ns[mine], timeline.end_ns[mine]
    moved = np.flatnonzero(timeline.bytes[mine])
    stream_id = StreamId.of(timeline.streams[stream])
    role = _STREAM_TITLES.get(stream_id.role) or engine_text(stream_id.role)
    title = "exchange" if stream_id == _EXCHANGE else f"{role} {stream_id.number or ''}".rstrip()
    return {
        "stream": stream,
        "gpu": stream_id.gpu,
        "title": title,
        "gap": (start - np.concatenate([[0], end[:-1]])).tolist(),
        "length": (end - start).tolist(),
        "kind": kind[mine].tolist(),
        "look": looks[mine].tolist(),
        "name": name[mine].tolist(),
        "cause": timeline.cause[mine].tolist(),
        "iteration": _steps(timeline.iteration[mine]),
        "moved": {"at": _steps(moved), "bytes": timeline.bytes[mine][moved].tolist()},
    }


def _looks(timeline: Timeline, kernels: Iterable[Kernel]) -> Column:
    """The index in `LOOKS` of each span; cached by stream, kind, engine or memory, cause and phase."""
    phases = {kernel.id: kernel.phase for kernel in kernels}
    number = {look: position for position, look in enumerate(LOOKS)}
    results: dict[tuple[object, ...], int] = {}
    looks = []
    for span in timeline:
        key = (span.stream, span.kind, span.resource, span.cause, phases.get(span.name))
        if key not in results:
            results[key] = number[look_of(span, phases)]
        looks.append(results[key])
    return np.array(looks, dtype=np.int64)


def _memory(title: str, curve: MemoryCurve) -> Mapping[str, Any]:
    padding = curve.used - curve.live
    return {
        "title": title,
        "capacity": curve.capacity,
        "time": _steps(curve.time_ns),
        "live": _steps(curve.live),
        "padding": _steps(padding) if padding.any() else None,
        **({} if curve.reserved is None else {"reserved": _steps(curve.reserved)}),
    }


def _steps(column: Column) -> list[int]:
    """The difference of each value to the previous one."""
    results: list[int] = np.diff(column, prepend=0).tolist()
    return results
