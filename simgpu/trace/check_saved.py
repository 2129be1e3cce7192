"""The checks of what autograd saved: names, and the order of saving, letting go and taking back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpu.trace.model import RELEASED_AT_END, SavedTensor, Trace

if TYPE_CHECKING:
    from simgpu.trace.check import Findings

_TABLE = "saved"


def check_saved(trace: Trace, found: Findings) -> None:
    """Add the problems of the saved tensors to `found`.

    What they name is not looked for where there are no kernels, or no blocks, at all: that is one mistake, told once.
    """
    position = {kernel.id: index for index, kernel in enumerate(trace.kernels)}
    blocks = {block.id for block in trace.blocks}
    made = _made_at(trace)
    dropped: dict[str, str | None] = {}
    for index, tensor in enumerate(trace.saved):
        if blocks and tensor.block not in blocks:
            what = f"'{tensor.block}' is not a block of this trace"
            found.add(_TABLE, index, "block", what, "name a block that has a row in blocks")
        _check_kernels(tensor, index, position, found)
        _check_order(tensor, index, position, made.get(tensor.block, -1), found)
        if dropped.setdefault(tensor.block, tensor.dropped) != tensor.dropped:
            what = f"block '{tensor.block}' is dropped at '{tensor.dropped}', and in a row above at another kernel"
            found.add(_TABLE, index, "dropped", what, "give the same in all rows of a block")


def _made_at(trace: Trace) -> dict[str, int]:
    """Position of the kernel that first writes each block that is not there before."""
    there = {block.id for block in trace.blocks if block.persistent or block.born is not None}
    made: dict[str, int] = {}
    for index, kernel in enumerate(trace.kernels):
        for name in kernel.writes:
            if name not in there:
                made.setdefault(name, index)
    return made


def _check_kernels(tensor: SavedTensor, index: int, position: dict[str, int], found: Findings) -> None:
    if not position:
        return
    for column, name in (("after", tensor.after), ("before", tensor.before), ("dropped", tensor.dropped)):
        may_be_end = column == "dropped"
        if name is not None and name not in position and not (may_be_end and name == RELEASED_AT_END):
            remedy = "name a kernel that has a row in kernels" + (f", or '{RELEASED_AT_END}'" if may_be_end else "")
            found.add(_TABLE, index, column, f"'{name}' is not a kernel of this trace", remedy)


def _check_order(tensor: SavedTensor, index: int, position: dict[str, int], made: int, found: Findings) -> None:
    """made: position of the kernel that first writes the block, -1 where it was there before."""
    after = -1 if tensor.after is None else position.get(tensor.after)
    before, dropped = position.get(tensor.before or ""), position.get(tensor.dropped or "")
    if after is None:
        return
    if after < made:
        what = f"block '{tensor.block}' is saved before any kernel has written it"
        found.add(_TABLE, index, "after", what, "name the kernel that ran last before it was saved")
    if before is not None and before <= after:
        what = (
            f"kernel '{tensor.before}' takes it back, and runs no later than '{tensor.after}', after which it is saved"
        )
        found.add(_TABLE, index, "before", what, "name the first kernel after backward took it back")
    if dropped is not None and dropped < after:
        what = f"it is dropped at kernel '{tensor.dropped}', and saved later, after '{tensor.after}'"
        found.add(_TABLE, index, "dropped", what, "name the kernel after whose end nobody but autograd held the block")
