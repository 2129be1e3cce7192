"""Applying a plan: training goes on as without it, and the model is as before afterwards."""

from __future__ import annotations

import copy
import pickle
import random
import weakref
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

import numpy as np
import torch
from torch import nn

import simgpu
from simgpu.errors import InputError
from simgpu.torch.copies import copies_of
from simgpu.torch.listed import Listed
from simgpu.torch.offload import AsyncOffload
from simgpu.torch.plan import Plan, read_plan
from simgpu.torch.transfers import Tally
from tests.plans.iterations import regions_applied, training
from tests.plans.models import MODELS, ResNet
from tests.plans.test_checking import plan_of


def steps(name: str, plan: Plan | None, count: int = 3) -> dict[str, torch.Tensor]:
    """The model's state after some steps, with a plan around all of them."""
    train = training(name, batch=16)
    workload, module = train.workload, train.workload.module
    torch.manual_seed(1)

    def run() -> None:
        for _ in range(count):
            workload.loss(workload.output(), *workload.labels).backward()
            train.optimizer.step()
            train.optimizer.zero_grad()

    if plan is None:
        run()
    else:
        plan.apply(module)(run)()
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(("name", "part", "offload"), [("convnet", 0.0, False), ("mobilenet", 0.1, True)])
def test_training_with_a_plan_gives_the_same_weights_and_statistics(name: str, part: float, offload: bool) -> None:
    plain, planned = steps(name, None), steps(name, plan_of(name, part, offload))
    assert all(torch.equal(plain[key], planned[key]) for key in plain)


def outside(module: nn.Module) -> tuple[Any, ...]:
    """What a plan must leave as it was: the class and forward of each module, and its hooks."""
    parts = list(module.modules())
    hooks = [len(part._forward_pre_hooks) for part in parts]
    return [type(part) for part in parts], [vars(part).get("forward") for part in parts], hooks


def test_a_model_is_as_before_after_a_plan_also_if_training_fails() -> None:
    plan, train = plan_of("resnet", 0.1, offload=True), training("resnet", batch=16)
    module = train.workload.module
    before = outside(module)
    with pytest.raises(ZeroDivisionError), plan.apply(module):
        assert outside(module) != before
        train.workload.output()
        raise ZeroDivisionError
    assert outside(module) == before
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        train.workload.loss(train.workload.output(), *train.workload.labels).backward()


def test_evaluation_inside_a_plan_neither_counts_nor_changes() -> None:
    plan, train = plan_of("lstm-cells", 0.1, offload=True), training("lstm-cells", batch=16)
    module, workload = train.workload.module, train.workload
    with plan.apply(module):
        with torch.no_grad():
            evaluated = workload.output()
        workload.loss(workload.output(), *workload.labels).backward()
        gradient = module.head.weight.grad.clone()
    module.zero_grad()
    workload.loss(workload.output(), *workload.labels).backward()
    assert torch.equal(gradient, module.head.weight.grad)
    assert torch.equal(evaluated, workload.output())


def test_a_plan_for_another_model_names_the_first_differences() -> None:
    plan = plan_of("gpt", 0.1, offload=False)
    wider = training("gpt").workload.module
    wider.blocks[1].mlp[0] = nn.Linear(32, 96)
    with pytest.raises(
        InputError, match=r"blocks\.1\.mlp\.0\.weight: is float32:96x32 in the model, and float32:128x32"
    ):
        plan.apply(wider).__enter__()
    with pytest.raises(InputError, match=r"(?s)words\.weight: the model has no such parameter.*and \d+ more"):
        plan.apply(training("resnet").workload.module).__enter__()


def test_a_module_of_another_class_or_with_other_settings_is_refused_by_name() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 4))
        return model, torch.randn(batch, 4), torch.randint(4, (batch,)), nn.CrossEntropyLoss()

    made = simgpu.plan(simgpu.record(factory, batch=8), "v100")
    model = factory(8)[0]
    model[0].__class__ = type("WrappedLinear", (nn.Linear,), {})  # as FSDP does
    with made.apply(model):
        pass
    model[1], model[2] = nn.GELU(), nn.Dropout(0.2)
    expected = (
        r"(?s)1: is GELU\(approximate='none'\) in the model, and ReLU\(\) in the plan"
        r".*2: is Dropout\(p=0.2, inplace=False\) in the model, and Dropout\(p=0.1, inplace=False\) in the plan"
    )
    with pytest.raises(InputError, match=expected), made.apply(model):
        pass


def test_a_step_that_does_not_save_an_offloaded_tensor_is_refused_by_name() -> None:
    plan, train = plan_of("resnet", 0.1, offload=True), training("resnet", batch=8)
    with pytest.raises(InputError, match=r"stem|blocks"), plan.apply(train.workload.module):
        for _ in range(2):
            train.workload.loss(train.workload.output(), *train.workload.labels).backward()


def test_a_kept_result_that_does_not_occur_is_refused_by_name() -> None:
    plan = plan_of("gpt", 0.1, offload=False)
    other = training("gpt", batch=16)
    assert any(each.keep for each in plan.recompute)
    for block in other.workload.module.blocks:
        block.forward = lambda x, memory=None: x * 1.5
    with pytest.raises(InputError, match="keeps"), plan.apply(other.workload.module):
        other.workload.output()


@pytest.fixture
def keeping() -> AsyncOffload:
    """Hooks of a plan for what it does not offload."""
    return AsyncOffload(copies_of(torch.device("cpu")), Tally(), Listed({}), prefetch=1, stash=1)


def test_a_graph_without_backward_is_freed(keeping: AsyncOffload) -> None:
    freed: list[bool] = []
    with keeping.step():
        result = torch.ones(4, requires_grad=True).exp()  # saves its own result
        weakref.finalize(result.untyped_storage(), freed.append, True)
        del result
    assert freed == [True]


def test_a_kept_tensor_that_changes_in_place_is_refused(keeping: AsyncOffload) -> None:
    with keeping.step():
        result = torch.ones(4, requires_grad=True).exp()
        with torch.no_grad():
            result.mul_(2)
        with pytest.raises(RuntimeError, match=r"of shape \(4,\) that is saved for backward was changed in place"):
            result.sum().backward()


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match="it is a str, not a module"):
        plan_of("convnet", 0.6, offload=False).apply("model").__enter__()


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = plan_of("resnet", 0.3, offload=False)
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert (tmp_path / "plan.json").read_text() == plan.text()


def test_a_plan_file_with_mistakes_names_them_all(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_of("convnet", 0.6, offload=False).text().replace('"stash"', '"stsh"').replace("eager", "late"))
    with pytest.raises(InputError) as caught:
        read_plan(file)
    text = str(caught.value)
    assert "stsh" in text and "execute" in text and str(file) in text
    file.write_text("[1, 2")
    with pytest.raises(InputError, match=r"plan\.json"):
        read_plan(file)


def test_every_factory_of_the_matrix_is_named() -> None:
    assert len(MODELS) >= 20


class Collecting(nn.Module):
    """Fills a list that it is given, and draws a number of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        y = self.inner(x).tanh() * random.uniform(0.5, 1.5) * np.random.uniform(0.5, 1.5)
        seen.append(y)
        return y + x


class Collector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Collecting() for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        seen: list[torch.Tensor] = []
        for part in self.parts:
            x = part(x, seen)
        return x + sum(seen)


def losses(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of a step with fixed random numbers."""
    random.seed(3)
    np.random.seed(3)
    model.zero_grad()
    model(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_a_module_that_runs_again_fills_lists_once_and_draws_the_same_numbers() -> None:
    model, x = Collector(), torch.randn(4, 8)
    plain = losses(model, x)
    paths = [f"parts.{n}" for n in range(3)]
    with regions_applied(model, {(path, 0): () for path in paths}, dict.fromkeys(paths, 1)):
        planned = losses(model, x)
        after = random.random()
    random.seed(3)
    for _ in range(3):
        random.uniform(0.5, 1.5)
    assert all(torch.equal(one, two) for one, two in zip(plain, planned, strict=True))
    assert after == random.random()


def test_copies_of_a_model_inside_a_plan_are_plain() -> None:
    plan, train = plan_of("gpt", 0.1, offload=False), training("gpt", batch=16)
    module, workload = train.workload.module, train.workload
    with plan.apply(module):
        copied, pickled = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    for each in (copied, pickled):
        assert [type(part) for part in each.modules()] == [type(part) for part in module.modules()]
        each.head.weight.data.zero_()
        workload.loss(each(*workload.inputs), *workload.labels).backward()
        assert all(parameter.grad is None for parameter in module.parameters())
        assert torch.equal(each(*workload.inputs), torch.zeros(16 * 12, 50))


def test_a_failed_step_does_not_move_regions_to_other_calls() -> None:
    inner, x = Collecting().inner, torch.randn(4, 8)
    twice = nn.Sequential(inner, inner)
    ran: list[int] = []
    with regions_applied(twice, {("0", 0): ()}, {"0": 2}):
        handle = inner[1].register_forward_hook(lambda *_: ran.append(1))
        broken = inner[2].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            twice(x)
        broken.remove()
        ran.clear()
        twice(x).sum().backward()
    handle.remove()
    assert len(ran) == 3  # the first call runs twice, the second once


def test_a_plan_may_be_applied_again_and_calls_without_gradients_do_not_count() -> None:
    plan, train = plan_of("resnet", 0.1, offload=True), training("resnet", batch=16)
    workload, module = train.workload, train.workload.module
    context = plan.apply(module)
    for _ in range(2):
        with context:
            for _ in range(2):
                output = workload.output()
                with torch.no_grad():
                    workload.output()
                workload.loss(output, *workload.labels).backward()


def test_a_loop_with_fewer_calls_than_planned_is_refused_after_some_steps() -> None:
    plan, train = plan_of("convnet", 0.3, offload=True, micro_batches=2), training("convnet", batch=8)
    workload = train.workload
    losses = []
    with plan.apply(workload.module), pytest.raises(InputError, match="a step of the plan has 2 calls of its modules"):
        while len(losses) < 6:
            losses.append(workload.loss(workload.output(), *workload.labels))
            losses[-1].backward()
            train.optimizer.step()
            train.optimizer.zero_grad()
    assert len(losses) == 3


def test_a_plan_inside_a_plan_is_refused() -> None:
    plan, models = (
        plan_of("convnet", 0.3, offload=True),
        [training("convnet", batch=16).workload.module for _ in range(2)],
    )
    outer, inner = (plan.apply(model) for model in models)
    with outer, pytest.raises(InputError, match="another plan is applied already; end its with block first"), inner:
        pass
    with inner:
        pass


def test_an_epochs_last_batch_may_be_smaller() -> None:
    plan, train = plan_of("resnet", 0.1, offload=True), training("resnet", batch=16)
    workload, module = train.workload, train.workload.module
    (images,), (labels,) = workload.inputs, workload.labels
    with plan.apply(module):
        for count in (16, 16, 5, 16, 5):
            workload.loss(module(images[:count]), labels[:count]).backward()


def test_a_step_of_ones_own_loop_with_two_losses_peaks_as_planned() -> None:
    torch.manual_seed(0)
    model, images, labels = ResNet(), torch.randn(32, 3, 16, 16), torch.randint(10, (32,))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        output = model(images)
        loss = nn.functional.cross_entropy(output, labels) + 0.1 * output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    with simgpu.record_step(model, optimizer) as recording:
        step()
        step()
    node = simgpu.load_node("v100")
    plain = simgpu.simulate(recording.trace, node, "none").metrics.device_peak_bytes
    plan = simgpu.plan(recording.trace, node, plain * 3 // 4, offload=False)
    with plan.apply(model), simgpu.record_step(model, optimizer) as planned:
        step()
    peak = simgpu.simulate(planned.trace, node, "none").metrics.device_peak_bytes
    assert peak == plan.predicted.peak_bytes <= plain * 3 // 4
