"""The `Policy` interface and the context that it plans in.

A policy turns a graph, a node and a budget into a program. It reaches the machine only through trial runs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.chunks import Chunk, ResidentChunks, least_recently_used
from simgpu.program.instructions import Program
from simgpu.timeline.model import Timeline

if TYPE_CHECKING:
    from simgpu.planning.evaluator import Chosen


class Trial(Protocol):
    """The result of a trial run."""

    @property
    def iteration_ns(self) -> int:
        """Step time of the steady iteration, nanoseconds."""
        ...

    @property
    def timeline(self) -> Timeline:
        """All spans and memory samples of the run."""
        ...


def no_progress(what: object) -> None:
    """Ignore a progress message."""


def none_resident(graph: TaskGraph) -> Collection[int]:
    """No blocks."""
    return ()


@dataclass(frozen=True, slots=True)
class PlanContext:
    """The inputs of a plan.

    graph: the tasks with their predicted durations.
    budget: bytes of device memory that the program may use.
    trial: runs a program on one GPU of this node within the budget; raises `OutOfMemoryError` where it does not fit.
    rng: the only source of randomness.
    epoch: the training epoch, from 0.
    carried: values that the policy stored in earlier epochs of this training; it may add to them.
    progress: receives progress messages of a long search.
    chosen: receives the decision for each feature map, from policies that decide per feature map; the last call counts.
    exactness_limit: what the evaluator does not model in this run, as a clause; None where its times are exact.
    parallel_trial: with data parallelism, runs a program on all GPUs.
    resident: the blocks of a graph, perhaps transformed, that the policy may neither move nor drop.
    lower_bounds: whether lower bounds on the time of the graph's iteration hold for the run.
    """

    graph: TaskGraph
    node: NodeSpec
    budget: int
    trial: Callable[[Program], Trial]
    rng: np.random.Generator
    epoch: int = 0
    carried: MutableMapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str], None] = no_progress
    chosen: Callable[[Chosen], None] = no_progress
    exactness_limit: str | None = None
    parallel_trial: Callable[[Program], Trial] | None = None
    resident: Callable[[TaskGraph], Collection[int]] = none_resident
    lower_bounds: bool = True


@dataclass(frozen=True)
class Policy(ABC):
    """A memory policy: a frozen dataclass whose fields are its parameters, defined with `parameter`.

    name: its name in scenarios. summary: one line. source: paper and section. libraries: distributions that affect its
    decisions, other than those of every run (`simgpu.io.codestate.COMMON`); stored results of other versions are not
    reused. splits_batch: whether it runs the batch in parts. `plan` checks what the policy needs of a trace and raises
    `InputError` where the trace lacks it.

    >>> from dataclasses import dataclass
    >>> from simgpu.program.lowering import lower
    >>> from simgpu.program.placement import Placement
    >>> @dataclass(frozen=True)
    ... class Resident(Policy):
    ...     name, summary, source = "resident", "keep all blocks until their last use", "an example"
    ...     def plan(self, context):
    ...         return lower(context.graph, Placement())
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()
    splits_batch: ClassVar[bool] = False

    @property
    def clairvoyant(self) -> bool:
        """Whether it knows when a block is used next, and may ask for it in `reclaim`; such a policy sets it."""
        return False

    @property
    def parameters(self) -> dict[str, object]:
        """The policy's parameters and their values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def machine(self, node: NodeSpec) -> NodeSpec:
        """The node as the policy uses it: its plan and its run have this one."""
        return node

    @abstractmethod
    def plan(self, context: PlanContext) -> Program:
        """The program for one iteration."""

    def reclaim(self, residents: ResidentChunks) -> Chunk | None:
        """The chunk to evict from device memory, for a program that pages on demand; called while it runs.

        residents: the resident chunks by last touch and by arrival, oldest first; for a clairvoyant policy also how far
        ahead each is used next. For a prefetch, None lets all of them stay, see `simgpu.machine.paged_ahead`. The
        default is the least recently touched one.
        """
        return least_recently_used(residents)

    def fits(self, context: PlanContext) -> bool | None:
        """Whether some program of this policy fits the budget; None, the default, where only a run can decide.

        For policies with a long search: the search for the largest batch calls this for many batches before it plans
        one. The answer must agree with `plan`: where it is True, the planned program runs within the budget.
        """
        return None


def parameter(default: Any, description: str) -> Any:
    """A policy's parameter: a dataclass field with its default and what it means."""
    return field(default=default, metadata={"description": description})


def policy_label(policy: Policy) -> str:
    """The policy's name with the parameters that differ from their defaults.

    >>> from simgpu.policies.vdnn import Vdnn
    >>> policy_label(Vdnn(mode="conv")), policy_label(Vdnn(mode="all"))
    ('vdnn(mode=conv)', 'vdnn')
    >>> from simgpu.policies.checkpoint import Checkpoint
    >>> policy_label(Checkpoint(("layer1.0", "layer1.1")))
    'checkpoint(blocks=[layer1.0, layer1.1])'
    """
    # Not `policy.parameters`, which an outside policy may override: the label must work even where its code fails.
    values = ((field, getattr(policy, field.name)) for field in fields(policy))
    changed = ", ".join(f"{field.name}={_text(value)}" for field, value in values if _differs(value, field.default))
    return f"{policy.name}({changed})" if changed else policy.name


def plain_parameters(parameters: Mapping[str, object]) -> dict[str, object]:
    """Parameters for JSON: values that JSON cannot hold, such as NaN or objects of an outside policy, become text.

    >>> from pathlib import Path
    >>> plain_parameters({"mode": "conv", "limit": float("nan"), "folder": Path("runs")})
    {'mode': 'conv', 'limit': 'nan', 'folder': 'runs'}
    """
    return {name: value if _is_plain(value) else _text(value) for name, value in parameters.items()}


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _differs(value: object, default: object) -> bool:
    try:
        return bool(value != default)
    except Exception:  # an array compares element by element
        return value is not default


def _text(value: object) -> str:
    try:
        return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
    except Exception:  # an outside policy's parameter may be anything
        return f"<{type(value).__name__}>"


def require_undivided(graph: TaskGraph, policy: str) -> None:
    """Raises `InputError` for a batch that is split into micro-batches."""
    if len(graph.rounds) > 1:
        what = f"the batch is split into micro-batches, and {policy} is for an undivided iteration"
        raise InputError.single(graph.trace.name, "batch", what, "choose another policy inside")


def require_one_gpu(context: PlanContext, policy: str) -> None:
    """Raises `InputError` for several GPUs, for policies under Unified Memory."""
    if context.parallel_trial is not None:
        what = f"{policy} supports one GPU: pages shared by several GPUs are not modelled"
        raise InputError.single("", "data_parallel", what, "run it on one GPU, or choose another policy")


def require_one_stream(graph: TaskGraph, policy: str) -> None:
    """Raises `InputError` for a trace with several compute streams."""
    streams = graph.compute_streams
    if len(streams) > 1:
        what = f"kernels ran on {len(streams)} compute streams, {policy} runs one layer at a time"
        raise InputError.single(graph.trace.name, "kernels.stream", what, "record the trace on one stream")
