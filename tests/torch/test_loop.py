"""Where a plan's steps begin: at the calls that a loop makes, whatever it skips or repeats."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.torch.loop import Loop

X = torch.ones(2, 4)


@contextmanager
def followed(model: nn.Module, groups: Sequence[Sequence[str]]) -> Any:
    """Gives the list of steps that began: for each, whether the one before it ran whole."""
    began: list[bool] = []
    with Loop(groups, began.append).followed(model):
        yield began


def test_a_step_begins_after_as_many_calls_as_it_has() -> None:
    model = nn.Linear(4, 4)
    with followed(model, [[".", "."]]) as began:
        for _ in range(5):
            model(X)
    assert began == [False, True, True]


def test_a_step_of_an_optimizer_ends_it_earlier() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer, of_another = (torch.optim.SGD(each.parameters(), 0.1) for each in (model, other))
    with followed(model, [[".", ".", "."]]) as began:
        for step in (optimizer, None, of_another, None, optimizer, None):
            model(X).sum().backward()
            if step is not None:
                step.step()
    assert began == [False, False, True, False]


def test_groups_follow_each_other() -> None:
    model = nn.ModuleDict({"maker": nn.Linear(4, 4), "judge": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with followed(model, [["maker", "judge"], ["judge"]]) as began:
        for _ in range(3):
            model["judge"](model["maker"](X)).sum().backward()
            optimizer.step()
            model["judge"](X).sum().backward()
            optimizer.step()
    assert began == [False, True, True]


def test_after_an_exception_the_first_module_begins_a_step() -> None:
    model = nn.ModuleDict({"maker": nn.Linear(4, 4), "judge": nn.Linear(4, 4)})
    with followed(model, [["maker", "judge", "judge"]]) as began:
        for path in ("judge", "maker", "judge", "maker", "judge", "judge", "judge", "maker"):
            model[path](X)
    assert began == [False, False, True]


def test_calls_without_gradients_and_copies_of_the_model_do_not_count() -> None:
    model = nn.Linear(4, 4)
    with followed(model, [["."]]) as began:
        model(X)
        with torch.no_grad():
            model(X)
        copy.deepcopy(model)(X)
    assert began == [False]


def test_a_call_inside_another_does_not_count_nor_one_that_backward_makes() -> None:
    class Checkpointing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointing()
    with followed(model, [[".", "inner"]]) as began:
        for _ in range(2):
            model(X).sum().backward()
            model.inner(X)
    assert began == [False, True]


def test_a_call_that_fails_is_none() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with followed(model, [[".", "."]]) as began:
        for bad in (False, True, False, False):
            with suppress(RuntimeError):
                model(torch.ones(2, 5) if bad else X)
    assert began == [False, True]
