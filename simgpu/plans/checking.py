"""`check_plan`: runs a model with and without a plan, and compares what happens with what was planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.errors import InputError
from simgpu.plans.comparing import Check
from simgpu.plans.outcome import PlanCheck
from simgpu.recorder.environment import find_device
from simgpu.recorder.inputs import parse_inputs
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.session import model_name, own_random_state
from simgpu.recorder.workload import find_factory, make_workload
from simgpu.torch.plan import Plan
from simgpu.torch.types import WHOLE


def check_plan(
    plan: Plan,
    model: str | Callable[..., Any],
    *,
    device: str = "cpu",
    optimizer: str | Callable[..., Any] = "sgd",
    inputs: Mapping[str, str] | None = None,
    seed: int = 0,
) -> PlanCheck:
    """Compares a plan with what PyTorch does, on a device.

    model, optimizer, inputs: as in `simgpu.record`. Of a plan that was made for another device only gradients are
    compared, which do not depend on it.

    Several calls of the whole model in a step run as equal micro-batches. Raises `InputError` for a plan of another
    model or loop, for one of a loop that calls parts of the model, and where a step saves other tensors on this device
    than on the planned one, so that the plan cannot run.
    """
    name, count = model_name(model), plan.micro_batches
    if count is None or plan.made_for.batch % count:
        groups = "; then ".join(", ".join(_called(each) for each in group) for group in plan.loop)
        what = f"the plan is for a loop of your own, which calls {groups} in a step"
        raise InputError.single("plan", "loop", what, "run steps of that loop with plan.apply(model), and without")
    target = find_device(device)
    factory = find_factory(model) if isinstance(model, str) else model
    specs = None if inputs is None else parse_inputs(inputs)
    with own_random_state(target, seed):
        workload = make_workload(name, factory, plan.made_for.batch // count, specs).to(target)
        workload = workload._replace(micro_batches=count)
        trainer = make_optimizer(
            find_optimizer(optimizer) if isinstance(optimizer, str) else optimizer, workload.module
        )
        if plan.graph is None:
            return Check(plan, workload, trainer, target, name).run()
        from simgpu.plans.compiled.checking import CompiledCheck  # PyTorch's compiler takes long to import

        return CompiledCheck(plan, workload, trainer, target, name).run()


def _called(module: str) -> str:
    return "the whole model" if module == WHOLE else f"'{module}'"
