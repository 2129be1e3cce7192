"""Master weights: copies in float32 that the optimizer updates, as Megatron-LM 0.20 keeps them.

``Float16OptimizerWithFloat16Params`` (``megatron/core/optimizer/optimizer.py``) converts each gradient, frees it,
updates the copies and copies them back, one weight after another in bfloat16. With ``main_grad``, backward adds each
gradient to a float32 one and frees it (``core/distributed/distributed_data_parallel.py``); there all of these are one
buffer, which one kernel sets to zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import contiguous_strides
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import work_of
from simgpu.workloads.lowering import optimizer as step
from simgpu.workloads.lowering.optimizer import Optimizer
from simgpu.workloads.lowering.tape import TapeBlock, Value


class Masters:
    """The copies of a session's weights, and the optimizer's state for them."""

    def __init__(self, session: Session, optimizer: Optimizer) -> None:
        self.session, self.optimizer = session, optimizer
        self.copies = [self._float32(weight, "main", BlockKind.OPTIMIZER_STATE) for weight in session.weights]
        values = [Value(copy.block, copy.shape) for copy in self.copies]
        self.states = step.states(session.tape, optimizer, values)

    def _float32(self, weight: Tensor, name: str, kind: BlockKind) -> Tensor:
        tape = self.session.tape
        tape.layer = weight.block.layer
        block = tape.constant(f"{weight.block.id}.{name}", weight.shape, kind, "float32").block
        tape.layer = None
        return Tensor(block, weight.shape, contiguous_strides(weight.shape))

    def main_gradients(self) -> dict[TapeBlock, Tensor]:
        """Gradients in float32 by their weights' blocks, set to zero before forward."""
        created = {
            weight.block: self._float32(weight, "main_grad", BlockKind.WEIGHT_GRADIENT)
            for weight in self.session.weights
        }
        for grad in created.values():
            self.session.overwrite("zero_", grad, ())
        return created

    def update(self, gradients: Mapping[TapeBlock, Tensor]) -> None:
        """The optimizer step. gradients: by their weights' blocks; those in float32 are used as they are."""
        session, tape = self.session, self.session.tape
        tape.phase, tape.layer = Phase.OPTIMIZER, None
        pairs = list(zip(session.weights, self.copies, strict=True))
        of_copies = {
            copy.block: self._widened(gradients[weight.block], copy)
            for weight, copy in pairs
            if weight.block in gradients
        }
        values = [Value(copy.block, copy.shape) for copy in self.copies]
        step.update(tape, self.optimizer, values, of_copies, self.states)
        for weight, copy in pairs:
            if copy.block in of_copies:
                session.overwrite("copy_", weight, (copy,))
        tape.keep(list(of_copies.values()))

    def _widened(self, grad: Tensor, copy: Tensor) -> Value:
        """The gradient of a copy."""
        if grad.dtype == "float32":
            return Value(grad.block, copy.shape)
        tape = self.session.tape
        value = tape.new(f"{copy.block.id}.grad", copy.shape, BlockKind.WEIGHT_GRADIENT)
        wide = Tensor(value.block, copy.shape, grad.strides)
        work = work_of("_to_copy", (grad,), (wide,), backward=False)
        tape.launch_blocks("_to_copy", (work,), (grad.block,), (wide.block,))
        return value
