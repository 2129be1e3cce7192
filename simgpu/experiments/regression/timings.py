"""The timings of runs as plain values, to store and to compare with later runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from simgpu.analysis.breakdown import Breakdown, CopyTime
from simgpu.analysis.compression import Compression
from simgpu.analysis.metrics import Metrics
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.compare import Comparison, PolicyRun, compare
from simgpu.hardware.spec import HOST
from simgpu.policies.base import plain_parameters
from simgpu.simulation.config import WITHOUT_EFFECT
from simgpu.simulation.result import Result
from simgpu.timeline.model import Span
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.model import Scenario

Number = int | float | None
Outcome = Literal["ran", "out of memory", "refused"]

#: Counts of a run in addition to its metrics, and the unit of each.
COUNTS = {"ideal_ns": "ns", "high_water_bytes": "B", "retired_instructions": "", "spans": ""}
_HOLDERS = 8


@dataclass(frozen=True, slots=True)
class PolicyTimings:
    """The timings of one policy.

    settings: the arguments of the run (parameters, budget, iterations, ...), by key
    values: metrics and counts in base units (see `units`); empty if the policy did not run
    failure: details of the out-of-memory error or the refusal; empty if the policy ran
    events: the spans of all iterations, in the timeline's order
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
    """The timings of all policies on one trace and node.

    version: version of simgpu
    provenance: provenance of the trace, as text
    overrides: overrides of the scenario
    inputs: facts of the trace and the node, by dotted key
    """

    name: str
    version: str
    provenance: str
    overrides: Mapping[str, Any]
    inputs: Mapping[str, Any]
    policies: tuple[PolicyTimings, ...]

    def __getitem__(self, label: str) -> PolicyTimings:
        return {policy.label: policy for policy in self.policies}[label]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the policies in run order."""
        return tuple(policy.label for policy in self.policies)


def timings_of(
    ran: Result | Comparison | Scenario,
    *,
    name: str = "",
    overrides: Mapping[str, object] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Timings:
    """The timings of a result, of a comparison, or of a scenario, whose policies are run.

    name: by default the name of the scenario or the trace
    overrides: overrides of the scenario
    progress: called with each label before its run

    Raises `InputError` for other arguments and for two runs with the same label, and the errors of running a scenario.

    >>> import simgpu
    >>> result = timings_of(simgpu.load_scenario("resnet20-addressed", {"iterations": 1}))
    >>> result.labels, result["vdnn"].values["iteration_ns"], len(result["vdnn"].events)
    (('none', 'vdnn'), 154683338, 544)
    """
    match ran:
        case Result():
            run = PolicyRun(ran.label, ran.policy, ran.parameters, ran)
            comparison = Comparison((run,), ran.trace, ran.trace_name, ran.node)
        case Comparison():
            comparison = ran
        case _ if hasattr(ran, "policies") and hasattr(ran, "outputs"):
            name, comparison = name or ran.name, compare(ran, progress=progress)
        case _:
            what = f"{str(ran)[:60]!r} is not a result, comparison or scenario"
            raise InputError.single("", "timings", what, "give what simgpu.simulate or simgpu.load_scenario returns")
    labels = [run.label for run in comparison]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError.single("", "timings", f"two runs have the label {label}", "compare each policy once")
    return Timings(
        name=name or comparison.trace_name or comparison.trace.model,
        version=__version__,
        provenance=comparison.trace.provenance,
        overrides=_plain({key: each for key, each in (overrides or {}).items() if key not in WITHOUT_EFFECT}),
        inputs=_flat(_plain(comparison.about())),
        policies=tuple(map(_policy_timings, comparison)),
    )


@cache
def units() -> Mapping[str, str]:
    """The unit of each value of a run, by key: ``ns``, ``B``, or another unit of a metric.

    >>> units()["iteration_ns"], units()["d2h_bytes"], units()["spans"]
    ('ns', 'B', '')
    """
    engines = dict.fromkeys(OWN_ENGINES, 0)
    nothing = Breakdown(0, 0, 0, engines, 0, 0, 0, dict.fromkeys(OWN_ENGINES, CopyTime(0, 0)), 0)
    every = Metrics(
        *(0, 0.0, 0.0, nothing, engines, dict.fromkeys(OWN_ENGINES, 0.0), 0, 0, 0, 0, {HOST: 0}),
        speedup=0.0,
        together_ns=0,
        compression=Compression(0.0, 0.0, 0, 0, 0, 0.0),
    )
    return {row.key: row.unit for row in every.rows()} | COUNTS


#: Metrics of engines and memories that only some nodes have.
_OF_OTHERS = re.compile(r"(stalled_)?([a-z]+2[a-z]+)_(ns|overlapped_ns|exposed_ns|bytes|utilisation)|[a-z]+_peak_bytes")


def unit_of(key: str) -> str | None:
    """The unit of a value of a run, as in `units`, also of engines and memories that few nodes have; None if unknown.

    >>> unit_of("iteration_ns"), unit_of("host2ssd_bytes"), unit_of("speed")
    ('ns', 'B', None)
    """
    if key in units() or not _OF_OTHERS.fullmatch(key):
        return units().get(key)
    return "ns" if key.endswith("_ns") else "B" if key.endswith("_bytes") else ""


def _policy_timings(run: PolicyRun) -> PolicyTimings:
    error = run.outcome
    if not isinstance(error, Result):
        out_of_memory = isinstance(error, OutOfMemoryError)
        outcome: Outcome = "out of memory" if out_of_memory else "refused"
        failure = _out_of_memory(error) if isinstance(error, OutOfMemoryError) else {"why": str(error)}
        settings = _plain({"parameters": plain_parameters(run.parameters)})
        return PolicyTimings(run.label, run.policy, outcome, settings, None, {}, failure)
    result = error
    counts = (result.ideal_ns, result.high_water, result.retired, len(result.timeline))
    return PolicyTimings(
        label=run.label,
        policy=run.policy,
        outcome="ran",
        settings=_plain(_settings(result)),
        steady=result.steady,
        values=result.metrics.by_key | dict(zip(COUNTS, counts, strict=True)),
        failure={},
        events=tuple(result.timeline),
    )


def _settings(result: Result) -> dict[str, Any]:
    data_parallel = result.parallel_run.how.arguments if result.parallel_run else {"gpus": 1}
    return {
        "parameters": plain_parameters(result.parameters),
        "budget_bytes": result.budget,
        "pool": result.pool,
        "alignment_bytes": result.node.gpu.alignment,
        "iterations": result.iterations,
        "epoch": result.epoch,
        "seed": result.seed,
        **data_parallel,
    }


def _out_of_memory(error: OutOfMemoryError) -> dict[str, Any]:
    facts = ("waiting", "kernel", "space", "requested", "free", "largest_hole", "capacity", "at_ns")
    largest = [f"{name} {size} B" for name, size in error.holders[:_HOLDERS]]
    return {fact: getattr(error, fact) for fact in facts} | {"holders": len(error.holders), "largest_holders": largest}


def _plain(values: Mapping[str, object]) -> dict[str, Any]:
    """The values as JSON types, so that stored and current values have the same types."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings flattened to one, by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = _flat(value, f"{before}{key}.") if isinstance(value, dict) and value else {f"{before}{key}": value}
        flat |= inner
    return flat
