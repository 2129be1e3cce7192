"""`saved_tensors` states what autograd saved in an iteration, and when, as a trace records it."""

from __future__ import annotations

from simgpu.trace.model import RELEASED_AT_END, Phase, SavedTensor
from simgpu.workloads.eager.session import Session
from simgpu.workloads.lowering.tape import TapeBlock


def saved_tensors(session: Session) -> tuple[SavedTensor, ...]:
    """The tensors that autograd saved, weights included, in the order of saving. Backward has run."""
    names = [kernel.id for kernel in session.tape.kernels]
    last_use = _last_uses_in_forward(session)
    for save in session.saves:  # a function in Python holds its arguments until it has ended
        last_use[save.tensor.block] = max(last_use.get(save.tensor.block, -1), save.after)
    rows = []
    for save in session.saves:
        tensor, node = save.tensor, save.node
        block = tensor.block
        assert node.begin is not None and node.unused is not None and node.freed is not None
        held = block.persistent or block.release is None
        unused = block.release if block in node.handed_on and block.release is not None else node.unused
        rows.append(
            SavedTensor(
                block.id,
                tensor.bytes,
                packed_after=names[save.after] if save.after >= 0 else None,
                unpacked_before=names[node.begin],
                released_after=RELEASED_AT_END if held else names[last_use[block]],
                unused_after=names[unused],
                freed_after=names[node.freed],
                layer=node.layer,
                shape=tensor.shape,
                dtype=tensor.dtype,
            )
        )
    return tuple(rows)


def _last_uses_in_forward(session: Session) -> dict[TapeBlock, int]:
    """Position of the last kernel of forward, of any micro-batch, that uses each block."""
    result: dict[TapeBlock, int] = {}
    for position, kernel in enumerate(session.tape.kernels):
        if kernel.phase is Phase.FORWARD:
            result |= dict.fromkeys((*kernel.reads, *kernel.writes), position)
    return result
