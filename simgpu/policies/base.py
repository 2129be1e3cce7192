"""What a policy is, and what it is given.

A policy sees a graph, a node and a budget, and answers with a program; it never touches the machine except by asking
the simulator for a trial.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.paged import Chunk, ResidentChunks, least_recently_used
from simgpu.program.instructions import Program
from simgpu.timeline.model import Timeline

if TYPE_CHECKING:
    from simgpu.planning.evaluator import Chosen


class Trial(Protocol):
    """What a trial run tells: the steady iteration's time (ns) and everything that happened."""

    @property
    def iteration_ns(self) -> int:
        """Time of the steady iteration, nanoseconds."""
        ...

    @property
    def timeline(self) -> Timeline:
        """Everything that happened."""
        ...


def no_progress(what: object) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a policy may look at while it plans.

    graph: the tasks with their predicted durations. budget: bytes of device memory the program may use. epoch: of
    training, from 0. carried: what the policy noted in earlier epochs of this training; it may add to it.
    trial: runs a program on this node within the budget, as a framework would try an iteration; raises
    `OutOfMemoryError` where it does not fit. rng: the only source of randomness. progress: told what a long search is
    doing. chosen: told what was chosen for each feature map, by policies that decide about one at a time; of several
    times the last counts. beyond: what of a run cannot be told from graph, node and budget alone; None if all can.
    together: of GPUs that train together, runs a program on all of them, where `trial` runs it on one alone.
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
    beyond: str | None = None
    together: Callable[[Program], Trial] | None = None


@dataclass(frozen=True)
class Policy(ABC):
    """A memory policy: a frozen dataclass whose fields are its parameters, made with `parameter`.

    name: what scenarios call it. summary: one line. source: paper and section. libraries: distributions that take part
    in its decisions, other than those of every run (`simgpu.io.codestate.COMMON`); stored results of other versions are
    not reused. What a policy needs of a trace it checks in `plan`, which raises `InputError` where the trace lacks it.

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

    @property
    def parameters(self) -> dict[str, object]:
        """The policy's parameters and their values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def plan(self, context: PlanContext) -> Program:
        """The program for one iteration."""

    def reclaim(self, residents: ResidentChunks) -> Chunk:
        """Which chunk leaves the device memory, where a program leaves blocks on demand; asked while it runs.

        residents: the chunks there are, in the order of last touches and in that of arrivals, oldest first. By
        default the least recently touched leaves.
        """
        return least_recently_used(residents)

    def fits(self, context: PlanContext) -> bool | None:
        """Whether any program of this policy fits the budget; None where a run alone tells, as it does here.

        For policies that search long: a search for the largest batch asks this of many batches before it plans at one.
        What is said here must hold of `plan`: a program that it gives at such a batch runs within the budget.
        """
        return None


def parameter(default: Any, description: str) -> Any:
    """A policy's parameter: a dataclass field with its default and what it means."""
    return field(default=default, metadata={"description": description})


def policy_label(policy: Policy) -> str:
    """The policy's name, and the parameters that are not its defaults, lists as files have them.

    >>> from simgpu.policies.vdnn import Vdnn
    >>> policy_label(Vdnn(mode="conv")), policy_label(Vdnn(mode="all"))
    ('vdnn(mode=conv)', 'vdnn')
    >>> from simgpu.policies.checkpoint import Checkpoint
    >>> policy_label(Checkpoint(("layer1.0", "layer1.1")))
    'checkpoint(blocks=[layer1.0, layer1.1])'
    """
    # Not `policy.parameters`, which an outside policy may override: it is named even where its code fails.
    values = ((field, getattr(policy, field.name)) for field in fields(policy))
    text = ", ".join(f"{field.name}={_text(value)}" for field, value in values if _differs(value, field.default))
    return f"{policy.name}({text})" if text else policy.name


def plain_parameters(parameters: Mapping[str, object]) -> dict[str, object]:
    """Parameters for JSON: what it cannot hold, such as an object of an outside policy or NaN, becomes a text.

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


def require_one_stream(graph: TaskGraph, policy: str) -> None:
    """Raises `InputError` for a trace with several compute streams."""
    streams = graph.compute_streams
    if len(streams) > 1:
        what = f"kernels ran on {len(streams)} compute streams, {policy} runs one layer at a time"
        raise InputError.single(graph.trace.name, "kernels.stream", what, "record the trace on one stream")
