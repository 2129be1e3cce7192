"""`superneurons`: one rule for each type of layer, as HOME rebuilt SuperNeurons (PPoPP 2018) for its comparison.

HOME (TPDS), section 4.1: what convolutions make is swapped, what pooling, activation, local response normalization and
batch normalization layers make is released after forward and recomputed; section 5.3: the rule is fixed, whatever fits.
The recomputation that the published SuperNeurons weighs by cost is not part of that.

Readings of what the text leaves open:

* A feature map belongs to the layer whose kernel makes it first; what is changed in place later (a convolution's output
  by a ReLU) stays with it.
* What another layer type makes, and what cannot be made again, is kept.
* Copies are asynchronous, as the text says of it, and fetched one layer step ahead, as HOME does itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.evaluate.options import RECOMPUTE, SWAP, Decisions
from simgpu.policies.base import PlanContext
from simgpu.policies.placing import PlacingPolicy, Vector
from simgpu.trace.ops import OpClass, op_class

_RECOMPUTED = {OpClass.POOLING, OpClass.ACTIVATION, OpClass.NORMALIZATION}


@dataclass(frozen=True)
class SuperNeurons(PlacingPolicy):
    """Swap what convolutions make, recompute what pooling, activations and normalizations make."""

    name = "superneurons"
    summary = "swap outputs of convolutions, recompute those of pooling, activation and normalization layers"
    source = "Wang et al., PPoPP 2018, as HOME (TPDS) rebuilt it in section 4.1"

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """By the type of the layer that makes each."""
        graph, vector = context.graph, []
        for position, each in enumerate(decisions.maps):
            maker = next(k for k in graph.uses[each.block] if each.block in graph.writes[k])
            kind = op_class(graph.kernels[maker].op)
            option = SWAP if kind is OpClass.CONVOLUTION else RECOMPUTE if kind in _RECOMPUTED else None
            number = decisions.number_of(position, option) if option else None
            vector.append(number or 0)
        return tuple(vector)
