"""Modelled histograms of memory-entries: roles of blocks, the shipped profile, and its use on traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import simgpu
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.entries import entries_of, histograms, mean_ratio
from simgpu.trace.model import Block, BlockKind, CompressedSize, Kernel, Origin, Phase, Trace, TraceInfo
from simgpu.workloads.compressibility.__main__ import main
from simgpu.workloads.compressibility.generator import (
    FOLDER,
    CompressibilityProfile,
    load_profile,
    with_compressibility,
)
from simgpu.workloads.compressibility.measured import RECORDINGS, profile_text
from simgpu.workloads.compressibility.roles import roles_of
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from tests.cli.cli_helpers import simgpu as command

TRACES = Path(__file__).parents[2] / "traces"
NETWORKS = ("alexnet", "vgg16", "resnet50", "squeezenet", "inception-v2", "biglstm")


@cache
def from_zoo(name: str, batch: int = 32) -> Trace:
    return build_trace(name, batch=batch, gpu=simgpu.load_node("v100").gpu)


def test_the_shipped_profile_is_computed_from_the_shipped_recordings(tmp_path: Path) -> None:
    assert main([str(TRACES), "-o", str(tmp_path / "again.yaml")]) == 0
    assert (tmp_path / "again.yaml").read_bytes() == (FOLDER / "trained.yaml").read_bytes()
    assert load_profile("trained").recordings == RECORDINGS
    assert load_profile("trained").sizes == ENTRY_SIZES


def test_a_missing_recording_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "-o", str(tmp_path / "never.yaml")]) == 2
    assert RECORDINGS[0] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def _kernels() -> Iterator[Kernel]:
    """Forward and backward of two convolutions with ReLU, normalization, a residual sum, pooling, a linear layer."""
    forward, backward = (
        (
            ("conv2d", "x w1", "y1"),
            ("relu_", "y1", "y1"),
            ("local_response_norm", "y1", "n1"),
            ("conv2d", "n1 w2", "y2"),
            ("batch_norm", "y2 gamma", "b2 mean"),
            ("add_", "b2 n1", "b2"),
            ("relu_", "b2", "b2"),
            ("max_pool2d_with_indices", "b2", "p indices"),
            ("cat", "p", "c"),
            ("linear", "c w3", "z"),
            ("native_dropout", "z", "d mask"),
            ("mystery", "d", "m"),
        ),
        (
            ("mystery_backward", "m", "dm"),
            ("native_dropout_backward", "dm mask", "dd"),
            ("linear_backward_data", "dd w3", "dc"),
            ("linear_backward_weights", "dd c", "w3.grad"),
            ("max_pool2d_with_indices_backward", "dc indices", "dp"),
            ("threshold_backward", "dp b2", "db"),
            ("conv2d_backward_data", "db w2", "dn"),
            ("add_", "dn db", "dn"),
            ("threshold_backward", "dn y1", "dy"),
        ),
    )
    for phase, calls in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        for place, (op, reads, writes) in enumerate(calls):
            yield Kernel(f"{phase}{place}", op, phase, 1, tuple(reads.split()), tuple(writes.split()))


def test_a_block_has_the_role_of_its_last_contents() -> None:
    kinds = {
        BlockKind.INPUT: "x",
        BlockKind.WEIGHT: "w1 w2 w3 gamma unread",
        BlockKind.OPTIMIZER_STATE: "w1.momentum_buffer w3.exp_avg elsewhere.exp_avg",
        BlockKind.WEIGHT_GRADIENT: "w3.grad",
        BlockKind.ACTIVATION: "y1 n1 y2 b2 p c z d m",
        BlockKind.OTHER: "mean indices mask",
        BlockKind.GRADIENT: "dm dd dc dp db dn dy",
        BlockKind.WORKSPACE: "space",
    }
    blocks = tuple(Block(name, 128, kind) for kind, names in kinds.items() for name in names.split())
    info = TraceInfo("hand", 1, "hand", "float32", Origin.MODELLED, "hand")
    assert roles_of(Trace(info, tuple(_kernels()), blocks)) == {
        "x": "input",
        "w1": "weight.convolution",
        "w2": "weight.convolution",
        "w3": "weight.linear",
        "gamma": "weight.normalization",
        "w1.momentum_buffer": "optimizer_state.momentum_buffer.convolution",
        "w3.exp_avg": "optimizer_state.exp_avg.linear",
        "w3.grad": "weight_gradient.linear",
        "y1": "activation.relu.first_convolution",
        "n1": "activation.relu.first_convolution",
        "y2": "activation.convolution",
        "b2": "activation.relu.sum",
        "p": "activation.max_pooling.relu",
        "c": "activation.concatenation.relu",
        "z": "activation.linear",
        "d": "activation.dropout.linear",
        "mean": "other.normalization",
        "indices": "other.max_pooling",
        "mask": "other.dropout",
        "dd": "gradient.dropout",
        "dc": "gradient.linear",
        "dp": "gradient.max_pooling",
        "db": "gradient.relu.sum",
        "dn": "gradient.sum",
        "dy": "gradient.relu.first_convolution",
    }


def test_a_recording_and_its_model_give_a_block_the_same_role() -> None:
    """The same network recorded on a CPU and modelled for a GPU; their operators have different names."""
    recorded, modelled = (
        simgpu.load_trace("vgg11-cifar-cpu"),
        build_trace("vgg11", batch=32, gpu=simgpu.load_node("v100").gpu),
    )
    rare = {"loss", "dropout", "product"}  # on a CPU dropout is four kernels; losses are identified differently
    result = [
        {role for role in roles_of(trace).values() if not rare & set(role.split("."))} for trace in (recorded, modelled)
    ]
    assert result[0] - result[1] <= {"activation.linear", "other.linear"}
    assert result[1] - result[0] <= {"activation.linear", "other.linear"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_block_of_a_network_gets_a_complete_histogram_at_every_epoch(name: str) -> None:
    trace = with_compressibility(from_zoo(name))
    profile, roles = load_profile("trained"), roles_of(trace)
    assert check_trace(trace) == []
    assert trace.info.origin is Origin.MODELLED and "is modelled (profile trained)" in trace.info.notes
    result = histograms(trace.compressibility)
    assert list(result) == [(block.id, epoch) for block in trace.blocks for epoch in profile.epochs]
    for block in trace.blocks:
        shares = profile.shares_of(roles.get(block.id, ""))
        for place, epoch in enumerate(profile.epochs):
            histogram = result[block.id, epoch]
            assert sum(histogram.values()) == entries_of(block)
            if shares is None:
                assert histogram == {128: entries_of(block)}
            else:
                total = sum(shares[place])
                for size, share in zip(profile.sizes, shares[place], strict=True):
                    assert abs(histogram.get(size, 0) - entries_of(block) * share / total) < 1
    assert mean_ratio(trace.compressibility) > 1.05


@pytest.mark.parametrize("name", NETWORKS)
def test_nine_tenths_of_the_bytes_outside_workspaces_have_a_role_in_the_profile(name: str) -> None:
    trace, profile = from_zoo(name), load_profile("trained")
    roles = roles_of(trace)
    description: Counter[bool] = Counter()
    for block in trace.blocks:
        if block.kind is not BlockKind.WORKSPACE:
            description[profile.shares_of(roles.get(block.id, "")) is not None] += block.bytes
    assert description[True] > 0.9 * description.total()


def test_rescaled_histograms_equal_modelled_ones_except_for_rounding() -> None:
    carried = histograms(at_batch(with_compressibility(from_zoo("alexnet")), 64).compressibility)
    anew = histograms(with_compressibility(from_zoo("alexnet", 64)).compressibility)
    lasting = {key for key in carried if not key[0].startswith("workspace")}
    assert lasting == {key for key in anew if not key[0].startswith("workspace")}
    for key in lasting:
        for size in ENTRY_SIZES:
            assert abs(carried[key].get(size, 0) - anew[key].get(size, 0)) <= 2


def test_modelled_histograms_replace_measured_ones_and_keep_rows_of_other_codecs() -> None:
    recorded = simgpu.load_trace("photos-vgg-cpu")
    compressed_size = CompressedSize("conv1_1:convolution", 0, "zvc", "nchw", 8388608, 4000000, 1)
    trace = with_compressibility(replace(recorded, compressibility=(*recorded.compressibility, compressed_size)))
    assert check_trace(trace) == []
    assert compressed_size in trace.compressibility
    assert trace.info.modelled == "compressibility"
    assert "its compressibility modelled" in trace.info.provenance
    assert with_compressibility(replace(recorded, info=replace(recorded.info, modelled="sparsity"))).info.modelled == (
        "sparsity and compressibility"
    )


def test_a_custom_profile_is_applied() -> None:
    shares = {"recordings": ["mine"], "shares": [[0.5, 0.5]]}
    profile = CompressibilityProfile.model_validate(
        {
            "schema": "simgpu.compressibility/2",
            "recordings": ["mine"],
            "epochs": [7],
            "sizes": [0, 128],
            "roles": {"weight.linear": shares},
        }
    )
    trace = with_compressibility(simgpu.load_trace("vgg11-cifar-cpu"), profile)
    result = histograms(trace.compressibility)
    assert {epoch for _, epoch in result} == {7}
    assert result["fc8.weight", 7] == {0: 80, 128: 80}
    assert result["fc8.weight.grad", 7] == {128: 160}
    assert "(profile its own)" in trace.info.notes


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"epochs": [1, 0]}, "epochs: [1, 0] must ascend without duplicates"),
        ({"epochs": [0, 1]}, "roles.input: 1 rows of shares are given for 2 epochs"),
        ({"sizes": [0, 8, 128]}, "roles.input, epoch 0: 2 shares are given for 3 sizes"),
        ({"roles": {"input": {"recordings": ["a"], "shares": [[0.5, 0.4]]}}}, "the shares add up to 0.9, not to 1"),
        ({"role": {}}, "role: unknown key; did you mean 'roles'?"),
    ],
)
def test_a_wrong_profile_is_reported(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    document = {
        "schema": "simgpu.compressibility/2",
        "recordings": ["a"],
        "epochs": [0],
        "sizes": [0, 128],
        "roles": {"input": {"recordings": ["a"], "shares": [[0.5, 0.5]]}},
    }
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(document | change))
    with pytest.raises(InputError) as caught:
        load_profile("wrong", tmp_path)
    assert what in str(caught.value)


def test_an_unknown_profile_is_reported() -> None:
    with pytest.raises(InputError, match=r"compressibility: profile: unknown profile 'traind'; did you mean 'trained'"):
        with_compressibility(from_zoo("alexnet"), "traind")


def test_recordings_without_entry_sizes_cannot_make_a_profile(tmp_path: Path) -> None:
    for name in RECORDINGS:
        (tmp_path / name).symlink_to(TRACES / "vgg11-cifar-cpu")
    with pytest.raises(InputError, match=r"no common epoch with sizes of memory-entries.*record them with --codec bpc"):
        profile_text(tmp_path)


def test_zoo_build_models_compressibility_on_request(tmp_path: Path) -> None:
    done = command(
        *("zoo", "build", "alexnet", "--batch", 8, "--gpu", "v100", "--compressibility", "-o", tmp_path / "alexnet")
    )
    assert done.exit_code == 0, done.stderr
    assert "compressibility" in done.stdout and "modelled: 1." in done.stdout
    trace = simgpu.load_trace(tmp_path / "alexnet")
    assert trace.compressibility == with_compressibility(from_zoo("alexnet", 8)).compressibility
