"""Which blocks can be recomputed while an iteration runs, and by which kernels.

`simgpu.graph.recompute` answers this for what forward saves. A policy that decides while the iteration runs may drop
results of backward too, and blocks that the framework has freed may be recomputed for others.

A block can be recomputed until a kernel overwrites, in place, something that its kernels would read, or until something
that cannot be recomputed itself is freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import NEVER, TaskGraph


@dataclass(frozen=True)
class Recomputation:
    """Which blocks of a graph can be recomputed, as long as the framework's frees are the recorded ones."""

    graph: TaskGraph

    @classmethod
    def of(cls, graph: TaskGraph) -> Recomputation:
        """That of a graph, made once."""
        known: Recomputation | None = graph.kept.get(("recomputation",))
        if known is None:
            known = graph.kept["recomputation",] = cls(graph)
        return known

    @cached_property
    def ancestry(self) -> Ancestry:
        return Ancestry.of(self.graph)

    @property
    def releases(self) -> tuple[int | None, ...]:
        """For each block, the kernel after which the framework frees it, None for never."""
        return self.graph.recorded_releases

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """For each block, the kernels that write it, in order."""
        writers: list[list[int]] = [[] for _ in self.graph.sizes]
        for k, writes in enumerate(self.graph.writes):
            for b in writes:
                writers[b].append(k)
        return tuple(map(tuple, writers))

    @cached_property
    def costs_ns(self) -> NDArray[np.int64]:
        """For each block, the time of its kernels."""
        durations = self.graph.durations
        return np.array([sum(durations[k] for k in each) for each in self.writers], dtype=np.int64)

    @cached_property
    def can_drop(self) -> NDArray[np.bool_]:
        """Which blocks can be recomputed whenever a kernel of the trace may need them."""
        needs = zip(self.until, self._last_needs, strict=True)
        return np.array([until >= last for until, last in needs], dtype=np.bool_)

    @cached_property
    def _last_needs(self) -> list[int]:
        """For each block the last kernel that uses it, all kernels for one that is kept to the end."""
        end = len(self.graph.kernels)
        return [end if self.is_kept(b) else uses[-1] if uses else end for b, uses in enumerate(self.graph.uses)]

    def is_kept(self, b: int) -> bool:
        """Whether the framework keeps a block to the end: others may read it after the iteration."""
        return not self.graph.blocks[b].persistent and self.releases[b] is None and self.graph.births[b] is not None

    @cached_property
    def until(self) -> tuple[int, ...]:
        """For each block, the kernel before which it can still be recomputed; -1: never, `NEVER`: always."""
        graph = self.graph
        until = [-1] * len(graph.sizes)
        for b in sorted(range(len(until)), key=lambda b: self.writers[b][-1] if self.writers[b] else -1):
            if self._is_made_here(b):
                until[b] = min((self._read_until(k, b, until) for k in self.writers[b]), default=-1)
        return tuple(until)

    def _is_made_here(self, b: int) -> bool:
        block = self.graph.blocks[b]
        return not block.persistent and block.host_write is None and bool(self.writers[b])

    def _read_until(self, k: int, b: int, until: list[int]) -> int:
        """The kernel before which kernel k can run again for block b."""
        if not self.ancestry.repeatable(k) or b in self.ancestry.reread[k]:
            return -1
        graph, releases, result = self.graph, self.releases, NEVER
        last, needs = graph.last_version, self._last_needs
        versions = dict(zip(graph.writes[k], graph.write_versions[k], strict=True))
        versions.update(zip(graph.reads[k], graph.read_versions[k], strict=True))
        for r in self.ancestry.inputs[k]:
            if r == b:
                continue
            if (
                versions[r] != last[r]
                and (overwriting := next((w for w in self.writers[r] if w >= k), None)) is not None
            ):
                result = min(result, overwriting)
            released = releases[r]
            if released is not None:
                # What may be dropped is there only as long as it can be recomputed.
                result = min(result, until[r] if until[r] >= needs[r] else released)
        return result
