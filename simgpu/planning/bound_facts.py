"""Facts about each feature map that hold under all decisions: when it can be offloaded, and its ancestors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simgpu.planning.columns import (
    ACQUIRES,
    ACTION,
    AFTER,
    AHEAD,
    BEFORE,
    BLOCK,
    DEATH,
    DECODE_NS,
    DEVICE_BYTES,
    DURATION,
    EARLY,
    ENCODE_NS,
    ENCODED,
    IN_NS,
    INPUTS,
    ISSUE,
    MAP,
    OUT_NS,
    OUTPUTS,
    RELEASES,
    SIZE,
    STEP,
    WRITERS,
)
from simgpu.planning.options import Action
from simgpu.planning.tables import Ints, Tables


@dataclass(frozen=True)
class SwapWay:
    """A way to swap a feature map; it covers all options that differ only in the prefetch distance.

    device_bytes: bytes of device memory of the copied form. begins: instant before which no offload begins. aheads: the
    fewest and most layer steps between fetch and use.
    """

    device_bytes: int
    encoded: bool
    out_ns: int
    in_ns: int
    encode_ns: int
    decode_ns: int
    begins: int
    aheads: tuple[int, int]


@dataclass(frozen=True)
class SwapGap:
    """A feature map: bytes, last use in forward, next use, ways to swap it, whether it can be recomputed."""

    size: int
    after: int
    before: int
    ways: tuple[SwapWay, ...]
    recomputable: bool


@dataclass(frozen=True)
class Ancestors:
    """kernels: those that run whenever a feature map is recomputed, at any time. resident: feature maps that are then
    resident, and stay until their own next use. possible: all that might be fetched or recomputed for it."""

    kernels: frozenset[int]
    resident: frozenset[int]
    possible: frozenset[int]


@dataclass(frozen=True)
class BoundFacts:
    """The bound's facts of the tables. Instants have numbers: at 2 k, kernel k is next; at 2 k + 1, it starts.

    In between, the compute stream waits, acquires memory, and recomputes or decodes blocks for the kernel.
    """

    tables: Tables

    @cached_property
    def kernels(self) -> int:
        """The number of kernels."""
        return len(self.tables.kernels) - 1

    @cached_property
    def worked(self) -> list[int]:
        """worked[k]: time of all kernels before k."""
        ends = [0]
        for ns in self.tables.kernels[:-1, DURATION].tolist():
            ends.append(ends[-1] + ns)
        return ends

    def work(self, start: int, stop: int) -> int:
        """Time of the kernels that start at or after instant `start` and end by instant `stop`."""
        return self.worked[stop // 2] - self.worked[start // 2]

    @cached_property
    def live(self) -> list[int]:
        """live[k]: bytes in use while kernel k runs if all feature maps are kept."""
        t = self.tables
        used = int(t.limits[0] + t.limits[1])
        totals = []
        for acquired, released in t.kernels[:-1, [ACQUIRES, RELEASES]].tolist():
            used += acquired
            totals.append(used)
            used -= released
        return totals

    @cached_property
    def gaps(self) -> tuple[SwapGap, ...]:
        """The feature maps."""
        t = self.tables
        issue = {}
        for k in range(self.kernels):
            for at in range(t.kernels[k, ISSUE], t.kernels[k + 1, ISSUE]):
                issue[int(t.lists[at])] = k
        gaps = []
        for f, row in enumerate(t.maps.tolist()):
            options = t.options[f].tolist()
            gaps.append(
                SwapGap(
                    size=row[SIZE],
                    after=row[AFTER],
                    before=row[BEFORE],
                    ways=_ways(row, options, 2 * issue.get(f, 0)),
                    recomputable=any(option[ACTION] == Action.RECOMPUTE for option in options),
                )
            )
        return tuple(gaps)

    def trigger(self, f: int, need: int, ahead: int) -> int:
        """The kernel that triggers the fetch of a feature map first needed by kernel `need`."""
        t = self.tables
        step = max(int(t.kernels[need, STEP]) - ahead, 0)
        return max(int(t.step_first[step]), self.gaps[f].after + 1)

    @cached_property
    def ancestors(self) -> tuple[Ancestors, ...]:
        """The ancestors of each feature map."""
        first = min((gap.before for gap in self.gaps), default=0)
        return tuple(self._ancestors(f, first) for f in range(len(self.gaps)))

    def _ancestors(self, f: int, first: int) -> Ancestors:
        """The ancestors of one feature map. first: the first kernel for which any map is recomputed."""
        gap = self.gaps[f]
        if not gap.recomputable:
            return Ancestors(frozenset(), frozenset(), frozenset())
        block = int(self.tables.maps[f, BLOCK])
        kernels, resident, _ = self._walk(block, first)
        _, used, outputs = self._walk(block, gap.before)
        return Ancestors(kernels, resident - {f}, (used | outputs) - {f})

    def _walk(self, block: int, time: int) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """The recomputation of a block if all blocks released before kernel `time` are missing: its kernels, the
        feature maps that they read, and those that they write."""
        t = self.tables
        kernels: set[int] = set()
        used: set[int] = set()
        outputs: set[int] = set()
        seen, stack = {block}, [block]
        while stack:
            b = stack.pop()
            for writer in self._list(t.blocks, WRITERS, b):
                kernels.add(writer)
                outputs.update(int(t.blocks[r, MAP]) for r in self._list(t.kernels, OUTPUTS, writer))
                for r in self._list(t.kernels, INPUTS, writer):
                    if r in seen:
                        continue
                    seen.add(r)
                    used.add(int(t.blocks[r, MAP]))
                    if t.blocks[r, DEATH] < time:
                        stack.append(r)
        return frozenset(kernels), frozenset(used - {-1}), frozenset(outputs - {-1})

    def _list(self, rows: Ints, column: int, row: int) -> list[int]:
        items: list[int] = self.tables.lists[rows[row, column] : rows[row + 1, column]].tolist()
        return items

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The first kernel before which each feature map may be fetched or recomputed."""
        first = [gap.before for gap in self.gaps]
        order = sorted(range(len(first)), key=lambda f: first[f])
        work = list(reversed(order))
        while work:
            f = work.pop()
            for parent in self.ancestors[f].possible:
                if first[f] < first[parent]:
                    first[parent] = first[f]
                    work.append(parent)
        return tuple(first)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each feature map, those whose recomputation may fetch or recompute it before its own next use."""
        children: list[list[int]] = [[] for _ in self.gaps]
        for f, ancestors in enumerate(self.ancestors):
            for parent in ancestors.possible:
                if self.needs[f] < self.gaps[parent].before:
                    children[parent].append(f)
        return tuple(map(tuple, children))


def _ways(row: list[int], options: list[list[int]], issue: int) -> tuple[SwapWay, ...]:
    aheads: dict[tuple[int, ...], list[int]] = {}
    for option in options:
        if option[ACTION] == Action.SWAP:
            begins = issue if option[EARLY] else 2 * row[AFTER] + 2
            timed = (
                option[DEVICE_BYTES],
                option[ENCODED],
                option[OUT_NS],
                option[IN_NS],
                option[ENCODE_NS],
                option[DECODE_NS],
                begins,
            )
            aheads.setdefault(timed, []).append(option[AHEAD])
    return tuple(
        SwapWay(device_bytes, bool(encoded), out_ns, in_ns, encode_ns, decode_ns, begins, (min(each), max(each)))
        for (device_bytes, encoded, out_ns, in_ns, encode_ns, decode_ns, begins), each in aheads.items()
    )
