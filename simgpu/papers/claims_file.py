"""The schema of a paper's file of claims."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from simgpu.experiments.scenarios.study import Amount, Measure
from simgpu.io.schema import FileModel

SCHEMA = "simgpu.claims/2"
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")]
#: How a simulated value is compared with the published one.
Comparison = Literal["near", "exactly", "at_most", "at_least", "holds"]
#: How the published number is computed from the study's number.
Form = Literal["as_is", "less_one", "one_less"]
#: The id of a test in pytest's form.
TestId = Annotated[str, Field(pattern=r"^tests/papers/test_\w+\.py::test_\w+$")]
RULES_NAME_TESTS = "write 'test: tests/papers/FILE.py::NAME' in place of 'from'"
Value = FiniteFloat | list[str]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class FromStudy(FileModel):
    """A number from studies, selected like a study's published numbers. Several studies are aggregated together."""

    study: Annotated[list[Text], BeforeValidator(_as_list)] = Field(min_length=1, description="shipped studies")
    run: str | None = Field(default=None, description="label of the run; the name of a sweep selects all its runs")
    over: str | None = Field(default=None, description="run to compare with; default: the first baseline")
    memory: Amount | None = Field(default=None, description="amount of memory; give either run or memory")
    of: str = Field(default="mean", description="a trace, or the mean, min, max or sum over all traces")
    without: list[str] = Field(default=[], description="traces to exclude")
    measure: Measure | None = Field(default=None, description="default: throughput for a run, memory for an amount")
    form: Form = Field(default="as_is", description="less_one: the value minus one; one_less: one minus the value")

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> FromStudy:
        if (self.run is None) == (self.memory is None):
            raise ValueError("needs a run or an amount of memory: write either run or memory")
        if self.of == "sum" and len(self.study) > 1:
            raise ValueError("a sum needs exactly one study: name one")
        return self


#: A number from studies, or CHECK.NAME.
Source = FromStudy | Annotated[str, Field(pattern=r"^\w+\.\w+$")]


class PartSection(FileModel):
    """One number, set or rule of a claim."""

    name: str = Field(default="", max_length=40, description="label, if a claim has several parts")
    value: Value | None = Field(default=None, description="the published value; for a set the list of its members")
    comparison: Comparison | None = Field(
        default=None, alias="is", description="default: near for numbers, holds without a value"
    )
    from_: Source | None = Field(
        default=None, alias="from", description="numbers from studies, or CHECK.NAME: a result of the paper's checks"
    )
    test: TestId | None = Field(default=None, description="for a rule, in place of from: the test that checks it")
    broken: str = Field(default="", description="why a rule does not hold here; its test is then an expected failure")
    resolution: float | None = Field(
        default=None, gt=0, description="rounding step of a published number: values up to half a step away agree"
    )
    no_effect: float | None = Field(
        default=None,
        description="the value without any effect, such as 1 for a speedup; effects are compared",
    )
    input: str = Field(default="", description="why it cannot fail: where it is read from; it counts nowhere")
    cannot: str = Field(default="", description="why it cannot be simulated, in one line")
    note: str = Field(default="", description="caveats")
    timed: bool = Field(default=False, description="whether it is a time measured on this machine, so it varies")

    @model_validator(mode="after")
    def _has_one_source(self) -> PartSection:
        if (self.from_ is not None) + bool(self.cannot) + (self.test is not None) != 1:
            raise ValueError(
                "needs exactly one of: from (its simulated value), test (checks a rule), cannot (why it has neither)"
            )
        if self.test is not None and (self.comparison or self.resolution or self.timed):
            raise ValueError("a test decides whether a rule holds: leave out is, resolution and timed")
        if self.broken and self.test is None:
            raise ValueError("broken applies only to a rule: name its test")
        return self

    @model_validator(mode="after")
    def _can_be_compared(self) -> PartSection:
        if self.test is not None:
            return self
        is_near = self.comparison in (None, "near") and not self.cannot
        if self.value == (self.no_effect or 0) and is_near and self.resolution is None:
            raise ValueError("no ratio to a published 0, or to no effect, exists: give its resolution")
        if self.value is None and self.comparison not in (None, "holds"):
            raise ValueError(f"{self.comparison} needs a value")
        if self.value is not None and self.comparison == "holds":
            raise ValueError("holds applies only to parts without a value: leave out is or value")
        if self.no_effect is not None and not (isinstance(self.value, float) and is_near):
            raise ValueError("no_effect applies only to a number that is compared as near")
        if isinstance(self.value, list) and self.comparison in ("at_most", "at_least"):
            raise ValueError(f"{self.comparison} applies only to a number, not to a list")
        return self


class ClaimSection(FileModel):
    """One claim of a paper."""

    where: Text = Field(description="section, figure, table or equation")
    states: Text = Field(description="the claim, in one line")
    kind: Literal["number", "rule", "order"] = "number"
    unit: str = Field(default="", max_length=12, description="unit of all its numbers; empty for ratios and shares")
    parts: list[PartSection] = Field(min_length=1)
    fit: str = Field(default="", description="the parameters that were fitted to it; empty for a prediction")
    inferred: bool = Field(default=False, description="whether it is only implied by the paper")
    causes: Annotated[list[Text], BeforeValidator(_as_list)] = Field(
        default=[], description="assumptions that affect it, likeliest first; an experiment tests each"
    )
    quick: bool = Field(default=False, description="whether --quick includes it")

    @model_validator(mode="after")
    def _is_compared_or_tested(self) -> ClaimSection:
        if self.kind != "rule":
            if any(part.test is not None for part in self.parts):
                raise ValueError(f"test applies only to rules, and this is kind: {self.kind}: write from")
            return self
        if any(part.test is None for part in self.parts):
            raise ValueError(f"each part of a rule must name its test: {RULES_NAME_TESTS}")
        if self.causes or self.quick:
            raise ValueError("a rule is not simulated: leave out causes and quick")
        return self


class StepSection(FileModel):
    """Changes that replace an assumption."""

    study: dict[str, Any] = Field(default={}, description="changed values of the studies, by dotted key")
    check: dict[str, Any] = Field(default={}, description="changed arguments of the checks")
    from_: dict[str, Source] = Field(default={}, alias="from", description="replaced sources of parts, by name")


class AssumptionSection(FileModel):
    """An assumption and the experiment that shows its effect on claims."""

    says: Text = Field(description="the assumption and what the experiment shows, in one or two sentences")
    steps: dict[str, StepSection] = Field(min_length=1, description="the changes, by a short label")
    parts: list[str] = Field(default=[], description="names of the claims' parts to simulate; default: all")


class FigureSection(FileModel):
    """A figure of the paper, drawn from simulation results."""

    title: Text
    study: str | None = Field(default=None, description="name of the study to draw")
    picture: Literal["measures", "throughput", "breakdown"] = "measures"
    check: Annotated[str, Field(pattern=r"^\w+\.\w+$")] | None = Field(
        default=None, description="in place of a study: CHECK.NAME, a check's drawing as plain data"
    )

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> FigureSection:
        if (self.study is None) == (self.check is None):
            raise ValueError("needs a study or a check: write either study or check")
        return self


class PaperFile(FileModel):
    """The contents of a paper's file of claims."""

    schema_: Literal["simgpu.claims/2"] = Field(alias="schema")
    paper: Text = Field(description="name of the paper")
    source: Text = Field(description="authors, venue, year")
    studies: dict[str, dict[str, Any]] = Field(
        default={}, description="changes to studies, such as removing runs that no claim needs"
    )
    claims: dict[Name, ClaimSection] = Field(min_length=1)
    assumptions: dict[Name, AssumptionSection] = Field(default={}, description="assumptions of the simulation")
    figures: list[FigureSection] = Field(default=[], description="figures drawn next to the claims")

    @model_validator(mode="after")
    def _names_its_assumptions(self) -> PaperFile:
        unknown = {cause for claim in self.claims.values() for cause in claim.causes} - set(self.assumptions)
        if unknown:
            raise ValueError(f"causes name unknown assumptions: {', '.join(sorted(unknown))}")
        unused = set(self.assumptions) - {cause for claim in self.claims.values() for cause in claim.causes}
        if unused:
            raise ValueError(f"assumptions are not a cause of any claim: {', '.join(sorted(unused))}")
        return self
