"""Plans for loops that call a model several times in a step: what PyTorch does is what was planned."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

import torch

import simgpu
from simgpu.errors import InputError
from simgpu.plans.candidate import Candidate, plain_trail
from simgpu.plans.choices import Choices
from simgpu.plans.rebuilt import candidate_of
from simgpu.plans.regions import Steps
from simgpu.plans.search import smallest
from simgpu.plans.summary import summary
from simgpu.torch.applying import applied
from simgpu.torch.plan import Plan
from simgpu.torch.transfers import Copied, Tally
from simgpu.trace.model import Trace
from tests.plans.loops import LOOPS, Training, accumulating, backward_twice

NODE = simgpu.load_node("v100")
#: Loops that are planned with offloads.
OFFLOADED = ("accumulating", "backward-twice")
#: Loops whose plans take several seconds.
LONG = ("accumulating", "contrasting", "teaching")
#: The operator that allocates memory without writing it: an offload makes more of them.
_ALLOCATES = "aten::empty"


def recorded(loop: Training) -> Trace:
    """The second of two steps."""
    loop.step()
    with simgpu.record_step(loop.model, loop.optimizers) as recording:
        loop.step()
        loop.step()
    return recording.trace


def plan_of(trace: Trace, part: float, offload: bool) -> Plan:
    steps = Steps(trace)
    plain, least = Candidate(steps).trail(NODE).peak, smallest(Choices(steps, offload=offload), NODE).peak
    return simgpu.plan(trace, NODE, least + int((plain - least) * part), offload=offload)


def operators(trace: Trace) -> list[str]:
    return [kernel.op for kernel in trace.kernels if kernel.op != _ALLOCATES]


def expect_agreement(name: str, part: float, offload: bool) -> None:
    torch.manual_seed(0)
    loop = LOOPS[name]()
    trace = recorded(loop)
    plan = plan_of(trace, part, offload)
    wanted = loop.after_steps(nullcontext())
    assert all(map(torch.equal, wanted, loop.after_steps(plan.apply(loop.model))))
    tally = Tally()
    with simgpu.record_step(loop.model, loop.optimizers) as recording, applied(plan, loop.model, tally):
        loop.step()
        tally.take()
        loop.step()
    predicted = plan.predicted
    assert tally.take() == Copied(predicted.d2h_bytes, predicted.h2d_bytes)
    assert operators(recording.trace) == operators(candidate_of(plan, trace).planned.trace)
    assert plain_trail(recording.trace).peak == predicted.peak_bytes <= plan.budget_bytes


@pytest.mark.parametrize(
    ("name", "offload"),
    [
        pytest.param(name, name in OFFLOADED, marks=[pytest.mark.slow] if name in LONG else [])
        for name in LOOPS
        if name != "compiled"
    ],
)
def test_pytorch_does_what_was_planned(name: str, offload: bool) -> None:
    expect_agreement(name, 0.3, offload)


@pytest.mark.slow
@pytest.mark.parametrize("offload", [False, True], ids=["recompute", "offload"])
def test_compiled_parts_run_as_planned_with_code_of_torchinductor(offload: bool) -> None:
    expect_agreement("compiled", 0.3, offload)


def test_without_a_plan_what_several_runs_of_backward_read_is_named() -> None:
    with pytest.raises(
        InputError, match=r"are saved for more than one run of backward \(retain_graph=True\), and stay"
    ):
        simgpu.plan(recorded(backward_twice()), NODE, 1024)


@pytest.mark.exhaustive
@pytest.mark.parametrize("offload", [False, True], ids=["recompute", "offload"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("name", LOOPS)
def test_pytorch_does_what_was_planned_at_every_budget(name: str, part: float, offload: bool) -> None:
    expect_agreement(name, part, offload)


def test_what_leaves_memory_late_is_not_fetched_before() -> None:
    """Backward of one loss may want a block back that makes room for a later one only after it."""
    torch.manual_seed(0)
    trace = recorded(LOOPS["competing"]())
    blocks = [trace.blocks[b].id for b in Choices(Steps(trace)).offloadable]
    rng = random.Random(0)
    for _ in range(60):
        offloaded = tuple(each for each in blocks if rng.random() < 0.4)
        candidate = Candidate(Steps(trace), (), offloaded, rng.choice([1, 2, 8]), rng.choice([1, 2, 8]))
        assert candidate.run(NODE, 1 << 40).iteration_ns >= trace.compute_ns


def test_a_step_without_backward_is_refused() -> None:
    loop = accumulating()
    with simgpu.record_step(loop.model, loop.optimizers) as recording:
        loop.model(torch.randn(4, 3, 16, 16))
    with pytest.raises(InputError, match="runs no backward"):
        simgpu.plan(recording.trace, NODE)


@pytest.mark.slow
def test_what_the_loop_calls_between_steps_of_optimizers_is_in_the_plan(tmp_path: Path) -> None:
    for name, groups in (
        ("accumulating", [[".", ".", ".", "."]]),
        ("competing", [["maker", "judge", "judge"], ["judge"]]),
        ("teaching", [["."]]),
    ):
        plan_of(recorded(LOOPS[name]()), 0.3, offload=False).write(tmp_path / "plan.json")
        assert json.loads((tmp_path / "plan.json").read_text())["loop"] == groups


@pytest.mark.slow
def test_an_epochs_last_step_may_have_fewer_micro_batches() -> None:
    torch.manual_seed(0)
    loop = accumulating()
    plan = plan_of(recorded(loop), 0.1, offload=True)
    with plan.apply(loop.model):
        for micro_batches in (4, 2, 4):
            loop.step(micro_batches)


def test_a_plan_says_which_calls_it_recomputes() -> None:
    torch.manual_seed(0)
    plan = plan_of(recorded(LOOPS["competing"]()), 0.0, offload=False)
    assert any(" in call" in line for line in summary(plan) if line.startswith("recompute judge"))


def test_a_module_that_two_runs_of_backward_read_cannot_run_again() -> None:
    trace = recorded(backward_twice())
    steps = Steps(trace)
    reasons = {steps.why_not(each) for each in steps.regions() if each.module.startswith("blocks")}
    assert reasons == {"saves what more than one run of backward reads", "runs no kernel"}
    with pytest.raises(InputError, match=r"no module can run again, because it saves what more than one run"):
        simgpu.plan(trace, NODE, Candidate(steps).trail(NODE).peak // 2)
