"""Stacks of a snapshot, each kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simgpu.importers.snapshot.fields import Record
from simgpu.trace.allocations import Frame
from simgpu.trace.columns import LARGEST


class Stacks:
    """Distinct stacks, by the lists of frames of a snapshot.

    A snapshot repeats the same frames many times. Each frame and each list is therefore looked at once, by its
    identity; the snapshot has to stay in memory meanwhile.
    """

    def __init__(self) -> None:
        self.stacks: list[tuple[Frame, ...]] = []
        self._by_list: dict[int, int | None] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_content: dict[tuple[Frame, ...], int] = {}
        self._frames: dict[int, Frame] = {}

    def of(self, record: Record) -> int | None:
        """The number of a record's stack; None if it has no frames."""
        frames = record.items("frames")
        if id(frames) not in self._by_list:
            self._by_list[id(frames)] = self._number(frames, record) if frames else None
        return self._by_list[id(frames)]

    def _number(self, frames: Sequence[Any], record: Record) -> int:
        ids = tuple(map(id, frames))
        if ids not in self._by_frames:
            stack = tuple(self._frame(frame, record) for frame in frames)
            if stack not in self._by_content:
                self._by_content[stack] = len(self.stacks)
                self.stacks.append(stack)
            self._by_frames[ids] = self._by_content[stack]
        return self._by_frames[ids]

    def _frame(self, values: object, record: Record) -> Frame:
        if id(values) not in self._frames:
            frame = Record(values, record.path, f"{record.place}, frames")
            file = frame.line("filename")
            line = frame.get("line")
            number = line if type(line) is int and 0 <= line <= LARGEST else 0
            self._frames[id(values)] = Frame(frame.line("name"), "" if file == "??" else file, number)
        return self._frames[id(values)]
