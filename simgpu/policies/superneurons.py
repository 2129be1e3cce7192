"""`superneurons`: one rule for each type of layer, as HOME rebuilt SuperNeurons (PPoPP 2018) for its comparison.

HOME (TC 2022), section 4.1: tensors of convolution layers are swapped; tensors of pooling, activation, local response
normalization and batch normalization layers are released in forward and recomputed. Section 5.3: the rule is the same
for every budget. The cost-aware recomputation of the published SuperNeurons is not part of it.

Where the text is open, this implementation decides:

* A layer's tensor is its input: it can be released as soon as the layer's forward has ended, while an output cannot,
  and vDNN in the same comparison offloads inputs of convolutions. A tensor with several readers belongs to the last one
  in forward. With `tensors: outputs` it is the output; a tensor that a later layer changes in place (a convolution's
  output by a ReLU) belongs to the layer that creates it.
* Tensors of other layer types, and tensors that cannot be recomputed, are kept.
* Copies are asynchronous, as the text states, and fetched one layer step ahead, as in HOME itself.
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
        "inputs", "which feature maps belong to a layer: those that it reads, or those that it writes"
    )

    def place(self, context: PlanContext, decisions: Decisions) -> Vector:
        """One action for each feature map, by the type of its layer."""
        vector = []
        for position, each in enumerate(decisions.maps):
            kind = op_class(context.graph.kernels[self._layer(context.graph, each)].op)
            option = SWAP if kind is OpClass.CONVOLUTION else RECOMPUTE if kind in _RECOMPUTED else None
            number = decisions.number_of(position, option) if option else None
            vector.append(number or 0)
        return tuple(vector)

    def _layer(self, graph: TaskGraph, each: Activation) -> int:
        """A kernel of the layer to which a feature map belongs."""
        return each.after if self.tensors == "inputs" else graph.uses[each.block][0]
