"""Checks of cDMA's section IV: how sparse feature maps are over a training, and how that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from simgpu.papers.checks.cdma_traces import layers_of, makers, study
from simgpu.papers.checks.found import lines, rule
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Trace
from simgpu.trace.operators import OpClass, op_class
from simgpu.workloads.sparsity.generator import mean_sparsity, with_sparsity

#: Of the training, as many as the sparsity of these networks was fitted on.
EPOCHS = 51
#: A recording of a network of AlexNet's build, really trained, if on an easier task.
RECORDED = "digits-cnn-cpu"


@dataclass(frozen=True, slots=True)
class Curves:
    """Shares of zeros of feature maps over a training, in the order in which forward makes them.

    zeros: by map, at equal distances of time. layers: what makes a map. sources: what a pooled or normalized map is
    made of.
    """

    zeros: Mapping[str, Sequence[float]]
    layers: Mapping[str, OpClass]
    sources: Mapping[str, str]

    def of(self, layer: OpClass) -> list[str]:
        """The maps that layers of a class make."""
        return [name for name in self.zeros if self.layers[name] is layer]

    def origin(self, name: str) -> str:
        """The map whose zeros a map has, if pooling and normalization alone lie between."""
        while name in self.sources:
            name = self.sources[name]
        return name


def curves_of(trace: Trace) -> Curves:
    """What a trace tells of each epoch. Of a map and what a dropout leaves of it, the latter: Caffe drops in place."""
    by, layers = makers(trace), layers_of(trace)
    replaced = {kernel.reads[0] for kernel in by.values() if op_class(kernel.op) is OpClass.DROPOUT}
    zeros: dict[str, list[float]] = {}
    for sample in trace.sparsity:
        if sample.block not in replaced:
            zeros.setdefault(sample.block, []).append(sample.sparsity)
    keeping = (OpClass.POOLING, OpClass.NORMALIZATION)
    return Curves(zeros, layers, {name: by[name].reads[0] for name in zeros if op_class(by[name].op) in keeping})


def zeros(*, vgg: str = "") -> dict[str, Any]:
    """Section IV of the six networks. vgg: whose curves VGG-16 follows instead of its own."""
    traces = study("maxwell").traces
    profiles = dict.fromkeys(traces) | {"VGG": vgg or None}
    trained = {name: with_sparsity(trace, EPOCHS, profiles[name]) for name, trace in traces.items()}
    curves = {name: curves_of(trace) for name, trace in trained.items()}
    return {
        "alexnet": mean_sparsity(trained["AlexNet"]),
        "six": fmean(map(mean_sparsity, trained.values())),
        "sparsest": max(max(shares) for each in curves.values() for shares in each.zeros.values()),
        "first": max(abs(share - 0.5) for each in curves.values() for share in next(iter(each.zeros.values()))),
        "u": u_shaped(curves),
        "deeper": deeper_is_sparser(curves),
        "pooled": pooled_is_denser(curves),
        "linear": linear_is_sparsest(curves),
    }


def u_shaped(networks: Mapping[str, Curves]) -> dict[str, Any]:
    """Whether density falls fast and then climbs more slowly in all maps but the first, and those pooled from it."""
    tried = [
        (name, layer, shares)
        for name, curves in networks.items()
        for layer, shares in curves.zeros.items()
        if curves.origin(layer) != next(iter(curves.zeros))
    ]
    others = [f"{name}'s {layer}" for name, layer, shares in tried if not _falls_then_climbs(shares)]
    return _told(others, len(tried), "feature maps")


def _falls_then_climbs(sparsity: Sequence[float]) -> bool:
    """In density: down to a bottom in the first half of training, and up from it again, at a lesser rate."""
    top = max(range(len(sparsity)), key=sparsity.__getitem__)
    if not 0 < top < len(sparsity) / 2:
        return False
    falls = (sparsity[top] - sparsity[0]) / top
    climbs = (sparsity[top] - sparsity[-1]) / (len(sparsity) - 1 - top)
    down, up = list(sparsity[: top + 1]), list(sparsity[top:])
    return down == sorted(down) and up == sorted(up, reverse=True) and 0 < climbs < falls


def deeper_is_sparser(networks: Mapping[str, Curves]) -> dict[str, Any]:
    """Whether the later half of the convolutions is sparser than the earlier, in the mean after the first epoch."""
    others = []
    for name, curves in networks.items():
        maps = [curves.zeros[layer] for layer in curves.of(OpClass.CONVOLUTION)]
        half = len(maps) // 2
        early, late = ([fmean(shares[1:]) for shares in part] for part in (maps[:half], maps[half:]))
        if fmean(late) <= fmean(early):
            others.append(name)
    return _told(others, len(networks), "networks")


def pooled_is_denser(networks: Mapping[str, Curves]) -> dict[str, Any]:
    """Whether every pooled map is denser than what it is pooled from, at any time."""
    tried = [
        (name, curves, pool, curves.sources[pool])
        for name, curves in networks.items()
        for pool in curves.of(OpClass.POOLING)
        if pool in curves.sources
    ]
    others = [
        f"{name}'s {pool}"
        for name, curves, pool, source in tried
        if not all(after < before for after, before in zip(curves.zeros[pool], curves.zeros[source], strict=True))
    ]
    return _told(others, len(tried), "pools")


def linear_is_sparsest(networks: Mapping[str, Curves]) -> dict[str, Any]:
    """Whether fully-connected layers, dropout in place, are sparser than every convolution, once training has begun."""
    having = {name: curves for name, curves in networks.items() if curves.of(OpClass.LINEAR)}
    others = []
    for name, curves in having.items():
        linear = zip(*(curves.zeros[layer][1:] for layer in curves.of(OpClass.LINEAR)), strict=True)
        convolutions = zip(*(curves.zeros[layer][1:] for layer in curves.of(OpClass.CONVOLUTION)), strict=True)
        if any(min(of_linear) <= max(of_others) for of_linear, of_others in zip(linear, convolutions, strict=True)):
            others.append(name)
    return _told(others, len(having), "networks with such layers")


def _told(others: Sequence[str], tried: int, what: str) -> dict[str, Any]:
    told = f"{tried - len(others)} of {tried} {what}"
    return rule(not others, f"{told}; not {', '.join(others)}" if others else told)


def density() -> dict[str, Any]:
    """Figures 4 and 7: density over the training, of AlexNet as it is modelled, and of a recorded network."""
    modelled = curves_of(with_sparsity(study("maxwell").traces["AlexNet"], EPOCHS))
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
