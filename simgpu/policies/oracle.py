"""`oracle`: CSWAP on a GPU so fast that encoding and decoding take no time (Orac, CSWAP section V).

It decides by the same equations, with codec times of zero, and the machine charges none. This is not the oracle of
cDMA, which hides all transfers: that is `ideal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.graph.encodings import Encoder, Encoding
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.cswap import CODECS, ExecutionAdvisor, known_codecs, profile_of
from simgpu.policies.sparse import encoded_offloading, offloads, sparse_swaps
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Oracle(Policy):
    """vDNN's swaps of convolution inputs, compressed in no time where that saves any."""

    name = "oracle"
    summary = "cswap with a codec that takes no time: its lower bound"
    source = "Chen et al., IEEE CLUSTER 2021, section V (Orac)"

    codec: Literal["best", "zvc", "csr", "rle", "lz4"] = parameter("best", "the codec; best: the cheapest per tensor")

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` where the trace tells no sparsity."""
        graph = context.graph
        swaps, costs = offloads(graph, self.name, convolutions_only=True)
        sparse = sparse_swaps(graph, swaps, costs)
        codecs = known_codecs(graph, sparse, costs, CODECS if self.codec == "best" else (self.codec,))
        profile = profile_of(context, swaps)
        advisor = ExecutionAdvisor(graph, costs, profile, codecs, lambda _b, _codec: 0, by_format=True)
        chosen = {found.block: found.codec for found in map(advisor.advise, sparse) if found.codec is not None}
        encodings = {b: Encoding(b, codec, Encoder.FREE) for b, codec in chosen.items()}
        return encoded_offloading(graph, swaps, encodings)
