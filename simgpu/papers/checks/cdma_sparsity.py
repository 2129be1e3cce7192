"""Checks of cDMA's section IV: the sparsity of feature maps, and how it changes over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from simgpu.papers.checks.cdma_traces import layers_of, study, writers_of
from simgpu.papers.checks.results import lines
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from simgpu.trace.operators import OpClass, op_class
from simgpu.workloads.sparsity.generator import mean_sparsity, with_sparsity

#: Epochs of training: as many as the sparsity profiles of these networks were fitted to.
EPOCHS = 51
#: A recorded training of a network with AlexNet's structure, on an easier task.
RECORDED = "digits-cnn-cpu"


@dataclass(frozen=True, slots=True)
class Curves:
    """Sparsity of feature maps over training, in the order of the forward pass.

    zeros: by map, its shares of zeros at equal intervals. layers: class of the layer that writes a map. sources: the
    input of a pooled or normalized map.
    """

    zeros: Mapping[str, Sequence[float]]
    layers: Mapping[str, OpClass]
    sources: Mapping[str, str]

    def of(self, layer: OpClass) -> list[str]:
        """The maps that layers of a class write."""
        return [name for name in self.zeros if self.layers[name] is layer]

    def origin(self, name: str) -> str:
        """The map from which a map derives by pooling and normalization alone; the map itself if it does not."""
        while name in self.sources:
            name = self.sources[name]
        return name


def curves_of(trace: Trace) -> Curves:
    """The curves of a trace. Only a dropout's result is included, not its input: in Caffe dropout is in place."""
    by, layers = writers_of(trace), layers_of(trace)
    replaced = {kernel.reads[0] for kernel in by.values() if op_class(kernel.op) is OpClass.DROPOUT}
    zeros: dict[str, list[float]] = {}
    for sample in trace.sparsity:
        if sample.block not in replaced:
            zeros.setdefault(sample.block, []).append(sample.sparsity)
    keeping = (OpClass.POOLING, OpClass.NORMALIZATION)
    return Curves(zeros, layers, {name: by[name].reads[0] for name in zeros if op_class(by[name].op) in keeping})


def trained_networks() -> dict[str, Trace]:
    """The six networks with their sparsity over training, by this paper's profile."""
    return {name: with_sparsity(trace, EPOCHS, "cdma") for name, trace in study("maxwell").traces.items()}


def zeros() -> dict[str, Any]:
    """Sparsity of the six networks' feature maps (section IV)."""
    trained = trained_networks()
    curves = {name: curves_of(trace) for name, trace in trained.items()}
    return {
        "alexnet": mean_sparsity(trained["AlexNet"]),
        "six": fmean(map(mean_sparsity, trained.values())),
        "sparsest": max(max(shares) for each in curves.values() for shares in each.zeros.values()),
        "first": max(abs(share - 0.5) for each in curves.values() for share in next(iter(each.zeros.values()))),
    }


def density() -> dict[str, Any]:
    """Activation density over training (figures 4 and 7), of the modelled AlexNet and of a recorded network."""
    modelled = curves_of(with_sparsity(study("maxwell").traces["AlexNet"], EPOCHS, "cdma"))
    recorded = curves_of(load_trace(RECORDED))
    return {
        "alexnet": _lines(modelled, {"conv1": [(0.0, 0.5), (1.0, 0.5)]}),
        "recorded": _lines(recorded, {}),
    }


def _lines(curves: Curves, published: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    sparse = (name for layer in (OpClass.CONVOLUTION, OpClass.LINEAR) for name in curves.of(layer))
    shown = [name for name in sparse if any(curves.zeros[name])]
    points = {
        name.partition(":")[0]: [
            (at / (len(curves.zeros[name]) - 1), 1 - share) for at, share in enumerate(curves.zeros[name])
        ]
        for name in shown
    }
    return lines("activation density", "part of the training", points, published, share=True)
