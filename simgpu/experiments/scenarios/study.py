"""The model of a study file (`StudyFile`) and the loaded study (`Study`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from simgpu.analysis.tables import facts_html, facts_text
from simgpu.experiments.scenarios.model import DataParallelSection, PolicyChoice, PolicyEntry, Pool
from simgpu.experiments.scenarios.modelled import WrittenSweep
from simgpu.graph.replicate import NO_COLLECTIVES, NOT_EXCHANGED, Exchange
from simgpu.io.schema import Budget, FileModel, Share
from simgpu.policies.base import policy_label
from simgpu.policies.registry import make_policy
from simgpu.program.data_parallel import DataParallel
from simgpu.trace.model import Origin

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec
    from simgpu.trace.model import Trace

#: Aggregates over traces of published numbers.
AGGREGATES = ("mean", "min", "max", "sum")
#: Measures of a run relative to a baseline.
Relative = Literal[
    "throughput",
    "time",
    "time_increase",
    "time_saved",
    "traffic_reduction",
    "energy",
    "power_increase",
    "best_throughput",
    "batch_ratio",
]
#: Parts of a run's time, as shares of its total.
Part = Literal["computation", "overlap", "swapping", "recomputation", "codec", "launches"]
#: Measures of a run without a baseline.
Alone = Literal[
    "samples_per_s",
    "largest_batch",
    "average_power",
    "peak_power",
    "peak_memory",
    "compression_ratio",
    "overflow",
    "overflow_min",
    "overflow_max",
    "metadata_hit_rate",
    Part,
]
OfRun = Literal[Relative, Alone]
#: Measures over all batches of a sweep.
OfSweep = Literal["best_throughput", "largest_batch", "batch_ratio"]
#: Measures of an amount of memory.
OfMemory = Literal["memory", "memory_saved"]
Measure = Literal[OfRun, OfMemory]
#: Amounts of memory that an iteration needs; see `simgpu.experiments.study_measures.memory_of`.
Amount = Literal["bound", "weights_offloaded", "sub_batch", "transfers", "algorithms"]
#: The tables that a study may show.
Table = Literal[OfRun, "traffic", "breakdown"]
#: Measures that are shares; savings are always below 1.
_SAVED = ("time_saved", "memory_saved")
_SHARES = (*_SAVED, "overflow", "overflow_min", "overflow_max", "metadata_hit_rate", *get_args(Part))
Label = Annotated[str, Field(min_length=1, max_length=24)]
Text = Annotated[str, Field(min_length=1)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ChangedSection(FileModel):
    """The changes of a run on one of the traces."""

    policy: Annotated[PolicyChoice | None, PolicyEntry()] = Field(
        default=None, description="a name, or 'name: {parameter: value}'; by default the run's policy"
    )
    budget: Budget | None = Field(
        default=None,
        description="device memory it may use, as a size or a percentage of the peak without offloading; by default "
        "the run's budget",
    )


class RunSection(FileModel):
    """One column of a study: a policy, and its node and budget if they differ from the study's."""

    policy: Annotated[PolicyChoice, PolicyEntry()] = Field(description="a name, or 'name: {parameter: value}'")
    node: Text | None = Field(default=None, description="another node than the study's")
    overrides: dict[str, Any] = Field(default={}, description="changed values of the node, for this run only")
    budget: Budget | None = Field(
        default=None,
        description="device memory it may use, as a size or as a percentage of each trace's peak without offloading; "
        "by default all of the node's",
    )
    budgets: list[Budget] = Field(
        default=[],
        description="a sweep: one run for each of these sizes, or of these percentages, named '<label> <budget>'",
    )
    oversubscription: list[Share] = Field(
        default=[],
        description="a sweep: one run for each of these shares, by which the recorded peak exceeds the device memory "
        "that it may use; named '<label> <share>'",
    )
    data_parallel: DataParallelSection | None = Field(default=None, description="several GPUs; by default one")
    per_trace: dict[str, ChangedSection] = Field(default={}, description="changes on a trace, by its label")

    @model_validator(mode="after")
    def _has_one_budget(self) -> RunSection:
        if self.budgets and self.budget is not None:
            raise ValueError("a run has a budget or a sweep of budgets: drop one of them")
        if len({type(budget) for budget in self.budgets}) > 1:
            raise ValueError("a sweep has budgets as sizes or as percentages: write two runs, one with each")
        if self.oversubscription and (self.budgets or self.budget is not None):
            raise ValueError("a run has budgets or shares of oversubscription: drop one of them")
        if (self.budgets or self.oversubscription) and any(
            change.budget is not None for change in self.per_trace.values()
        ):
            raise ValueError("a sweep sets the budget on every trace: drop the budget in per_trace")
        return self


class PublishedSection(FileModel):
    """A published number of a run or of an amount of memory."""

    run: str | None = Field(default=None, description="label of the run; the label of a sweep means all its runs")
    vs: str | None = Field(
        default=None,
        description="the baseline run; by default the study's first; of a sweep, the run with the same budget",
    )
    memory: Amount | None = Field(default=None, description="the amount of memory, in place of a run")
    aggregate: str = Field(
        default="mean",
        description="a trace, a sweep of batches, or mean, min or max of all traces; for batch_ratio also sum, the "
        "ratio of the sums",
    )
    excluding: list[str] = Field(default=[], description="traces excluded from this mean, min, max or sum")
    value: float = Field(ge=0, description="the published value, in the unit of its measure")
    measure: Measure | None = Field(
        default=None,
        description="by default throughput for a run, and the memory reduction over all tensors for an amount",
    )
    source: Text = Field(description="section, figure or table")
    note: str = Field(default="", description="a caveat on the number")

    @property
    def measured(self) -> Measure:
        """The measure, or its default."""
        return self.measure or ("throughput" if self.memory is None else "memory")

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> PublishedSection:
        if (self.run is None) == (self.memory is None):
            raise ValueError("needs either a run or an amount of memory: write run or memory")
        if (self.memory is not None) != (self.measured in get_args(OfMemory)):
            subject, fits = ("an amount of memory", OfMemory) if self.memory is not None else ("a run", OfRun)
            raise ValueError(f"{self.measured} is not a measure of {subject}: write {', '.join(get_args(fits))}")
        if self.vs is not None and (self.memory is not None or self.measured in get_args(Alone)):
            raise ValueError(f"{self.measured} has no baseline: drop vs")
        if self.aggregate == "sum" and self.measured != "batch_ratio":
            raise ValueError(f"{self.measured} cannot be summed: write mean, min or max")
        if (self.measured in _SHARES and self.value > 1) or (self.measured in _SAVED and self.value == 1):
            raise ValueError(f"value {self.value:g} is not a share: write 20% as 0.2")
        return self


class StudyFile(FileModel):
    """The content of a study file."""

    schema_: Literal["simgpu.study/2"] = Field(alias="schema")
    name: Text | None = Field(default=None, description="by default the file's name")
    description: str = ""
    paper: str = Field(default="", description="source of the published numbers")
    notes: list[Text] = Field(default=[], description="choices that the paper leaves open, with their reasons")
    node: Text = Field(description="a shipped node, or a YAML file, relative to this file")
    overrides: dict[str, Any] = Field(default={}, description="changed values of the node, for all runs")
    traces: dict[Label, WrittenSweep] = Field(min_length=1, description="by the label of its row")
    runs: dict[Label, RunSection] = Field(min_length=1, description="by the label of its column")
    baseline: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        min_length=1, description="the run or runs that the others are compared with"
    )
    tables: list[Table] = Field(default=["throughput"], min_length=1, description="measures shown as tables")
    epochs: list[Annotated[int, Field(ge=0)]] = Field(
        default=[0], min_length=1, description="training epochs; one iteration of each is simulated, weighted equally"
    )
    iterations: int = Field(default=3, ge=1, le=10_000, description="number of iterations to simulate per epoch")
    seed: int = Field(default=0, ge=0, description="random seed of the policies")
    pool: Pool | None = Field(default=None, description="allocator of device memory; by default each policy's")
    largest_batch: bool = Field(
        default=False,
        description="simulate every run at its largest batch that fits; the search starts at the trace's batch",
    )
    published: list[PublishedSection] = Field(default=[], description="published numbers to compare with")

    @model_validator(mode="after")
    def _searches_what_can_be_searched(self) -> StudyFile:
        if self.largest_batch and len(set(self.epochs)) > 1:
            raise ValueError("the largest batch is searched for one epoch: give one in epochs")
        if self.largest_batch and any(run.data_parallel is not None for run in self.runs.values()):
            raise ValueError("the largest batch is searched for one GPU: drop data_parallel")
        return self


def _iterations(count: int) -> str:
    return f"{count} iterations of each, the last one reported" if count > 1 else "1 iteration of each"


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One column: a policy on a node.

    budget: device memory, bytes; None for all of the node's
    sweep: label of the sweep that the run belongs to; empty if none
    oversubscribed: share by which the recorded peak exceeds the budget on each trace, if the budgets are given this
    way (they are in `changed`); else None
    peak_part: part of each trace's peak without offloading that the budget is, in a sweep of such budgets (they are in
    `changed`); else None
    changed: policy and budget by trace label; None for the run's own
    """

    label: str
    policy: PolicyChoice
    node: NodeSpec
    budget: int | None = None
    data_parallel: DataParallel | None = None
    sweep: str = ""
    oversubscribed: float | None = None
    peak_part: float | None = None
    changed: Mapping[str, tuple[PolicyChoice | None, int | None]] = field(default_factory=dict)

    @property
    def point(self) -> tuple[int | None, float | None, float | None]:
        """The run's position in its sweep: budget, oversubscription and part of the peak."""
        return self.budget, self.oversubscribed, self.peak_part

    def on(self, trace: str) -> tuple[PolicyChoice, int | None]:
        """The policy and budget on a trace, by its label."""
        policy, budget = self.changed.get(trace, (None, None))
        return policy or self.policy, self.budget if budget is None else budget

    @property
    def at(self) -> str:
        """The budget or share of this run, as written in the file; empty outside a sweep."""
        return self.label.removeprefix(self.sweep).strip() if self.sweep else ""


@dataclass(frozen=True, slots=True)
class PublishedNumber:
    """A published number: of a run relative to another, on one trace or on all except those in `excluding`.

    run: label in the file; empty for an amount of memory
    vs: label of the baseline; empty for an amount of memory and for measures without a baseline
    aggregate: mean, min, max or sum, or a label in the file or of one batch of a sweep
    excluding: labels in the file, or of one batch of a sweep
    """

    run: str
    vs: str
    aggregate: str
    value: float
    measure: Measure
    source: str
    excluding: tuple[str, ...] = ()
    note: str = ""
    memory: Amount | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Study:
    """A loaded and checked study.

    traces: by the label of their row
    sweeps: labels of the traces of each sweep of batches, by the sweep's label in the file
    baseline: labels of the runs, or sweeps of runs, that the others are compared with
    tables: the measures shown for every trace and run
    epochs: training epochs
    pool: allocator of device memory; None for each policy's
    largest_batch: whether every run is at its largest batch that fits, instead of the trace's batch
    """

    name: str
    description: str
    paper: str
    notes: tuple[str, ...]
    traces: Mapping[str, Trace]
    runs: tuple[StudyRun, ...]
    baseline: tuple[str, ...]
    epochs: tuple[int, ...]
    iterations: int
    seed: int
    published: tuple[PublishedNumber, ...]
    tables: tuple[Table, ...] = ("throughput",)
    sweeps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pool: Pool | None = None
    largest_batch: bool = False

    @property
    def networks(self) -> dict[str, tuple[str, ...]]:
        """By label in the file, in order: the label of a trace, or of all traces of a sweep of batches."""
        results: dict[str, tuple[str, ...]] = {}
        for trace in self.traces:
            label = self.network(trace)
            results[label] = (*results.get(label, ()), trace)
        return results

    def network(self, trace: str) -> str:
        """The label in the file of a trace: that of its sweep of batches, else its own."""
        return next((label for label, batches in self.sweeps.items() if trace in batches), trace)

    def members(self, label: str) -> tuple[StudyRun, ...]:
        """The run with this label, or all runs of the sweep with this label."""
        return tuple(run for run in self.runs if label in (run.label, run.sweep))

    def compared(self, run: StudyRun, over: str) -> StudyRun | None:
        """The baseline of this run; of a sweep, the run with the same budget. None if there is none."""
        return next((each for each in self.members(over) if not each.sweep or each.point == run.point), None)

    def facts(self) -> list[tuple[str, str]]:
        """A summary as pairs of name and text: provenance, nodes, epochs and notes."""
        origins = dict.fromkeys(
            f"{trace.info.provenance}, by {trace.info.tool}"
            + (", sparsity too" if trace.sparsity and trace.info.origin is Origin.MODELLED else "")
            for trace in self.traces.values()
        )
        epochs = ", ".join(map(str, self.epochs))
        exchanges = {run.data_parallel.exchange for run in self.runs if run.data_parallel}
        text = f"epochs {epochs}, weighted equally" if len(self.epochs) > 1 else f"epoch {epochs}"
        return [
            *([("about", self.description)] if self.description else []),
            *([("paper", self.paper)] if self.paper else []),
            *(("origin", origin) for origin in origins),
            ("nodes", ", ".join(dict.fromkeys(run.node.name for run in self.runs))),
            ("run", f"{text}; " + _iterations(self.iterations)),
            *([("memory", f"pool: {self.pool}")] if self.pool else []),
            *([("batch", "the largest that fits, for each run")] if self.largest_batch else []),
            *([("gpus", NOT_EXCHANGED)] if Exchange.NONE in exchanges else []),
            *([("gpus", NO_COLLECTIVES)] if exchanges - {Exchange.NONE} else []),
            *(("note", note) for note in self.notes),
        ]

    def __repr__(self) -> str:
        return facts_text(self._all_facts())

    def _repr_html_(self) -> str:
        return facts_html(self._all_facts())

    def _all_facts(self) -> list[tuple[str, str]]:
        runs = ", ".join(f"{run.label}: {policy_label(make_policy(*run.policy))}" for run in self.runs)
        return [("study", self.name), *self.facts(), ("traces", ", ".join(self.traces)), ("runs", runs)]
