"""Write a timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" of the Chromium project. Its times are microseconds, written as exact decimals of our
nanoseconds. Keys are sorted and separators fixed, so one timeline always gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from simgpu.hardware.spec import DEVICE, HOST
from simgpu.io.atomic import atomic_file
from simgpu.timeline.model import MemoryCurve, Span, SpanKind, Timeline
from simgpu.timeline.streams import engine, engine_ends, track_order


def write_perfetto(timeline: Timeline, path: str | Path, about: Mapping[str, str] | None = None) -> None:
    """Write a process per GPU, a track per stream, memory counters, and an arrow per pair of copies.

    Memories that GPUs share are shown with GPU 0. An arrow leads from each copy of a block to the host to the next copy
    of that block back on the same GPU, except for copies of no duration, to which viewers cannot attach arrows. The
    write is atomic; `InputError` when it fails.

    about: texts by name that describe the run and the sources of its numbers, written as ``otherData`` of the file and
    as labels of every GPU, which viewers show next to its name.
    """
    about = dict(about or {})
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        other = f'"otherData":{_json(about)},' if about else ""
        file.write(f'{{"displayTimeUnit":"ms",{other}"traceEvents":[')
        separator = "\n"
        for event in _events(timeline, about):
            file.write(separator)
            file.write(event)
            separator = ",\n"
        file.write("\n]}\n")


def _events(timeline: Timeline, about: Mapping[str, str]) -> Iterator[str]:
    yield from _metadata(timeline, about)
    yield from _slices(timeline)
    # After the slices: within one instant viewers use the order of the file, and an arrow needs an open slice.
    yield from _flows(timeline)
    for curve in timeline.memories:
        yield from _counters(f"{curve.memory} memory", max(curve.gpu, 0), curve)


def _metadata(timeline: Timeline, about: Mapping[str, str]) -> Iterator[str]:
    tracks = set(zip(timeline.gpu.tolist(), timeline.stream.tolist(), strict=True))
    for gpu in sorted({gpu for gpu, _ in tracks} | {0}):
        yield _json({"args": {"name": f"gpu {gpu}"}, "name": "process_name", "ph": "M", "pid": _pid(gpu)})
        if about:
            labels = "; ".join(about.values())
            yield _json({"args": {"labels": labels}, "name": "process_labels", "ph": "M", "pid": _pid(gpu)})
    named = sorted((gpu, track_order(timeline.streams[stream]), stream) for gpu, stream in tracks)
    for position, (gpu, _, stream) in enumerate(named):
        thread = {"ph": "M", "pid": _pid(gpu), "tid": stream + 1}
        yield _json({"args": {"name": timeline.streams[stream]}, "name": "thread_name", **thread})
        yield _json({"args": {"sort_index": position}, "name": "thread_sort_index", **thread})


def _slices(timeline: Timeline) -> Iterator[str]:
    tids = {stream: index + 1 for index, stream in enumerate(timeline.streams)}
    quoted = {name: _json(name) for name in timeline.names} | {"": '""'}
    for span in timeline:
        name = _json(_stall_title(span)) if span.kind.is_stall else quoted[span.name]
        args = f'"iteration":{span.iteration}'
        args = f'{args},"waits_for":{quoted[span.name]}' if span.kind.is_stall else f'"bytes":{span.bytes},{args}'
        yield (
            f'{{"args":{{{args}}},"cat":"{span.label}",'
            f'"dur":{_us(span.end_ns - span.start_ns)},"name":{name},"ph":"X","pid":{_pid(span.gpu)},'
            f'"tid":{tids[span.stream]},"ts":{_us(span.start_ns)}}}'
        )


def _flows(timeline: Timeline) -> Iterator[str]:
    tids = {stream: index + 1 for index, stream in enumerate(timeline.streams)}
    for number, (out, back) in enumerate(copy_pairs(timeline)):
        name = _json(out.name)
        yield (
            f'{{"cat":"offload","id":{number},"name":{name},"ph":"s","pid":{_pid(out.gpu)},'
            f'"tid":{tids[out.stream]},"ts":{_us(out.start_ns)}}}'
        )
        yield (
            f'{{"bp":"e","cat":"offload","id":{number},"name":{name},"ph":"f","pid":{_pid(back.gpu)},'
            f'"tid":{tids[back.stream]},"ts":{_us(back.start_ns)}}}'
        )


def copy_pairs(timeline: Timeline) -> Iterator[tuple[Span, Span]]:
    """Each copy of a block away from the device with the next one back over the same link and on the same GPU.

    Both have a positive length. Away is towards the memory that stands later in `Timeline.memories`.
    """
    order = list(dict.fromkeys([DEVICE, HOST, *(curve.memory for curve in timeline.memories)]))
    waiting: dict[tuple[int, str, str], list[Span]] = {}
    for span in timeline:
        if span.kind is not SpanKind.COPY or span.end_ns == span.start_ns:
            continue
        src, dst = engine_ends(span.resource) or (DEVICE, HOST)
        if order.index(dst) > order.index(src):
            waiting.setdefault((span.gpu, span.name, span.resource), []).append(span)
        else:
            for out in waiting.pop((span.gpu, span.name, engine(dst, src)), ()):
                yield out, span


def _counters(name: str, gpu: int, curve: MemoryCurve) -> Iterator[str]:
    reserved = None if curve.reserved is None else curve.reserved.tolist()
    samples = zip(curve.time_ns.tolist(), curve.live.tolist(), curve.used.tolist(), strict=True)
    for number, (time, live, used) in enumerate(samples):
        more = "" if reserved is None else f'"reserved":{reserved[number]},'
        args = f'"live":{live},{more}"used":{used}'
        yield f'{{"args":{{{args}}},"name":"{name}","ph":"C","pid":{_pid(gpu)},"ts":{_us(time)}}}'


def _stall_title(span: Span) -> str:
    """The title of a stall; viewers colour slices by title."""
    match span.kind:
        case SpanKind.STALL_MEMORY:
            return f"waits for {span.resource} memory"
        case SpanKind.STALL_ENGINE:
            return "waits for copy engine"
        case SpanKind.STALL_LAUNCH:
            return "waits for launch"
        case _:
            return f"waits for {span.cause}"


def _pid(gpu: int) -> int:
    """GPU 0 is process 1, because viewers treat process 0 as the idle process."""
    return gpu + 1


def _us(ns: int) -> str:
    """Nanoseconds as an exact decimal number of microseconds; times are never negative."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
