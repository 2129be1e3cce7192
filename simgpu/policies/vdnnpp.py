"""`vdnn++`: vDNN with compression on the host (Shriram et al., IPDPS 2019), as CSWAP rebuilt it (section V).

The host's cores encode a block after its offload and decode it before its prefetch; blocks with few zeros are not
encoded. This saves pinned memory but no time on the link, and decoding is on the critical path: the host-to-device
copy, and with it the layer step, waits for it. The node's `host.codec_bandwidth` is the speed of all cores together.

Only the compression of the published system is modelled, as in CSWAP's comparison; its other two techniques do not
depend on it. Blocks that a node's DMA engine has compressed are not encoded again. CSWAP ran it with 64 threads and on
tensors with more than 60% zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simgpu.errors import InputError
from simgpu.graph.encodings import Encoder, Encoding
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.compression import encoded_offloading, encoding_costs, sparse_swaps
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class VdnnPlusPlus(Policy):
    """vDNN's swaps, with the sparsest blocks compressed in host memory."""

    name = "vdnn++"
    summary = "vdnn (mode conv) whose host compresses sparse blocks"
    source = "Shriram et al., IPDPS 2019, as in CSWAP (CLUSTER 2021), section V"

    threshold: float = parameter(0.6, "share of zeros above which the host encodes a block")

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` where the trace has no sparsity."""
        if not 0 <= self.threshold <= 1:
            what = f"{self.threshold!r} is not a share of zeros"
            raise InputError.single("", "parameters.threshold", what, "give a number from 0 to 1")
        graph = context.graph
        costs, swaps = encoding_costs(graph, self.name), Vdnn("conv").swaps(graph)
        sparse = sparse_swaps(graph, swaps, costs)
        encodings = {
            swap.block: Encoding(swap.block, "zvc", Encoder.HOST)
            for swap in sparse
            if (costs.sparsity(graph.blocks[swap.block]) or 0.0) > self.threshold
            and graph.copy_sizes[swap.block] == graph.blocks[swap.block].bytes
        }
        program = encoded_offloading(graph, swaps, encodings, on_host=True)
        note = f"the host compresses {len(encodings)} of {len(sparse)} sparse tensors: above {self.threshold:.0%} zeros"
        return replace(program, notes=(*program.notes, note))
