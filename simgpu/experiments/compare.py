"""Runs several policies on one trace and node, and compares their results: `compare` and `Comparison`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from simgpu.analysis.tables import (
    COMPARISON_HEADINGS,
    OVER_BOUND,
    comparison_rows,
    over_bound,
    table_html,
    table_text,
    with_bound,
)
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, PolicyError, Problem, SimgpuError
from simgpu.experiments.measures import OOM
from simgpu.policies.base import Policy, no_progress, plain_parameters, policy_label
from simgpu.policies.common.together import together
from simgpu.policies.registry import make_policy
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.run import Result, simulate
from simgpu.simulation.snapshot import failed_snapshot
from simgpu.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.hardware.spec import NodeSpec
    from simgpu.planning.bound import Bound
    from simgpu.policies.joint.time_bounds import TimeBounds
    from simgpu.trace.model import TraceInfo

#: A policy as a name, a pair of name and parameters, ``{name: parameters}``, or an object.
PolicyRequest = str | tuple[str, Mapping[str, object]] | Mapping[str, Mapping[str, object]] | Policy
_Named = tuple[str, Mapping[str, object]]

#: Errors of a policy that cannot be planned for this trace and node, or whose package is not installed.
Refusal = InputError | MissingExtraError

DEFAULT_POLICIES: tuple[PolicyRequest, ...] = ("ideal", "none", "vdnn")


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The outcome of one policy.

    label: the policy's name with its non-default parameters
    policy: the policy's name
    parameters: all parameters
    outcome: the result, or the error: out of memory, trace or node refused, or a failure in the policy (`PolicyError`)
    snapshot: of a run with the caching pool that ran out of device memory, what its allocator did (`failed_snapshot`)
    """

    label: str
    policy: str
    parameters: Mapping[str, object]
    outcome: Result | OutOfMemoryError | Refusal
    snapshot: Callable[[], dict[str, Any]] | None = field(default=None, compare=False, repr=False)

    @property
    def result(self) -> Result | None:
        """The result; None if the run was out of memory, refused or failed."""
        return None if isinstance(self.outcome, SimgpuError) else self.outcome

    @property
    def refused(self) -> bool:
        """Whether the policy cannot run with this trace and node, or failed."""
        return isinstance(self.outcome, Refusal)

    @property
    def failure(self) -> str:
        """``out of memory``, ``refused``, or ``error`` if the policy failed; empty if there is a result."""
        if isinstance(self.outcome, PolicyError):
            return "error"
        if self.refused:
            return "refused"
        return "out of memory" if self.result is None else ""

    @property
    def message(self) -> str:
        """Why there is no result, with the policy's label; empty if there is a result."""
        if self.result is not None or isinstance(self.outcome, PolicyError):  # its message names the policy
            return "" if self.result is not None else str(self.outcome)
        return f"{self.label}: {self.outcome}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the result, or the details of the error."""
        head: dict[str, Any] = {
            "label": self.label,
            "policy": self.policy,
            "parameters": plain_parameters(self.parameters),
        }
        if isinstance(self.outcome, InputError):
            problems = [asdict(problem) for problem in self.outcome.problems]
            return head | {self.failure: {"message": str(self.outcome), "problems": problems}}
        if isinstance(self.outcome, MissingExtraError):
            missing = {"package": self.outcome.package, "extra": self.outcome.extra}
            return head | {"refused": {"message": str(self.outcome), **missing}}
        if not isinstance(self.outcome, OutOfMemoryError):
            return head | self.outcome.to_dict()
        error = self.outcome
        facts = ("waiting", "space", "requested", "free", "largest_hole", "capacity", "at_ns")
        holders = [{"name": name, "bytes": size} for name, size in error.holders]
        text = {fact: getattr(error, fact) for fact in facts} | {"holders": holders, "message": str(error)}
        return head | {"out_of_memory": text}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several policies on one trace and node, in the requested order. Prints as a table, in notebooks too.

    Use ``comparison["vdnn(mode=conv)"]`` for a run by its label, `frame` for all numbers.

    bounds: lower bounds on the step time; None if not requested or not known
    bound_note: explains the bounds, or why there are none
    """

    runs: tuple[PolicyRun, ...]
    trace: TraceInfo
    trace_name: str
    node: NodeSpec
    bounds: TimeBounds | None = None
    bound_note: str = ""

    def __iter__(self) -> Iterator[PolicyRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, label: str) -> PolicyRun:
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(label)

    @property
    def results(self) -> dict[str, Result]:
        """The results by label, without runs that were out of memory, refused or failed."""
        return {run.label: run.result for run in self.runs if run.result is not None}

    @property
    def bound(self) -> Bound | None:
        """The bound of `simgpu.time_lower_bound`; None if `bounds` is None."""
        return None if self.bounds is None else self.bounds.tightest

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of `rows`. If there is a bound, the gap to it follows the slowdown."""
        return with_bound(COMPARISON_HEADINGS, OVER_BOUND) if self.bounds else COMPARISON_HEADINGS

    def rows(self) -> list[tuple[str, ...]]:
        """The cells under `headings`, one row per run."""
        rows = comparison_rows((run.label, run.result.metrics if run.result else None, _note(run)) for run in self.runs)
        if self.bounds is None:
            return rows
        over = [_over(run.result, self.bounds) for run in self.runs]
        return [with_bound(row, text) for row, text in zip(rows, over, strict=True)]

    @property
    def caption(self) -> str:
        """The trace, the node, and the trace's provenance."""
        return f"{self.trace_name or self.trace.model} on {self.node.name}; {self.trace.provenance}"

    def plot(self) -> Figure:
        """A matplotlib figure of the step-time breakdown, one bar per run (HOME, figure 7)."""
        from simgpu.analysis.charts import Stack, plot_breakdowns

        bars = [
            Stack(run.label, run.result.metrics.breakdown.parts if run.result else None, _why_absent(run))
            for run in self.runs
        ]
        return plot_breakdowns({f"batch {self.trace.batch}": bars}, title=self.caption)

    def frame(self) -> pd.DataFrame:
        """One row per run, one column per metric in base units (see `Metrics`); empty for runs without a result.

        The last columns are trace, node, origin, device and date.
        """
        import pandas as pd

        info = self.trace
        about = {"trace": self.trace_name or info.model, "node": self.node.name}
        about |= {"origin": info.origin.value, "device": info.device, "date": info.date}
        keys = [row.key for result in self.results.values() for row in result.metrics.rows()]
        values = {run.label: run.result.metrics.by_key if run.result else {} for run in self}
        numbers = pd.DataFrame.from_dict(values, orient="index", columns=list(dict.fromkeys(keys)))
        return numbers.assign(**about).rename_axis("policy")

    def about(self) -> dict[str, Any]:
        """Plain data for JSON: the trace and the node."""
        origin = self.trace.origin.value
        return {
            "trace": {"name": self.trace_name, **asdict(self.trace), "origin": origin},
            "node": self.node.to_dict(context=any(result.pool == "caching" for result in self.results.values())),
        }

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain data for JSON, one entry per run."""
        return [run.to_dict() for run in self.runs]

    def __repr__(self) -> str:
        below = [run.message for run in self.runs if run.failure == "error"]
        below += [self.bound_note] if self.bound_note else []
        return "\n".join((self.caption, table_text(self.headings, self.rows()), *below))

    def _repr_html_(self) -> str:
        return table_html(self.headings, self.rows(), self.caption)


def compare(
    trace: Trace | Scenario,
    node: NodeSpec | None = None,
    policies: Iterable[PolicyRequest] | None = None,
    config: RunConfig | None = None,
    *,
    bound: bool = False,
    progress: Callable[[str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> Comparison:
    """Run every policy on the same trace and node with the same settings (see `simulate`), one after the other.

    A policy that runs out of memory, cannot be planned for this trace and node, or fails (`PolicyError`) does not end
    the comparison: its run holds the error.

    trace: a trace, which requires a node, or a scenario, whose node, policies and settings other arguments override
    policies: names, ``("vdnn", {"mode": "conv"})``, ``{"vdnn": {"mode": "conv"}}`` or policy objects; by default
    ideal, none and vdnn
    bound: also compute each run's gap to the lower bound of any placement of activations (`time_lower_bound`)
    progress: called with each label before its run

    Raises `InputError` for unknown policies or parameters, before anything runs. If every policy refuses or fails,
    raises their common error, or an `InputError` with the problems of all.

    >>> from simgpu.experiments.scenarios.load import load_scenario
    >>> [run.label for run in compare(load_scenario("resnet20-addressed"), iterations=1)]
    ['none', 'vdnn']
    """
    if not isinstance(trace, Trace):
        scenario = trace
        if not isinstance(getattr(scenario, "trace", None), Trace):
            what = f"{str(trace)[:60]!r} is neither a trace nor a scenario"
            raise InputError.single("", "argument trace", what, "use simgpu.load_trace or simgpu.load_scenario")
        return compare(
            scenario.trace,
            scenario.node if node is None else node,
            scenario.policies if policies is None else policies,
            run_config(scenario.config if config is None else config, settings),
            bound=bound,
            progress=progress,
        )
    if node is None:
        raise InputError.single("", "argument node", "is missing", "load one with simgpu.load_node, or give a scenario")
    config = run_config(config, settings)
    say = no_progress
    runs: list[PolicyRun] = []
    chosen = DEFAULT_POLICIES if policies is None else [policies] if isinstance(policies, str) else policies
    requested = [policy_from(request) for request in chosen]
    for policy in requested:
        label = policy_label(policy)
        if progress:
            progress(label)
            say = partial(_say, progress, label)
        outcome: Result | OutOfMemoryError | Refusal
        try:
            outcome = simulate(trace, node, policy, config, progress=say)
        except (OutOfMemoryError, InputError, MissingExtraError) as error:
            outcome = error
        snapshot = _snapshot(trace, node, policy, config) if isinstance(outcome, OutOfMemoryError) else None
        runs.append(PolicyRun(label, policy.name, policy.parameters, outcome, snapshot))
    if runs and all(run.refused for run in runs):
        raise nothing_runs(runs)
    bounds: tuple[TimeBounds | None, str] = (None, "")
    if bound:
        if progress:
            progress("computing the lower bound on the step time")
        bounds = _bound(trace, node, requested, config)
    return Comparison(tuple(runs), trace.info, trace.name, node, *bounds)


def _snapshot(trace: Trace, node: NodeSpec, policy: Policy, config: RunConfig) -> Callable[[], dict[str, Any]] | None:
    """Makes the memory snapshot of a run that ran out of memory; None where there is none."""
    if config.pool != "caching" or config.data_parallel:
        return None
    return partial(failed_snapshot, trace, node, policy, config)


def _bound(
    trace: Trace, node: NodeSpec, policies: Sequence[Policy], config: RunConfig
) -> tuple[TimeBounds | None, str]:
    """The bounds and a note on them, or None and the reason."""
    from simgpu.experiments.bounds import time_lower_bounds

    limited = [policy for policy in policies if policy.name != "ideal"]
    exchanging = list(dict.fromkeys(policy.name for policy in limited if together(policy)))
    if exchanging and all(together(policy) for policy in limited):
        return None, f"no lower bound is known for GPUs that exchange data, as under {' and '.join(exchanging)}"
    if config.data_parallel:
        return None, "no lower bound is known for data-parallel training"
    try:
        bounds = time_lower_bounds(trace, node, budget=config.budget, alignment=config.alignment, epoch=config.epoch)
    except OutOfMemoryError as error:
        alone = " on one GPU alone" if exchanging else ""
        return None, f"no program of the full batch fits{alone}: {error}"
    except InputError as error:
        return None, f"no lower bound: {error}"
    return bounds, f"{OVER_BOUND}: step time over its lower bound. {bounds.summary}."


def _over(result: Result | None, bounds: TimeBounds) -> str:
    """The gap of a result to the bound that holds for it; a dash if none does."""
    bound = None if result is None else bounds.of(result.program)
    return "-" if result is None or bound is None else over_bound(result.iteration_ns, bound.ns)


def _say(progress: Callable[[str], None], label: str, what: str) -> None:
    progress(f"{label}: {what}")


def nothing_runs(runs: Iterable[PolicyRun]) -> SimgpuError:
    """The error to raise if every run was refused: their common error, or one problem per run."""
    by_text = {str(run.outcome): run.outcome for run in runs if isinstance(run.outcome, Refusal)}
    if len(by_text) == 1:
        return next(iter(by_text.values()))
    return InputError(problem for run in runs for problem in _problems(run))


def _problems(run: PolicyRun) -> tuple[Problem, ...]:
    if isinstance(run.outcome, PolicyError):
        return run.outcome.problems
    return (Problem("", run.label, str(run.outcome)),)


def policy_from(request: PolicyRequest) -> Policy:
    """The requested policy. Raises `InputError` for an unknown policy or unsupported parameters."""
    return request if isinstance(request, Policy) else make_policy(*_named(request))


def _named(request: str | tuple[str, Mapping[str, object]] | Mapping[str, Mapping[str, object]]) -> _Named:
    if isinstance(request, str):
        return request, {}
    if isinstance(request, tuple):
        return request
    if len(request) != 1:
        what = f"{str(request)[:60]!r} is not one policy"
        raise InputError.single("", "policy", what, "write {name: parameters} for each")
    ((name, parameters),) = request.items()
    return name, parameters


def _why_absent(run: PolicyRun) -> str:
    """Why a table or figure has no numbers of a run; empty if it has numbers."""
    return OOM if isinstance(run.outcome, OutOfMemoryError) else run.failure


def _note(run: PolicyRun) -> str:
    if run.result is None:
        return _why_absent(run)
    return {True: "", False: "unsteady", None: "one iteration"}[run.result.steady]
