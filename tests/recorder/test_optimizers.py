"""Optimizers by name: the built-in ones, those of PyTorch, and one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import BUILT_IN_OPTIMIZERS, record
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Trace
from tests.recorder.small_models import named, record_module, summed

_WEIGHTS = 6 * 4 + 4
#: Tensors of a weight's size that each keeps from one iteration to the next.
_STATE = {"sgd": 1, "plain-sgd": 0, "adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1}


def _recorded(optimizer: str) -> Trace:
    return record_module(lambda: named(fc=nn.Linear(6, 4)), torch.randn(3, 6), optimizer=optimizer)


@pytest.mark.parametrize("name", BUILT_IN_OPTIMIZERS)
def test_a_built_in_optimizer_keeps_the_state_it_is_known_for(name: str) -> None:
    trace = _recorded(name)
    assert check_trace(trace) == []
    state = [block for block in trace.blocks if block.kind is BlockKind.OPTIMIZER_STATE and block.shape != ()]
    assert sum(block.bytes for block in state) == 4 * _WEIGHTS * _STATE[name]
    assert all(block.persistent for block in state)


@pytest.mark.parametrize("name", BUILT_IN_OPTIMIZERS)
def test_an_optimizers_description_names_its_settings(name: str) -> None:
    created = make_optimizer(find_optimizer(name), nn.Linear(2, 2)).defaults
    assert f"learning rate {created['lr']}" in BUILT_IN_OPTIMIZERS[name]
    if created.get("momentum"):
        assert f"momentum {created['momentum']}" in BUILT_IN_OPTIMIZERS[name]
    if created.get("weight_decay"):
        assert f"weight decay {created['weight_decay']}" in BUILT_IN_OPTIMIZERS[name]


def test_an_optimizer_of_pytorch_or_of_ones_own_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import torch\ndef gentle(parameters):\n    return torch.optim.SGD(parameters, lr=1e-6)\n"
    (tmp_path / "recorder_test_optimizers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert "steps of SGD" in _recorded("recorder_test_optimizers:gentle").info.notes
    state = {block.id for block in _recorded("torch.optim:Adadelta").blocks if block.kind is BlockKind.OPTIMIZER_STATE}
    assert {"fc.weight.square_avg", "fc.weight.acc_delta"} <= state


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        ("adamm", "adamm: optimizer: 'adamm' is neither a built-in optimizer nor module.path:factory"),
        ("torch.optim:Adm", "torch.optim:Adm: optimizer: there is no 'Adm' in it; did you mean 'Adam'"),
        ("torch.optim:Optimizer", "optimizer: calling Optimizer raised TypeError"),
        ("builtins:list", "optimizer: list returned a list; give a factory that takes only the model's parameters"),
    ],
)
def test_a_bad_optimizer_is_reported_with_a_remedy(optimizer: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        record(lambda: (nn.Linear(2, 2), torch.ones(1, 2), (), summed), batch=1, optimizer=optimizer)
    assert what in str(caught.value)
