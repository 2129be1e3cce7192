"""What may be recorded, and what is said of what may not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.workload import Workload
from tests.recorder.small_models import summed

_SOURCE = """
import torch
from torch import nn

NUMBER = 3

def images():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 7))

def step(batch):
    return nn.Linear(4, 2), torch.ones(batch, 4), torch.zeros(batch, 2), nn.functional.mse_loss

def no_module():
    return "a model"

def broken():
    raise RuntimeError("no weights file")

class Zoo:
    images = staticmethod(images)
"""


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "recorder_test_models.py").write_text(_SOURCE)
    (tmp_path / "recorder_test_needy.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "recorder_test_wrong.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("recorder_test_")]:
        monkeypatch.delitem(sys.modules, name)
    return "recorder_test_models"


def _message(factory: str | Callable[..., Any], **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        record(factory, **{"batch": 2, "repetitions": 1, "warmup": 1} | more)
    return str(caught.value)


def test_a_factory_that_returns_only_a_module_gets_inputs_by_name(my_models: str) -> None:
    inputs = {"input": "Bx3x32x32"}
    trace = record(f"{my_models}:images", batch=2, repetitions=1, warmup=1, inputs=inputs)
    assert trace.info.model == f"{my_models}:images"
    assert trace.block_by_id["input.input"].shape == (2, 3, 32, 32)
    assert trace.block_by_id["label"].shape == (2,)
    assert "Ran on random inputs (input=Bx3x32x32:float32) and random labels" in trace.info.notes
    assert record(f"{my_models}:Zoo.images", batch=1, repetitions=1, inputs=inputs).info.batch == 1


def test_a_tuple_names_inputs_labels_and_loss_and_batch_is_passed(my_models: str) -> None:
    trace = record(f"{my_models}:step", batch=6, repetitions=1, warmup=1)
    assert trace.block_by_id["input"].shape == (6, 4)
    assert trace.block_by_id["label"].shape == (6, 2)
    assert any("mse_loss" in kernel.op for kernel in trace.kernels)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("vgg111", "did you mean 'vgg11'"),
        ("no_such_package.models:make", "there is no module 'no_such_package'"),
        ("recorder_test_models:imags", "did you mean 'images'"),
        ("recorder_test_models:NUMBER", "'NUMBER' is not callable; it is a int"),
        ("recorder_test_models:no_module", "it returned str 'a model', not a module; return an nn.Module"),
        ("recorder_test_models:broken", "calling it raised RuntimeError: no weights file"),
        ("recorder_test_needy:make", "needs 'a_package_nobody_has', which is not installed"),
        ("recorder_test_wrong:make", "raised ZeroDivisionError"),
        (":make", "neither a built-in model nor module.path:factory"),
    ],
)
def test_a_bad_factory_name_is_reported_with_a_remedy(my_models: str, name: str, what: str) -> None:
    message = _message(name)
    assert message.startswith(f"{name}: factory: ")
    assert what in message


def _linear() -> nn.Module:
    return nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        (_linear, "inputs: the factory returned only Linear, without the inputs of forward(input)"),
        (lambda: (nn.Identity(), torch.ones(2)), "returned a tensor (2,) of float32 on input float32 (2,), neither a"),
        (lambda: (_linear(), torch.ones(2, 5)), "Linear raised RuntimeError on input float32 (2, 5): mat1"),
        (lambda: (_linear(), torch.ones(3, 4), (), summed), "inputs: the first one's shape (3, 4) is not of batch 2"),
        (lambda: (_linear(), (), (), summed), "inputs: they contain no tensor"),
        (lambda: Workload(_linear(), (torch.ones(3, 4),), (), summed), "is not of batch 2"),
        (lambda: (_linear(), 1, (), summed), "inputs: they are int 1; give a tensor, a tuple of arguments or a map"),
        (lambda: (_linear(), {"input": {1}}, (), summed), "inputs, input: it is set, which is not supported"),
        (lambda: (_linear(), torch.ones(2, 4), (), "mse"), "loss: it is str 'mse', not callable"),
        (lambda: (_linear(), torch.ones(2, 4), summed), "a tuple of 3 (Linear, Tensor, function)"),
        (lambda: (_linear(), torch.ones(2, 4), (), lambda y: y), "a training iteration raised RuntimeError"),
        (lambda: (_linear(), torch.ones(2, 5), (), summed), "a training iteration raised RuntimeError"),
    ],
)
def test_the_result_of_a_factory_is_checked(factory: Callable[..., Any], what: str) -> None:
    assert what in _message(factory)


def test_devices_and_optimizers_are_checked() -> None:
    assert "'gpu' is not a device; give cpu, cuda or cuda:N" in _message(_linear, device="gpu")
    assert "'meta' cannot be recorded" in _message(_linear, device="meta")
    assert "'cuda:99': PyTorch sees" in _message(_linear, device="cuda:99")
    assert "did you mean 'adam'" in _message(_linear, optimizer="adamm")


def test_a_sparse_gradient_is_refused() -> None:
    def words(batch: int) -> tuple[Any, ...]:
        return nn.Embedding(10, 4, sparse=True), torch.zeros(batch, dtype=torch.long), (), summed

    message = _message(words, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert "torch.sparse_coo tensor of shape (10, 4) has no storage of its own" in message
    assert "sparse=False" in message


def test_a_model_that_changes_from_iteration_to_iteration_is_refused() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            y = self.fc(x)
            return y.exp() if self.calls > 3 else y.sin()

    message = _message(lambda: (Moody(), torch.ones(2, 4), (), summed), repetitions=3)
    assert "aten.sin.default of shape (2, 2) in one iteration and aten.exp.default of shape (2, 2)" in message
