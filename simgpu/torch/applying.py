"""Applies a plan to a model: recomputes its modules, and offloads what it saves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from simgpu.errors import InputError, Problem, shortened
from simgpu.torch.alone import alone
from simgpu.torch.copies import CopyDevice, copies_of
from simgpu.torch.listed import Listed
from simgpu.torch.loop import Loop
from simgpu.torch.modules import is_like, module_type, parts_of
from simgpu.torch.offload import AsyncOffload
from simgpu.torch.regions import Regions
from simgpu.torch.transfers import Tally
from simgpu.torch.types import WHOLE, tensor_type

#: So many steps at the begin may be shorter than planned, such as those of a test of the loop.
_SHORT_STEPS = 3


class Applicable(Protocol):
    """The parts of a `simgpu.torch.plan.Plan` that applying it needs."""

    made_for: Any
    recompute: Any
    calls: Any
    loop: Any
    offload: Any
    prefetch: int
    stash: int
    graph: Any


class Applied(ContextDecorator):
    """A context in which steps of a model run by a plan; it can be entered again after it has ended."""

    def __init__(self, plan: Applicable, model: nn.Module) -> None:
        self._plan = plan
        self._model = model
        self._open: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        context = applied(self._plan, self._model)
        context.__enter__()
        self._open.append(context)

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.pop().__exit__(*error)


@contextmanager
def applied(
    plan: Applicable, model: nn.Module, tally: Tally | None = None, copies: CopyDevice | None = None
) -> Iterator[None]:
    """Runs steps of a model by a plan inside the context; see `Plan.apply`.

    tally: counts the copied bytes. copies: what copies; by default the streams of the model's device.
    """
    if not isinstance(model, nn.Module):
        what, remedy = f"it is a {type(model).__name__}, not a module", "give the torch.nn.Module that trains"
        raise InputError.single(f"plan for {plan.made_for.model}", "model", what, remedy)
    check_model(plan, model)
    what = "another plan is applied already"
    remedy = "end its with block first; for two models in one step, make one plan for a module that has both"
    with alone("plan", InputError.single(f"plan for {plan.made_for.model}", "model", what, remedy)):
        if plan.graph is None:
            context = _steps_of(plan, model, tally or Tally(), copies)
        else:
            from simgpu.torch.graphs import graph_applied  # PyTorch's compiler takes long to import

            context = graph_applied(plan.made_for.model, plan.graph, model)
        with context:
            yield


@contextmanager
def _steps_of(plan: Applicable, model: nn.Module, tally: Tally, copies: CopyDevice | None) -> Iterator[None]:
    """Runs steps, operator by operator, by a plan."""
    keeps = {(e.module, e.call): frozenset((kept.op, kept.number) for kept in e.keep) for e in plan.recompute}
    regions = Regions(keeps, plan.calls)
    listed = Listed({(each.type, each.number): each.module for each in plan.offload})
    offload = None
    if plan.offload:
        device = copies or copies_of(device_of(model))
        offload = AsyncOffload(device, tally, listed, prefetch=plan.prefetch, stash=plan.stash)

    begun = wholes = 0

    def begin(was_whole: bool) -> None:
        nonlocal begun, wholes
        if was_whole:
            listed.check()
        wholes += was_whole
        if begun == _SHORT_STEPS and not wholes:
            raise _never_whole(plan)
        begun += 1
        regions.begin()
        if offload is not None:
            offload.begin_step()

    loop = Loop(plan.loop or ((WHOLE,),), begin)
    with ExitStack() as stack:
        stack.enter_context(loop.followed(model))
        stack.enter_context(regions.applied(model))
        if offload is not None:
            stack.enter_context(offload.step())
        yield
        if loop.is_whole:
            listed.check()


def _never_whole(plan: Applicable) -> InputError:
    groups = ", then ".join(f"{len(group)} calls of its modules" for group in plan.loop)
    what = f"a step of the plan has {groups}, after which an optimizer steps; no step of this loop had as many so far"
    return InputError.single(f"plan for {plan.made_for.model}", "loop", what, "make a plan for a step of this loop")


def check_model(plan: Applicable, model: nn.Module) -> None:
    """Raises `InputError` with the first differences between a model and the one that a plan is for."""
    own = {
        name: tensor_type(str(each.dtype).removeprefix("torch."), each.shape) for name, each in model.named_parameters()
    }
    where, remedy = f"plan for {plan.made_for.model}", "make the plan anew with `simgpu plan`"
    inner = getattr(model, "module", None)
    if isinstance(inner, nn.Module) and all(name.startswith("module.") for name in own):
        remedy = "apply the plan to the module that is wrapped (model.module)"
    if hasattr(model, "_orig_mod"):
        remedy = "give the model as it is before torch.compile (model._orig_mod)"
    problems = []
    for name, kind in plan.made_for.parameters.items():
        if name not in own:
            problems.append(Problem(where, name, "the model has no such parameter", remedy))
        elif own[name] != kind:
            problems.append(Problem(where, name, f"is {own[name]} in the model, and {kind} in the plan", remedy))
    for name in own:
        if name not in plan.made_for.parameters:
            problems.append(Problem(where, name, "the plan does not know this parameter of the model", remedy))
    known = parts_of(model)
    called = (path for group in plan.loop for path in group)
    for path in dict.fromkeys((*called, *(each.module for each in plan.recompute), *plan.made_for.modules)):
        if path not in known:
            problems.append(Problem(where, path, "the model has no such module", remedy))
            continue
        kind = plan.made_for.modules.get(path)
        if kind is not None and not is_like(known[path], kind):
            what = f"is {module_type(known[path])} in the model, and {kind} in the plan"
            problems.append(Problem(where, path, what, remedy))
    if problems:
        raise InputError(shortened(problems))


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
