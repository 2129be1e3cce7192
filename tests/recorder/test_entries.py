"""Memory-entries of all blocks that a recording measures, against the same iterations run by hand."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import simgpu as package
from simgpu.compression.codecs.costs import NodeCosts
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES
from simgpu.compression.codecs.measure import entries_in, sizes_in
from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.contents import Values
from simgpu.recorder.training import train
from simgpu.recorder.workload import Workload
from simgpu.trace.check import check_trace
from simgpu.trace.epochs import epochs_of, sizes_at
from simgpu.trace.folder import read_trace
from simgpu.trace.model import BlockKind, Trace
from tests.cli.cli_helpers import simgpu
from tests.recorder.small_models import named, summed

BPC = entries_in(["bpc"])


def fingerprint(array: NDArray[np.uint8]) -> Iterator[tuple[str, str, int, int, int]]:
    """Replaces a codec: identifies the bytes by their checksum."""
    assert array.dtype == np.uint8 and array.ndim == 1
    yield "crc", "plain", max(array.size, 1), zlib.crc32(array.tobytes()), 1


def of(tensor: torch.Tensor) -> int:
    """The checksum of a tensor that lies without gaps."""
    return zlib.crc32(tensor.detach().contiguous().numpy().tobytes())


def seen(trace: Trace, epoch: int = 0) -> dict[str, int]:
    return {row.block: row.bytes for row in trace.compressibility if (row.codec, row.epoch) == ("crc", epoch)}


def still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


class Residual(nn.Module):
    """Two branches meet, so that two gradients of the first layer's result are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.second = nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(torch.relu_(self.bn(y))) + y


def residual() -> tuple[Any, ...]:
    torch.manual_seed(2)
    return Residual(), torch.randn(8, 6), (), lambda output: (output**2).sum()


def test_blocks_are_measured_before_the_iteration_or_after_their_last_write() -> None:
    trace = record(residual, batch=8, repetitions=1, warmup=1, optimizer=still, measure_entries=fingerprint)
    module, x, _, loss = residual()
    module(x)  # the iteration that warms up
    before = module.bn.running_mean.clone()
    y = module.first(x)
    y.retain_grad()
    activated = torch.relu(module.bn(y))
    output = module.second(activated) + y
    output.retain_grad()
    loss(output).backward()
    result = seen(trace)
    expected = {
        "input": x,
        **dict(module.named_parameters()),
        **{f"{name}.grad": parameter.grad for name, parameter in module.named_parameters()},
        "bn.running_mean": before,
        "first:addmm": y,
        "bn:native_batch_norm": activated,
        "Residual:add": output,
    }
    assert {name: result[name] for name in expected} == {name: of(tensor) for name, tensor in expected.items()}
    (sum_of_both,) = {row.block for row in trace.compressibility if row.bytes == of(y.grad)}
    assert trace.block_by_id[sum_of_both].kind is BlockKind.GRADIENT
    assert set(result) == {block.id for block in trace.blocks}, "workspaces are not seen on a CPU"


def test_entries_are_measured_in_memory_order() -> None:
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(2, 3, 4, 4)

    def factory() -> Any:
        return nn.Flatten(), images.to(memory_format=torch.channels_last).requires_grad_(), (), summed

    trace = record(
        factory,
        batch=2,
        repetitions=1,
        optimizer=lambda _: still([nn.Parameter(torch.ones(1))]),
        measure_entries=fingerprint,
    )
    assert seen(trace)["input"] == of(images.permute(0, 2, 3, 1))


def _digits_of_two_classes() -> Workload:
    torch.manual_seed(5)
    module = named(fc1=nn.Linear(6, 16), bn=nn.BatchNorm1d(16), drop=nn.Dropout(0.5), fc2=nn.Linear(16, 2))
    generator = torch.Generator().manual_seed(4)
    inputs, labels = torch.randn(10, 6, generator=generator), torch.randint(2, (10,), generator=generator)
    batches = DataLoader(TensorDataset(inputs, labels), batch_size=5, shuffle=True)
    return Workload(module, (inputs,), (labels,), nn.functional.cross_entropy, batches)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, momentum, torch.optim.Adagrad])
def test_measuring_all_blocks_does_not_change_training(optimizer: Any) -> None:
    watched = _digits_of_two_classes()
    looked_at = optimizer(watched.module.parameters())
    train("m", watched, looked_at, torch.device("cpu"), 2, lambda _: None, Values(entries=fingerprint))
    after = torch.rand(1)
    plain = _digits_of_two_classes()
    alone = optimizer(plain.module.parameters())
    for _ in range(2):
        for x, y in plain.batches or ():
            nn.functional.cross_entropy(plain.module(x), y).backward()
            alone.step()
            alone.zero_grad()
    assert torch.rand(1) == after
    for name, value in plain.module.state_dict().items():
        assert torch.equal(value, watched.module.state_dict()[name]), name
    states = [one.state_dict()["state"] for one in (alone, looked_at)]
    assert states[0].keys() == states[1].keys() and states[0]
    for mine, expected in zip(states[0].values(), states[1].values(), strict=True):
        assert {key: value.tolist() for key, value in mine.items()} == {k: v.tolist() for k, v in expected.items()}


def test_epochs_of_a_training_are_those_of_a_plain_loop() -> None:
    """Epoch 0 is before training, with the state that a first step leaves; then each epoch's end."""
    trace = record(
        lambda: tuple(_digits_of_two_classes())[:4],
        batch=10,
        repetitions=1,
        epochs=3,
        optimizer=momentum,
        measure_entries=fingerprint,
    )
    workload = _digits_of_two_classes()
    weight, optimizer = workload.module.fc2.weight, momentum(workload.module.parameters())
    assert epochs_of(trace) == (0, 1, 2, 3)
    result = [seen(trace, epoch) for epoch in range(4)]
    assert all(set(each) == {block.id for block in trace.blocks} for each in result)
    assert all(each["input"] == of(workload.inputs[0]) for each in result)
    assert result[0]["fc2.weight"] == of(weight)
    assert result[0]["fc2.weight.momentum_buffer"] == result[0]["fc2.weight.grad"], "the first step's momentum"
    for epoch in range(1, 4):
        nn.functional.cross_entropy(workload.module(workload.inputs[0]), workload.labels[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert result[epoch]["fc2.weight"] == of(weight)
        assert result[epoch]["fc2.weight.momentum_buffer"] == of(optimizer.state[weight]["momentum_buffer"])


@pytest.fixture(scope="module")
def perceptron() -> Trace:
    return record("mlp", batch=2, repetitions=1, epochs=1, optimizer="adam", measure_entries=BPC)


def test_rows_are_a_histogram_of_each_block_at_each_epoch(perceptron: Trace) -> None:
    assert check_trace(perceptron) == []
    counted: defaultdict[tuple[str, int], int] = defaultdict(int)
    for row in perceptron.compressibility:
        assert (row.codec, row.layout, row.entry_bytes) == ("bpc", "plain", ENTRY_BYTES)
        assert row.bytes in ENTRY_SIZES
        counted[row.block, row.epoch] += row.entries
    assert counted == {
        (block.id, epoch): -(-block.bytes // ENTRY_BYTES) for block in perceptron.blocks for epoch in (0, 1)
    }
    kinds = {block.kind for block in perceptron.blocks}
    assert {BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.GRADIENT, BlockKind.OTHER} <= kinds


def test_entry_sizes_give_no_sizes_for_other_codecs(perceptron: Trace) -> None:
    costs = NodeCosts(perceptron, package.load_node("v100"), epoch=1)
    block = perceptron.block_by_id["fc2.weight"]
    assert not costs.is_known(block, "zvc")
    assert sum(row.entries for row in sizes_at(perceptron, 1)["fc2.weight"]) == 512 * 512 * 4 // ENTRY_BYTES


def test_the_entry_codec_is_no_codec_of_activations() -> None:
    assert entries_in(["zvc"]) is None and entries_in(["zvc", "bpc"]) is BPC
    array = np.zeros((2, 32), np.float32)
    assert sizes_in(["bpc", "zvc"])(array) == sizes_in(["zvc"])(array)


def test_the_command_measures_entries(tmp_path: Any) -> None:
    done = simgpu(
        *("record", "mlp", "--batch", "2", "--repetitions", "1", "--codec", "bpc", "--codec", "zvc"),
        *("-o", tmp_path / "mlp"),
    )
    assert done.exit_code == 0, done.stderr
    trace = read_trace(tmp_path / "mlp")
    measured = {codec: {row.block for row in trace.compressibility if row.codec == codec} for codec in ("bpc", "zvc")}
    assert measured["bpc"] == {block.id for block in trace.blocks}
    assert measured["zvc"] == {sample.block for sample in trace.sparsity}


def test_a_model_that_fails_during_measurement_is_reported() -> None:
    def broken() -> Any:
        return nn.Linear(5, 2), torch.randn(2, 6), (), summed

    with pytest.raises(InputError, match="iteration: an iteration raised RuntimeError"):
        record(broken, batch=2, epochs=1)
    with pytest.raises(InputError, match=r"measure_entries \(--codec\): it has no effect"):
        record("mlp", batch=2, gpu="v100", measure_entries=BPC)
