"""Plans for compiled models: PyTorch's partitioner does what was planned, and the graphs run as predicted."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, combinations
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.plans.candidate import trail_of
from simgpu.plans.checking import check_plan
from simgpu.plans.compiled.own_solvers import SOLVERS, each_budget
from simgpu.plans.compiled.recording import record_compiled
from simgpu.plans.compiled.search import CompiledSearch
from simgpu.plans.compiled.step import CompiledStep
from simgpu.plans.entry import other_settings, plan
from simgpu.policies.common.framework import plain_framework
from simgpu.recorder.session import Session
from simgpu.torch.graphs import PlannedPartition, graphs_applied, modules_of
from simgpu.torch.plan import Plan
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace
from tests.plans.models import MODELS

#: Where a budget lies between the smallest peak that is found and that without a plan.
PARTS = (0.0, 0.1, 0.3, 0.6, 0.9)
#: Answers of PyTorch's own solvers that are compared, those with the smallest peaks.
_FRONT = 4


def layers(batch: int) -> tuple[Any, ...]:
    """A few layers, so that all choices can be tried."""
    model = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 4))
    return model, torch.randn(batch, 16), torch.randint(4, (batch,)), nn.CrossEntropyLoss()


@cache
def step_of(name: str, batch: int = 16, micro_batches: int = 1) -> CompiledStep:
    return record_compiled(MODELS.get(name, layers), batch=batch, micro_batches=micro_batches)


def between(step: CompiledStep, part: float) -> int:
    search = CompiledSearch(step, 0)
    most = search.usual.peak
    least = search.smallest().peak
    return least + int((most - least) * part)


def recorded_with(name: str, batch: int, partition: PlannedPartition, micro_batches: int = 1) -> Trace:
    """The iteration as PyTorch runs it with a choice of what runs again."""

    def around(model: nn.Module) -> Any:
        return graphs_applied(model, partition.settings, is_unfused=True)

    factory = MODELS.get(name, layers)
    session = Session(factory, batch, "cpu", 1, 1, 0, "sgd", 0, False, "", lambda text: None, around=around)
    return replace(session, micro_batches=micro_batches).run()


def lives(trace: Trace) -> list[tuple[int, int, int]]:
    """Size, birth and end of each block that the iteration makes."""
    place = {kernel.id: k for k, kernel in enumerate(trace.kernels)}
    born: dict[str, int] = {}
    for k, kernel in enumerate(trace.kernels):
        for name in kernel.writes:
            born.setdefault(name, k)
    made = (block for block in trace.blocks if not block.persistent)
    return sorted((each.bytes, born.get(each.id, -1), place.get(each.release or "", len(place))) for each in made)


def expect_the_iteration(name: str, shares: tuple[float, ...], micro_batches: int = 1) -> None:
    batch = 2 * micro_batches
    step = step_of(name, batch, micro_batches)
    draw = random.Random(name)
    known = step.query.known
    for share in shares:
        saved = {memory for memory in step.choice.made_by if draw.random() > share}
        again = step.choice.run_again(saved) - set(step.choice.fixed)
        planned = step.iteration.planned(step.joint.split(again)[0])
        operators = [known[node] for node in again if node in step.choice.in_forward]
        partition = PlannedPartition(name, modules_of(known.values()), operators)
        actual = recorded_with(name, batch, partition, micro_batches)
        assert check_trace(planned.trace) == []
        assert [kernel.op for kernel in planned.trace.kernels] == [kernel.op for kernel in actual.kernels]
        assert lives(planned.trace) == lives(actual)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["se-resnet", "gpt-dropout"])
def test_the_iteration_is_what_pytorch_runs(name: str) -> None:
    expect_the_iteration(name, (0.5,))


@pytest.mark.slow
def test_so_is_the_iteration_of_micro_batches() -> None:
    expect_the_iteration("se-resnet", (0.5,), micro_batches=3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_the_iteration_is_what_pytorch_runs_for_every_model(name: str) -> None:
    expect_the_iteration(name, (0.0, 0.2, 0.5, 0.8, 1.0))
    expect_the_iteration(name, (0.2, 0.8), micro_batches=2)


def peak_of(trace: Trace) -> int:
    graph = TaskGraph.of(trace)
    return trail_of(plain_framework(graph), graph).peak


def all_choices(step: CompiledStep) -> Iterator[tuple[int, int]]:
    """Peak and time of every choice of what is saved."""
    can = [memory for memory, call in step.choice.made_by.items() if call.node in step.choice.in_forward]
    subsets = chain.from_iterable(combinations(can, count) for count in range(len(can) + 1))
    for again in {step.choice.run_again(saved) for saved in subsets}:
        trace = step.iteration.planned(step.joint.split(again)[0]).trace
        yield peak_of(trace), trace.compute_ns


@pytest.mark.slow
def test_the_search_finds_the_best_of_all_choices() -> None:
    step = step_of("layers", 4096)
    choices = sorted(all_choices(step))
    assert len({peak for peak, _ in choices}) > 3
    for budget in sorted({peak for peak, _ in choices}):
        best = min(time for peak, time in choices if peak <= budget)
        found = CompiledSearch(step, budget).run()
        assert found is not None and found.tried.peak <= budget
        assert found.bound_ns <= best <= found.tried.time_ns
        assert found.tried.time_ns == best


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_no_split_is_better_than_the_program_allows(name: str) -> None:
    step = step_of(name, 2)
    draw, search = random.Random(1), CompiledSearch(step, 0)
    for share in (0.2, 0.5, 0.8):
        saved = {memory for memory in step.choice.made_by if draw.random() > share}
        search.add_limit(search.tried_with(step.choice.run_again(saved) - set(step.choice.fixed)))
    search.smallest()
    for tried in search.known.values():
        search.budget = tried.peak
        assert search.lower_bound() <= tried.time_ns
        assert step.choice.least(search.limits, tried.peak) is not None


def expect_agreement(name: str, part: float, micro_batches: int = 1) -> None:
    step = step_of(name, micro_batches=micro_batches)
    made = plan(step, "v100", between(step, part))
    result = check_plan(made, MODELS[name])
    assert [each for each in result.findings if each.agrees is False] == []
    assert result["loss and gradients"].found == "the same bits"
    assert result["peak memory"].agrees and not result.notes
    assert made.predicted.peak_bytes <= made.budget_bytes
    assert made.graph is not None and (made.graph.again or not made.graph.is_planned)


@pytest.mark.parametrize("name", ["convnet", pytest.param("autoencoder", marks=pytest.mark.slow)])
def test_pytorch_does_what_was_planned(name: str) -> None:
    expect_agreement(name, 0.3)


@pytest.mark.slow
def test_pytorch_does_what_was_planned_for_micro_batches() -> None:
    expect_agreement("autoencoder", 0.3, micro_batches=4)


def dropouts(batch: int) -> tuple[Any, ...]:
    """Masks of dropout may be drawn again from their seeds."""
    layers = [part for _ in range(3) for part in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.5))]
    return nn.Sequential(*layers), torch.randn(batch, 64), torch.randn(batch, 64), nn.MSELoss()


@pytest.mark.slow
def test_random_numbers_that_are_drawn_again_are_the_same() -> None:
    step = record_compiled(dropouts, batch=64)
    made = plan(step, "v100", between(step, 0.0))
    assert made.graph is not None and any("random" in each.op for each in made.graph.again)
    assert check_plan(made, dropouts)["loss and gradients"].found == "the same bits"


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", MODELS)
def test_pytorch_does_what_was_planned_for_every_model(name: str, part: float) -> None:
    expect_agreement(name, part)
    expect_agreement(name, part, micro_batches=4)


def expect_at_least_as_good_as_pytorch(name: str) -> None:
    """At the peak of an answer of PyTorch's own solvers, no more time; of answers that no other one beats."""
    step = step_of(name)
    own = sorted((each.peak, each.time_ns or 0) for solver in SOLVERS for each in each_budget(step, solver))
    front = [each for n, each in enumerate(own) if all(each[1] < other[1] for other in own[:n])]
    for peak, time_ns in front[:_FRONT]:
        found = CompiledSearch(step, peak).run()
        assert found is not None and found.tried.time_ns <= time_ns


@pytest.mark.slow
def test_no_solver_of_pytorch_recomputes_less_at_the_same_peak() -> None:
    expect_at_least_as_good_as_pytorch("inception")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_no_solver_of_pytorch_recomputes_less_at_the_same_peak_on_any_model(name: str) -> None:
    expect_at_least_as_good_as_pytorch(name)


def expect_a_falling_peak(count: int, parts: tuple[float, ...]) -> None:
    """The peak falls with the budget, for equal layers."""

    def factory(batch: int) -> tuple[Any, ...]:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(count)), nn.Linear(32, 4))
        return model, torch.randn(batch, 32), torch.randint(4, (batch,)), nn.CrossEntropyLoss()

    step = record_compiled(factory, batch=512)
    search = CompiledSearch(step, 0)
    most, least = search.usual.peak, search.smallest().peak
    peaks = []
    for part in parts:
        budget = least + int((most - least) * part)
        peaks.append(plan(step, "v100", budget).predicted.peak_bytes)
        assert peaks[-1] <= budget
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1]
    assert {each.framework for each in other_settings(step, "v100", most)} == {"PyTorch"}


@pytest.mark.slow
def test_the_peak_of_equal_layers_falls_with_the_budget() -> None:
    expect_a_falling_peak(6, (0.1, 0.5, 1.0))


@pytest.mark.exhaustive
def test_the_peak_of_32_equal_layers_falls_with_the_budget() -> None:
    expect_a_falling_peak(32, (0.05, 0.15, 0.3, 0.5, 0.75, 1.0))


def planned_layers() -> Plan:
    step = step_of("layers", 4096)
    return plan(step, "v100", between(step, 0.0))


def gradients(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    inputs, labels, loss = batch
    model.zero_grad(set_to_none=True)
    loss(model(inputs), labels).backward()
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler on a CPU")
def test_torch_inductor_runs_the_plan() -> None:
    made = planned_layers()
    model, *batch = layers(4096)
    plain = gradients(model, batch)
    packed: list[torch.Tensor] = []
    keep, take = lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor
    with made.apply(model):
        planned = gradients(model, batch)
        with torch.autograd.graph.saved_tensors_hooks(keep, take):
            model(batch[0])
    assert made.graph is not None and len(packed) == made.graph.saved_tensors
    assert sum(each.nbytes for each in packed) == made.graph.saved_bytes
    assert all(torch.allclose(one, two, rtol=1e-4, atol=1e-6) for one, two in zip(plain, planned, strict=True))
    assert type(model) is nn.Sequential


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler on a CPU")
def test_a_graph_that_the_plan_is_not_for_is_refused_and_the_model_is_as_before() -> None:
    made = planned_layers()
    model, *batch = layers(4096)
    for place in (1, 3):
        model[place] = nn.Sigmoid()
    with pytest.raises(InputError, match=r"plan for layers: .*1: its graph has .* operators"), made.apply(model):
        gradients(model, batch)
    assert type(model) is nn.Sequential and len(gradients(model, batch)) == 8


def test_what_cannot_be_applied_is_refused() -> None:
    made = planned_layers()
    model = layers(1)[0]
    with pytest.raises(InputError, match=r"before torch\.compile"), made.apply(torch.compile(model)):
        pass
    assert made.graph is not None
    other = made.model_copy(update={"graph": made.graph.model_copy(update={"torch": "1.0"})})
    with pytest.raises(InputError, match=r"made with PyTorch 1\.0, and this is 2\."), other.apply(model):
        pass


class Scaled(nn.Module):
    """A model with operators of its own around its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = layers(1)[0]

    def forward(self, x: torch.Tensor) -> Any:
        return self.parts(x * 2) * 3


def scaled(batch: int) -> tuple[Any, ...]:
    return Scaled(), *layers(batch)[1:]


def test_a_changed_model_is_refused_by_the_part_that_differs() -> None:
    """Not by the whole model, which differs with it."""
    step = record_compiled(scaled, batch=16)
    made = plan(step, "v100", between(step, 0.3))
    model, x, y, loss = scaled(16)
    model.parts[3] = nn.Sequential(nn.Tanh(), nn.Tanh())
    with pytest.raises(InputError, match=r"plan for scaled: parts\.3(\.0)?: its graph has"), made.apply(model):
        loss(model(x), y).backward()


def test_what_pytorchs_solvers_print_is_discarded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its solver `ilp` is HiGHS, which writes lines of its own."""
    joint = step_of("layers", 2).joint
    own = joint._split
    monkeypatch.setattr(joint, "_split", lambda: (os.write(1, b"a line of HiGHS\n"), own())[1])
    joint.by_solver("ilp", 0.5)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_where_pytorch_does_not_ask_only_its_own_split_is_a_plan() -> None:
    step = step_of("convnet-bf16", 2)
    assert not step.has_choice
    made = plan(step, "v100", "1 GB")
    assert made.graph is not None and not made.graph.is_planned and not made.graph.again
    with pytest.raises(InputError, match="no plan fits"):
        plan(step, "v100", made.predicted.peak_bytes - 1)


class Breaks(nn.Module):
    """A model whose graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.fc(x)
        return x * 2 if float(x.sum()) > 0 else x


def test_a_model_without_a_single_graph_is_refused() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        return Breaks(), torch.randn(batch, 4), torch.randint(4, (batch,)), nn.CrossEntropyLoss()

    with pytest.raises(InputError, match=r"torch.compile\(fullgraph=True\) fails: .*; .*--execute eager"):
        record_compiled(factory, batch=2)


def test_a_budget_below_all_splits_names_the_smallest_peak() -> None:
    with pytest.raises(InputError, match=r"no plan fits into 1 KiB: the smallest peak of a plan is .*iB"):
        plan(step_of("layers", 4096), "v100", 1024)
