"""`superneurons`: one rule for each type of layer, as HOME rebuilt SuperNeurons (PPoPP 2018) for its comparison.

HOME (TC 2022), section 4.1: the tensors of convolution layers are swapped, those of pooling, activation, local response
normalization and batch normalization layers are released in forward and recomputed; section 5.3: the rule is fixed,
whatever fits. The recomputation that the published SuperNeurons weighs by cost is not part of that.

Readings of what the text leaves open:

* A layer's tensor is what it reads: it is released as soon as the layer's forward is finished, which what the layer
  makes cannot be, and vDNN next to it offloads what convolutions read. Of several readers the last one in forward
  counts. With `tensors: outputs` it is what the layer makes, which stays with the layer that makes it first where it
  is changed in place later (a convolution's output by a ReLU).
* What other layer types have, and what cannot be made again, is kept.
* Copies are asynchronous, as the text says of it, and fetched one layer step ahead, as HOME does itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.graph.saved import Activation
from simgpu.graph.taskgraph import TaskGraph
from simgpu.planning.options import RECOMPUTE, SWAP, Decisions, Vector
from simgpu.policies.base import PlanContext, parameter
from simgpu.policies.common.placing import PlacingPolicy
from simgpu.trace.operators import OpClass, op_class

_RECOMPUTED = {OpClass.POOLING, OpClass.ACTIVATION, OpClass.NORMALIZATION}


@dataclass(frozen=True)
class SuperNeurons(PlacingPolicy):
    """Swap the tensors of convolutions, recompute those of pooling, activations and normalizations."""

    name = "superneurons"
    summary = "swap tensors of convolutions, recompute those of pooling, activation and normalization layers"
    source = "Wang et al., PPoPP 2018, as HOME (TC 2022) rebuilt it in section 4.1"
    libraries = ("numba",)

    tensors: Literal["inputs", "outputs"] = parameter(
        "inputs", "which feature maps are a layer's: those that it reads, or those that it writes"
    )

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """By the type of the layer whose tensor each is."""
        vector = []
        for position, each in enumerate(decisions.maps):
            kind = op_class(context.graph.kernels[self._layer(context.graph, each)].op)
            option = SWAP if kind is OpClass.CONVOLUTION else RECOMPUTE if kind in _RECOMPUTED else None
            number = decisions.number_of(position, option) if option else None
            vector.append(number or 0)
        return tuple(vector)

    def _layer(self, graph: TaskGraph, each: Activation) -> int:
        """A kernel of the layer whose tensor it is."""
        return each.after if self.tensors == "inputs" else graph.uses[each.block][0]
