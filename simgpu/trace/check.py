"""What makes a trace valid: names, numbers, enum members, and references between the tables."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence, Set
from dataclasses import fields
from functools import partial
from itertools import chain
from operator import and_, attrgetter, is_not
from typing import Any
from weakref import WeakValueDictionary

from simgpu.errors import Problem
from simgpu.garbage import no_collection
from simgpu.trace.check_order import check_order
from simgpu.trace.entries import entries_of
from simgpu.trace.model import (
    RELEASED_AT_END,
    Access,
    AccessOrder,
    Block,
    BlockKind,
    Kernel,
    Origin,
    OutputLife,
    Phase,
    Trace,
    TraceInfo,
)
from simgpu.trace.row_checks import Place, Problems, Row, are_counts, are_ids, are_texts, is_count, is_text, rows_of

#: The tables of a trace.
_TABLES = tuple(field.name for field in fields(Trace) if field.name not in ("info", "name"))
#: The valid traces that are in use, by identity.
_VALID: WeakValueDictionary[int, Trace] = WeakValueDictionary()


@no_collection()
def check_trace(trace: Trace, at: Place | None = None) -> list[Problem]:
    """Every problem of a trace; an empty list means it is valid.

    at: the file and place of each value; by default, its position in the trace's own tuples.

    >>> from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
    >>> info = TraceInfo("tiny", 1, "hand", "float32", Origin.MODELLED, "doctest")
    >>> kernels = (Kernel("k0", "relu", Phase.FORWARD, 10, reads=("x",), writes=("y",)),)
    >>> for problem in check_trace(Trace(info, kernels, (Block("y", 4, BlockKind.ACTIVATION),))):
    ...     print(problem)
    trace: kernels[0].reads: kernel 'k0' names block 'x', which has no row; add it to the blocks
    """
    # A trace does not change, so one that was valid is not checked again.
    if _VALID.get(id(trace)) is trace:
        return []
    problems = Problems(at or _own_places(trace))
    _check_info(Row(problems, "info", -1, trace.info))
    _check_kernels(trace.kernels, problems)
    _check_blocks(trace, problems)
    _check_tables(trace, problems)
    accesses = check_order(trace, problems)
    if trace.saved or trace.modules:
        from simgpu.trace.check_saved import check_modules, check_saved

        check_saved(trace, problems)
        check_modules(trace, problems)
    if not problems.problems and cannot_change(trace):
        _VALID[id(trace)] = trace
        if accesses is not None:
            from simgpu.trace.accesses import keep

            keep(trace, accesses)
    return problems.problems


def cannot_change(trace: Trace) -> bool:
    """Whether everything in it is frozen: a trace made with lists instead of tuples may still change."""
    tables = (getattr(trace, name) for name in _TABLES)
    lists = chain(*(map(attrgetter(name), trace.kernels) for name in ("reads", "writes")))
    return set(map(type, chain(tables, lists))) <= {tuple}


def _own_places(trace: Trace) -> Place:
    name = trace.name or "trace"

    def at(table: str, index: int, column: str) -> tuple[str, str]:
        place = f"{table}[{index}]" if index >= 0 else table
        return name, f"{place}.{column}" if column else place

    return at


def _check_info(row: Row) -> None:
    info: TraceInfo = row.values
    row.texts("model", "device", "dtype", "tool", *(["compute"] if info.compute else []))
    row.member("origin", Origin)
    if info.output is not None:
        row.member("output", OutputLife)
    if not (is_count(info.batch) and info.batch > 0):
        row.add("batch", f"{info.batch!r} is not a number of samples", "give a whole number >= 1")
    if info.date:
        try:
            good = datetime.date.fromisoformat(info.date).isoformat() == info.date
        except ValueError:
            good = False
        if not good:
            row.add("date", f"{info.date!r} is not a day", "write YYYY-MM-DD, or leave it empty")
    row.counts("framework_peak_bytes", "workspace_limit", "task_limit", optional=True)
    if any("\ud800" <= letter <= "\udfff" for letter in info.notes):
        row.add("notes", "contains characters that no file can", "remove the lone surrogates")


def _check_kernels(kernels: tuple[Kernel, ...], problems: Problems) -> None:
    if not kernels:
        problems.add("kernels", -1, "", "no kernels", "a trace has at least one kernel")
    if _are_plain_kernels(kernels):
        return
    seen: dict[str, int] = {}
    for row in rows_of(problems, "kernels", kernels):
        kernel: Kernel = row.values
        _check_id(row, seen)
        if kernel.id == RELEASED_AT_END:
            what = f"'{RELEASED_AT_END}' cannot be a kernel's id: in a block's release it means the iteration's end"
            row.add("id", what, "give another id")
        row.member("phase", Phase)
        row.texts("op")
        row.texts("layer", "source", optional=True)
        row.counts("duration_ns", "stream")
        row.counts("start_ns", "flops", "dram_bytes", "iqr_ns", optional=True)
        for column, ids in (("reads", kernel.reads), ("writes", kernel.writes)):
            if len(set(ids)) < len(ids):
                twice = next(name for name in ids if ids.count(name) > 1)
                row.add(column, f"block '{twice}' is named twice", "name each block once")


def _column(rows: Sequence[object], name: str) -> list[Any]:
    return list(map(attrgetter(name), rows))


def _are_plain_kernels(kernels: tuple[Kernel, ...]) -> bool:
    """Whether no kernel has a mistake; one that may have is looked at by `_check_kernels`."""
    column = partial(_column, kernels)
    ids = column("id")
    counts = all(are_counts(column(name)) for name in ("duration_ns", "stream"))
    optional = all(are_counts(column(name), optional=True) for name in ("start_ns", "flops", "dram_bytes", "iqr_ns"))
    named = all(are_texts(column(name), optional=True) for name in ("layer", "source"))
    texts = are_texts(column("op")) and named
    several = [ids for ids in (*column("reads"), *column("writes")) if len(ids) > 1]
    once = [*map(len, map(set, several))] == [*map(len, several)]
    phases = set(map(type, column("phase"))) <= {Phase}
    return are_ids(ids) and RELEASED_AT_END not in ids and counts and optional and texts and once and phases


def _are_plain_blocks(blocks: tuple[Block, ...]) -> bool:
    """Whether no block has a mistake."""
    column = partial(_column, blocks)
    kinds = set(map(type, column("kind"))) <= {BlockKind}
    texts = are_texts(column("layer"), optional=True) and are_texts(column("dtype"), optional=True)
    shapes = [shape for shape in column("shape") if shape is not None]
    sides = all(type(shape) is tuple for shape in shapes) and are_counts(list(chain.from_iterable(shapes)))
    hosted = map(partial(is_not, None), column("host_write"))
    once = not any(map(and_, map(bool, column("persistent")), hosted))
    return are_ids(column("id")) and kinds and are_counts(column("bytes")) and texts and sides and once


def _check_blocks(trace: Trace, problems: Problems) -> None:
    named = (name for kernel in trace.kernels for name in (*kernel.reads, *kernel.writes))
    if not trace.blocks and (name := next(named, None)) is not None:
        what = f"no blocks, although kernels name some, '{name}' for one"
        problems.add("blocks", -1, "", what, "add a row for each block that a kernel reads or writes")
    if _are_plain_blocks(trace.blocks):
        return
    seen: dict[str, int] = {}
    for row in rows_of(problems, "blocks", trace.blocks):
        block: Block = row.values
        _check_id(row, seen)
        row.member("kind", BlockKind)
        row.counts("bytes")
        row.texts("layer", "dtype", optional=True)
        if block.shape is not None and not all(is_count(side) for side in block.shape):
            row.add("shape", f"{block.shape!r} is not a shape", "give whole numbers >= 0")
        if block.persistent and block.host_write is not None:
            what = f"block '{block.id}' is persistent, and yet the host writes it before kernel '{block.host_write}'"
            row.add("host_write", what, "a persistent block exists from the start: leave host_write blank")


def _check_id(row: Row, seen: dict[str, int]) -> None:
    name = row.values.id
    if not is_text(name) or " " in name:
        what = f"{name!r} is not an id" if name else "the id is blank"
        row.add("id", what, "give a printable text without spaces")
    elif name in seen:
        first = row.problems.at(row.table, seen[name], "")[1]
        row.add("id", f"duplicate id '{name}', first used in {first}", "give each its own id")
    else:
        seen[name] = row.index


def _check_tables(trace: Trace, problems: Problems) -> None:
    """The optional tables: algorithms, sparsity, compressibility, accesses."""
    if not (trace.algorithms or trace.sparsity or trace.compressibility or trace.accesses):
        return
    kernels = {kernel.id for kernel in trace.kernels}
    blocks = {block.id for block in trace.blocks}
    keys: set[tuple[object, ...]] = set()

    def check_once(row: Row, *columns: str) -> None:
        key = tuple(getattr(row.values, column) for column in columns)
        if (row.table, *key) in keys:
            row.add("", f"a second row for {', '.join(map(str, key))}", "keep one of them")
        keys.add((row.table, *key))

    for row in rows_of(problems, "algorithms", trace.algorithms):
        row.known("kernel", kernels)
        row.texts("algorithm")
        row.counts("duration_ns", "workspace_bytes")
        check_once(row, "kernel", "algorithm")
    for row in rows_of(problems, "sparsity", trace.sparsity):
        row.known("block", blocks)
        row.counts("epoch")
        share = row.values.sparsity
        if type(share) is not float or math.isnan(share) or not 0 <= share <= 1:
            row.add("sparsity", f"{share!r} is not a share of zeros", "give a number from 0.0 to 1.0")
        check_once(row, "block", "epoch")
    for row in rows_of(problems, "compressibility", trace.compressibility):
        row.known("block", blocks)
        row.texts("codec", "layout")
        row.counts("epoch", "entry_bytes", "bytes", "entries")
        row.positive("entry_bytes", "entries")
        check_once(row, "block", "epoch", "codec", "layout", "entry_bytes", "bytes")
    if not trace.accesses:
        return
    touched = {
        (kernel.id, b, w) for kernel in trace.kernels for w, of in enumerate((kernel.reads, kernel.writes)) for b in of
    }
    entries = {block.id: entries_of(block) for block in trace.blocks if is_count(block.bytes)}
    for row in rows_of(problems, "accesses", trace.accesses):
        row.known("kernel", kernels)
        row.known("block", blocks)
        if row.values.kernel in kernels and row.values.block in blocks:
            _check_access(row, touched)
        _check_first(row, entries.get(row.values.block))
        check_once(row, "kernel", "block", "write")


def _check_access(row: Row, touched: Set[tuple[str, str, int]]) -> None:
    """touched: kernel, block, and whether it writes that block."""
    access: Access = row.values
    if (access.kernel, access.block, access.write) not in touched:
        does = "write" if access.write else "read"
        what = f"kernel '{access.kernel}' does not {does} '{access.block}'"
        row.add("write", what, f"name a block that the kernel {does}s")
    row.counts("sectors", "entries", "stride", "first")
    if not 1 <= access.sectors <= 4:
        row.add("sectors", f"{access.sectors} are not sectors of an entry", "give 1 to 4")
    row.positive("entries", "stride")


def _check_first(row: Row, entries: int | None) -> None:
    """entries: of the block; None where it is not known."""
    access: Access = row.values
    if not is_count(access.first) or not access.first:
        return
    if access.order is AccessOrder.RANDOM:
        what = f"a random walk does not begin at entry {access.first}, it visits entries as they are drawn"
        row.add("first", what, "leave it blank, or name another order")
    elif entries is not None and access.first >= entries:
        what = f"entry {access.first} is not in block '{access.block}', which has {entries} of 128 bytes"
        row.add("first", what, "count the block's entries from 0")
