"""A machine without time that computes with symbols, so that every wrong value is detected.

It shares no code with the others and does not use versions. Every kernel's output is a term of the kernel, the
output's position and the values that the kernel reads. A kernel that is not pure also draws a number in each run.
A batch norm and a dropout draw too, but save the drawn number; a recompute of their first output alone reads it
from the saved block.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
)
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import BlockKind

Value = int
NOTHING: Value = -1
SAVING = ("batch_norm", "dropout", "dropout_")


class WrongValueError(AssertionError):
    """A program used a missing value."""


@dataclass
class Symbolic:
    """Runs a program of one segment on one GPU, with its streams interleaved at random.

    found[iteration, k]: the values that kernel k read at its first run. order: launches of first runs, in order.
    """

    graph: TaskGraph
    program: Program
    choice: random.Random = field(default_factory=random.Random)
    contents: dict[tuple[int, int], tuple[Value, ...]] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)
    memory: dict[str, dict[int, Value]] = field(default_factory=dict)
    signals: Counter[int] = field(default_factory=Counter)
    draws: Counter[int] = field(default_factory=Counter)
    ends: list[dict[int, Value]] = field(default_factory=list)

    def run(self, iterations: int = 2) -> Symbolic:
        (segment,) = self.program.segments
        self.memory = {DEVICE: {b: hash(("initial", b)) for b in self.program.resident}, HOST: {}}
        positions: dict[StreamId, int] = dict.fromkeys(segment.streams, 0)
        ends = {stream: iterations * len(code) for stream, code in segment.streams.items()}
        while positions != ends:
            able = [s for s in positions if positions[s] < ends[s] and self._able(segment.streams[s], positions[s])]
            if not able:
                raise WrongValueError("all streams wait")
            stream = self.choice.choice(able)
            code = segment.streams[stream]
            self._do(code[positions[stream] % len(code)], positions[stream] // len(code))
            positions[stream] += 1
            if all(position % len(segment.streams[s]) == 0 for s, position in positions.items()):
                self.ends.append(dict(self.memory[DEVICE]))
        return self

    def _able(self, code: tuple[Instruction, ...], position: int) -> bool:
        instruction = code[position % len(code)]
        return not isinstance(instruction, Await) or self.signals[instruction.event] > position // len(code)

    def _do(self, instruction: Instruction, iteration: int) -> None:
        match instruction:
            case Launch(k, again, makes):
                self._launch(k, again, makes, iteration)
            case Acquire(blocks, memory):
                for b in blocks:
                    self._need(b not in self.memory[memory], f"{b} is acquired twice")
                    self.memory[memory][b] = NOTHING
            case Release(blocks, memory):
                for b in blocks:
                    self._need(b in self.memory[memory], f"{b} is released twice")
                    del self.memory[memory][b]
            case Initialize(blocks, memory):
                for b in blocks:
                    self._put(memory, b, hash(("given", b, iteration)))
            case Copy(b, src, dst):
                self._put(dst, b, self._get(src, b))
            case Encode(b, form, memory):
                self._put(memory, form, self._get(memory, b))
            case Decode(b, form, memory):
                self._put(memory, b, self._get(memory, form))
            case Signal(event):
                self.signals[event] += 1

    def _need(self, holds: bool, what: str) -> None:
        if not holds:
            raise WrongValueError(what)

    def _get(self, memory: str, b: int) -> Value:
        value = self.memory[memory].get(b, NOTHING)
        self._need(value != NOTHING, f"{self.graph.blocks[b].id} has no value")
        return value

    def _put(self, memory: str, b: int, value: Value) -> None:
        self._need(b in self.memory[memory], f"{self.graph.blocks[b].id} has no memory")
        self.memory[memory][b] = value

    def _launch(self, k: int, again: bool, makes: tuple[int, ...], iteration: int) -> None:
        graph, kernel = self.graph, self.graph.kernels[k]
        read = tuple((b, self._get(DEVICE, b)) for b in graph.reads[k])
        if not again:
            self.order.append((iteration, k))
            self.contents[iteration, k] = tuple(value for _, value in read)
        own = {b for b in graph.writes[k] if graph.blocks[b].persistent}
        # A workspace has no meaningful contents.
        results = [b for b in graph.writes[k] if graph.blocks[b].kind is not BlockKind.WORKSPACE and b not in own]
        drawn: object = None
        if kernel.pure is not True:
            self.draws[k] += 1
            drawn = (iteration, "again", self.draws[k]) if again else (iteration, "first")
        written = {b: hash((k, at, read, drawn)) for at, b in enumerate(graph.writes[k])}
        if kernel.op in SAVING and kernel.pure is not True and len(results) > 1:
            first, *saved = results
            from_ = tuple(self._get(DEVICE, b) if again and b not in makes else written[b] for b in saved)
            written[first] = hash((k, "of saved", tuple(pair for pair in read if pair[0] not in own), from_))
        for b in makes if again else graph.writes[k]:
            self._put(DEVICE, b, written[b])
