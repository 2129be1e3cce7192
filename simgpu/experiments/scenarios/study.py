"""The model of a study and of its file: several traces under several policies, compared with published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from simgpu.analysis.tables import facts_html, facts_text
from simgpu.experiments.scenarios.model import DataParallelSection, PolicyChoice, PolicyEntry
from simgpu.experiments.scenarios.modelled import WrittenSweep
from simgpu.graph.replicate import NO_COLLECTIVES
from simgpu.io.schema import FileModel, Share, Size
from simgpu.policies.base import policy_label
from simgpu.policies.registry import make_policy
from simgpu.program.data_parallel import DataParallel
from simgpu.trace.model import Origin

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec
    from simgpu.trace.model import Trace

STUDY_SCHEMA = "simgpu.study/2"
#: Aggregates over traces that a published number can be of.
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
#: Parts of a run's time, as shares of all of it.
Part = Literal["computation", "overlap", "swapping", "recomputation", "codec"]
#: Measures of a run alone.
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
#: Measures of all batches of a sweep together.
OfSweep = Literal["best_throughput", "largest_batch", "batch_ratio"]
#: Measures of an amount of memory.
OfMemory = Literal["memory", "memory_saved"]
Measure = Literal[OfRun, OfMemory]
#: Amounts of memory that an iteration needs; see `simgpu.experiments.study_measures.memory_of`.
Amount = Literal["bound", "weights_offloaded", "sub_batch", "transfers", "algorithms"]
#: What a study may show of all its runs.
Table = Literal[OfRun, "traffic", "breakdown"]
#: Shares of something; the first ones never of all of it.
_SAVED = ("time_saved", "memory_saved")
_SHARES = (*_SAVED, "overflow", "overflow_min", "overflow_max", "metadata_hit_rate", *get_args(Part))
Label = Annotated[str, Field(min_length=1, max_length=24)]
Text = Annotated[str, Field(min_length=1)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ChangedSection(FileModel):
    """What is different about a run on one of the traces."""

    policy: Annotated[PolicyChoice | None, PolicyEntry()] = Field(
        default=None, description="a name, or 'name: {parameter: value}'; without: the run's own"
    )
    budget: Size | None = Field(default=None, description="device memory it may use; without: the run's own")


class RunSection(FileModel):
    """One column of a study: a policy, and what it runs on where that is not the study's own."""

    policy: Annotated[PolicyChoice, PolicyEntry()] = Field(description="a name, or 'name: {parameter: value}'")
    node: Text | None = Field(default=None, description="another node than the study's")
    overrides: dict[str, Any] = Field(default={}, description="changed values of the node, for this run alone")
    budget: Size | None = Field(default=None, description="device memory it may use; without: all that the node has")
    budgets: list[Size] = Field(
        default=[], description="a sweep: one run for each of these budgets, called '<label> <budget>'"
    )
    oversubscription: list[Share] = Field(
        default=[],
        description="a sweep: one run for each of these shares, by which the recorded peak is more than the device "
        "memory that it may use; called '<label> <share>'",
    )
    data_parallel: DataParallelSection | None = Field(default=None, description="several GPUs; without: one")
    per_trace: dict[str, ChangedSection] = Field(default={}, description="what differs on a trace, by its label")

    @model_validator(mode="after")
    def _has_one_budget(self) -> RunSection:
        if self.budgets and self.budget is not None:
            raise ValueError("a run has a budget or a sweep of budgets: drop one of them")
        if self.oversubscription and (self.budgets or self.budget is not None):
            raise ValueError("a run has budgets or shares of oversubscription: drop one of them")
        if (self.budgets or self.oversubscription) and any(
            change.budget is not None for change in self.per_trace.values()
        ):
            raise ValueError("a sweep has its own budgets on every trace: drop the one of per_trace")
        return self


class PublishedSection(FileModel):
    """A number that a paper states, of a run or of an amount of memory."""

    run: str | None = Field(default=None, description="whose it is; a sweep stands for all its runs")
    vs: str | None = Field(
        default=None, description="the run it is compared with; without: the first baseline; of a sweep the same budget"
    )
    memory: Amount | None = Field(default=None, description="in place of a run: the memory it is of")
    aggregate: str = Field(
        default="mean",
        description="a trace, a sweep of them, or mean, min or max of all; of batch_ratio also sum, one over the other",
    )
    excluding: list[str] = Field(default=[], description="traces that this mean, min, max or sum leaves out")
    value: float = Field(ge=0, description="as stated, in the words of its measure")
    measure: Measure | None = Field(
        default=None,
        description="what is stated; without: throughput of a run, all tensors at once over an amount of memory",
    )
    source: Text = Field(description="section, figure or table")
    note: str = Field(default="", description="what to know before believing it")

    @property
    def measured(self) -> Measure:
        """What is stated."""
        return self.measure or ("throughput" if self.memory is None else "memory")

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> PublishedSection:
        if (self.run is None) == (self.memory is None):
            raise ValueError("is of a run or of an amount of memory: write either run or memory")
        if (self.memory is not None) != (self.measured in get_args(OfMemory)):
            whose, fits = ("an amount of memory", OfMemory) if self.memory is not None else ("a run", OfRun)
            raise ValueError(f"{self.measured} is not a measure of {whose}: write {', '.join(get_args(fits))}")
        if self.vs is not None and (self.memory is not None or self.measured in get_args(Alone)):
            raise ValueError(f"{self.measured} has no baseline: drop vs")
        if self.aggregate == "sum" and self.measured != "batch_ratio":
            raise ValueError(f"{self.measured} cannot be summed: write mean, min or max")
        if (self.measured in _SHARES and self.value > 1) or (self.measured in _SAVED and self.value == 1):
            raise ValueError(f"value {self.value:g} is no share: write 20% as 0.2")
        return self


class StudyFile(FileModel):
    """A study as written in its file."""

    schema_: Literal["simgpu.study/2"] = Field(alias="schema")
    name: Text | None = Field(default=None, description="without: the file's name")
    description: str = ""
    paper: str = Field(default="", description="what the published numbers are from")
    notes: list[Text] = Field(default=[], description="what had to be chosen, and why so")
    node: Text = Field(description="a shipped node, or a YAML file as seen from this file")
    overrides: dict[str, Any] = Field(default={}, description="changed values of the node, for all runs")
    traces: dict[Label, WrittenSweep] = Field(min_length=1, description="by the label of its row")
    runs: dict[Label, RunSection] = Field(min_length=1, description="by the label of its column")
    baseline: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        min_length=1, description="the run, or runs, that the others are told over"
    )
    tables: list[Table] = Field(default=["throughput"], min_length=1, description="what is told of every trace and run")
    epochs: list[Annotated[int, Field(ge=0)]] = Field(
        default=[0], min_length=1, description="of training; one iteration of each, all weighted equally"
    )
    iterations: int = Field(default=3, ge=1, le=10_000, description="how many times an iteration is run")
    seed: int = Field(default=0, ge=0, description="of the policies that draw random numbers")
    largest_batch: bool = Field(
        default=False, description="every run at the largest batch that fits it; that of the trace begins the search"
    )
    published: list[PublishedSection] = Field(default=[], description="numbers to put next to the results")

    @model_validator(mode="after")
    def _searches_what_can_be_searched(self) -> StudyFile:
        if self.largest_batch and len(set(self.epochs)) > 1:
            raise ValueError("the largest batch is searched in one epoch: give one in epochs")
        if self.largest_batch and any(run.data_parallel is not None for run in self.runs.values()):
            raise ValueError("the largest batch is searched for one GPU: drop data_parallel")
        return self


def _iterations(count: int) -> str:
    return f"{count} iterations of each, the last one reported" if count > 1 else "1 iteration of each"


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One column: a policy on a node.

    budget: bytes of device memory, None for all that the node has. sweep: the label in the file of which this is one
    budget, else empty. oversubscribed: by how much the recorded peak is more than the budget on each trace, None where
    that is not how it is given; `changed` has these budgets. changed: policy and budget on some traces, None where they
    are the run's own.
    """

    label: str
    policy: PolicyChoice
    node: NodeSpec
    budget: int | None = None
    data_parallel: DataParallel | None = None
    sweep: str = ""
    oversubscribed: float | None = None
    changed: Mapping[str, tuple[PolicyChoice | None, int | None]] = field(default_factory=dict)

    @property
    def point(self) -> tuple[int | None, float | None]:
        """Where in a sweep it is."""
        return self.budget, self.oversubscribed

    def on(self, trace: str) -> tuple[PolicyChoice, int | None]:
        """Policy and budget on a trace, by its label."""
        policy, budget = self.changed.get(trace, (None, None))
        return policy or self.policy, self.budget if budget is None else budget

    @property
    def at(self) -> str:
        """The budget or share of this run of a sweep, as it is written; empty outside a sweep."""
        return self.label.removeprefix(self.sweep).strip() if self.sweep else ""


@dataclass(frozen=True, slots=True)
class PublishedNumber:
    """A number that a paper states: of a run compared with another, of one trace or of all but those in `excluding`.

    aggregate, excluding: labels as in the file, or of one batch of a sweep.
    run, vs: labels as in the file; empty where the number is of an amount of memory; vs is also empty where it is
    of a run alone.
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
    """Everything a study needs, loaded and checked.

    traces: by the label of their row. sweeps: by its label in the file, the labels of the traces of each sweep of
    batches. baseline: labels of the runs, or sweeps of runs, that the others are compared with.
    tables: the measures shown of every trace and run. epochs: of training. largest_batch: whether every run is
    at the largest batch that fits it, in place of that of the trace.
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
    largest_batch: bool = False

    @property
    def networks(self) -> dict[str, tuple[str, ...]]:
        """By the label in the file, in order: a trace, or all traces of a sweep of batches."""
        results: dict[str, tuple[str, ...]] = {}
        for trace in self.traces:
            label = self.network(trace)
            results[label] = (*results.get(label, ()), trace)
        return results

    def network(self, trace: str) -> str:
        """The label in the file of a trace: of the sweep of batches that it is in, else its own."""
        return next((label for label, batches in self.sweeps.items() if trace in batches), trace)

    def members(self, label: str) -> tuple[StudyRun, ...]:
        """The run of a label, or all runs of the sweep of that label."""
        return tuple(run for run in self.runs if label in (run.label, run.sweep))

    def compared(self, run: StudyRun, over: str) -> StudyRun | None:
        """The baseline of this run: of a sweep the one with the same budget, None where it has none."""
        return next((each for each in self.members(over) if not each.sweep or each.point == run.point), None)

    def facts(self) -> list[tuple[str, str]]:
        """What is run on what, and where the numbers come from, in a few lines of name and text."""
        origins = dict.fromkeys(
            f"{trace.info.provenance}, by {trace.info.tool}"
            + (", sparsity too" if trace.sparsity and trace.info.origin is Origin.MODELLED else "")
            for trace in self.traces.values()
        )
        epochs = ", ".join(map(str, self.epochs))
        text = f"epochs {epochs}, weighted equally" if len(self.epochs) > 1 else f"epoch {epochs}"
        return [
            *([("about", self.description)] if self.description else []),
            *([("paper", self.paper)] if self.paper else []),
            *(("origin", origin) for origin in origins),
            ("nodes", ", ".join(dict.fromkeys(run.node.name for run in self.runs))),
            ("run", f"{text}; " + _iterations(self.iterations)),
            *([("batch", "of every run the largest that fits it")] if self.largest_batch else []),
            *([("gpus", NO_COLLECTIVES)] if any(run.data_parallel for run in self.runs) else []),
            *(("note", note) for note in self.notes),
        ]

    def __repr__(self) -> str:
        return facts_text(self._all_facts())

    def _repr_html_(self) -> str:
        return facts_html(self._all_facts())

    def _all_facts(self) -> list[tuple[str, str]]:
        runs = ", ".join(f"{run.label}: {policy_label(make_policy(*run.policy))}" for run in self.runs)
        return [("study", self.name), *self.facts(), ("traces", ", ".join(self.traces)), ("runs", runs)]
