"""`vdnn+`: vDNN in sub-batches, moDNN's fair baseline (Chen et al., TPDS 2019, section 7.2, figure 12).

The batch is partitioned by moDNN's equation 8; each sub-batch runs under vDNN, and gradients are accumulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simgpu.graph.split import Split
from simgpu.policies.base import PlanContext, Policy, Trial, parameter, require_one_stream
from simgpu.policies.common.sub_batches import partitioned
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class VdnnPlus(Policy):
    """vDNN with moDNN's choice of a sub-batch."""

    name = "vdnn+"
    summary = "vDNN in sub-batches that moDNN's equation 8 chooses"
    source = "Chen et al., IEEE TPDS 30(3), 2019, section 7.2"
    splits_batch = True

    sub_batch: int = parameter(0, "samples at a time; 0 lets equation 8 choose")
    alpha: float = parameter(0.15, "share of consecutive tasks that memory holds at once in equation 8")
    counted: Literal["touched", "live"] = parameter(
        "touched", "data that count there: all that those tasks touch, as printed, or the most that live at once"
    )
    mode: Literal["all", "conv", "dynamic"] = parameter("all", "as vdnn's")
    algorithms: Literal["recorded", "fastest", "fitting", "smallest"] = parameter("fastest", "as vdnn's")

    def plan(self, context: PlanContext) -> Program:
        """vDNN's program for the split graph. Raises `InputError` for a trace with several compute streams."""
        require_one_stream(context.graph, self.name)
        graph, size, notes = partitioned(context, self.sub_batch, self.alpha, self.counted)

        def with_split(program: Program) -> Program:
            return replace(program, transforms=(Split(size), *program.transforms))

        def trial(program: Program) -> Trial:
            return context.trial(with_split(program))

        planned = Vdnn(self.mode, self.algorithms).plan(replace(context, graph=graph, trial=trial))
        return replace(with_split(planned), notes=(*notes, *planned.notes))
