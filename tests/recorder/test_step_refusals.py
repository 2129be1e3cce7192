"""What `record_step` refuses."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

import simgpu
from simgpu.errors import InputError
from tests.recorder.steps import adam, convolutions, step


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        ("resnet", (), "record_step: model: it is a str, not a module"),
        (nn.Linear(2, 2), ["adam"], "record_step: optimizer: it is a str"),
    ],
)
def test_wrong_arguments_are_refused(model: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simgpu.record_step(model, optimizer)


def test_a_parameter_of_another_module_is_refused() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    with pytest.raises(InputError, match="belongs neither to the model"), simgpu.record_step(model, gpu="a100"):
        other(model(torch.ones(1, 4)))


def test_an_empty_step_is_refused() -> None:
    with pytest.raises(InputError, match="nothing ran on its device"), simgpu.record_step(convolutions(), gpu="a100"):
        pass


@pytest.mark.parametrize("capacity", ["8 GiB", 0, -1])
def test_a_capacity_that_is_no_number_of_bytes_is_refused(capacity: Any) -> None:
    model = nn.Linear(2, 2)
    with simgpu.record_step(model, gpu="a100") as recording:
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(InputError, match="is not a number of bytes"):
        simgpu.explain_allocations(recording.requests, capacity=capacity)


@pytest.mark.parametrize("gpu", ["a100", None])
def test_a_recording_inside_a_step_is_refused(gpu: str | None) -> None:
    model = convolutions()
    outer, inner = (simgpu.record_step(model, gpu=gpu) for _ in range(2))
    with pytest.raises(InputError, match=r"another iteration is being recorded|inside another context"), outer, inner:
        pass
    for form in ({"gpu": "a100"}, {}):
        with (
            pytest.raises(InputError, match=r"another iteration is being recorded"),
            simgpu.record_step(model, gpu=gpu),
        ):
            simgpu.record("resnet20", batch=2, **form)
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu=gpu) as recording:
        step(model, optimizer)
    assert recording.trace.kernels


def test_hooks_of_parameters_and_optimizers_that_search_are_refused() -> None:
    model = convolutions()
    with (
        pytest.raises(InputError, match="decides by values"),
        simgpu.record_step(model, torch.optim.LBFGS(model.parameters()), gpu="a100"),
    ):
        pass
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(InputError, match="has a hook"), simgpu.record_step(model, gpu="a100"):
        pass


def test_change_of_memory_format_inside_is_refused() -> None:
    model = nn.Conv2d(3, 8, 3)
    with pytest.raises(InputError, match="changes its memory format"), simgpu.record_step(model, gpu="a100"):
        model.to(memory_format=torch.channels_last)
