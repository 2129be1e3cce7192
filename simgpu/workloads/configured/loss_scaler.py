"""`LossScaler`: the kernels of ``torch.amp.GradScaler`` in one iteration (PyTorch 2.13, ``amp/grad_scaler.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.eager.pointwise import cast, elementwise, mul
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import work_of
from simgpu.workloads.lowering.tape import TapeBlock


class LossScaler:
    """Scales the loss; divides the gradients by the scale and looks for infinite ones; updates the scale.

    All numbers are taken to be finite, so the optimizer step runs.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.scale = session.constant("grad_scaler.scale", (), "float32", BlockKind.OTHER)
        self.growth = session.constant("grad_scaler.growth_tracker", (), "int32", BlockKind.OTHER)

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward starts from."""
        with self.session.layer("loss"):
            return mul(self.session, loss, self.scale)

    def unscale(self, gradients: Mapping[TapeBlock, Tensor]) -> Tensor:
        """``scaler.step`` before the optimizer's: unscales gradients; returns whether one was infinite, as read."""
        session = self.session
        session.tape.phase, session.tape.layer = Phase.OPTIMIZER, None
        inverse = cast(session, elementwise(session, "reciprocal", cast(session, self.scale, "float64")), "float32")
        zero, found, factor = self._copies(inverse)
        self._change("_amp_foreach_non_finite_check_and_unscale_", (factor,), (*gradients.values(), found))
        session.keep((inverse, zero, factor))
        session.run("_local_scalar_dense", (found,), ())
        return found

    def _copies(self, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A zero, and copies of it and of the inverse, which are made for each GPU."""
        (zero,) = self.session.run("full", (), (((), "float32"),))
        found, factor = (self.session.run("_to_copy", (x,), (((), "float32"),))[0] for x in (zero, inverse))
        return zero, found, factor

    def update(self, found: Tensor, gradients: Mapping[TapeBlock, Tensor]) -> None:
        """``scaler.update()``, until whose end the loop holds the gradients."""
        self._change("_amp_update_scale_", (found,), (self.scale, self.growth))
        self.session.keep(list(gradients.values()))

    def _change(self, op: str, reads: Sequence[Tensor], changed: Sequence[Tensor]) -> None:
        """A kernel that changes tensors in place."""
        work = work_of(op, (*reads, *changed), changed, self.session.in_backward)
        blocks = [x.block for x in changed]
        self.session.tape.launch_blocks(op, (work,), [*(x.block for x in reads), *blocks], blocks)
