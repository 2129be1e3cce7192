"""A plan: what a training step keeps, recomputes and offloads, and what that is predicted to cost; a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from simgpu.io.atomic import atomic_file
from simgpu.io.input_files import read_json
from simgpu.io.schema import FileModel, validate
from simgpu.torch.types import WHOLE

if TYPE_CHECKING:
    from torch import nn

Count = Annotated[int, Field(ge=0)]
#: Modules that a loop calls one after the other.
Group = Annotated[tuple[str, ...], Field(strict=False)]


class KeptResult(FileModel):
    """The result of an operator that a recomputed module keeps: its name, and how many calls of it came before."""

    op: str
    number: Count
    kernel: str = Field(description="the kernel of the trace that makes it")


class RecomputedModule(FileModel):
    """A call of a module that keeps only its inputs and some results, and runs again in backward."""

    module: str = Field(description="its path; a point for the whole model")
    call: Count = Field(description="how many calls of it came before in the step")
    keep: tuple[KeptResult, ...] = Field(default=(), strict=False)
    kernels: Count = Field(description="predicted number of kernels that run again")
    time_ns: Count = Field(description="predicted time of these kernels, nanoseconds")


class OffloadedTensor(FileModel):
    """A saved tensor whose memory is copied to the host in forward and back in backward.

    Tensors that share memory have the same block, which is copied once.
    """

    module: str
    type: str = Field(description="number format and shape, as float32:8x128x768")
    number: Count = Field(description="how many tensors of that type the step saves before it")
    block: str = Field(description="its block of memory in the trace")
    bytes: Count = Field(description="size of the block")


class RepeatedOperator(FileModel):
    """An operator of a compiled model's forward that runs again in backward."""

    module: str = Field(description="the module that calls it; empty for the model itself")
    op: str
    number: Count = Field(description="how many operators of that name the module runs before it")


class CompiledGraph(FileModel):
    """The graph of a compiled model's step, and what of forward runs again in backward; all else is saved.

    Without `is_planned`, PyTorch chooses, as it does without a budget.
    """

    torch: str = Field(description="the version of PyTorch that traced it")
    modules: dict[str, str] = Field(description="for each module the number of its operators, and a digest")
    is_planned: bool
    again: tuple[RepeatedOperator, ...] = Field(default=(), strict=False)
    saved_tensors: Count = Field(description="predicted number of tensors that forward saves")
    saved_bytes: Count = Field(description="their predicted size, views counted whole")


class MadeFor(FileModel):
    """The iteration that a plan is for."""

    model: str
    batch: int = Field(ge=1)
    format: str
    device: str
    origin: str
    digest: str = Field(description="SHA-256 of its kernels, blocks and saved tensors")
    parameters: dict[str, str] = Field(description="number format and shape of each parameter")
    modules: dict[str, str] = Field(
        default={}, description="class of each module that forward calls, with the settings of PyTorch's own"
    )


class Predicted(FileModel):
    """What a plan is predicted to cost. Times in nanoseconds, memory and copies in bytes, without and with it."""

    step_ns: Count
    peak_bytes: Count
    plain_step_ns: Count
    plain_peak_bytes: Count
    recomputed_kernels: Count
    recompute_ns: Count
    d2h_bytes: Count
    h2d_bytes: Count
    bound_ns: Count | None = Field(description="no plan of this kind within the budget is faster")
    reserved_bytes: Count | None = Field(default=None, description="peak that PyTorch's caching allocator reserves")
    any_step_ns: Count | None = Field(default=None, description="of the best program of policy joint, unrestricted")
    any_bound_ns: Count | None = Field(default=None, description="no program of the full batch is faster")


class Plan(FileModel):
    """A plan for a training step; `apply` runs steps by it."""

    schema_: Literal["simgpu.plan/1"] = Field(default="simgpu.plan/1", alias="schema")
    made_for: MadeFor
    execute: Literal["eager", "compile"] = Field(description="whether operators run one by one, or compiled")
    policy: str
    node: str
    budget_bytes: Count
    recompute: tuple[RecomputedModule, ...] = Field(default=(), strict=False)
    calls: dict[str, Count] = Field(description="how often a step calls each recomputed module")
    loop: tuple[Group, ...] = Field(
        default=(),
        strict=False,
        description="the modules that the loop calls in a step, in groups: after each, an optimizer steps",
    )
    offload: tuple[OffloadedTensor, ...] = Field(default=(), strict=False)
    prefetch: Count = Field(description="number of blocks fetched ahead of the one that backward needs")
    stash: Count = Field(description="number of offloaded blocks that may still be under way to the host")
    graph: CompiledGraph | None = Field(default=None, description="of a compiled model")
    predicted: Predicted
    notes: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _calls_are_known(self) -> Self:
        for each in self.recompute:
            if each.call >= self.calls.get(each.module, 0):
                raise ValueError(f"calls: a step calls '{each.module}' more than {each.call} times by `recompute`")
        if (self.graph is None) == (self.execute == "compile"):
            raise ValueError("graph: it is there for a compiled model, and only then")
        return self

    @property
    def micro_batches(self) -> int | None:
        """How often a step calls the whole model before its one optimizer step.

        None where it calls parts, or several optimizers step. Whether the calls are equal micro-batches is not known.
        """
        if not self.loop:
            return 1
        calls = self.loop[0]
        return len(calls) if len(self.loop) == 1 and set(calls) == {WHOLE} else None

    def apply(self, model: nn.Module) -> AbstractContextManager[None]:
        """Runs steps of a model by the plan, inside the context; also a decorator of a function that trains.

            with plan.apply(model):
                for inputs, labels in data:
                    loss_fn(model(inputs), labels).backward()
                    optimizer.step()
                    optimizer.zero_grad()

        Gradients are those of plain steps. Raises `InputError` naming the first difference if the plan is for another
        model. The model is as before when the context ends, also if it fails. With ``execute: compile`` the model is
        compiled inside; give it uncompiled.
        """
        from simgpu.torch.applying import Applied

        return Applied(self, model)

    def write(self, path: str | Path) -> None:
        """Writes the plan as a JSON file, atomically."""
        with atomic_file(path) as part:
            part.write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The text of the JSON file."""
        return json.dumps(self.model_dump(by_alias=True, mode="json"), indent=1) + "\n"


def read_plan(path: str | Path) -> Plan:
    """The plan in a JSON file. Raises `InputError` with every problem of the file."""
    values: Any = read_json(path, "a plan", "make it anew with `simgpu plan`")
    if not isinstance(values, Mapping):
        values = {}
    return validate(Plan, values, lambda place: (str(path), place))
