"""What is kept of runs so that later ones can be compared with it, as plain values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from simgpu.analysis.breakdown import Breakdown, CopyTime
from simgpu.analysis.compression import Compression
from simgpu.analysis.metrics import Metrics
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.compare import Comparison, Run, compare
from simgpu.policies.base import plain_parameters
from simgpu.simulation.result import Result
from simgpu.timeline.model import Span
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.model import Scenario

Number = int | float | None
Outcome = Literal["ran", "out of memory", "refused"]

#: What is counted of a run beside its metrics, and the unit of each.
COUNTS = {"ideal_ns": "ns", "high_water_bytes": "B", "retired_instructions": "", "spans": ""}
_HOLDERS = 8


@dataclass(frozen=True, slots=True)
class PolicyTimings:
    """One policy's outcome.

    settings: what the run was asked for (parameters, budget, iterations, ...), by key. values: of a policy that ran,
    its metrics and counts in base units (see `units`). failure: of one that did not, what is known of the lack of
    memory, or why it refuses. events: the spans of all iterations, in the timeline's order.
    """

    label: str
    policy: str
    outcome: Outcome
    settings: Mapping[str, Any]
    steady: bool | None
    values: Mapping[str, Number]
    failure: Mapping[str, Any]
    events: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """What is kept of the runs of one trace on one node.

    version: of the simgpu that ran them. provenance: of the trace, in words. overrides: what was changed of a scenario
    to run it. inputs: the trace's and the node's facts by dotted key.
    """

    name: str
    version: str
    provenance: str
    overrides: Mapping[str, Any]
    inputs: Mapping[str, Any]
    policies: tuple[PolicyTimings, ...]

    def __getitem__(self, label: str) -> PolicyTimings:
        for found in self.policies:
            if found.label == label:
                return found
        raise KeyError(label)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the policies, in the order in which they ran."""
        return tuple(found.label for found in self.policies)


def timings_of(
    ran: Result | Comparison | Scenario,
    *,
    name: str = "",
    overrides: Mapping[str, object] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Timings:
    """What is kept of a result or of a comparison, or of all policies of a scenario, which are run for it.

    name: what it is called, by default as the scenario or the trace. overrides: what was changed of the scenario.
    progress: called with each label before its run.

    Raises `InputError` for anything else, for two policies of one label, and what running a scenario raises.

    >>> import simgpu
    >>> kept = timings_of(simgpu.load_scenario("resnet20-addressed", {"iterations": 1}))
    >>> kept.labels, kept["vdnn"].values["iteration_ns"], len(kept["vdnn"].events)
    (('none', 'vdnn'), 154683338, 544)
    """
    match ran:
        case Result():
            run = Run(ran.label, ran.policy, ran.parameters, ran)
            found = Comparison((run,), ran.trace, ran.trace_name, ran.node)
        case Comparison():
            found = ran
        case _ if hasattr(ran, "policies") and hasattr(ran, "outputs"):
            name, found = name or ran.name, compare(ran, progress=progress)
        case _:
            what = f"{str(ran)[:60]!r} is neither a result nor a comparison nor a scenario"
            raise InputError.single("", "timings", what, "give what simgpu.simulate or simgpu.load_scenario returns")
    labels = [run.label for run in found]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError.single("", "timings", f"there are two runs of {label}", "compare each policy once")
    return Timings(
        name=name or found.trace_name or found.trace.model,
        version=__version__,
        provenance=found.trace.provenance,
        overrides=_plain(overrides or {}),
        inputs=_flat(_plain(found.about())),
        policies=tuple(map(_kept, found)),
    )


@cache
def units() -> Mapping[str, str]:
    """The unit of each value that may be kept of a run, by key: ``ns``, ``B``, or whatever else metrics have.

    >>> units()["iteration_ns"], units()["bytes_out"], units()["spans"]
    ('ns', 'B', '')
    """
    nothing = Breakdown(0, 0, 0, 0, 0, 0, 0, 0, CopyTime(0, 0), CopyTime(0, 0), 0)
    every = Metrics(
        *(0, 0.0, 0.0, nothing, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0),
        speedup=0.0,
        together_ns=0,
        compression=Compression(0.0, 0.0, 0, 0, 0, 0.0),
    )
    return {row.key: row.unit for row in every.rows()} | COUNTS


def _kept(run: Run) -> PolicyTimings:
    error = run.outcome
    if isinstance(error, OutOfMemoryError):
        settings = {"parameters": plain_parameters(run.parameters)}
        return PolicyTimings(run.label, run.policy, "out of memory", _plain(settings), None, {}, _lack(error))
    if not isinstance(error, Result):
        settings = {"parameters": plain_parameters(run.parameters)}
        return PolicyTimings(run.label, run.policy, "refused", _plain(settings), None, {}, {"why": str(error)})
    result = error
    counts = (result.ideal_ns, result.high_water, result.retired, len(result.timeline))
    return PolicyTimings(
        label=run.label,
        policy=run.policy,
        outcome="ran",
        settings=_plain(_settings(result)),
        steady=result.steady,
        values={row.key: row.value for row in result.metrics.rows()} | dict(zip(COUNTS, counts, strict=True)),
        failure={},
        events=tuple(result.timeline),
    )


def _settings(result: Result) -> dict[str, Any]:
    together = result.together.how.arguments if result.together else {"gpus": 1}
    return {
        "parameters": plain_parameters(result.parameters),
        "budget_bytes": result.budget,
        "pool": result.pool,
        "alignment_bytes": result.node.gpu.alignment,
        "iterations": result.iterations,
        "epoch": result.epoch,
        "seed": result.seed,
        **together,
    }


def _lack(error: OutOfMemoryError) -> dict[str, Any]:
    facts = ("waiting", "kernel", "space", "requested", "free", "largest_hole", "capacity", "at_ns")
    held = [f"{name} {size} B" for name, size in error.holders[:_HOLDERS]]
    return {fact: getattr(error, fact) for fact in facts} | {"holders": len(error.holders), "largest_holders": held}


def _plain(values: Mapping[str, object]) -> dict[str, Any]:
    """The values as a JSON file gives them back, so that what is kept and what is new are of the same types."""
    found: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return found


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = _flat(value, f"{before}{key}.") if isinstance(value, dict) and value else {f"{before}{key}": value}
        found |= inner
    return found
