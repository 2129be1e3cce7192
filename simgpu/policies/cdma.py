"""`cdma`: vDNN on a GPU whose DMA engine compresses (Rhu et al., HPCA 2018).

The node defines the engine, so every policy that copies can use it. This policy is the paper's own combination, vDNN
with all layer inputs offloaded (section VI). It requires a node with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.common.compression import encoded_offloading, encoding_costs
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Cdma(Policy):
    """vDNN's swaps of all layer inputs, compressed by the node's DMA engine."""

    name = "cdma"
    summary = "vdnn (mode all) on a node whose DMA engine compresses"
    source = "Rhu et al., HPCA 2018, sections V and VI"

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps.

        Raises `InputError` for a node without the engine or a trace without sparsity.
        """
        if context.node.gpu.cdma is None:
            what = f"node {context.node.name} has no compressing DMA engine"
            remedy = "use one that has, such as titan-x-maxwell-cdma, or define gpu.cdma"
            raise InputError.single("", "node.gpu.cdma", what, remedy)
        encoding_costs(context.graph, self.name)
        return encoded_offloading(context.graph, Vdnn("all").swaps(context.graph), {})
