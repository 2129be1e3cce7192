"""Programs as text: listings to read, JSON to save and compare, and the message about a deadlock."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from simgpu.errors import InputError
from simgpu.graph.accumulation import Accumulate
from simgpu.graph.buffers import WithBuffers
from simgpu.graph.collectives import AddedBlock, AddedKernel, WithCollectives
from simgpu.graph.encodings import Encoder, Encoding
from simgpu.graph.functional import Functional
from simgpu.graph.host_updates import UpdateOnHost
from simgpu.graph.reordered import Reordered
from simgpu.graph.replicate import Exchange, Replicate
from simgpu.graph.split import Split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import (
    Repeating,
    Uncompressed,
    Unpacked,
    WithAlgorithms,
    WithEncodings,
    WithUnpacked,
    transformed,
)
from simgpu.io.input_files import parse_json
from simgpu.program.instructions import (
    DEVICE,
    INSTRUCTIONS,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    InitialContents,
    Initialize,
    Instruction,
    Launch,
    Location,
    Program,
    Release,
    Section,
    Segment,
    Signal,
)
from simgpu.program.paging import Paged, Remote
from simgpu.timeline.streams import StreamId
from simgpu.units import format_bytes, format_time

SCHEMA = "simgpu.program/3"

#: Every change of a graph that a program can carry.
TRANSFORMS = (
    Split,
    Accumulate,
    Reordered,
    Functional,
    WithAlgorithms,
    WithEncodings,
    WithUnpacked,
    Repeating,
    Uncompressed,
    Replicate,
    UpdateOnHost,
    WithBuffers,
    WithCollectives,
)
_RESIDENCIES = (Paged, Remote)
#: Names in JSON.
_NAMES = {kind: kind.__name__ for kind in (*INSTRUCTIONS, *TRANSFORMS, *_RESIDENCIES)}
_KINDS: dict[str, type[Any]] = {name: kind for kind, name in _NAMES.items()}

#: How many lines before and after a mistake are shown.
_AROUND = 2


class Place(NamedTuple):
    """A position in a program: a segment, a stream of it, and the index of an instruction there (or of its end)."""

    segment: int
    stream: StreamId
    position: int

    def written(self, program: Program) -> str:
        """The position in messages; the segment only where there are several."""
        where = f"{self.stream}[{self.position}]"
        return where if len(program.segments) == 1 else f"segment {self.segment}, {where}"


def listing(program: Program, graph: TaskGraph) -> str:
    """The program stream by stream, an instruction a line, with the names of kernels and blocks.

    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> print(listing(lower(graph, Placement()), graph))
    resident: x1
    segment 0, once
      compute
        acquire x2
        launch F1
        acquire g1
        launch B1
        release x2 g1
    """
    graph = transformed(graph, program.transforms)
    lines = [f"resident: {_blocks(program.resident, graph)}".rstrip()]
    if isinstance(program.residency, Paged):
        lines.insert(0, f"on demand: pages of {program.residency.page} B")
    elif program.residency is not None:
        lines.insert(0, "in host memory, where kernels reach it")
    for holding in program.other_contents:
        where = f"on GPU {holding.gpu}" if holding.memory == DEVICE else f"in {holding.memory} memory"
        lines.append(f"{where}: {_blocks(holding.blocks, graph)}".rstrip())
    for section in program.sections:
        again = f"{format_time(section.rerun_ns)} run again"
        lines.append(
            f"section {section.name}: {', '.join(section.layers)}; {format_bytes(section.held_bytes)} held, {again}"
        )
    for index, segment in enumerate(program.segments):
        lines.append(f"segment {index}, {'once' if segment.repeat == 1 else f'{segment.repeat} times'}")
        for stream, code in segment.streams.items():
            lines.append(f"  {stream}")
            lines += [f"    {_line(instruction, graph)}" for instruction in code]
    return "\n".join(lines)


def located(program: Program, graph: TaskGraph, place: Place, what: str, unreadable: Container[Place] = ()) -> str:
    """A message about an instruction: its position, the instruction, a kernel's operator, and the mistake.

    graph: with the program's transforms applied. unreadable: places whose instruction is not valid for the graph; it is
    shown by its `repr`.
    """
    written = _readable(program, graph, place, unreadable)
    instruction = program.segments[place.segment].streams[place.stream][place.position]
    if type(instruction) is Launch and place not in unreadable:
        written += f" ({graph.kernels[instruction.kernel].op})"
    return f"{place.written(program)}, {written}: {what}"


def excerpt(program: Program, graph: TaskGraph, place: Place, unreadable: Container[Place] = ()) -> list[str]:
    """The lines of the `listing` around an instruction, with an arrow at it. The arguments are those of `located`."""
    stop = min(place.position + _AROUND + 1, len(program.segments[place.segment].streams[place.stream]))
    lines = []
    for position in range(max(place.position - _AROUND, 0), stop):
        arrow = "  --> " if position == place.position else "      "
        lines.append(arrow + _readable(program, graph, place._replace(position=position), unreadable))
    return lines


def _readable(program: Program, graph: TaskGraph, place: Place, unreadable: Container[Place]) -> str:
    instruction = program.segments[place.segment].streams[place.stream][place.position]
    if place not in unreadable:
        return _line(instruction, graph)
    text = repr(instruction)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _blocks(blocks: tuple[int, ...], graph: TaskGraph) -> str:
    return " ".join(graph.blocks[b].id for b in blocks)


def _line(instruction: Instruction, graph: TaskGraph) -> str:
    writer = _LineWriter(graph)
    instruction.apply(writer)
    return writer.line


class _LineWriter:
    """Writes the line of an instruction, as its `Effects`."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.line = ""

    def runs(self, launch: Launch) -> None:
        makes = f" for {_blocks(launch.makes, self.graph)}" if launch.makes else ""
        self.line = f"{'recompute' if launch.recompute else 'launch'} {self.graph.kernels[launch.kernel].id}{makes}"

    def moves(self, work: Copy | Encode | Decode, source: Location, target: Location) -> None:
        before, after = (_blocks((place.block,), self.graph) for place in (source, target))
        if isinstance(work, Copy):
            form = "" if work.into is None else f" as {after}"
            self.line = f"copy {before} from {source.memory} to {target.memory}{form}"
        elif isinstance(work, Encode):
            self.line = f"encode{_of(source.memory)} {before} into {after}"
        else:
            self.line = f"decode{_of(source.memory)} {after} from {before}"

    def acquires(self, acquire: Acquire) -> None:
        places = f" at {' '.join(map(str, acquire.offsets))}" if acquire.offsets is not None else ""
        self.line = f"acquire{_of(acquire.memory)} {_blocks(acquire.blocks, self.graph)}{places}"

    def releases(self, release: Release) -> None:
        self.line = f"release{_of(release.memory)} {_blocks(release.blocks, self.graph)}"

    def initializes(self, initialize: Initialize) -> None:
        self.line = f"initialize{_of(initialize.memory)} {_blocks(initialize.blocks, self.graph)}"

    def signals(self, signal: Signal) -> None:
        self.line = f"signal {signal.event}"

    def awaits(self, wait: Await) -> None:
        self.line = f"await {wait.event}" + (f", {wait.lag} earlier" if wait.lag else "")


def _of(memory: str) -> str:
    return "" if memory == DEVICE else f" {memory}"


def to_json(program: Program) -> str:
    """The program as JSON, the same bytes for equal programs; `from_json` reads it back."""
    document = {
        "schema": SCHEMA,
        "segments": [
            {
                "repeat": segment.repeat,
                "streams": {str(stream): [_value(i) for i in code] for stream, code in segment.streams.items()},
            }
            for segment in program.segments
        ],
        "resident": program.resident,
        "transforms": [_value(transform) for transform in program.transforms],
        "unlimited_memory": program.unlimited_memory,
        "pool": program.pool,
        "notes": program.notes,
    }
    if program.other_contents:
        document["other_contents"] = [_value(holding)[1:] for holding in program.other_contents]
    if program.residency is not None:
        document["residency"] = _value(program.residency)
    if program.sections:
        document["sections"] = [asdict(section) for section in program.sections]
    return json.dumps(document, separators=(",", ":")) + "\n"


def _value(value: Any) -> list[Any]:
    """A dataclass of `_KINDS` as its name and its fields."""
    if isinstance(value, Launch) and not value.makes:
        return ["Launch", value.kernel, value.recompute]
    if isinstance(value, Copy) and value.into is None:
        return ["Copy", value.block, value.src, value.dst]
    return [_NAMES.get(type(value), type(value).__name__), *(getattr(value, f.name) for f in fields(value))]


def from_json(text: str) -> Program:
    """The program that `to_json` wrote. Raises `InputError` for anything else.

    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> from simgpu.trace.chain import chain
    >>> program = lower(TaskGraph.of(chain([5], [7], [100])), Placement())
    >>> from_json(to_json(program)) == program
    True
    """
    try:
        document = parse_json(text, "program", "write it anew")
        if document["schema"] != SCHEMA:
            what = f'{document["schema"]!r} is not {SCHEMA}, where a copy is ["Copy", block, source, target]'
            raise InputError.single("program", "schema", what, "run the policy again, which writes it anew")
        return Program(
            segments=tuple(_segment(segment) for segment in document["segments"]),
            resident=tuple(document["resident"]),
            transforms=tuple(_read(value) for value in document["transforms"]),
            unlimited_memory=document["unlimited_memory"],
            pool=document["pool"],
            notes=tuple(document["notes"]),
            other_contents=tuple(
                InitialContents(memory, tuple(blocks), gpu)
                for memory, blocks, gpu in document.get("other_contents", ())
            ),
            residency=_read(document["residency"]) if "residency" in document else None,
            sections=tuple(
                Section(**{**each, "layers": tuple(each["layers"])}) for each in document.get("sections", ())
            ),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError.single(
            "program",
            "",
            f"is not a valid simgpu program: {error}",
            "run the scenario again to write a new program.json",
        ) from error


def _segment(segment: Mapping[str, Any]) -> Segment:
    streams = {StreamId.of(name): tuple(_read(value) for value in code) for name, code in segment["streams"].items()}
    return Segment(streams, segment["repeat"])


def _read(value: list[Any]) -> Any:
    kind = _KINDS[value[0]]
    values = [_tuples(part) for part in value[1:]]
    if kind in (Acquire, Release, Initialize):
        if not all(part is None or isinstance(part, tuple) for part in (values[0], *values[2:])):
            raise ValueError(f"{value} is no {value[0]}")
    elif kind is Replicate:
        values[1] = Exchange(values[1])
    elif kind is WithEncodings:
        values[0] = tuple(Encoding(b, codec, Encoder(by), *launch) for b, codec, by, *launch in values[0])
    elif kind is WithUnpacked:
        values[0] = tuple(Unpacked(*each) for each in values[0])
    elif kind is WithCollectives:
        values[:2] = tuple(AddedKernel(*each) for each in values[0]), tuple(AddedBlock(*each) for each in values[1])
    return kind(*values)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def deadlock(program: Program, graph: TaskGraph, segment: int, stuck: Mapping[StreamId, int]) -> str:
    """A message about a deadlock: a cycle of waits, or a wait for an event of a later segment.

    graph: with the program's transforms applied. segment: the segment of the deadlock. stuck: the position of each
    stopped stream, at an await.
    """
    signalled = {
        instruction.event: Place(index, stream, position)
        for index, each in enumerate(program.segments)
        for stream, code in each.streams.items()
        for position, instruction in enumerate(code)
        if isinstance(instruction, Signal)
    }
    waits = {stream: Place(segment, stream, position) for stream, position in stuck.items()}
    chain = [next(iter(waits))]
    while True:
        event = _event(program, waits[chain[-1]])
        there = signalled[event]
        if there.segment != segment or there.stream not in waits:
            place = waits[chain[-1]]
            what = f"event {event} is signalled in segment {there.segment}, which begins only after this one"
            return "\n".join((f"{place.written(program)}: {what}", *excerpt(program, graph, place)))
        if there.stream in chain:
            cycle = chain[chain.index(there.stream) :]
            break
        chain.append(there.stream)
    lines = [f"deadlock: {_count(len(cycle))}"]
    for stream in cycle:
        event = _event(program, waits[stream])
        what = f"waits for event {event}, which is signalled at {signalled[event].written(program)}"
        lines += [f"{waits[stream].written(program)} {what}", *excerpt(program, graph, waits[stream])]
    return "\n".join(lines)


def _event(program: Program, place: Place) -> int:
    wait = program.segments[place.segment].streams[place.stream][place.position]
    assert isinstance(wait, Await), "nothing else makes a stream of a checked program stop"
    return wait.event


def _count(streams: int) -> str:
    return "a stream waits for its own later event" if streams == 1 else f"{streams} streams wait for each other"
