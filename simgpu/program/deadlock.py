"""The message about streams that wait for each other's events."""

from __future__ import annotations

from collections.abc import Mapping

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import Await, Program, Signal
from simgpu.program.text import Place, excerpt
from simgpu.timeline.streams import StreamId


def deadlock(program: Program, graph: TaskGraph, segment: int, stuck: Mapping[StreamId, int]) -> str:
    """What keeps streams from going on: a cycle of waits, or a wait for an event of a later segment.

    graph: with the program's transforms applied. segment: the one in which they stopped. stuck: position of each of
    these streams, at an await.
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
