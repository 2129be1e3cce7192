"""The planned iteration is the one that PyTorch runs: every operator, block, lifetime and saved tensor."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

from simgpu.plans.iteration import planned
from simgpu.plans.regions import Steps
from simgpu.trace.check import check_trace
from tests.plans.iterations import kept_results, random_regions, regions_applied, saved_rows, shape_of, training
from tests.plans.models import MODELS
from tests.sets import slow_except


def check_iteration(name: str, seed: int) -> None:
    train = training(name)
    steps = Steps(train.recorded())
    regions = random_regions(steps, seed)
    result = planned(steps, regions).trace
    assert check_trace(result) == []
    calls = Counter(region.module for region in steps.regions())
    actual = train.recorded(regions_applied(train.workload.module, kept_results(steps, regions), calls))
    kernels, blocks = shape_of(result)
    actual_kernels, actual_blocks = shape_of(actual)
    assert kernels == actual_kernels
    assert blocks == actual_blocks
    assert saved_rows(result) == saved_rows(actual)


@pytest.mark.parametrize(
    "name", slow_except(["resnet", "gpt-dropout", "t5", "lstm-cells", "convnet-bf16"], "gpt-dropout", "lstm-cells")
)
def test_a_planned_iteration_is_the_one_that_pytorch_runs(name: str) -> None:
    check_iteration(name, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", MODELS)
def test_planned_iterations_of_every_model_are_those_that_pytorch_runs(name: str, seed: int) -> None:
    check_iteration(name, seed)


def test_without_regions_the_iteration_does_not_change() -> None:
    trace = training("gpt").recorded()
    result = planned(Steps(trace), ()).trace
    assert shape_of(result) == shape_of(trace)


def test_regions_that_pytorch_cannot_repeat_say_why() -> None:
    steps = Steps(training("convnet").recorded())
    reasons = {region.module: steps.why_not(region) for region in steps.regions()}
    assert reasons["features"] == ""
    assert reasons["features.2"] == "changes features.1:native_batch_norm in place, which existed before it"


def test_a_buffer_that_forward_changes_would_change_twice() -> None:
    import torch
    from torch import nn

    from simgpu.recorder import record

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.fc(x).exp().tanh()

    def factory(batch: int) -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(nn.Linear(4, 4), Counting()), torch.randn(batch, 4)

    steps = Steps(record(factory, batch=2, repetitions=1, warmup=1))
    (region,) = [each for each in steps.regions() if each.module == "1"]
    assert steps.why_not(region) == "changes 1.calls, which would change twice"


def test_a_buffer_that_forward_replaces_cannot_be_read_again() -> None:
    import torch
    from torch import nn

    from simgpu.recorder import record

    class Average(nn.Module):
        def __init__(self, momentum: float | None) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.fc(x)).exp().tanh()
            if self.norm.momentum is not None:
                self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
                y = y + self.mean
            return y.sin().cos()

    def reason(momentum: float | None) -> str:
        def factory(batch: int) -> tuple[nn.Module, torch.Tensor]:
            return nn.Sequential(nn.Linear(4, 4), Average(momentum)), torch.randn(batch, 4)

        steps = Steps(record(factory, batch=8, repetitions=1, warmup=1))
        return next(steps.why_not(each) for each in steps.regions() if each.module == "1")

    assert reason(0.1) == "reads 1.mean, which the step replaces"
    assert reason(None) == "averages its statistics over 1.norm.num_batches_tracked batches"
