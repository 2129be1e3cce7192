"""`static`: compress every sparse tensor on the GPU (the static compression, SC, of CSWAP, sections II-C and V-B).

CSWAP compares with it as a software version of cDMA: zero-value compression on the GPU's compute stream, applied to the
outputs of all ReLU and pooling layers that vDNN swaps, at any cost. It is `cswap` without the advisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.compression import (
    encoding_costs,
    known_codecs,
    nothing_to_compress,
    sparse_swaps,
)
from simgpu.policies.common.gpu_codecs import executor_of
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Static(Policy):
    """vDNN's swaps of convolution inputs, the sparse ones all compressed by the GPU with ZVC."""

    name = "static"
    summary = "vdnn (mode conv) that compresses every sparse tensor on the GPU"
    source = "Chen et al., IEEE CLUSTER 2021, sections II-C and V-B"
    libraries = ("scikit-learn", "scipy", "bayesian-optimization")

    launch: Literal["tuned", "expert", "random", "grid_search"] = parameter(
        "tuned", "launch setting of the codec: by Bayesian search, by an expert's rule, at random, or by trying all"
    )

    def plan(self, context: PlanContext) -> Program:
        """One iteration in layer steps. Raises `InputError` where the trace has no sparsity."""
        graph = context.graph
        costs, swaps = encoding_costs(graph, self.name), Vdnn("conv").swaps(graph)
        sparse = sparse_swaps(graph, swaps, costs)
        codecs = known_codecs(graph, sparse, costs, ("zvc",))
        if not codecs:
            return nothing_to_compress(graph, swaps, "no sparse tensor's size in zvc is known")
        executor = executor_of(context, sparse, costs, codecs, self.launch)
        return executor.program(graph, swaps, dict.fromkeys((swap.block for swap in sparse), "zvc"), len(sparse))
