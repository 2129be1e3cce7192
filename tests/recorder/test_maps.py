"""Compressed sizes that a recording measures of its feature maps, and the maps that it keeps as files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

import simgpu as package
from simgpu.compression.codecs.costs import NodeCosts
from simgpu.compression.codecs.measure import LAYOUTS, in_layout, load_array, sizes_in
from simgpu.compression.codecs.patterns import modelled_bytes
from simgpu.compression.codecs.registry import make_codec
from simgpu.compression.codecs.sizes import compressed_bytes
from simgpu.errors import InputError
from simgpu.recorder import models, record
from simgpu.recorder.contents import array_of, file_names
from simgpu.trace.check import check_trace
from simgpu.trace.folder import read_trace
from simgpu.trace.model import BlockKind, Trace
from tests.cli.cli_helpers import simgpu
from tests.recorder.small_models import named, plain_sgd, summed

CODECS = ("zvc", "rle", "zlib")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Path]:
    """The network on 256 digits, trained for two epochs, small enough that six digits give shares of zeros exactly."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: simgpu with its extra 'record'")
    maps = tmp_path_factory.mktemp("digits") / "maps"
    measure, whole = sizes_in(CODECS), models.digits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "digits", lambda batch: tuple(part[:256] for part in whole(batch)))
        return record("digits-cnn", batch=8, repetitions=1, epochs=2, measure=measure, save_maps=maps), maps


def test_every_activation_is_measured_at_every_epoch_in_every_layout(digits: tuple[Trace, Path]) -> None:
    trace, _ = digits
    assert check_trace(trace) == []
    blocks = trace.block_by_id
    expected = {
        (sample.block, sample.epoch, codec, layout)
        for sample in trace.sparsity
        for codec in CODECS
        for layout in (LAYOUTS if len(blocks[sample.block].shape or ()) == 4 else ("plain",))
    }
    result = [(row.block, row.epoch, row.codec, row.layout) for row in trace.compressibility]
    assert len(result) == len(set(result)) and set(result) == expected
    assert {epoch for _, epoch, _, _ in result} == {0, 1, 2}
    assert {layout for *_, layout in result} == {*LAYOUTS, "plain"}
    assert all((row.entry_bytes, row.entries) == (blocks[row.block].bytes, 1) for row in trace.compressibility)


def test_measured_zvc_is_what_follows_from_the_measured_share_of_zeros(digits: tuple[Trace, Path]) -> None:
    trace, _ = digits
    zeros = {(sample.block, sample.epoch): sample.sparsity for sample in trace.sparsity}
    rows = [row for row in trace.compressibility if row.codec == "zvc"]
    assert len({zeros[row.block, row.epoch] for row in rows}) > 10
    for row in rows:
        share = zeros[row.block, row.epoch]
        assert row.bytes == compressed_bytes(row.entry_bytes, 4, "zvc", share), row


def test_a_simulation_takes_the_measured_sizes(digits: tuple[Trace, Path]) -> None:
    trace, _ = digits
    for epoch in range(3):
        for layout in LAYOUTS:
            costs = NodeCosts(trace, package.load_node("v100"), epoch, layout)
            assert costs.modelled_codecs == ()
            for row in trace.compressibility:
                if row.epoch == epoch and row.layout in (layout, "plain"):
                    assert costs.encoded_bytes(trace.block_by_id[row.block], row.codec) == row.bytes


@pytest.mark.parametrize("codec", ["rle", "zlib"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_modelled_sizes_are_near_those_of_a_network_that_they_were_not_fitted_to(
    digits: tuple[Trace, Path], codec: str, layout: str
) -> None:
    trace, _ = digits
    shapes = {block.id: block.shape for block in trace.blocks}
    zeros = {(sample.block, sample.epoch): sample.sparsity for sample in trace.sparsity}
    measured = modelled = 0
    for row in trace.compressibility:
        if (row.codec, row.layout) == (codec, layout) and zeros[row.block, row.epoch] > 0:
            share = zeros[row.block, row.epoch]
            measured += row.bytes
            modelled += modelled_bytes(row.entry_bytes, 4, shapes[row.block], codec, share, layout)
    assert modelled == pytest.approx(measured, rel=0.15)


def test_without_training_the_recorded_step_is_measured_and_stored(tmp_path: Path) -> None:
    def factory() -> Any:
        torch.manual_seed(1)
        module = named(conv=nn.Conv2d(3, 4, 3), relu=nn.ReLU(inplace=True), flat=nn.Flatten(), fc=nn.Linear(144, 2))
        return module, torch.randn(2, 3, 8, 8), (), summed

    maps = tmp_path / "new" / "maps"
    trace = record(
        factory, batch=2, repetitions=1, optimizer=plain_sgd, measure=sizes_in(["zvc", "zlib"]), save_maps=maps
    )
    zeros = {sample.block: sample.sparsity for sample in trace.sparsity}
    names = [block.id for block in trace.blocks if block.kind is BlockKind.ACTIVATION and block.id in zeros]
    assert sorted(file.name for file in maps.iterdir()) == sorted(file_names(names))
    for name, file in zip(names, file_names(names), strict=True):
        array, block = load_array(maps / file), trace.block_by_id[name]
        assert (array.shape, array.nbytes) == (block.shape, block.bytes)
        assert np.mean(array == 0) == pytest.approx(zeros[name], abs=1e-6)
        for row in trace.compressibility:
            if row.block == name:
                lying = array if row.layout == "plain" else in_layout(array, row.layout)
                assert (row.epoch, row.bytes) == (0, make_codec(row.codec).compressed_size(lying))
    relu = np.load(maps / file_names(["conv:convolution"])[0])
    assert relu.min() == 0, "what ReLU left in the block, not what the convolution put there"


def test_stored_activations_are_those_of_the_recorded_step(digits: tuple[Trace, Path]) -> None:
    trace, maps = digits
    blocks = [block for block in trace.blocks if block.id in {sample.block for sample in trace.sparsity}]
    files = file_names([block.id for block in blocks])
    assert {file.name for file in maps.iterdir()} == set(files)
    assert all(np.load(maps / file).shape == block.shape for file, block in zip(files, blocks, strict=True))
    done = simgpu("compression", "measure", maps / files[0], "--codec", "zvc")
    assert done.exit_code == 0, done.stderr


def test_measuring_and_keeping_change_nothing_else(tmp_path: Path) -> None:
    def structure(**more: Any) -> tuple[Any, ...]:
        trace = record("mlp", batch=2, repetitions=1, warmup=1, epochs=1, date="2026-01-01", **more)
        return trace.blocks, [(kernel.id, kernel.reads, kernel.writes) for kernel in trace.kernels], trace.sparsity

    assert structure() == structure(measure=sizes_in(["rle"]), save_maps=tmp_path / "maps")


def test_the_array_of_a_tensor_is_all_that_its_storage_holds() -> None:
    values = torch.arange(24, dtype=torch.float32).reshape(1, 2, 3, 4)
    assert array_of(values.to(memory_format=torch.channels_last)).tolist() == values.tolist()
    assert array_of(values[:, 1]).tolist() == list(range(24)), "a view of a part"
    assert array_of(values.bfloat16()).dtype == np.uint16
    assert array_of(torch.tensor([1.0, -2.0]).bfloat16()).tolist() == [0x3F80, 0xC000]
    assert array_of(torch.ones(2, requires_grad=True) * 2).tolist() == [2, 2]


def test_formats_unsupported_by_codecs_are_stored_and_not_measured(tmp_path: Path) -> None:
    def factory() -> Any:
        return nn.Linear(4, 4).double(), torch.randn(2, 4).double(), (), summed

    trace = record(
        factory, batch=2, repetitions=1, optimizer=plain_sgd, measure=sizes_in(["zvc"]), save_maps=tmp_path / "m"
    )
    assert trace.sparsity and not trace.compressibility
    assert {np.load(file).dtype for file in (tmp_path / "m").iterdir()} == {np.dtype(np.float64)}


def test_names_of_files_are_safe_and_differ() -> None:
    ids = ["a:b", "a/b", "A\\b", "..", "..", "é" * 300, "con#2"]
    names = file_names(ids)
    assert len({name.lower() for name in names}) == len(ids)
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,130}\.npy", name) for name in names)


def test_options_of_the_command(tmp_path: Path) -> None:
    done = simgpu(
        "record",
        *("mlp", "--batch", "2", "--repetitions", "1", "--codec", "zvc", "--codec", "rle"),
        *("--save-maps", tmp_path / "maps", "-o", tmp_path / "mlp"),
    )
    assert done.exit_code == 0, done.stderr
    assert f"feature maps written to {tmp_path / 'maps'}" in done.stdout.replace("\n", "")
    assert {row.codec for row in read_trace(tmp_path / "mlp").compressibility} == {"zvc", "rle"}
    assert list((tmp_path / "maps").glob("*.npy"))


def test_bad_input_is_reported(tmp_path: Path) -> None:
    unknown = simgpu("record", "mlp", "--batch", "2", "--codec", "zvd", "-o", tmp_path / "never")
    assert unknown.exit_code == 2 and "unknown codec 'zvd'" in unknown.stderr and "did you mean 'zvc'" in unknown.stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.npy").write_text("precious")
    with pytest.raises(InputError, match=r"contains 'mine.npy'.*choose a new folder"):
        record("mlp", batch=2, save_maps=tmp_path / "full")
    with pytest.raises(InputError) as caught:
        record("mlp", batch=2, gpu="v100", measure=sizes_in(["zvc"]), save_maps=tmp_path / "maps")
    assert re.search(r"measure \(--codec\): it has no effect .*\n?.*save_maps: it has no effect", str(caught.value))
    assert not (tmp_path / "maps").exists()


def test_a_failed_recording_writes_no_activations(tmp_path: Path) -> None:
    def raising(array: np.ndarray) -> tuple[()]:
        raise InputError.single("measure", "", "not today", "tomorrow")

    with pytest.raises(InputError, match="not today"):
        record("mlp", batch=2, measure=raising, save_maps=tmp_path / "maps")
    assert list(tmp_path.iterdir()) == []
