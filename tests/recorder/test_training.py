"""A training run before the recording: what is measured along it, against a plain loop, and what it leaves alone."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simgpu.errors import InputError, MissingExtraError
from simgpu.recorder import record
from simgpu.recorder.training import train
from simgpu.recorder.workload import Workload
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace
from tests.recorder.small_models import named, plain_sgd, summed

_EPOCHS = 4


def _module() -> nn.Sequential:
    torch.manual_seed(3)
    return named(fc1=nn.Linear(6, 16), relu=nn.ReLU(inplace=True), fc2=nn.Linear(16, 2))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(10, 6, generator=generator), torch.randint(2, (10,), generator=generator)


def _with_batches(batch: int) -> tuple[Any, ...]:
    """Ten samples in batches of four: the last one is smaller."""
    inputs, labels = _data()
    batches = list(zip(inputs.split(batch), labels.split(batch), strict=True))
    return _module(), inputs[:batch], labels[:batch], nn.functional.cross_entropy, batches


def _trained(factory: Any = _with_batches, epochs: int = _EPOCHS, **more: Any) -> Trace:
    return record(factory, **{"batch": 4, "repetitions": 1, "warmup": 1, "optimizer": plain_sgd} | more, epochs=epochs)


def _series(trace: Trace, block: str) -> list[float]:
    rows = [sample for sample in trace.sparsity if sample.block == block]
    assert [row.epoch for row in rows] == list(range(len(rows)))
    return [row.sparsity for row in rows]


def _by_a_plain_loop(steps: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    module, inputs = _module(), _data()[0][:4]
    optimizer = plain_sgd(module.parameters())

    def zeros() -> float:
        with torch.no_grad():
            return round(float((module[:2](inputs) == 0).double().mean()), 6)

    shares = [zeros()]
    for _ in range(_EPOCHS):
        for x, y in steps:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        shares.append(zeros())
    return shares


def test_every_epoch_walks_through_the_batches_and_measures_the_recorded_one() -> None:
    inputs, labels = _data()
    expected = _by_a_plain_loop(list(zip(inputs.split(4), labels.split(4), strict=True)))
    assert len(set(expected)) > 1
    trace = _trained()
    assert _series(trace, "fc1:addmm") == expected
    assert _series(trace, "fc2:addmm") == [0.0] * (_EPOCHS + 1)
    assert "Trained for 4 epochs of 3 steps; the mean loss was" in trace.info.notes
    assert "with weights 13 steps of SGD" in trace.info.notes  # and one to warm up


def test_without_batches_an_epoch_is_one_step_on_the_recorded_batch() -> None:
    inputs, labels = _data()
    trace = _trained(lambda batch: _with_batches(batch)[:4])
    assert _series(trace, "fc1:addmm") == _by_a_plain_loop([(inputs[:4], labels[:4])])
    assert "Trained for 4 epochs of 1 step;" in trace.info.notes


def test_training_changes_neither_kernels_nor_blocks() -> None:
    def structure(trace: Trace) -> tuple[Any, ...]:
        return tuple(replace(kernel, duration_ns=0) for kernel in trace.kernels), trace.blocks

    trained = _trained()
    assert structure(trained) == structure(_trained(epochs=0))
    assert {sample.epoch for sample in _trained(epochs=0).sparsity} == {0}
    assert check_trace(trained) == []


def test_measuring_activations_changes_no_weights_buffers_or_random_state() -> None:
    def fresh() -> Workload:
        torch.manual_seed(5)
        module = named(fc1=nn.Linear(6, 16), bn=nn.BatchNorm1d(16), drop=nn.Dropout(0.5), fc2=nn.Linear(16, 2))
        inputs, labels = _data()
        batches = DataLoader(TensorDataset(inputs, labels), batch_size=5, shuffle=True)
        return Workload(module, (inputs,), (labels,), nn.functional.cross_entropy, batches)

    watched = fresh()
    train("m", watched, plain_sgd(watched.module.parameters()), torch.device("cpu"), 2, lambda _: None)
    after = torch.rand(1)
    plain = fresh()
    optimizer = plain_sgd(plain.module.parameters())
    for _ in range(2):
        for x, y in plain.batches or ():
            nn.functional.cross_entropy(plain.module(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.rand(1) == after
    for name, value in plain.module.state_dict().items():
        assert torch.equal(value, watched.module.state_dict()[name]), name


def test_the_optimizers_state_does_not_shift_what_is_measured() -> None:
    adam, sgd = (_series(_trained(optimizer=name, epochs=1), "fc1:addmm") for name in ("adam", "sgd"))
    assert adam[0] == sgd[0]
    assert len(adam) == len(sgd) == 2


def test_a_seed_determines_the_entire_run() -> None:
    def shuffled(batch: int) -> tuple[Any, ...]:
        inputs = torch.randn(10, 6)
        labels = torch.randint(2, (10,))
        batches = DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True)
        module = named(fc=nn.Linear(6, 2), relu=nn.ReLU(), drop=nn.Dropout(0.5))
        return module, inputs[:batch], labels[:batch], nn.functional.cross_entropy, batches

    one, again, other = (_trained(shuffled, seed=seed) for seed in (7, 7, 8))
    assert (one.sparsity, one.info.notes) == (again.sparsity, again.info.notes)
    assert one.sparsity != other.sparsity


def _message(factory: Any, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        _trained(factory, **more)
    return str(caught.value)


def _bad_batches(batches: Any) -> Any:
    return lambda batch: (*_with_batches(batch)[:4], batches)


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        (3, "batches: they are int 3; give a DataLoader, or a list of pairs"),
        (iter([]), "batches: they can be iterated only once; give a DataLoader"),
        ([], "batches: there are none; give at least one pair"),
        ([torch.ones(4, 6)], "batch 0 of an epoch: it is Tensor"),
        ([(torch.ones(4, 6), 5)], "batch 0 of an epoch: they are int 5"),
        ([(torch.ones(4, 7), torch.zeros(4))], "epoch 1: a training step raised RuntimeError"),
    ],
)
def test_batches_are_checked(batches: Any, what: str) -> None:
    assert what in _message(_bad_batches(batches))


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    def explosive(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e30)

    message = _message(lambda: (_module(), torch.ones(4, 6), (), summed), optimizer=explosive)
    assert "epoch 2: the loss has become" in message or "epoch 3: the loss has become" in message
    assert "--optimizer module.path:factory" in message


@pytest.mark.parametrize("calls_before", [3, 4])
def test_a_model_that_changes_while_or_after_it_is_trained_is_refused(calls_before: int) -> None:
    """One epoch calls it three times, two to measure and one to train; the fourth call is the warm-up's."""

    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 2)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.fc(x).exp() if self.calls > calls_before else self.fc(x).sin()

    epochs = 2 if calls_before == 3 else 1
    message = _message(lambda: (Moody(), torch.ones(4, 6), (), summed), epochs=epochs)
    assert "aten.sin.default of shape (4, 2) in one iteration and aten.exp.default of shape (4, 2)" in message


def test_the_digits_need_scikit_learn_and_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    result = importlib.util.find_spec
    with monkeypatch.context() as patched:
        patched.setattr(
            importlib.util, "find_spec", lambda name, *more: None if name == "sklearn" else result(name, *more)
        )
        with pytest.raises(MissingExtraError, match=r"needs scikit-learn.*simgpu with its extra 'record'"):
            record("digits-cnn", batch=4)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: simgpu with its extra 'record'")
    with pytest.raises(InputError, match="1798 exceeds the 1797 digits of the data set"):
        record("digits-cnn", batch=1798)
