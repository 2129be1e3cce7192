"""The generator compared with real training runs in cDMA section IV and CSWAP sections II-B and V-B."""

from __future__ import annotations

from functools import cache

import pytest

import simgpu
from simgpu.trace.model import Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.sparsity.generator import load_profile, mean_sparsity, with_sparsity

#: The networks of cDMA and the batches of its table II.
CDMA = {"alexnet": 256, "overfeat": 256, "nin": 128, "vgg16": 128, "squeezenet": 512, "googlenet": 256}
EPOCHS = 51


@cache
def trained(name: str, epochs: int = EPOCHS, profile: str = "cdma") -> Trace:
    gpu = simgpu.load_node("titan-x-maxwell").gpu
    return with_sparsity(build_trace(name, batch=CDMA[name], gpu=gpu), epochs, profile)


@cache
def curves(name: str, epochs: int = EPOCHS, profile: str = "cdma") -> dict[str, list[float]]:
    """Sparsity over the epochs by layer, in forward order."""
    trace = trained(name, epochs, profile)
    table = trace.block_by_id
    result: dict[str, list[float]] = {}
    for sample in trace.sparsity:
        result.setdefault(table[sample.block].layer or sample.block, []).append(sample.sparsity)
    return result


@pytest.mark.parametrize("name", CDMA)
def test_the_first_convolution_has_half_zeros_throughout_training(name: str) -> None:
    first = next(iter(curves(name).values()))
    assert all(0.48 <= share <= 0.52 for share in first)


@pytest.mark.parametrize("name", CDMA)
def test_density_falls_fast_then_rises_slowly_in_all_other_layers(name: str) -> None:
    _, *others = curves(name).values()
    for sparsity in others:
        top = max(range(EPOCHS), key=sparsity.__getitem__)
        if sparsity[top] == sparsity[0]:
            continue  # pooled from the first convolution, which does not change
        assert 0 < top < EPOCHS / 2, "the bottom of the U is in the first half"
        assert sparsity[: top + 1] == sorted(sparsity[: top + 1])
        assert sparsity[top:] == sorted(sparsity[top:], reverse=True)
        assert sparsity[top] - sparsity[0] > 0
        falls, climbs = (sparsity[top] - sparsity[0]) / top, (sparsity[top] - sparsity[-1]) / (EPOCHS - 1 - top)
        assert climbs < falls, "density falls faster than it climbs back"


@pytest.mark.parametrize("name", CDMA)
def test_pooling_is_denser_than_its_input(name: str) -> None:
    result = curves(name)
    layers = list(result)
    pools = [layer for layer in layers if "pool" in layer]
    assert pools
    for pool in pools:
        before = result[layers[layers.index(pool) - 1]]
        assert all(after < given for after, given in zip(result[pool], before, strict=True)), pool


@pytest.mark.parametrize("name", ["alexnet", "overfeat", "vgg16"])
def test_linear_layers_are_sparsest_and_later_convolutions_sparser(name: str) -> None:
    for epoch in range(1, EPOCHS):
        shares = {layer: curve[epoch] for layer, curve in curves(name).items()}
        convolutions = [share for layer, share in shares.items() if layer.startswith("conv")]
        half = len(convolutions) // 2
        assert sum(convolutions[half:]) / (len(convolutions) - half) > sum(convolutions[:half]) / half
        dropped = [share for layer, share in shares.items() if layer.startswith("drop")]
        assert min(dropped) > max(convolutions), "a linear layer's result is what dropout leaves of it, in place"


def test_alexnet_is_as_sparse_as_published() -> None:
    assert mean_sparsity(trained("alexnet")) == pytest.approx(0.494, abs=0.001)


def test_the_six_networks_have_the_published_mean_and_maximum() -> None:
    assert sum(mean_sparsity(trained(name)) for name in CDMA) / len(CDMA) == pytest.approx(0.62, abs=0.001)
    assert max(max(shares) for name in CDMA for shares in curves(name).values()) == pytest.approx(0.93, abs=0.001)


@pytest.mark.parametrize("depth", [0.1, 1.5])
def test_the_fitted_depth_determines_the_mean(depth: float) -> None:
    trace = trained("alexnet")
    moved = load_profile("cdma").model_copy(update={"depths": {"alexnet": depth}})
    assert abs(mean_sparsity(with_sparsity(trace, EPOCHS, moved)) - 0.494) > 0.01


@pytest.mark.slow
def test_vgg16_sparsity_is_between_20_and_80_percent_over_50_epochs() -> None:
    swapped = [shares for layer, shares in curves("vgg16", 50, "cswap").items() if layer.startswith(("conv", "pool"))]
    assert len(swapped) == 13 + 5
    lowest, highest = min(map(min, swapped)), max(map(max, swapped))
    assert 0.20 <= lowest < 0.25
    assert 0.75 < highest <= 0.80


def test_relu4_rises_from_50_to_80_percent() -> None:
    shares = curves("vgg16", 50, "cswap")["conv3_2"]
    assert (shares[0], shares[-1]) == (0.5, 0.8)
    assert shares == sorted(shares)


def test_relu7_rises_for_ten_epochs_and_then_falls_by_20_points() -> None:
    shares = curves("vgg16", 50, "cswap")["conv5_1"]
    top = max(range(50), key=shares.__getitem__)
    assert top in (9, 10)
    assert shares[: top + 1] == sorted(shares[: top + 1])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert shares[top] - shares[-1] == pytest.approx(0.20, abs=0.005)


def test_max4_stays_under_45_percent() -> None:
    assert max(curves("vgg16", 50, "cswap")["pool4"]) < 0.45
