"""The checks of a trace that depend on execution order: writers before readers, lifetimes, and saved tensors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from simgpu.errors import Problem
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, SavedTensor, Trace

#: Looking for a similar id among more than this many, or for more than a few unknown ids, would take too long.
_MOST_IDS_TO_COMPARE = 2000
_MOST_SUGGESTIONS = 20


#: Says where a value stands: (table, position in it or -1 for the table itself, field) -> (file, place).
#: Tables are named as the fields of `Trace`.
Place = Callable[[str, int, str], tuple[str, str]]


@dataclass(slots=True)
class Problems:
    """Problems found so far; `add` places a new one."""

    at: Place
    problems: list[Problem] = field(default_factory=list)

    def add(self, table: str, index: int, column: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(*self.at(table, index, column), what, remedy))


@dataclass(slots=True)
class _Uses:
    """Positions of kernels, by block: first and last use, all writers in order; and reads nothing had written."""

    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    writers: dict[str, list[int]] = field(default_factory=dict)
    early: list[tuple[int, str]] = field(default_factory=list)


def check_order(trace: Trace, problems: Problems) -> None:
    """Add the problems that show only in execution order to `problems`.

    Without any kernels, or any blocks, names of them are not looked for: what is missing is told once, by `check`.
    """
    blocks = {block.id: block for block in trace.blocks}
    position = {kernel.id: index for index, kernel in reversed(list(enumerate(trace.kernels)))}
    _check_starts(trace.kernels, problems)
    if blocks:
        _check_known(trace.kernels, blocks, problems)
    uses = _collect_uses(trace.kernels, blocks)
    _check_early_reads(trace.kernels, uses, problems)
    for index, block in enumerate(trace.blocks):
        born = _position_of(block.born, "born", index, position, problems)
        release = None
        if block.release != RELEASED_AT_END:
            release = _position_of(block.release, "release", index, position, problems)
        _check_life(trace.kernels, index, block, born, release, uses, problems)
        if block.kind is BlockKind.WORKSPACE:
            _check_workspace(trace.kernels, index, block, release, uses, problems)


def _check_starts(kernels: tuple[Kernel, ...], problems: Problems) -> None:
    latest: dict[int, Kernel] = {}
    for index, kernel in enumerate(kernels):
        if kernel.start_ns is None:
            continue
        before = latest.get(kernel.stream)
        if before is not None and before.start_ns is not None and kernel.start_ns < before.start_ns:
            what = (
                f"kernel '{kernel.id}' is out of order: it starts at {kernel.start_ns} ns, before '{before.id}' "
                f"({before.start_ns} ns), which stands above it on stream {kernel.stream}"
            )
            problems.add("kernels", index, "start_ns", what, "put the kernels in the order they ran")
        else:
            latest[kernel.stream] = kernel


def _check_known(kernels: tuple[Kernel, ...], blocks: dict[str, Block], problems: Problems) -> None:
    told: set[str] = set()
    for index, kernel in enumerate(kernels):
        for column, ids in (("reads", kernel.reads), ("writes", kernel.writes)):
            for name in ids:
                if name not in blocks:
                    remedy = _similar(name, blocks) if len(told) < _MOST_SUGGESTIONS else ""
                    what = f"kernel '{kernel.id}' names block '{name}', which has no row"
                    problems.add("kernels", index, column, what, f"{remedy}add it to the blocks")
                    told.add(name)


def _similar(name: str, known: dict[str, Block]) -> str:
    if len(known) > _MOST_IDS_TO_COMPARE:
        return ""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'? else " if close else ""


def _collect_uses(kernels: tuple[Kernel, ...], blocks: dict[str, Block]) -> _Uses:
    uses = _Uses()
    present = {block.id for block in blocks.values() if block.persistent or block.born is not None}
    for index, kernel in enumerate(kernels):
        for name in kernel.reads:
            if name not in present and name in blocks:
                uses.early.append((index, name))
            uses.first.setdefault(name, index)
            uses.last[name] = index
        for name in kernel.writes:
            uses.writers.setdefault(name, []).append(index)
            uses.first.setdefault(name, index)
            uses.last[name] = index
            present.add(name)
    return uses


def _check_early_reads(kernels: tuple[Kernel, ...], uses: _Uses, problems: Problems) -> None:
    cycles = _cycles(kernels, uses)
    in_cycle: set[tuple[int, int]] = set()
    for cycle in cycles:
        in_cycle.update(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        told = " -> ".join(kernels[index].id for index in (*cycle, cycle[0]))
        what = f"a cycle, each kernel reads what the next one writes: {told}"
        remedy = "put right what they read and write, or mark a block persistent if it held a value from the start"
        problems.add("kernels", cycle[0], "reads", what, remedy)
    told_blocks: set[str] = set()
    for index, name in uses.early:
        writer = uses.writers.get(name, [None])[0]
        is_told = name in told_blocks or (writer is not None and (index, writer) in in_cycle)
        told_blocks.add(name)
        if is_told:
            continue
        if writer is None or writer == index:
            what = f"kernel '{kernels[index].id}' reads block '{name}' before anything wrote it"
            remedy = "mark the block persistent if it holds a value from before the iteration, or say where it was born"
        else:
            what = (
                f"kernel '{kernels[index].id}' reads block '{name}' before its first writer, "
                f"kernel '{kernels[writer].id}'"
            )
            remedy = "put the kernels in the order they ran, or mark the block persistent"
        problems.add("kernels", index, "reads", what, remedy)


def _cycles(kernels: tuple[Kernel, ...], uses: _Uses) -> list[tuple[int, ...]]:
    """Cycles of kernels that wait for each other, each from its first kernel on; at least one where there is any.

    A kernel waits for the latest writer above it of what it reads or, where there is none, for the first below.
    """
    below = {
        (index, name): uses.writers[name][0]
        for index, name in uses.early
        if name in uses.writers and uses.writers[name][0] != index
    }
    if not below:
        return []
    waits_for: list[list[int]] = []
    latest: dict[str, int] = {}
    for index, kernel in enumerate(kernels):
        waits_for.append(
            [
                latest[name] if name in latest else below[index, name]
                for name in kernel.reads
                if name in latest or (index, name) in below
            ]
        )
        latest.update(dict.fromkeys(kernel.writes, index))
    return _search_cycles(waits_for, sorted({index for index, _ in below}))


def _search_cycles(waits_for: list[list[int]], starts: Iterable[int]) -> list[tuple[int, ...]]:
    """Depth-first search without recursion; a kernel met again on the current path closes a cycle."""
    done: set[int] = set()
    cycles: dict[tuple[int, ...], None] = {}
    for start in starts:
        if start in done:
            continue
        path, depth, pending = [start], {start: 0}, [iter(waits_for[start])]
        while path:
            step = next(pending[-1], None)
            if step is None:
                done.add(path[-1])
                del depth[path.pop()]
                pending.pop()
            elif step in depth:
                cycle = path[depth[step] :]
                first = cycle.index(min(cycle))
                cycles[tuple(cycle[first:] + cycle[:first])] = None
            elif step not in done:
                depth[step] = len(path)
                path.append(step)
                pending.append(iter(waits_for[step]))
    return list(cycles)


def _position_of(name: str | None, column: str, index: int, position: dict[str, int], problems: Problems) -> int | None:
    if name is None or not position:
        return None
    if name in position:
        return position[name]
    close = difflib.get_close_matches(name, list(position), n=1) if len(position) <= _MOST_IDS_TO_COMPARE else []
    remedy = f"did you mean '{close[0]}'?" if close else "give the id of a kernel"
    more = f", or '{RELEASED_AT_END}'" if column == "release" else ""
    problems.add("blocks", index, column, f"'{name}' is not a kernel of this trace", f"{remedy}{more}")
    return None


def _check_life(
    kernels: tuple[Kernel, ...],
    index: int,
    block: Block,
    born: int | None,
    release: int | None,
    uses: _Uses,
    problems: Problems,
) -> None:
    first, last = uses.first.get(block.id), uses.last.get(block.id)
    if first is None and not block.persistent and block.born is None and kernels:
        what = f"block '{block.id}' is used by no kernel"
        problems.add("blocks", index, "id", what, "remove it, mark it persistent, or say where it was born")
    if born is not None and first is not None and first < born:
        what = f"block '{block.id}' is born at kernel '{block.born}', after its first use by '{kernels[first].id}'"
        problems.add("blocks", index, "born", what, "name the kernel at whose start it appeared")
    if release is not None and last is not None and release < last:
        what = (
            f"block '{block.id}' is used by kernel '{kernels[last].id}' after its release at kernel '{block.release}'"
        )
        problems.add("blocks", index, "release", what, "name its last use or a later kernel")
    elif release is not None and born is not None and release < born:
        what = f"block '{block.id}' is released at kernel '{block.release}', before its birth at '{block.born}'"
        problems.add("blocks", index, "release", what, "name a kernel that is not before its birth")


def _check_workspace(
    kernels: tuple[Kernel, ...],
    index: int,
    block: Block,
    release: int | None,
    uses: _Uses,
    problems: Problems,
) -> None:
    """A workspace is scratch memory of one kernel and lives exactly as long as that kernel runs."""
    first, last = uses.first.get(block.id), uses.last.get(block.id)
    remedy = "a workspace belongs to one kernel; give another kind to what lives longer"
    if block.persistent:
        problems.add("blocks", index, "persistent", f"workspace '{block.id}' is persistent", remedy)
    if first != last and first is not None and last is not None:
        what = f"workspace '{block.id}' is used by kernels '{kernels[first].id}' and '{kernels[last].id}'"
        problems.add("blocks", index, "kind", what, remedy)
    elif (release is not None and release != last) or block.release == RELEASED_AT_END:
        what = f"workspace '{block.id}' is released at '{block.release}', not at its own kernel"
        problems.add("blocks", index, "release", what, remedy)


def check_saved(trace: Trace, problems: Problems) -> None:
    """Add the problems of the saved tensors to `problems`.

    What they name is not looked for where there are no kernels, or no blocks, at all: that is one mistake, told once.
    """
    position = {kernel.id: index for index, kernel in enumerate(trace.kernels)}
    blocks = {block.id for block in trace.blocks}
    made = _made_at(trace)
    dropped: dict[str, str | None] = {}
    for index, tensor in enumerate(trace.saved):
        if blocks and tensor.block not in blocks:
            what = f"'{tensor.block}' is not a block of this trace"
            problems.add("saved", index, "block", what, "name a block that has a row in blocks")
        _check_saved_kernels(tensor, index, position, problems)
        _check_saved_order(tensor, index, position, made.get(tensor.block, -1), problems)
        if dropped.setdefault(tensor.block, tensor.dropped) != tensor.dropped:
            what = f"block '{tensor.block}' is dropped at '{tensor.dropped}', and in a row above at another kernel"
            problems.add("saved", index, "dropped", what, "give the same in all rows of a block")


def _made_at(trace: Trace) -> dict[str, int]:
    """Position of the kernel that first writes each block that is not there before."""
    there = {block.id for block in trace.blocks if block.persistent or block.born is not None}
    made: dict[str, int] = {}
    for index, kernel in enumerate(trace.kernels):
        for name in kernel.writes:
            if name not in there:
                made.setdefault(name, index)
    return made


def _check_saved_kernels(tensor: SavedTensor, index: int, position: dict[str, int], problems: Problems) -> None:
    if not position:
        return
    for column, name in (("after", tensor.after), ("before", tensor.before), ("dropped", tensor.dropped)):
        may_be_end = column == "dropped"
        if name is not None and name not in position and not (may_be_end and name == RELEASED_AT_END):
            remedy = "name a kernel that has a row in kernels" + (f", or '{RELEASED_AT_END}'" if may_be_end else "")
            problems.add("saved", index, column, f"'{name}' is not a kernel of this trace", remedy)


def _check_saved_order(
    tensor: SavedTensor, index: int, position: dict[str, int], made: int, problems: Problems
) -> None:
    """made: position of the kernel that first writes the block, -1 where it was there before."""
    after = -1 if tensor.after is None else position.get(tensor.after)
    before, dropped = position.get(tensor.before or ""), position.get(tensor.dropped or "")
    if after is None:
        return
    if after < made:
        what = f"block '{tensor.block}' is saved before any kernel has written it"
        problems.add("saved", index, "after", what, "name the kernel that ran last before it was saved")
    if before is not None and before <= after:
        what = (
            f"kernel '{tensor.before}' takes it back, and runs no later than '{tensor.after}', after which it is saved"
        )
        problems.add("saved", index, "before", what, "name the first kernel after backward took it back")
    if dropped is not None and dropped < after:
        what = f"it is dropped at kernel '{tensor.dropped}', and saved later, after '{tensor.after}'"
        problems.add(
            "saved", index, "dropped", what, "name the kernel after whose end nobody but autograd held the block"
        )
