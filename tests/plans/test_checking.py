"""Plans that run: what PyTorch does is what was planned, for models of many kinds at several budgets."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.plans.candidate import Candidate
from simgpu.plans.checking import check_plan
from simgpu.plans.choices import Choices
from simgpu.plans.entry import plan
from simgpu.plans.regions import Steps
from simgpu.plans.search import smallest
from simgpu.recorder import record
from simgpu.torch.plan import Plan
from tests.plans.models import MODELS
from tests.sets import slow_except, slow_rows_except

NODE = load_node("v100")
#: Where a budget lies between the smallest peak of a plan and that without a plan.
PARTS = (0.0, 0.1, 0.3, 0.6, 0.9)


@cache
def plan_of(name: str, part: float, offload: bool, micro_batches: int = 1) -> Plan:
    trace = record(MODELS[name], batch=16, micro_batches=micro_batches, repetitions=1, warmup=1)
    steps = Steps(trace)
    plain = Candidate(steps).trail(NODE).peak
    least = smallest(Choices(steps, offload=offload), NODE).peak
    return plan(trace, NODE, least + int((plain - least) * part), offload=offload)


def expect_agreement(name: str, part: float, offload: bool, micro_batches: int = 1) -> None:
    made = plan_of(name, part, offload, micro_batches)
    assert made.micro_batches == micro_batches
    result = check_plan(made, MODELS[name])
    assert [each for each in result.findings if each.agrees is False] == []
    assert result["loss and gradients"].found == "the same bits"
    assert result["peak memory"].agrees and not result.notes
    assert made.predicted.peak_bytes <= made.budget_bytes
    # Small micro-batches may need no less than what the gradients of weights take.
    is_needed = made.predicted.plain_peak_bytes > made.budget_bytes
    assert made.recompute or made.offload or (micro_batches > 1 and not is_needed)


@pytest.mark.parametrize(
    ("name", "part", "offload"),
    slow_rows_except(
        [("resnet", 0.3, False), ("bert-bf16", 0.1, False), ("lstm-cells", 0.1, True)], ("resnet", 0.3, False)
    ),
)
def test_pytorch_does_what_was_planned(name: str, part: float, offload: bool) -> None:
    expect_agreement(name, part, offload)


@pytest.mark.exhaustive
@pytest.mark.parametrize("offload", [False, True], ids=["recompute", "offload"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", MODELS)
def test_pytorch_does_what_was_planned_for_every_model(name: str, part: float, offload: bool) -> None:
    expect_agreement(name, part, offload)


@pytest.mark.parametrize("offload", slow_except([False, True], False), ids=["recompute", "offload"])
def test_pytorch_does_what_was_planned_for_micro_batches(offload: bool) -> None:
    expect_agreement("mobilenet", 0.3, offload, micro_batches=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("offload", [False, True], ids=["recompute", "offload"])
@pytest.mark.parametrize("name", MODELS)
def test_pytorch_does_what_was_planned_for_micro_batches_of_every_model(name: str, offload: bool) -> None:
    expect_agreement(name, 0.2, offload, micro_batches=4)


def test_a_plan_for_a_loop_of_another_kind_is_not_checked() -> None:
    made = plan_of("convnet", 0.6, offload=True)
    with pytest.raises(InputError, match=r"a loop of your own, which calls '0'; then the whole model in a step"):
        check_plan(made.model_copy(update={"loop": (("0",), (".",))}), MODELS["convnet"])


def test_a_budget_below_all_plans_names_the_smallest_peak() -> None:
    trace = record(MODELS["gpt"], batch=4, repetitions=1, warmup=1)
    with pytest.raises(
        InputError, match=r"(?s)no plan fits into 1 KiB: the smallest peak of a plan is .*KiB, of which "
    ):
        plan(trace, NODE, 1024)


def test_a_trace_without_what_autograd_saves_is_refused() -> None:
    from simgpu.trace.folder import load_trace

    with pytest.raises(InputError, match="does not say what autograd saves"):
        plan(load_trace("resnet20-cifar-cpu"), NODE)


def test_a_plan_of_another_model_is_refused_by_its_first_parameters() -> None:
    made = plan_of("convnet", 0.6, offload=True)
    with pytest.raises(InputError, match=r"features\.0\.weight: the model has no such parameter(.|\n)*and \d+ more"):
        check_plan(made, MODELS["resnet"])


def test_a_plan_of_another_iteration_is_refused() -> None:
    made = plan_of("convnet", 0.6, offload=True)
    other = made.model_copy(update={"made_for": made.made_for.model_copy(update={"digest": "0"})})
    with pytest.raises(InputError, match=r"the plan is for .*; this is another iteration"):
        check_plan(other, MODELS["convnet"])


@pytest.mark.parametrize("micro_batches", slow_except([1, 2], 1))
def test_of_a_plan_for_a_modelled_gpu_gradients_are_compared_on_a_cpu(micro_batches: int) -> None:
    trace = record(MODELS["resnet"], batch=8, gpu="v100", micro_batches=micro_batches)
    peak = Candidate(Steps(trace)).trail(NODE).peak
    result = check_plan(plan(trace, NODE, int(peak * 0.8)), MODELS["resnet"])
    assert result["loss and gradients"].agrees
    assert {each.agrees for each in result.findings[1:]} == {None}
    assert "are not compared: the plan is for" in result.notes[0]
    assert ["equal micro-batches" in note for note in result.notes[1:]] == [True] * (micro_batches - 1)


@pytest.mark.slow
def test_a_plan_that_offloads_what_only_a_gpu_saves_cannot_run_on_a_cpu() -> None:
    trace = record(MODELS["gpt-dropout"], batch=8, gpu="v100")
    peak = Candidate(Steps(trace)).trail(NODE).peak
    with pytest.raises(InputError, match=r"cannot run on cpu, where the step saves other tensors than on Tesla V100"):
        check_plan(plan(trace, NODE, int(peak * 0.9)), MODELS["gpt-dropout"])
