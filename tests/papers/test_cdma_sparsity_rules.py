"""How cDMA's feature maps become sparse and dense over a training (Rhu et al., HPCA 2018, section IV)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean

import pytest

import simgpu
from simgpu.papers.checks.cdma_sparsity import EPOCHS, Curves, curves_of, trained_networks
from simgpu.papers.checks.cdma_traces import study
from simgpu.trace.operators import OpClass
from simgpu.workloads.sparsity.generator import with_sparsity

CONV, LINEAR, POOL = OpClass.CONVOLUTION, OpClass.LINEAR, OpClass.POOLING


@cache
def networks() -> dict[str, Curves]:
    """The six networks."""
    return {name: curves_of(trace) for name, trace in trained_networks().items()}


@pytest.mark.rule
def test_density_falls_fast_and_climbs_slowly_in_every_feature_map() -> None:
    """All but the first, and what is pooled from it."""
    assert not_u_shaped(networks()) == []


@pytest.mark.rule
def test_later_convolutions_are_sparser_than_earlier_ones() -> None:
    """The later half, in the mean after the first epoch."""
    assert not_sparser_later(networks()) == []


@pytest.mark.rule
def test_pooled_maps_are_denser_than_what_they_are_pooled_from() -> None:
    """At any time."""
    assert not_denser_pooled(networks()) == []


@pytest.mark.rule
def test_fully_connected_layers_are_sparser_than_every_convolution() -> None:
    """With dropout in place, after the first epoch."""
    assert not_sparsest_linear(networks()) == []


def test_by_cswap_s_profile_vgg_16_has_maps_that_are_not_u_shaped() -> None:
    """The papers contradict each other about VGG-16."""
    vgg = with_sparsity(study("maxwell").traces["VGG"], EPOCHS, "cswap")
    assert not_u_shaped({"VGG": curves_of(vgg)})


def not_u_shaped(networks: Mapping[str, Curves]) -> list[str]:
    """Maps whose density does not fall fast and climb more slowly, without the first and what is pooled from it."""
    return [
        f"{name}: {layer}"
        for name, curves in networks.items()
        for layer, shares in curves.zeros.items()
        if curves.origin(layer) != next(iter(curves.zeros)) and not falls_then_climbs(shares)
    ]


def falls_then_climbs(sparsity: Sequence[float]) -> bool:
    """Whether density has its minimum in the first half of training, and then climbs at a lower rate than it fell."""
    top = max(range(len(sparsity)), key=sparsity.__getitem__)
    if not 0 < top < len(sparsity) / 2:
        return False
    falls = (sparsity[top] - sparsity[0]) / top
    climbs = (sparsity[top] - sparsity[-1]) / (len(sparsity) - 1 - top)
    down, up = list(sparsity[: top + 1]), list(sparsity[top:])
    return down == sorted(down) and up == sorted(up, reverse=True) and 0 < climbs < falls


def not_sparser_later(networks: Mapping[str, Curves]) -> list[str]:
    """Networks whose later convolutions are not sparser than the earlier ones."""
    others = []
    for name, curves in networks.items():
        maps = [curves.zeros[layer] for layer in curves.of(CONV)]
        half = len(maps) // 2
        early, late = ([fmean(shares[1:]) for shares in part] for part in (maps[:half], maps[half:]))
        if fmean(late) <= fmean(early):
            others.append(name)
    return others


def not_denser_pooled(networks: Mapping[str, Curves]) -> list[str]:
    """Pooled maps that are not denser than what they are pooled from."""
    return [
        f"{name}: {pool}"
        for name, curves in networks.items()
        for pool in curves.of(POOL)
        if pool in curves.sources
        for source in [curves.sources[pool]]
        if not all(after < before for after, before in zip(curves.zeros[pool], curves.zeros[source], strict=True))
    ]


def not_sparsest_linear(networks: Mapping[str, Curves]) -> list[str]:
    """Networks with a fully-connected layer that is not sparser than every convolution."""
    others = []
    for name, curves in networks.items():
        linear, convolutions = (
            list(zip(*(curves.zeros[layer][1:] for layer in curves.of(kind)), strict=True)) for kind in (LINEAR, CONV)
        )
        if linear and any(
            min(simulated) <= max(published) for simulated, published in zip(linear, convolutions, strict=True)
        ):
            others.append(name)
    return others


# --- the rules above, by hand ---------------------------------------------------------------------------------

FLAT = [0.5] * 7
U = [0.5, 0.7, 0.8, 0.78, 0.76, 0.74, 0.72]


def curves(layers: dict[str, tuple[OpClass, Sequence[float]]], sources: dict[str, str] | None = None) -> Curves:
    kinds = {name: layer for name, (layer, _) in layers.items()}
    return Curves({name: shares for name, (_, shares) in layers.items()}, kinds, sources or {})


@pytest.mark.parametrize(
    ("shares", "holds"),
    [
        (U, True),
        (FLAT, False),
        ([0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8], False),  # ever sparser
        ([0.8, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5], False),  # ever denser
        ([0.5, 0.55, 0.8, 0.4, 0.3, 0.2, 0.1], False),  # climbs faster than it falls
        ([0.5, 0.7, 0.8, 0.78, 0.79, 0.74, 0.72], False),  # to and fro
        ([0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8], False),  # does not climb again
    ],
)
def test_a_u_falls_fast_and_climbs_slowly(shares: list[float], holds: bool) -> None:
    network = curves({"a": (CONV, FLAT), "p": (POOL, FLAT), "b": (CONV, shares)}, {"p": "a"})
    assert not_u_shaped({"net": network}) == ([] if holds else ["net: b"])


def test_layers_in_another_order_are_not_sparser_later() -> None:
    layers = {"a": (CONV, FLAT), "b": (CONV, U)}
    assert not_sparser_later({"net": curves(layers)}) == []
    assert not_sparser_later({"net": curves(dict(reversed(layers.items())))}) == ["net"]


@pytest.mark.parametrize(("last", "others"), [(0.71, []), (0.72, ["net: p"])])
def test_a_pooled_map_as_sparse_as_its_source_breaks_the_rule(last: float, others: list[str]) -> None:
    layers = {"a": (CONV, U), "p": (POOL, [*(share - 0.1 for share in U[:-1]), last])}
    assert not_denser_pooled({"net": curves(layers, {"p": "a"})}) == others


def test_every_linear_layer_is_compared_with_every_convolution() -> None:
    layers = {"a": (CONV, U), "b": (LINEAR, [share + 0.1 for share in U])}
    assert not_sparsest_linear({"net": curves(layers), "none": curves({"a": (CONV, U)})}) == []
    assert not_sparsest_linear({"net": curves(layers | {"c": (LINEAR, U)})}) == ["net"]


def test_a_recorded_network_need_not_be_u_shaped() -> None:
    recorded = {"digits": curves_of(simgpu.load_trace("digits-cnn-cpu"))}
    assert not_denser_pooled(recorded) == []
    assert not_u_shaped(recorded) != []


def test_a_map_with_dropout_in_place_is_counted_once() -> None:
    alexnet = curves_of(study("maxwell").traces["AlexNet"])
    assert alexnet.of(LINEAR) == ["drop6", "drop7"]
    assert alexnet.origin("pool1") == "conv1"
