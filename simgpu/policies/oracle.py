"""`oracle`: CSWAP on a GPU so fast that encoding and decoding take no time (Orac, CSWAP section V).

Every sparse tensor that becomes smaller is compressed, by the codec with the smallest result, and the machine charges
no time for it. This is not cDMA's oracle, which overlaps all transfers: that is `ideal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.graph.encodings import Encoder, Encoding
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.compression import (
    CODECS,
    encoded_offloading,
    encoding_costs,
    known_codecs,
    nothing_to_compress,
    sparse_swaps,
)
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Oracle(Policy):
    """vDNN's swaps of convolution inputs, compressed in no time where that makes them smaller."""

    name = "oracle"
    summary = "cswap with a codec that takes no time: its lower bound"
    source = "Chen et al., IEEE CLUSTER 2021, section V (Orac)"
    libraries = ("scikit-learn", "scipy", "bayesian-optimization")

    codec: Literal["best", "zvc", "csr", "rle", "lz4"] = parameter(
        "best", "the codec; best: the one that makes a tensor smallest"
    )

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` where the trace has no sparsity."""
        graph = context.graph
        costs, swaps = encoding_costs(graph, self.name), Vdnn("conv").swaps(graph)
        sparse = sparse_swaps(graph, swaps, costs)
        requested = CODECS if self.codec == "best" else (self.codec,)
        codecs = known_codecs(graph, sparse, costs, requested)
        if not codecs:
            return nothing_to_compress(graph, swaps, f"no sparse tensor's size in {' or '.join(requested)} is known")
        encodings = {}
        for swap in sparse:
            block = graph.blocks[swap.block]
            sizes = {codec: costs.encoded_bytes(block, codec) for codec in codecs if costs.is_known(block, codec)}
            smallest = min(sizes, key=lambda codec: sizes[codec], default="")
            if smallest and sizes[smallest] < graph.copy_sizes[swap.block]:
                encodings[swap.block] = Encoding(swap.block, smallest, Encoder.FREE)
        return encoded_offloading(graph, swaps, encodings)
