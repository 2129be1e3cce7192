"""Which blocks can be recomputed from others, by which kernels, and why others cannot.

`Ancestry` answers for single blocks, `unrecomputable` sums what cannot be recomputed by the operator that prevents it.

A kernel may run again where it is pure. Two sorts of impure kernels may run again with the results they saved: a batch
norm with the saved statistics of its batch, which then does not update the running statistics, and a dropout with the
mask that it drew. They then read those results instead of writing them. Every other kernel that is not known to be pure
is rejected.

A block is recomputed by all its writers in order. That fails where one of them read a value that has been overwritten
since, or one that is neither available any more nor can be recomputed itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simgpu.graph.saved import saved_activations
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import BlockKind
from simgpu.trace.operators import repeats_with_saved
from simgpu.units import format_bytes

#: Operators that `Unrecomputable.text` names; the rest is summed.
_LISTED = 3


class Refusal(NamedTuple):
    """Why a block cannot be recomputed. why: as a clause. kernel: the one that prevents it, None where none does; of a
    block that lacks another one, what prevents that. cause: what that kernel does, in a few words."""

    why: str
    kernel: int | None = None
    cause: str = ""


@dataclass(frozen=True)
class Ancestry:
    """How the blocks of a graph are recomputed.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> ancestry = Ancestry(graph)
    >>> x2, x1 = graph.block("x2"), graph.block("x1")
    >>> ancestry.writers[x2], ancestry.inputs[0] == (x1,), ancestry.why_not(x2)
    ((0,), True, None)
    >>> ancestry.why_not(x1)
    'no kernel writes it'
    """

    graph: TaskGraph

    @classmethod
    def of(cls, graph: TaskGraph) -> Ancestry:
        """That of a graph, made once."""
        known: Ancestry | None = graph.kept.get(("ancestry",))
        if known is None:
            known = graph.kept["ancestry",] = cls(graph)
        return known

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """For each block, the forward kernels that write it, in order."""
        graph = self.graph
        writers: list[list[int]] = [[] for _ in graph.sizes]
        for k, (writes, forward) in enumerate(zip(graph.writes, graph.is_forward, strict=True)):
            if forward:
                for b in writes:
                    writers[b].append(k)
        return tuple(map(tuple, writers))

    @cached_property
    def reread(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, the blocks that it wrote and only reads when it runs again (a saved mask, statistics)."""
        graph = self.graph
        reread: list[tuple[int, ...]] = []
        for k, kernel in enumerate(graph.kernels):
            with_saved = kernel.pure is not True and repeats_with_saved(kernel.op)
            reread.append(tuple(b for b in self._results(k)[1:] if b in self._lasting) if with_saved else ())
        return tuple(reread)

    def _results(self, k: int) -> list[int]:
        """The results of a kernel for others."""
        blocks = self.graph.blocks
        return [
            b for b in self.graph.writes[k] if not blocks[b].persistent and blocks[b].kind is not BlockKind.WORKSPACE
        ]

    @cached_property
    def _lasting(self) -> frozenset[int]:
        """Blocks that are used after forward."""
        is_forward = self.graph.is_forward
        return frozenset([b for b, uses in enumerate(self.graph.uses) if uses and not is_forward[uses[-1]]])

    @cached_property
    def _persistent(self) -> frozenset[int]:
        return frozenset([b for b, block in enumerate(self.graph.blocks) if block.persistent])

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, what it reads when it runs again, without persistent blocks that it changed."""
        inputs = []
        for reads, writes, reread in zip(self.graph.reads, self.graph.writes, self.reread, strict=True):
            own = self._persistent.intersection(writes)
            kept = tuple([b for b in reads if b not in own]) if own else reads
            inputs.append(tuple(dict.fromkeys((*kept, *reread))) if reread else kept)
        return tuple(inputs)

    @cached_property
    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel, what it writes when it runs again, including its workspace."""
        outputs = []
        for writes, reread in zip(self.graph.writes, self.reread, strict=True):
            without = self._persistent.intersection(writes).union(reread)
            outputs.append(tuple([b for b in writes if b not in without]) if without else writes)
        return tuple(outputs)

    @cached_property
    def latest(self) -> tuple[int, ...]:
        """For each block, the last kernel for which it might be recomputed, directly or for another block; -1: none."""
        is_forward = self.graph.is_forward
        latest = [-1] * len(self.graph.sizes)
        for b, (uses, writers) in enumerate(zip(self.graph.uses, self.writers, strict=True)):
            if writers:
                latest[b] = next((k for k in uses if not is_forward[k]), -1)
        for k in reversed(range(len(is_forward))):
            if is_forward[k] and self.outputs[k]:
                latest_result = max([latest[b] for b in self.outputs[k]])
                for b in self.inputs[k]:
                    if latest[b] < latest_result:
                        latest[b] = latest_result
        return tuple(latest)

    @cached_property
    def refusals(self) -> tuple[Refusal | None, ...]:
        """For each block why it cannot be recomputed, None where it can."""
        graph = self.graph
        refusals: list[Refusal | None] = [Refusal("no kernel writes it")] * len(graph.sizes)
        order = sorted((b for b in range(len(graph.sizes)) if self.writers[b]), key=lambda b: self.writers[b][-1])
        for b in order:
            refusals[b] = self._refusal(b, refusals)
        return tuple(refusals)

    def why_not(self, b: int) -> str | None:
        """Why a block cannot be recomputed, None where it can."""
        refusal = self.refusals[b]
        return refusal.why if refusal else None

    def _refusal(self, b: int, refusals: list[Refusal | None]) -> Refusal | None:
        graph = self.graph
        block = graph.blocks[b]
        if block.persistent or block.host_write is not None:
            return Refusal("it is not computed in the iteration")
        if len(self.writers[b]) != graph.last_version[b]:
            later = next(k for k in graph.uses[b] if b in graph.writes[k] and k not in self.writers[b])
            return Refusal("it is overwritten after forward", later, "overwrites it")
        for k in self.writers[b]:
            kernel = graph.kernels[k]
            if b in self.reread[k]:
                return Refusal(f"kernel {kernel.id} ({kernel.op}) can only run again with it", k, "reruns with it")
            if not self.repeatable(k):
                why = f"kernel {kernel.id} ({kernel.op}) is not known to be repeatable"
                return Refusal(why, k, "purity unknown" if kernel.pure is None else "not repeatable")
            for r, version in self._input_versions(k):
                available = refusals[r] is None and version == graph.last_version[r]
                if r != b and not available and (refusal := self._lost(r, version, b, k, refusals)):
                    return refusal._replace(why=f"kernel {kernel.id} reads {graph.blocks[r].id}, {refusal.why}")
        return None

    def _input_versions(self, k: int) -> Iterable[tuple[int, int]]:
        """What a kernel reads when it runs again, in the version that it read; of a block that it reads only then, in
        the version that it wrote."""
        graph = self.graph
        reads = zip(graph.reads[k], graph.read_versions[k], strict=True)
        if self.inputs[k] is graph.reads[k]:
            return reads
        versions = dict((*zip(graph.writes[k], graph.write_versions[k], strict=True), *reads))
        return [(r, versions.get(r, 0)) for r in self.inputs[k]]

    def repeatable(self, k: int) -> bool:
        """Whether a kernel gives the same result again: it is pure, or it saved the values that it needs for that.

        A pure kernel that changed a persistent block in place would read the changed value.
        """
        graph = self.graph
        if graph.kernels[k].pure is True:
            changed = self._persistent.intersection(graph.writes[k])
            if changed.isdisjoint(graph.reads[k]):
                return True
        return bool(self.reread[k]) and len(self._results(k)) == len(self.reread[k]) + 1

    def _lost(self, r: int, version: int, b: int, k: int, refusals: list[Refusal | None]) -> Refusal | None:
        """Why the value that kernel k read of block r is lost when b is recomputed."""
        graph = self.graph
        latest = self.latest[b]
        if version != graph.last_version[r]:
            # Where no later kernel overwrites it, kernel k changes it in place. Block b is recomputed before kernel
            # `latest` starts, so what that kernel itself overwrites is still unchanged.
            later = next((u for u in graph.uses[r] if k < u and r in graph.writes[u]), k)
            if not graph.blocks[r].persistent or k < later < latest:
                return Refusal("which was overwritten since", later, "overwrites an input")
        refusal = refusals[r]
        if refusal is None:
            return None
        released = graph.needed_releases[r]
        if released is not None and released < latest:
            return refusal._replace(why="which is released by then and cannot be recomputed")
        return None


@dataclass(frozen=True, slots=True)
class Unrecomputable:
    """The saved activations that cannot be recomputed. saved: bytes of all saved activations. lost: bytes of those that
    cannot be recomputed. by_operator: lost bytes by operator and cause, largest first; "" for no operator."""

    saved: int
    lost: int
    by_operator: tuple[tuple[str, str, int], ...]

    def text(self) -> str:
        """One line: lost bytes, saved bytes, and the operators that prevent recomputation."""
        if not self.lost:
            return f"none of {format_bytes(self.saved)} of saved activations"
        named = [
            f"{op} ({cause}) {format_bytes(size)}" if op else f"released inputs {format_bytes(size)}"
            for op, cause, size in self.by_operator[:_LISTED]
        ]
        if rest := self.by_operator[_LISTED:]:
            named.append(f"{len(rest)} more {format_bytes(sum(size for _, _, size in rest))}")
        return f"{format_bytes(self.lost)} of {format_bytes(self.saved)} of saved activations: {', '.join(named)}"

    def notes(self) -> tuple[str, ...]:
        """A note for results where anything cannot be recomputed."""
        return (f"cannot be recomputed: {self.text()}",) if self.lost else ()


def unrecomputable(graph: TaskGraph) -> Unrecomputable:
    """The saved activations that cannot be recomputed (`simgpu.graph.saved.saved_activations`).

    A block counts for the operator that prevents its recomputation, which may be that of a block that it needs.

    >>> from dataclasses import replace
    >>> from simgpu.trace.chain import chain
    >>> trace = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    >>> unknown = replace(trace, kernels=(replace(trace.kernels[0], op="mine", pure=None), *trace.kernels[1:]))
    >>> unrecomputable(TaskGraph.of(trace)).text()
    'none of 500 B of saved activations'
    >>> unrecomputable(TaskGraph.of(unknown)).text()
    '200 B of 500 B of saved activations: mine (purity unknown) 200 B'
    """
    ancestry = Ancestry.of(graph)
    lost: Counter[tuple[str, str]] = Counter()
    saved = saved_activations(graph)
    for b in saved:
        if refusal := ancestry.refusals[b]:
            op = "" if refusal.kernel is None else graph.kernels[refusal.kernel].op
            lost[op, refusal.cause] += graph.sizes[b]
    ordered = sorted(((*key, size) for key, size in lost.items()), key=lambda each: (-each[2], each[:2]))
    return Unrecomputable(sum(graph.sizes[b] for b in saved), lost.total(), tuple(ordered))
