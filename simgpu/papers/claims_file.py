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
#: How a published number follows from a study's.
Form = Literal["as_is", "less_one", "one_less"]
#: The id of a test, as pytest has it.
TestId = Annotated[str, Field(pattern=r"^tests/papers/test_\w+\.py::test_\w+$")]
RULES_NAME_TESTS = "write 'test: tests/papers/FILE.py::NAME' in place of 'from'"
Value = FiniteFloat | list[str]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class FromStudy(FileModel):
    """A number from studies, selected as in a study's published numbers; several studies are aggregated together."""

    study: Annotated[list[Text], BeforeValidator(_as_list)] = Field(min_length=1, description="shipped studies")
    run: str | None = Field(default=None, description="the run; the name of a sweep selects all its runs")
    over: str | None = Field(default=None, description="the run it is compared with; without: the first baseline")
    memory: Amount | None = Field(default=None, description="in place of a run: the amount of memory")
    of: str = Field(default="mean", description="a trace, or mean, min, max or sum of all")
    without: list[str] = Field(default=[], description="traces that this leaves out")
    measure: Measure | None = Field(default=None, description="without: throughput of a run, memory of an amount")
    form: Form = Field(default="as_is", description="less_one: the value minus one; one_less: one minus the value")

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> FromStudy:
        if (self.run is None) == (self.memory is None):
            raise ValueError("needs a run or an amount of memory: write either run or memory")
        if self.of == "sum" and len(self.study) > 1:
            raise ValueError("a sum needs exactly one study: name one")
        return self


#: Rows of studies, or CHECK.NAME.
Source = FromStudy | Annotated[str, Field(pattern=r"^\w+\.\w+$")]


class PartSection(FileModel):
    """One number, set or rule of a claim."""

    name: str = Field(default="", max_length=40, description="which one, where a claim has several")
    value: Value | None = Field(default=None, description="as published; a set as a list of its members")
    comparison: Comparison | None = Field(
        default=None, alias="is", description="without: near for numbers, holds for the others"
    )
    from_: Source | None = Field(
        default=None, alias="from", description="rows of studies, or CHECK.NAME: a result of the paper's checks"
    )
    test: TestId | None = Field(default=None, description="in place of from, for a rule: the test that holds it")
    broken: str = Field(default="", description="why a rule does not hold here; its test is then an expected failure")
    resolution: float | None = Field(
        default=None, gt=0, description="of a published 0: what it may stand for, half of it up and down"
    )
    cannot: str = Field(default="", description="why it cannot be simulated, in one line")
    note: str = Field(default="", description="what to know before believing it")
    timed: bool = Field(default=False, description="whether it is a time of the machine that runs this, never the same")

    @model_validator(mode="after")
    def _has_one_source(self) -> PartSection:
        if (self.from_ is not None) + bool(self.cannot) + (self.test is not None) != 1:
            raise ValueError(
                "needs one of from, which simulates it, test, which holds a rule, or cannot, which says why"
            )
        if self.test is not None and (self.comparison or self.resolution or self.timed):
            raise ValueError("a test decides whether a rule holds: leave out is, resolution and timed")
        if self.broken and self.test is None:
            raise ValueError("broken describes a rule, which names its test")
        return self

    @model_validator(mode="after")
    def _can_be_compared(self) -> PartSection:
        if self.test is not None:
            return self
        if self.value == 0 and self.comparison in (None, "near") and self.resolution is None and not self.cannot:
            raise ValueError("nothing is within 10% of 0: give the resolution of the published number")
        if self.value is None and self.comparison not in (None, "holds"):
            raise ValueError(f"{self.comparison} needs a value")
        if self.value is not None and self.comparison == "holds":
            raise ValueError("holds is for what has no value")
        if isinstance(self.value, list) and self.comparison in ("at_most", "at_least"):
            raise ValueError(f"{self.comparison} is for a number, not for a list")
        return self


class ClaimSection(FileModel):
    """One claim of a paper."""

    where: Text = Field(description="section, figure, table or equation")
    states: Text = Field(description="what is claimed, in one line")
    kind: Literal["number", "rule", "order"] = "number"
    unit: str = Field(default="", max_length=12, description="of all its numbers; empty for ratios and shares")
    parts: list[PartSection] = Field(min_length=1)
    fit: str = Field(default="", description="which parameters were fitted to it; empty: it is a prediction")
    inferred: bool = Field(default=False, description="whether the paper does not state it outright")
    causes: Annotated[list[Text], BeforeValidator(_as_list)] = Field(
        default=[], description="assumptions that move it, likeliest first; each by an experiment"
    )
    quick: bool = Field(default=False, description="whether it is among those that take seconds together")

    @model_validator(mode="after")
    def _is_compared_or_tested(self) -> ClaimSection:
        if self.kind != "rule":
            if any(part.test is not None for part in self.parts):
                raise ValueError(f"a test holds a rule, and this is kind: {self.kind}: write from")
            return self
        if any(part.test is None for part in self.parts):
            raise ValueError(f"each part of a rule names the test that holds it: {RULES_NAME_TESTS}")
        if self.causes or self.quick:
            raise ValueError("a rule is not simulated: leave out causes and quick")
        return self


class StepSection(FileModel):
    """An assumption changed to something else."""

    study: dict[str, Any] = Field(default={}, description="changed values of the studies, by dotted key")
    check: dict[str, Any] = Field(default={}, description="changed arguments of the checks")
    from_: dict[str, Source] = Field(default={}, alias="from", description="parts with another source then, by name")


class AssumptionSection(FileModel):
    """An assumption, and the experiment that shows its effect on claims."""

    says: Text = Field(description="what is assumed, and what the experiment shows, in one or two sentences")
    steps: dict[str, StepSection] = Field(min_length=1, description="what it is changed to, by a short label")
    parts: list[str] = Field(default=[], description="the parts of claims that are shown; without: all")


class FigureSection(FileModel):
    """A figure of the paper, drawn again."""

    title: Text
    study: str | None = Field(default=None, description="the study it shows")
    picture: Literal["measures", "throughput", "breakdown"] = "measures"
    check: Annotated[str, Field(pattern=r"^\w+\.\w+$")] | None = Field(
        default=None, description="in place of a study: CHECK.NAME, a drawing as plain data"
    )

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> FigureSection:
        if (self.study is None) == (self.check is None):
            raise ValueError("shows a study or a check: write either study or check")
        return self


class PaperFile(FileModel):
    """A paper's claims as written in its file."""

    schema_: Literal["simgpu.claims/2"] = Field(alias="schema")
    paper: Text = Field(description="what it is called")
    source: Text = Field(description="authors, venue, year")
    studies: dict[str, dict[str, Any]] = Field(
        default={}, description="changes to studies here, such as runs that no claim needs"
    )
    claims: dict[Name, ClaimSection] = Field(min_length=1)
    assumptions: dict[Name, AssumptionSection] = Field(default={}, description="what is assumed")
    figures: list[FigureSection] = Field(default=[], description="drawn next to the claims")

    @model_validator(mode="after")
    def _names_its_assumptions(self) -> PaperFile:
        unknown = {cause for claim in self.claims.values() for cause in claim.causes} - set(self.assumptions)
        if unknown:
            raise ValueError(f"causes name no assumption of this file: {', '.join(sorted(unknown))}")
        unused = set(self.assumptions) - {cause for claim in self.claims.values() for cause in claim.causes}
        if unused:
            raise ValueError(f"assumptions are no claim's cause: {', '.join(sorted(unused))}")
        return self
