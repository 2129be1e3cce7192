"""Whether a program keeps the rules of `simgpu.program.verify`, by the compiled walk."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.code import SmallInts
from simgpu.program.columns import Columns
from simgpu.program.instructions import DEVICE, HOST
from simgpu.program.opcodes import RELAUNCH
from simgpu.program.paging import Paged, Remote

#: The most kernels of a graph of which the walk's arrays are kept for other programs.
_KEPT = 100_000

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simgpu.program.check import CheckedProgram


def keeps_rules(checked: CheckedProgram, writes: Sequence[tuple[list[int], list[int]]]) -> bool:
    """Whether a program certainly keeps all rules. writes: for each segment, the writes to each block before it and in
    it.

    False also for blocks on demand, which only `ProgramWalk` knows.
    """
    if isinstance(checked.program.residency, Paged) or checked.columns is None:
        return False
    return _Walk(checked, checked.columns).keeps_rules(writes)


class _Walk:
    """The arrays of `simgpu.program.compiled_walk`: versions and clocks count instructions, so 32 bits suffice."""

    def __init__(self, checked: CheckedProgram, columns: Columns) -> None:
        self.program, self.graph, self.columns = checked.program, checked.graph, columns
        streams = self.program.streams
        shared = [name for name in columns.memories if name != DEVICE]
        gpus, count, blocks = self.program.gpus, len(streams), len(self.graph.sizes)
        place = {name: gpus + number for number, name in enumerate(shared)}
        self.memories = np.array(
            [[place.get(name, stream.gpu) for name in columns.memories] for stream in streams], dtype=np.int64
        )
        remote = isinstance(self.program.residency, Remote)
        on_host = [remote or stream.role == "host" for stream in streams]
        self.used = np.array(
            [place[HOST] if host else s.gpu for host, s in zip(on_host, streams, strict=True)], dtype=np.int64
        )
        self.blocks = np.full((gpus + len(shared), blocks, 8), -1, dtype=np.int32)
        self.blocks[:, :, 0] = 0
        self.touched = np.full((len(self.blocks), count, blocks), -1, dtype=np.int32)
        self.clock = np.full((count, count), -1, dtype=np.int32)
        np.fill_diagonal(self.clock, 0)
        self.repeats = np.minimum(columns.repeats, 2)
        # An event is signalled once in a repetition, and two repetitions of a segment and two iterations are walked.
        self.iterations = 1 if count == 1 else 2
        signals = self.iterations * int(self.repeats.max(initial=1))
        self.heard = np.zeros(len(columns.events), dtype=np.int32)
        self.clocks = np.empty((len(columns.events), signals, count), dtype=np.int32)
        self.signalled_in = columns.segments_of(columns.signals).astype(np.int32)
        self.written = np.zeros(blocks, dtype=np.int32)
        self.holdings = [
            (each.gpu if each.memory == DEVICE else place[each.memory], np.array(each.blocks, dtype=np.int64))
            for each in self.program.initial_contents
        ]

    def keeps_rules(self, writes: Sequence[tuple[list[int], list[int]]]) -> bool:
        """Walk as `simgpu.program.verify.ProgramWalk.run` does."""
        of_blocks = self.graph.blocks
        for m, blocks in self.holdings:
            if self.blocks[m, blocks, 0].any() or len(set(blocks.tolist())) < len(blocks):
                return False
            if not all(of_blocks[b].persistent for b in blocks.tolist()):
                return False
            self.blocks[m, blocks, 0], self.blocks[m, blocks, 1] = 1, 0
        kernels, accesses = _accesses(self.graph, self.columns)
        graph, ever = _facts(self.graph), np.zeros(len(self.graph.kernels), dtype=np.bool_)
        each = [(np.array(earlier, dtype=np.int32), np.array(own, dtype=np.int32)) for earlier, own in writes]
        for iteration in range(self.iterations):
            start = self.blocks[:, :, 0].copy()
            for index, (earlier, own) in enumerate(each):
                for repetition in range(self.repeats[index]):
                    if not self._repetition(index, iteration, repetition, graph, kernels, accesses, earlier, ever):
                        return False
                    self.written += own
            if not ever.all() or (self.blocks[:, :, 0] != start).any():
                return False
            if any((self.blocks[m, blocks, 1] != self.written[blocks]).any() for m, blocks in self.holdings):
                return False
        return True

    def _repetition(
        self,
        index: int,
        iteration: int,
        repetition: int,
        graph: SmallInts,
        kernels: SmallInts,
        accesses: SmallInts,
        earlier: SmallInts,
        ever: NDArray[np.bool_],
    ) -> bool:
        from simgpu.program import compiled_walk as machine

        columns, repeats = self.columns, self.program.segments[index].repeat > 1
        held = self.blocks[:, :, 0].copy() if repeats else self.blocks[:0, :, 0]
        begins = columns.first.ravel()
        ends = np.append(begins[1:], len(columns.rows)).reshape(columns.first.shape)[:, index]
        launched = np.zeros(len(self.graph.kernels), dtype=np.bool_)
        # How many signals of each segment's events its streams wait for, without any lag.
        expected = (iteration + 1) * self.repeats
        expected[index] = iteration * self.repeats[index] + repetition + 1
        of_others = columns.repeats.copy()
        of_others[index] = 0
        good: bool = machine.walk(
            columns.rows, columns.first[:, index].copy(), ends.copy(), expected, of_others, self.signalled_in,
            columns.blocks, self.memories, self.used, self.clock, self.heard, self.clocks, self.blocks, self.touched,
            graph, kernels, accesses, self.written, earlier, launched,
        )  # fmt: skip
        ever |= launched
        return good and (not repeats or bool((self.blocks[:, :, 0] == held).all()))


def _facts(graph: TaskGraph) -> SmallInts:
    """For each block the one that it is a form of, and whether the host may write it."""
    if ("facts",) in graph.kept:
        known: SmallInts = graph.kept["facts",]
        return known
    facts: SmallInts = np.full((len(graph.blocks), 2), -1, dtype=np.int32)
    for form, encoded in graph.encoded.items():
        facts[form, 0] = encoded.block
    facts[:, 1] = [block.persistent or block.host_write is not None for block in graph.blocks]
    if len(graph.kernels) <= _KEPT:
        graph.kept["facts",] = facts
    return facts


def _accesses(graph: TaskGraph, columns: Columns) -> tuple[SmallInts, SmallInts]:
    """The kernels' rows, and the accesses to which they refer."""
    kernels, accesses = graph.kept.get(("accesses",)) or _first_accesses(graph)
    if len(kernels) <= _KEPT:
        graph.kept["accesses",] = kernels, accesses
    again = sorted(set(columns.rows[np.flatnonzero(columns.rows[:, 0] == RELAUNCH), 1].tolist()))
    if not again:
        return kernels, accesses
    kernels, ancestry = kernels.copy(), Ancestry.of(graph)
    parts: list[tuple[int, int, int]] = []
    for k in again:
        first = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
        known = first | dict(zip(graph.reads[k], graph.read_versions[k], strict=True))
        inputs, outputs = ancestry.inputs[k], ancestry.outputs[k]
        begin = len(accesses) + len(parts)
        parts += [(b, known[b], 0) for b in inputs]
        parts += [(b, first[b], b in graph.reads[k]) for b in outputs]
        middle = begin + len(inputs)
        kernels[k, 4:] = begin, middle, middle, middle + len(outputs), ancestry.repeatable(k)
    return kernels, np.concatenate([accesses, np.array(parts, dtype=np.int32).reshape(-1, 3)])


def _first_accesses(graph: TaskGraph) -> tuple[SmallInts, SmallInts]:
    """The same for kernels that run for the first time."""
    kernels = np.zeros((len(graph.kernels), 9), dtype=np.int32)
    lists = (*graph.reads, *graph.writes)
    counts = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    ends = np.cumsum(counts).reshape(2, -1)
    kernels[:, [1, 3]], kernels[:, [0, 2]] = ends.T, (ends - counts.reshape(2, -1)).T
    accesses = np.zeros((int(counts.sum()), 3), dtype=np.int32)
    for column, each in enumerate((lists, (*graph.read_versions, *graph.write_versions))):
        accesses[:, column] = np.fromiter(chain.from_iterable(each), dtype=np.int32, count=len(accesses))
    return kernels, accesses
