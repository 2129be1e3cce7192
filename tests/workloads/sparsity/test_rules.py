"""How modelled zeros propagate from operator to operator, on small traces."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.check import check_trace
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
from simgpu.workloads.sparsity.generator import (
    EMPTIEST,
    SparsityCurve,
    load_profile,
    mean_sparsity,
    profile_names,
    with_sparsity,
)


def network(*steps: tuple[str, str, str, int]) -> Trace:
    """A forward pass from steps (operator, blocks read, block written, its bytes)."""
    blocks = {"x": Block("x", 1024, BlockKind.INPUT, persistent=True)}
    kernels = []
    for number, (op, reads, result, size) in enumerate(steps):
        blocks.setdefault(result, Block(result, size, BlockKind.ACTIVATION))
        kernels.append(Kernel(f"k{number}", op, Phase.FORWARD, 10, tuple(reads.split()), (result,), layer=result))
    info = TraceInfo("by hand", 1, "none", "float32", Origin.MODELLED, "a test")
    return Trace(info, tuple(kernels), tuple(blocks.values()))


def last_epoch(trace: Trace, epochs: int = 2) -> dict[str, float]:
    created = with_sparsity(trace, epochs)
    assert check_trace(created) == []
    return {sample.block: sample.sparsity for sample in created.sparsity if sample.epoch == epochs - 1}


def test_only_relus_create_zeros() -> None:
    result = last_epoch(network(("conv2d", "x", "a", 64), ("relu", "a", "b", 64), ("conv2d", "b", "c", 64)))
    assert result == {"b": 0.5}


def test_an_in_place_relu_writes_zeros_to_the_convolutions_block() -> None:
    assert last_epoch(network(("conv2d", "x", "a", 64), ("relu_", "a", "a", 64))) == {"a": 0.5}


@pytest.mark.parametrize("op", ["gelu", "tanh", "sigmoid", "prelu_like_things"])
def test_activations_not_after_a_relu_are_dense(op: str) -> None:
    with pytest.raises(InputError, match="the forward pass has no ReLU"):
        with_sparsity(network(("linear", "x", "a", 64), (op, "a", "b", 64)), 2)


@pytest.mark.parametrize(("size", "values"), [(16, 4), (64, 1), (8, 8)])
def test_a_pooling_result_is_zero_if_its_entire_window_is_zero(size: int, values: int) -> None:
    result = last_epoch(network(("conv2d", "x", "a", 64), ("relu", "a", "b", 64), ("max_pool2d", "b", "p", size)))
    clustered = load_profile("cdma").pool_clustering
    assert result["p"] == round(0.5 ** (values ** (1 - clustered)), 6)
    assert result["p"] <= result["b"], "pooling never makes a map sparser"


def test_dropout_adds_zeros_and_copies_and_local_normalization_preserve_them() -> None:
    result = last_epoch(
        network(
            ("conv2d", "x", "a", 64),
            ("relu", "a", "b", 64),
            ("dropout", "b", "d", 64),
            ("aten::clone", "d", "e", 64),
            ("local_response_norm", "e", "n", 64),
        )
    )
    assert (result["d"], result["e"], result["n"]) == (0.75, 0.75, 0.75)


def test_the_sparsity_of_a_concatenation_is_the_mean_weighted_by_size() -> None:
    result = last_epoch(
        network(("conv2d", "x", "a", 64), ("relu", "a", "b", 64), ("conv2d", "b", "c", 192), ("cat", "b c", "d", 256))
    )
    assert result["d"] == 0.125


def test_a_normalization_and_a_sum_are_dense() -> None:
    result = last_epoch(
        network(("conv2d", "x", "a", 64), ("relu", "a", "b", 64), ("batch_norm", "b", "c", 64), ("add", "b c", "d", 64))
    )
    assert result == {"b": 0.5}


def test_a_relu_after_a_linear_layer_is_the_sparsest() -> None:
    result = last_epoch(
        network(
            ("conv2d", "x", "a", 64), ("relu_", "a", "a", 64), ("conv2d", "a", "b", 64), ("relu_", "b", "b", 64),
            ("linear", "b", "c", 64), ("relu_", "c", "c", 64),
        )
    )  # fmt: skip
    assert result["a"] < result["b"] < result["c"]


@pytest.mark.parametrize("name", profile_names())
def test_every_sparsity_profile_names_its_source(name: str) -> None:
    profile = load_profile(name)
    description = {key for key, _ in profile if key not in ("schema_", "networks", "sources", "layers", "depths")}
    description |= {f"layers.{layer}" for layer in profile.layers} | {f"depths.{model}" for model in profile.depths}
    assert description <= set(profile.sources)
    assert set(profile.sources) <= description


@pytest.mark.parametrize("turn_at", [0.0, 0.2, 1.0])
def test_a_sparsity_curve_passes_its_start_turning_point_and_end(turn_at: float) -> None:
    curve = SparsityCurve(start=0.5, turn=0.8, turn_at=turn_at, end=0.6)
    assert curve.at(turn_at) == 0.8
    if turn_at > 0:
        assert curve.at(0) == 0.5
    if turn_at < 1:
        assert curve.at(1) == pytest.approx(0.6)
    samples = [curve.at(step / 50) for step in range(51)]
    assert all(0.5 <= value <= 0.8 for value in samples)


def test_a_single_epoch_has_the_sparsity_at_the_start_of_training() -> None:
    created = with_sparsity(simgpu.load_trace("vgg11-cifar-cpu"), 1)
    assert {sample.epoch for sample in created.sparsity} == {0}
    assert all(0 <= sample.sparsity <= EMPTIEST for sample in created.sparsity)


def test_modelled_rows_replace_measured_ones_with_a_note() -> None:
    trace = simgpu.load_trace("resnet20-cifar-cpu")
    assert trace.sparsity
    created = with_sparsity(trace, 4)
    assert created.info.notes.endswith("Sparsity is modelled (profile cdma, 4 epochs).")
    assert created.info.provenance == f"{trace.info.provenance}, its sparsity modelled", "every result shows it"
    assert {sample.epoch for sample in created.sparsity} == {0, 1, 2, 3}
    assert replace(created, sparsity=(), info=trace.info) == replace(trace, sparsity=())


def test_the_mean_sparsity_is_weighted_by_bytes() -> None:
    trace = network(("conv2d", "x", "a", 300), ("relu_", "a", "a", 300), ("max_pool2d", "a", "p", 100))
    created = with_sparsity(trace, 1)
    shares = {sample.block: sample.sparsity for sample in created.sparsity}
    assert mean_sparsity(created) == pytest.approx((300 * shares["a"] + 100 * shares["p"]) / 400)


@pytest.mark.parametrize("epochs", [0, -1, 1.5])
def test_a_wrong_number_of_epochs_is_refused(epochs: int) -> None:
    with pytest.raises(InputError, match="is not a number of epochs"):
        with_sparsity(chain([1], [1], [8], op="relu"), epochs)


def test_an_unknown_sparsity_profile_is_reported_with_the_known_names() -> None:
    with pytest.raises(InputError, match="known: cdma, cswap"):
        with_sparsity(chain([1], [1], [8], op="relu"), 2, profile="vgg61")
