"""What a study is, in the file and in the program: several traces under several policies, beside published numbers.

Lives here: the model of a file of schema ``simgpu.study/1``, and `Study` with everything loaded. Does not live here:
reading and cross-checking (`simgpu.scenario.load_study`), or running (`simgpu.experiments.study`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from simgpu.analysis.labels import policy_label
from simgpu.analysis.tables import facts_html, facts_text
from simgpu.policies.registry import make_policy
from simgpu.scenario.model import PolicyChoice, PolicyEntry
from simgpu.scenario.modelled import WrittenTrace
from simgpu.trace.model import Origin
from simgpu.validation import FileModel

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec
    from simgpu.trace.model import Trace

STUDY_SCHEMA = "simgpu.study/1"
#: What a published number may be of, beside one of the traces.
AGGREGATES = ("mean", "min", "max")
Measure = Literal["throughput", "time_saved"]
Label = Annotated[str, Field(min_length=1, max_length=24)]
Text = Annotated[str, Field(min_length=1)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class RunSection(FileModel):
    """One column of a study: a policy, and the node where it is not the study's own."""

    policy: Annotated[PolicyChoice, PolicyEntry()] = Field(description="a name, or 'name: {parameter: value}'")
    node: Text | None = Field(default=None, description="another node than the study's")
    overrides: dict[str, Any] = Field(default={}, description="changed values of the node, for this run alone")


class PublishedSection(FileModel):
    """A number that a paper states."""

    run: str = Field(description="whose it is")
    over: str | None = Field(default=None, description="the run it is compared with; without: the first baseline")
    of: str = Field(default="mean", description="a trace, or mean, min or max of all")
    without: list[str] = Field(default=[], description="traces that this mean, min or max leaves out")
    value: float = Field(ge=0, description="as stated, in the words of its measure")
    measure: Measure = Field(
        default="throughput", description="throughput over the other run's, or the share of its time that is saved"
    )
    source: Text = Field(description="section, figure or table")
    note: str = Field(default="", description="what to know before believing it")

    @model_validator(mode="after")
    def _is_a_share(self) -> PublishedSection:
        if self.measure == "time_saved" and self.value >= 1:
            raise ValueError(f"value {self.value:g} is no share of a time: write 20% as 0.2")
        return self


class StudyFile(FileModel):
    """A study as written in its file."""

    schema_: Literal["simgpu.study/1"] = Field(alias="schema")
    name: Text | None = Field(default=None, description="without: the file's name")
    description: str = ""
    paper: str = Field(default="", description="what the published numbers are from")
    notes: list[Text] = Field(default=[], description="what had to be chosen, and why so")
    node: Text = Field(description="a shipped node, or a YAML file as seen from this file")
    overrides: dict[str, Any] = Field(default={}, description="changed values of the node, for all runs")
    traces: dict[Label, WrittenTrace] = Field(min_length=1, description="by the label of its row")
    runs: dict[Label, RunSection] = Field(min_length=1, description="by the label of its column")
    baseline: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        min_length=1, description="the run, or runs, that throughput is told over"
    )
    epochs: list[Annotated[int, Field(ge=0)]] = Field(
        default=[0], min_length=1, description="of training; one iteration of each, all weighted equally"
    )
    iterations: int = Field(default=3, ge=1, le=10_000, description="how many times an iteration is run")
    seed: int = Field(default=0, ge=0, description="of the policies that draw random numbers")
    published: list[PublishedSection] = Field(default=[], description="numbers to put beside the results")


def _iterations(count: int) -> str:
    return f"{count} iterations of each, the last one reported" if count > 1 else "1 iteration of each"


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One column: a policy on a node."""

    label: str
    policy: PolicyChoice
    node: NodeSpec


@dataclass(frozen=True, slots=True)
class Published:
    """A number that a paper states: of a run compared with another, of one trace or of all but those in `without`."""

    run: str
    over: str
    of: str
    value: float
    measure: Measure
    source: str
    without: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Study:
    """Everything a study needs, loaded and checked.

    traces: by the label of their row. baseline: labels of the runs that throughput is told over. epochs: of training.
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
    published: tuple[Published, ...]

    def facts(self) -> list[tuple[str, str]]:
        """What is run on what, and where the numbers come from, in a few lines of name and text."""
        origins = dict.fromkeys(
            f"{trace.info.provenance}, by {trace.info.tool}"
            + (", sparsity too" if trace.sparsity and trace.info.origin is Origin.MODELLED else "")
            for trace in self.traces.values()
        )
        epochs = ", ".join(map(str, self.epochs))
        told = f"epochs {epochs}, weighted equally" if len(self.epochs) > 1 else f"epoch {epochs}"
        return [
            *([("about", self.description)] if self.description else []),
            *([("paper", self.paper)] if self.paper else []),
            *(("origin", origin) for origin in origins),
            ("nodes", ", ".join(dict.fromkeys(run.node.name for run in self.runs))),
            ("run", f"{told}; " + _iterations(self.iterations)),
            *(("note", note) for note in self.notes),
        ]

    def __repr__(self) -> str:
        return facts_text(self._all_facts())

    def _repr_html_(self) -> str:
        return facts_html(self._all_facts())

    def _all_facts(self) -> list[tuple[str, str]]:
        runs = ", ".join(f"{run.label}: {policy_label(make_policy(*run.policy))}" for run in self.runs)
        return [("study", self.name), *self.facts(), ("traces", ", ".join(self.traces)), ("runs", runs)]
