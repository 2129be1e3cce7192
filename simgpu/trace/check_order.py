"""The checks of a trace that depend on execution order: writers before readers, and lifetimes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Trace
from simgpu.trace.row_checks import Problems, Row, rows_of

if TYPE_CHECKING:
    from simgpu.trace.accesses import AccessColumns

#: Similar ids are suggested only below these limits, because the search takes long: known ids, unknown ids.
_MOST_IDS_TO_COMPARE = 2000
_MOST_SUGGESTIONS = 20
#: Traces of so many kernels are first checked in bulk, with NumPy, which smaller ones do not load.
_LONG = 1000


@dataclass(slots=True)
class _Uses:
    """Positions of kernels, by block: first and last use, all writers in order; and reads nothing had written."""

    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    writers: dict[str, list[int]] = field(default_factory=dict)
    early: list[tuple[int, str]] = field(default_factory=list)


def check_order(trace: Trace, problems: Problems) -> AccessColumns | None:
    """Add the problems that show only in execution order to `problems`. Returns the accesses of a long, valid trace.

    References are not checked where the trace has no kernels or no blocks at all: `check_trace` reports that once.
    """
    # The first of several kernels with one id counts.
    ids = [kernel.id for kernel in reversed(trace.kernels)]
    position = dict(zip(ids, range(len(ids) - 1, -1, -1), strict=True))
    _check_starts(trace.kernels, problems)
    if len(trace.kernels) >= _LONG:
        from simgpu.trace.bulk_order import ordered_accesses

        if (accesses := ordered_accesses(trace.kernels, trace.blocks, position)) is not None:
            return accesses
    blocks = {block.id: block for block in trace.blocks}
    if blocks:
        _check_known(trace.kernels, blocks, problems)
    uses = _collect_uses(trace.kernels, blocks)
    _check_early_reads(trace.kernels, uses, problems)
    for index, block in enumerate(trace.blocks):
        row = Row(problems, "blocks", index, block)
        created = _position_of(block.host_write, "host_write", row, position)
        release = None
        if block.release != RELEASED_AT_END:
            release = _position_of(block.release, "release", row, position)
        _check_life(row, trace.kernels, uses, created, release)
        if block.kind is BlockKind.WORKSPACE:
            _check_workspace(row, trace.kernels, uses, release)
    return None


def _check_starts(kernels: tuple[Kernel, ...], problems: Problems) -> None:
    latest: dict[int, Kernel] = {}
    for index, kernel in enumerate(kernels):
        if kernel.start_ns is None:
            continue
        before = latest.get(kernel.stream)
        if before is not None and before.start_ns is not None and kernel.start_ns < before.start_ns:
            what = (
                f"kernel '{kernel.id}' is out of order: it starts at {kernel.start_ns} ns, before '{before.id}' "
                f"({before.start_ns} ns), which is above it on stream {kernel.stream}"
            )
            problems.add("kernels", index, "start_ns", what, "put the kernels in the order they ran")
        else:
            latest[kernel.stream] = kernel


def _check_known(kernels: tuple[Kernel, ...], blocks: dict[str, Block], problems: Problems) -> None:
    unknown: set[str] = set()
    if blocks.keys() >= set(chain.from_iterable([*kernel.reads, *kernel.writes] for kernel in kernels)):
        return
    for row in rows_of(problems, "kernels", kernels):
        kernel: Kernel = row.values
        for column, ids in (("reads", kernel.reads), ("writes", kernel.writes)):
            for name in ids:
                if name not in blocks:
                    close = _similar(name, blocks) if len(unknown) < _MOST_SUGGESTIONS else ""
                    what = f"kernel '{kernel.id}' names block '{name}', which has no row"
                    row.add(
                        column,
                        what,
                        f"did you mean '{close}'? else add it to the blocks" if close else "add it to the blocks",
                    )
                    unknown.add(name)


def _similar(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1) if len(known) <= _MOST_IDS_TO_COMPARE else []
    return "".join(close)


def _collect_uses(kernels: tuple[Kernel, ...], blocks: dict[str, Block]) -> _Uses:
    uses = _Uses()
    present = {block.id for block in blocks.values() if block.persistent or block.host_write is not None}
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
    reported: set[str] = set()
    in_cycle: set[tuple[int, int]] = set()
    for cycle in _cycles(kernels, uses):
        in_cycle.update(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        ids = " -> ".join(kernels[index].id for index in (*cycle, cycle[0]))
        what = f"a cycle, each kernel reads what the next one writes: {ids}"
        remedy = "put right what they read and write, or mark a block persistent if it held a value from the start"
        problems.add("kernels", cycle[0], "reads", what, remedy)
    for index, name in uses.early:
        writer = uses.writers.get(name, [None])[0]
        is_reported = name in reported or (writer is not None and (index, writer) in in_cycle)
        reported.add(name)
        if is_reported:
            continue
        what = f"kernel '{kernels[index].id}' reads block '{name}' before "
        if writer is None or writer == index:
            what += "anything wrote it"
            remedy = (
                "mark the block persistent if it holds a value from before the iteration, "
                "or name in host_write the kernel before which the host writes it"
            )
        else:
            what += f"its first writer, kernel '{kernels[writer].id}'"
            remedy = "put the kernels in the order they ran, or mark the block persistent"
        problems.add("kernels", index, "reads", what, remedy)


def _cycles(kernels: tuple[Kernel, ...], uses: _Uses) -> list[list[int]]:
    """One cycle of each group of kernels that wait for each other, from its first kernel on.

    A kernel waits for the latest writer above it of what it reads or, where there is none, for the first below.
    """
    below = {
        (index, name): uses.writers[name][0]
        for index, name in uses.early
        if name in uses.writers and uses.writers[name][0] != index
    }
    if not below:
        return []
    import networkx as nx

    waits_for: nx.DiGraph[int] = nx.DiGraph()
    latest: dict[str, int] = {}
    for index, kernel in enumerate(kernels):
        writers = (latest.get(name, below.get((index, name))) for name in kernel.reads)
        waits_for.add_edges_from((index, writer) for writer in writers if writer is not None)
        latest.update(dict.fromkeys(kernel.writes, index))
    cycles = []
    for group in sorted(nx.strongly_connected_components(waits_for), key=min):
        if len(group) > 1:
            cycle = [edge[0] for edge in nx.find_cycle(waits_for.subgraph(group), source=min(group))]
            first = cycle.index(min(cycle))
            cycles.append(cycle[first:] + cycle[:first])
    return cycles


def _position_of(name: str | None, column: str, row: Row, position: dict[str, int]) -> int | None:
    """The position of the kernel that a block's row names, if any."""
    if name is None or not position:
        return None
    if name not in position:
        close = _similar(name, position)
        remedy = f"did you mean '{close}'?" if close else "give the id of a kernel"
        more = f", or '{RELEASED_AT_END}'" if column == "release" else ""
        row.add(column, f"'{name}' is not a kernel of this trace", f"{remedy}{more}")
    return position.get(name)


def _check_life(row: Row, kernels: tuple[Kernel, ...], uses: _Uses, created: int | None, release: int | None) -> None:
    block: Block = row.values
    first, last = uses.first.get(block.id), uses.last.get(block.id)
    if first is None and not block.persistent and block.host_write is None and kernels:
        what = f"block '{block.id}' is used by no kernel"
        row.add(
            "id",
            what,
            "remove it, mark it persistent, or name in host_write the kernel before which the host writes it",
        )
    if created is not None and first is not None and first < created:
        use = f"after its first use by '{kernels[first].id}'"
        what = f"block '{block.id}' is written by the host before kernel '{block.host_write}', {use}"
        row.add("host_write", what, "name the kernel before which the host writes it")
    at = f"at kernel '{block.release}'"
    if release is not None and last is not None and release < last:
        what = f"block '{block.id}' is used by kernel '{kernels[last].id}' after its release {at}"
        row.add("release", what, "name its last use or a later kernel")
    elif release is not None and created is not None and release < created:
        what = f"block '{block.id}' is released {at}, before the host writes it at '{block.host_write}'"
        row.add("release", what, "name that kernel or a later one")


def _check_workspace(row: Row, kernels: tuple[Kernel, ...], uses: _Uses, release: int | None) -> None:
    """A workspace is scratch memory of one kernel, allocated exactly while that kernel runs."""
    block: Block = row.values
    first, last = uses.first.get(block.id), uses.last.get(block.id)
    remedy = "a workspace belongs to one kernel; give another kind to what lives longer"
    if block.persistent:
        row.add("persistent", f"workspace '{block.id}' is persistent", remedy)
    if first != last and first is not None and last is not None:
        what = f"workspace '{block.id}' is used by kernels '{kernels[first].id}' and '{kernels[last].id}'"
        row.add("kind", what, remedy)
    elif (release is not None and release != last) or block.release == RELEASED_AT_END:
        what = f"workspace '{block.id}' is released at '{block.release}', not at its own kernel"
        row.add("release", what, remedy)
