"""The checks of what a trace records of autograd and of modules: saved tensors, and the calls of modules."""

from __future__ import annotations

from simgpu.trace.model import RELEASED_AT_END, ModuleCall, SavedTensor, Trace
from simgpu.trace.row_checks import Problems, Row, is_count, rows_of


def check_saved(trace: Trace, problems: Problems) -> None:
    """Add the problems of the saved tensors to `problems`."""
    position = {kernel.id: index for index, kernel in enumerate(trace.kernels)}
    blocks = {block.id for block in trace.blocks}
    written_at = _first_writes(trace)
    dropped: dict[str, str | None] = {}
    for row in rows_of(problems, "saved", trace.saved):
        tensor: SavedTensor = row.values
        row.counts("bytes")
        row.texts("layer", "dtype", optional=True)
        row.known("block", blocks)
        if position:
            _check_saved_kernels(row, position)
        _check_saved_order(row, position, written_at.get(tensor.block, -1))
        if dropped.setdefault(tensor.block, tensor.released_after) != tensor.released_after:
            what = (
                f"block '{tensor.block}' is dropped at '{tensor.released_after}', and in a row above at another kernel"
            )
            row.add("released_after", what, "give the same in all rows of a block")


def check_modules(trace: Trace, problems: Problems) -> None:
    """Add the problems of the module calls to `problems`."""
    position = {kernel.id: index for index, kernel in enumerate(trace.kernels)}
    blocks = {block.id for block in trace.blocks}
    for row in rows_of(problems, "modules", trace.modules):
        call: ModuleCall = row.values
        row.texts("module")
        row.counts("saved_before", "saved")
        for column in ("after", "until"):
            name = getattr(call, column)
            if position and name is not None and name not in position:
                row.add(column, f"'{name}' is not a kernel of this trace", "name a kernel that has a row in kernels")
        after, until = (-1 if name is None else position.get(name) for name in (call.after, call.until))
        if after is not None and until is not None and until < after:
            what = f"it returns after '{call.until or 'no kernel'}', before '{call.after}', which ran before the call"
            row.add("until", what, "name the kernel that had run last when the call returned")
        if is_count(call.saved_before) and is_count(call.saved) and call.saved_before + call.saved > len(trace.saved):
            what = f"{call.saved_before} and {call.saved} saved tensors exceed the trace's {len(trace.saved)}"
            row.add("saved", what, "count the rows of saved tensors before and during the call")
        if call.input_types and len(call.input_types) != len(call.inputs):
            what = f"{len(call.input_types)} types are given for {len(call.inputs)} inputs"
            row.add("input_types", what, "give one for each input")
        for name in call.inputs:
            if blocks and name not in blocks:
                row.add("inputs", f"'{name}' is not a block of this trace", "name a block that has a row in blocks")


def _first_writes(trace: Trace) -> dict[str, int]:
    """Position of the kernel that first writes each block that the iteration does not start with."""
    present = {block.id for block in trace.blocks if block.persistent or block.host_write is not None}
    first: dict[str, int] = {}
    for index, kernel in enumerate(trace.kernels):
        for name in kernel.writes:
            if name not in present:
                first.setdefault(name, index)
    return first


def _check_saved_kernels(row: Row, position: dict[str, int]) -> None:
    for column in ("packed_after", "unpacked_before", "released_after", "unused_after", "freed_after"):
        name = getattr(row.values, column)
        may_be_end = column not in ("packed_after", "unpacked_before")
        if name is not None and name not in position and not (may_be_end and name == RELEASED_AT_END):
            remedy = "name a kernel that has a row in kernels" + (f", or '{RELEASED_AT_END}'" if may_be_end else "")
            row.add(column, f"'{name}' is not a kernel of this trace", remedy)


def _check_saved_order(row: Row, position: dict[str, int], written: int) -> None:
    """written: position of the kernel that first writes the block, -1 where the iteration starts with it."""
    tensor: SavedTensor = row.values
    after = -1 if tensor.packed_after is None else position.get(tensor.packed_after)
    before, dropped = position.get(tensor.unpacked_before or ""), position.get(tensor.released_after or "")
    if after is None:
        return
    if after < written:
        what = f"block '{tensor.block}' is saved before any kernel has written it"
        row.add("packed_after", what, "name the kernel that ran last before it was saved")
    if before is not None and before <= after:
        unpacked, packed = tensor.unpacked_before, tensor.packed_after
        what = f"kernel '{unpacked}' unpacks it, and does not run after '{packed}', where it is saved"
        row.add("unpacked_before", what, "name the first kernel after backward unpacked it")
    if dropped is not None and dropped < after:
        what = f"it is dropped at kernel '{tensor.released_after}', and saved later, after '{tensor.packed_after}'"
        row.add("released_after", what, "name the kernel after whose end only autograd held the block")
    earliest = max(after, -1 if before is None else before - 1)
    for column in ("unused_after", "freed_after"):
        ended = position.get(getattr(tensor, column) or "")
        if ended is not None and ended < earliest:
            what = f"autograd drops it at kernel '{getattr(tensor, column)}', and saves or unpacks it later"
            row.add(column, what, "name the kernel after whose end autograd dropped it")
