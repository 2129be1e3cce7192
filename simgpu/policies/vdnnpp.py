"""`vdnn++`: vDNN whose host compresses what it was given (Shriram et al., IPDPS 2019), as CSWAP rebuilt it (section V).

After a block's copy out the host's cores encode it, before its copy in they decode it; what has few zeros stays as it
is. That saves pinned memory and no time on the link, and the decoding stands on the critical path: the copy in, and
with it the layer step, waits for it. How fast the host's cores work together is the node's `host.codec_bandwidth`.

Of the published system only the compression is here, as in CSWAP's comparison; its other two techniques do not depend
on it. What a node's DMA engine has compressed already the host leaves alone. CSWAP ran it with 64 threads and on
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
        """One iteration in layer steps. Raises `InputError` where the trace tells no sparsity."""
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
