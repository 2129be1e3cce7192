"""A synthetic training run with the profile and the memory snapshot that it leaves; shares no code with the importer.

The allocator of this run is a row of slots: a freed slot serves the next request that fits exactly, so that addresses
return in every step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.importers.kineto_files import Profile

#: When the run began, microseconds since 1970.
BEGAN_US = 1_750_000_000_000_000
SEGMENT = 64 * 2**20


def rounded(size: int) -> int:
    return -(-size // 512) * 512


@dataclass
class TrueBlock:
    """A block of the run: bytes as requested, and when it was allocated and freed, ns since the run began.

    kernels: numbers of the kernels that its operator launched after it was allocated.
    """

    size: int
    address: int
    at: int
    freed: int | None = None
    kernels: list[int] = field(default_factory=list)


class Run:
    """A run of some steps, all alike. kernels: (launch, duration) in ns, those of the last step."""

    def __init__(self, seed: int, steps: int = 2, operators: int = 12, thread: int = 1) -> None:
        self.draw = random.Random(seed)
        self.now = 1000
        self.blocks: list[TrueBlock] = []
        self.events: list[tuple[str, TrueBlock, int]] = []
        self.operators: list[tuple[str, int, int]] = []
        self.kernels: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int]] = []
        self._free: dict[int, list[int]] = {}
        self._end = 0
        weights = [self._allocate(size) for size in (4000, 3_000_000, 700)]
        shape = [
            (self.draw.randrange(1, 2_000_000), self.draw.random(), self.draw.randrange(3)) for _ in range(operators)
        ]
        for _ in range(steps):
            self._step(shape, weights)

    def _step(self, shape: list[tuple[int, float, int]], weights: list[TrueBlock]) -> None:
        begin = self._tick()
        held: list[TrueBlock] = []
        for number, (size, chance, scratch) in enumerate(shape):
            start = self._tick()
            mine = [self._allocate(size)] + [self._allocate(size // 3 + 1) for _ in range(scratch)]
            for _ in range(1 + number % 2):
                launch = self._tick()
                self.kernels.append((launch, 2000 + number))
                for block in mine:
                    block.kernels.append(len(self.kernels) - 1)
            for block in mine[1:]:
                self._release(block)
            self.operators.append(("aten::linear", start, self._tick()))
            held.append(mine[0])
            if chance < 0.3:
                self._release(held.pop(0))
        for block in held:
            self._release(block)
        self.steps.append((begin, self._tick()))

    def _tick(self) -> int:
        self.now += self.draw.randrange(300, 4000)
        return self.now

    def _allocate(self, size: int) -> TrueBlock:
        slots = self._free.setdefault(rounded(size), [])
        address = slots.pop(0) if slots else self._end
        self._end = max(self._end, address + rounded(size))
        block = TrueBlock(size, address, self._tick())
        self.blocks.append(block)
        self.events.append(("alloc", block, block.at))
        return block

    def _release(self, block: TrueBlock) -> None:
        block.freed = self._tick()
        self._free[rounded(block.size)].append(block.address)
        self.events.append(("free", block, block.freed))

    def profile(self, with_memory: bool = True, without: frozenset[int] = frozenset()) -> Profile:
        """Its profile. without: numbers of the events on memory that it lacks."""
        profile = Profile()
        profile.head["baseTimeNanoseconds"] = BEGAN_US * 1000
        for number, (begin, end) in enumerate(self.steps):
            profile.mark(f"ProfilerStep#{number}", begin / 1000, (end - begin) / 1000)
        for name, start, end in self.operators:
            profile.op(name, start / 1000, (end - start) / 1000, Input_Dims=[[8, 4]])
        finished = 0
        for launch, duration in self.kernels:
            finished = max(finished, launch + 5000)
            profile.kernel(launch / 1000, finished / 1000, duration / 1000)
            finished += duration
        total = 0
        for number, (what, block, at) in enumerate(self.events if with_memory else ()):
            size = rounded(block.size) if what == "alloc" else -rounded(block.size)
            total += size
            if number not in without:
                profile.memory(at / 1000, block.address + 2**40, size, total)
        return profile

    def snapshot(self, first: int = 0, times: bool = True, shift: int = 0) -> dict[str, Any]:
        """Its memory snapshot, from event `first` on. shift: of all addresses, as in another run."""
        at = 2**40 + shift
        entries = []
        for what, block, moment in self.events[first:]:
            where = {"addr": block.address + at, "size": block.size, "stream": 0, "frames": self._frames(block)}
            where |= {"time_us": BEGAN_US + moment // 1000} if times else {}
            actions = ["alloc"] if what == "alloc" else ["free_requested", "free_completed"]
            entries += [{"action": action, **where} for action in actions]
        parts, end = [], 0
        for block in sorted((each for each in self.blocks if each.freed is None), key=lambda each: each.address):
            parts += [{"size": block.address - end, "state": "inactive"}] if block.address > end else []
            size = rounded(block.size)
            parts.append({"size": size, "requested_size": block.size, "state": "active_allocated"})
            end = block.address + size
        parts.append({"size": SEGMENT * 16 - end, "state": "inactive"})
        segment = {"device": 0, "address": at, "total_size": SEGMENT * 16, "stream": 0, "segment_type": "large"}
        return {"segments": [segment | {"blocks": parts}], "device_traces": [entries]}

    def _frames(self, block: TrueBlock) -> list[dict[str, Any]]:
        return [{"name": "forward", "filename": "/home/me/net/model.py", "line": block.size % 50 + 1}]

    def expected(self, step: int = -1) -> list[tuple[int, tuple[int, ...], int | None]]:
        """Blocks of a step that a kernel can have used: bytes, its operator's kernels, the last one before it is freed.

        Kernels are numbered from the first one of the step.
        """
        begin, end = self.steps[step]
        numbers = [number for number, (launch, _) in enumerate(self.kernels) if begin <= launch < end]
        result = []
        for block in self.blocks:
            if begin <= block.at < end:
                gone = end if block.freed is None else block.freed
                during = [number for number in numbers if block.at <= self.kernels[number][0] <= gone]
                until = [number for number in numbers if self.kernels[number][0] <= gone]
                if during:
                    writers = tuple(number - numbers[0] for number in block.kernels)
                    result.append((block.size, writers, None if block.freed is None else until[-1] - numbers[0]))
        return result
