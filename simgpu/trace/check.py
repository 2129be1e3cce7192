"""What makes a trace valid, told as problems: names, numbers, words and how the tables refer to each other."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from simgpu.errors import Problem
from simgpu.trace.columns import LARGEST
from simgpu.trace.entries import entries_of
from simgpu.trace.model import (
    RELEASED_AT_END,
    Access,
    AccessOrder,
    BlockKind,
    Kernel,
    Origin,
    OutputLife,
    Phase,
    Trace,
    TraceInfo,
)

#: Says where a value stands: (table, position in it or -1 for the table itself, field) -> (file, place).
#: Tables are named as the fields of `Trace`.
Place = Callable[[str, int, str], tuple[str, str]]


@dataclass(slots=True)
class Findings:
    """Problems found so far; `add` places a new one."""

    at: Place
    problems: list[Problem] = field(default_factory=list)

    def add(self, table: str, index: int, column: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(*self.at(table, index, column), what, remedy))


def check_trace(trace: Trace, at: Place | None = None) -> list[Problem]:
    """Every problem of a trace; an empty list means it is valid.

    at: says where a value stands (file and place); left out, places are positions in the trace's own tuples.

    >>> from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
    >>> info = TraceInfo("tiny", 1, "hand", "float32", Origin.MODELLED, "doctest")
    >>> kernels = (Kernel("k0", "relu", Phase.FORWARD, 10, reads=("x",), writes=("y",)),)
    >>> for problem in check_trace(Trace(info, kernels, (Block("y", 4, BlockKind.FEATURE_MAP),))):
    ...     print(problem)
    trace: kernels[0].reads: kernel 'k0' names block 'x', which has no row; add it to the blocks
    """
    from simgpu.trace.check_saved import check_saved
    from simgpu.trace.order import check_order

    found = Findings(at or _own_places(trace))
    _check_info(trace.info, found)
    _check_kernels(trace.kernels, found)
    _check_blocks(trace, found)
    _check_tables(trace, found)
    check_order(trace, found)
    for index, tensor in enumerate(trace.saved):
        _check_counts(found, "saved", index, tensor, ("bytes",))
    check_saved(trace, found)
    return found.problems


def _own_places(trace: Trace) -> Place:
    name = trace.name or "trace"

    def at(table: str, index: int, column: str) -> tuple[str, str]:
        place = f"{table}[{index}]" if index >= 0 else table
        return name, f"{place}.{column}" if column else place

    return at


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable() and value == value.strip()


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _check_texts(
    found: Findings, table: str, index: int, owner: object, columns: Iterable[str], optional: Iterable[str] = ()
) -> None:
    for column in columns:
        value = getattr(owner, column)
        if not _is_text(value):
            what = f"{value!r} is not a name" if value else "it is blank"
            remedy = "give a printable text without spaces around it"
            found.add(table, index, column, what, remedy)
    for column in optional:
        value = getattr(owner, column)
        if value is not None and not _is_text(value):
            remedy = "give a printable text without spaces around it, or None where unknown"
            found.add(table, index, column, f"{value!r} is not a name", remedy)


def _check_counts(
    found: Findings, table: str, index: int, owner: object, columns: Iterable[str], optional: Iterable[str] = ()
) -> None:
    for column in columns:
        if not _is_count(value := getattr(owner, column)):
            found.add(table, index, column, *_number_message(value))
    for column in optional:
        if (value := getattr(owner, column)) is not None and not _is_count(value):
            found.add(table, index, column, *_number_message(value))


def _check_word(found: Findings, table: str, index: int, owner: object, column: str, words: type[StrEnum]) -> None:
    value = getattr(owner, column)
    if not isinstance(value, words):
        what = f"{value!r} is not a member of {words.__name__}"
        found.add(table, index, column, what, f"give one of {words.__name__}'s members")


def _number_message(value: object) -> tuple[str, str]:
    if type(value) is int:
        what = f"{value} is negative" if value < 0 else f"{value} is too large"
    else:
        what = f"{value!r} is not a whole number"
    return what, f"give an int from 0 to {LARGEST}"


def _check_info(info: TraceInfo, found: Findings) -> None:
    _check_texts(found, "info", -1, info, ("model", "device", "dtype", "tool"))
    _check_word(found, "info", -1, info, "origin", Origin)
    if info.compute:
        _check_texts(found, "info", -1, info, ("compute",))
    if info.output is not None:
        _check_word(found, "info", -1, info, "output", OutputLife)
    if not (_is_count(info.batch) and info.batch > 0):
        found.add("info", -1, "batch", f"{info.batch!r} is not a number of samples", "give a whole number >= 1")
    if info.date:
        try:
            good = datetime.date.fromisoformat(info.date).isoformat() == info.date
        except ValueError:
            good = False
        if not good:
            found.add("info", -1, "date", f"{info.date!r} is not a day", "write YYYY-MM-DD, or leave it empty")
    for key in ("framework_peak_bytes", "workspace_limit"):
        size = getattr(info, key)
        if size is not None and not _is_count(size):
            found.add("info", -1, key, *_number_message(size))
    if any("\ud800" <= letter <= "\udfff" for letter in info.notes):
        found.add("info", -1, "notes", "holds characters that no file can", "remove the lone surrogates")


def _check_kernels(kernels: tuple[Kernel, ...], found: Findings) -> None:
    if not kernels:
        found.add("kernels", -1, "", "no kernels", "a trace has at least one kernel")
    seen: dict[str, int] = {}
    for index, kernel in enumerate(kernels):
        _check_id(found, "kernels", index, kernel.id, seen)
        if kernel.id == RELEASED_AT_END:
            what = f"'{RELEASED_AT_END}' cannot be a kernel's id: in a block's release it means the iteration's end"
            found.add("kernels", index, "id", what, "give another id")
        _check_word(found, "kernels", index, kernel, "phase", Phase)
        _check_texts(found, "kernels", index, kernel, ("op",), ("layer",))
        optional = ("start_ns", "flops", "dram_bytes", "spread_ns")
        _check_counts(found, "kernels", index, kernel, ("duration_ns", "stream"), optional)
        for column, ids in (("reads", kernel.reads), ("writes", kernel.writes)):
            if len(set(ids)) < len(ids):
                twice = next(name for name in ids if ids.count(name) > 1)
                found.add("kernels", index, column, f"block '{twice}' is named twice", "name each block once")


def _check_blocks(trace: Trace, found: Findings) -> None:
    named = (name for kernel in trace.kernels for name in (*kernel.reads, *kernel.writes))
    if not trace.blocks and (name := next(named, None)) is not None:
        what = f"no blocks, although kernels name some, '{name}' for one"
        found.add("blocks", -1, "", what, "add a row for each block that a kernel reads or writes")
    seen: dict[str, int] = {}
    for index, block in enumerate(trace.blocks):
        _check_id(found, "blocks", index, block.id, seen)
        _check_word(found, "blocks", index, block, "kind", BlockKind)
        _check_counts(found, "blocks", index, block, ("bytes",))
        _check_texts(found, "blocks", index, block, (), ("layer", "dtype"))
        if block.shape is not None and not all(_is_count(side) for side in block.shape):
            found.add("blocks", index, "shape", f"{block.shape!r} is not a shape", "give whole numbers >= 0")
        if block.persistent and block.born is not None:
            what = f"block '{block.id}' is persistent and yet born at kernel '{block.born}'"
            found.add("blocks", index, "born", what, "a persistent block is there from the start: leave born blank")


def _check_id(found: Findings, table: str, index: int, name: str, seen: dict[str, int]) -> None:
    if not _is_text(name) or " " in name:
        what = f"{name!r} is not an id" if name else "the id is blank"
        found.add(table, index, "id", what, "give a printable text without spaces")
    elif name in seen:
        first = found.at(table, seen[name], "")[1]
        found.add(table, index, "id", f"duplicate id '{name}', first used in {first}", "give each its own id")
    else:
        seen[name] = index


def _check_tables(trace: Trace, found: Findings) -> None:
    """The optional tables: algorithms, sparsity, compressibility, accesses.

    What they name is not looked for where there are no kernels, or no blocks, at all: that is one mistake, told once.
    """
    kernels = {kernel.id for kernel in trace.kernels}
    blocks = {block.id for block in trace.blocks}
    keys: set[tuple[object, ...]] = set()

    def check_owner(table: str, index: int, column: str, name: str, known: set[str]) -> None:
        if known and name not in known:
            what = f"'{name}' is not a {column} of this trace"
            found.add(table, index, column, what, f"name a {column} that has a row in {column}s")

    def check_once(table: str, index: int, *key: object) -> None:
        if (table, *key) in keys:
            told = ", ".join(map(str, key))
            found.add(table, index, "", f"a second row for {told}", "keep one of them")
        keys.add((table, *key))

    for index, choice in enumerate(trace.algorithms):
        check_owner("algorithms", index, "kernel", choice.kernel, kernels)
        _check_texts(found, "algorithms", index, choice, ("algorithm",))
        _check_counts(found, "algorithms", index, choice, ("duration_ns", "workspace_bytes"))
        check_once("algorithms", index, choice.kernel, choice.algorithm)
    for index, sample in enumerate(trace.sparsity):
        check_owner("sparsity", index, "block", sample.block, blocks)
        _check_counts(found, "sparsity", index, sample, ("epoch",))
        if type(sample.sparsity) is not float or math.isnan(sample.sparsity) or not 0 <= sample.sparsity <= 1:
            what = f"{sample.sparsity!r} is not a share of zeros"
            found.add("sparsity", index, "sparsity", what, "give a number from 0.0 to 1.0")
        check_once("sparsity", index, sample.block, sample.epoch)
    for index, size in enumerate(trace.compressibility):
        check_owner("compressibility", index, "block", size.block, blocks)
        _check_texts(found, "compressibility", index, size, ("codec", "layout"))
        _check_counts(found, "compressibility", index, size, ("epoch", "entry_bytes", "bytes", "entries"))
        if size.entry_bytes == 0 or size.entries == 0:
            column = "entries" if size.entry_bytes else "entry_bytes"
            found.add("compressibility", index, column, "0 is not possible here", "give a whole number >= 1")
        check_once(
            "compressibility", index, size.block, size.epoch, size.codec, size.layout, size.entry_bytes, size.bytes
        )
    touched = {
        (kernel.id, b, w) for kernel in trace.kernels for w, of in enumerate((kernel.reads, kernel.writes)) for b in of
    }
    entries = {block.id: entries_of(block) for block in trace.blocks if _is_count(block.bytes)}
    for index, access in enumerate(trace.accesses):
        check_owner("accesses", index, "kernel", access.kernel, kernels)
        check_owner("accesses", index, "block", access.block, blocks)
        if access.kernel in kernels and access.block in blocks:
            _check_access(found, index, access, touched)
        _check_first(found, index, access, entries.get(access.block))
        check_once("accesses", index, access.kernel, access.block, access.write)


def _check_access(found: Findings, index: int, access: Access, touched: set[tuple[str, str, int]]) -> None:
    """touched: kernel, block, and whether it writes that block."""
    if (access.kernel, access.block, access.write) not in touched:
        does = "write" if access.write else "read"
        what = f"kernel '{access.kernel}' does not {does} '{access.block}'"
        found.add("accesses", index, "write", what, f"name a block that the kernel {does}s")
    _check_counts(found, "accesses", index, access, ("sectors", "entries", "stride", "first"))
    if not 1 <= access.sectors <= 4:
        found.add("accesses", index, "sectors", f"{access.sectors} are not sectors of an entry", "give 1 to 4")
    for column in ("entries", "stride"):
        if getattr(access, column) == 0:
            found.add("accesses", index, column, "0 is not possible here", "give a whole number >= 1")


def _check_first(found: Findings, index: int, access: Access, entries: int | None) -> None:
    """entries: of the block; None where it is not known."""
    if not _is_count(access.first) or not access.first:
        return
    if access.order is AccessOrder.RANDOM:
        what = f"a random walk does not begin at entry {access.first}, it visits entries as they are drawn"
        found.add("accesses", index, "first", what, "leave it blank, or name another order")
    elif entries is not None and access.first >= entries:
        what = f"entry {access.first} is not in block '{access.block}', which has {entries} of 128 bytes"
        found.add("accesses", index, "first", what, "count the block's entries from 0")
