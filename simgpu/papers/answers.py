"""The simulated values of a claim's parts, the figures shown with claims, and the tasks that both need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from simgpu.errors import InputError, did_you_mean
from simgpu.experiments.scenarios.study import AGGREGATES, Alone, PublishedNumber, Study
from simgpu.experiments.study import StudyResult
from simgpu.experiments.study_values import aggregate
from simgpu.papers.cache import ResultCache
from simgpu.papers.tasks import Cell, Check, Memory, Task, checks, loaded, outlined, restored, written
from simgpu.papers.verdicts import Simulated

if TYPE_CHECKING:
    from simgpu.papers.claims import Claim, Paper
    from simgpu.papers.claims_file import FigureSection, FromStudy, PartSection, Source, StepSection
    from simgpu.papers.tasks import Task

_FORMS = {"as_is": lambda value: value, "less_one": lambda value: value - 1, "one_less": lambda value: 1 - value}


class NotRunError(Exception):
    """Raised if a task that a value needs has failed; the message is the task's error."""


@dataclass(frozen=True)
class Changed:
    """Changed assumptions: changes to studies, arguments of checks, and replaced sources of parts."""

    study: Mapping[str, object] = field(default_factory=dict)
    check: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)

    @classmethod
    def of(cls, step: StepSection) -> Changed:
        """The changes of a step of an experiment."""
        return cls(step.study, step.check, step.from_)

    def source(self, part: PartSection) -> Source | None:
        """The source of a part's value."""
        return self.sources.get(part.name, part.from_)


AS_IT_IS = Changed()


def tasks_of(claim: Claim, part: PartSection, changed: Changed = AS_IT_IS) -> Iterator[Task]:
    """The tasks that `simulated` needs for the value of a part."""
    source = changed.source(part)
    if isinstance(source, str):
        yield _check(claim.paper, source, changed)
    elif source is not None:
        for name in source.study:
            changes = changes_of(claim.paper, name, changed)
            study = outlined(name, changes)
            row = _row(source, study, claim)
            result = StudyResult(study, {})
            for trace, run in result.cells_of(row):
                yield Memory.of(name, changes, trace) if row.memory is not None else Cell.of(name, changes, trace, run)


def simulated(
    claim: Claim, part: PartSection, cache: ResultCache, failed: Mapping[str, str], changed: Changed = AS_IT_IS
) -> Simulated | None:
    """The value of a part; None if no run has one. Raises `NotRunError` if a task that it needs failed."""
    source = changed.source(part)
    if isinstance(source, str):
        value: Simulated = check_value(claim.paper, source, cache, failed, changed)
        return value
    if source is None:
        return None
    number = _of_studies(claim, source, cache, failed, changed)
    return None if number is None else _FORMS[source.form](number)


def check_value(
    paper: Paper, name: str, cache: ResultCache, failed: Mapping[str, str], changed: Changed = AS_IT_IS
) -> Any:
    """The result CHECK.NAME of a check. Raises `NotRunError` if the check failed."""
    result = _result(_check(paper, name, changed), cache, failed)
    check, _, key = name.partition(".")
    if key not in result:
        raise InputError.single(f"{paper.key}.yaml", name, f"{check} has no result {key!r}", did_you_mean(key, result))
    return result[key]


def _of_studies(
    claim: Claim, request: FromStudy, cache: ResultCache, failed: Mapping[str, str], changed: Changed
) -> float | None:
    values: list[float] = []
    for name in request.study:
        result = partial_result(claim.paper, name, cache, failed, changed, request, claim)
        row = _row(request, result.study, claim)
        if request.of == "sum":
            return result.compared_with(row).simulated
        values += [value for values_of_run in result.values_of(row).values() for value in values_of_run]
    return aggregate(request.of, values)


def partial_result(
    paper: Paper,
    name: str,
    cache: ResultCache,
    failed: Mapping[str, str],
    changed: Changed = AS_IT_IS,
    request: FromStudy | None = None,
    claim: Claim | None = None,
) -> StudyResult:
    """The result of a study with the cells that `request` needs; by default with all cells."""
    changes = changes_of(paper, name, changed)
    study = (loaded if request is None else outlined)(name, changes)
    empty = StudyResult(study, {})
    if request is None or claim is None:
        row, pairs = None, [(trace, run.label) for trace in study.traces for run in study.runs]
    else:
        row = _row(request, study, claim)
        pairs = empty.cells_of(row)
    if row is not None and row.memory is not None:
        memory = {trace: _result(Memory.of(name, changes, trace), cache, failed) for trace, _ in pairs}
        return StudyResult(study, {}, memory)
    cells = {(trace, run): restored(_result(Cell.of(name, changes, trace, run), cache, failed)) for trace, run in pairs}
    return StudyResult(study, cells)


def sources_of(claim: Claim) -> tuple[str, ...]:
    """The sources of a claim's numbers as text, without duplicates: studies, and checks with their summary line."""
    return tuple(dict.fromkeys(text for part in claim.parts for text in _source_texts(claim, part)))


def _source_texts(claim: Claim, part: PartSection) -> Iterator[str]:
    if isinstance(part.from_, str):
        check = checks(claim.paper.key)[part.from_.partition(".")[0]]
        summary = " ".join((check.__doc__ or "").strip().partition("\n\n")[0].split())
        yield f"{check.__module__}.{check.__name__}" + (f": {summary}" if summary else "")
    elif part.from_ is not None:
        for study in part.from_.study:
            changed = f" with the changes of claims/{claim.paper.key}.yaml" if study in claim.paper.studies else ""
            yield f"simgpu study {study}{changed}"


def study_tasks(paper: Paper, name: str) -> Iterator[Task]:
    """All cells of a study, which its figures need."""
    changes = changes_of(paper, name)
    study = outlined(name, changes)
    return (Cell.of(name, changes, trace, run.label) for trace in study.traces for run in study.runs)


def changes_of(paper: Paper, study: str, changed: Changed = AS_IT_IS) -> str:
    """The changes to a study, from the paper's file and from an experiment, as `written` formats them."""
    return written({**paper.studies.get(study, {}), **changed.study})


def figure_check(paper: Paper, name: str) -> Check:
    """The check whose result a figure shows."""
    return _check(paper, name, AS_IT_IS)


def _check(paper: Paper, name: str, changed: Changed) -> Check:
    check = name.partition(".")[0]
    if check not in (known := checks(paper.key)):
        place = f"{paper.key}.yaml"
        raise InputError.single(place, name, f"unknown check {check!r}", did_you_mean(check, known))
    return Check(paper.key, check, written(changed.check))


def _result(task: Task, cache: ResultCache, failed: Mapping[str, str]) -> Any:
    if task.key in failed:
        raise NotRunError(failed[task.key])
    result = cache.get(task.key)
    if result is None:
        raise NotRunError("did not run")
    return result


def _row(request: FromStudy, study: Study, claim: Claim) -> PublishedNumber:
    """A request as a published number of a study. Raises `InputError` for an unknown label."""
    measure = request.measure or ("throughput" if request.memory is None else "memory")
    alone = request.memory is not None or measure in get_args(Alone)
    over = "" if alone else request.over or study.baseline[0]
    runs = {label for run in study.runs for label in (run.label, run.sweep) if label}
    traces = {*study.traces, *study.networks, *AGGREGATES}
    for label, known in ((request.run, runs), (over, runs), (request.of, traces)):
        if label and label not in known:
            raise _unknown(label, study, claim)
    return PublishedNumber(
        request.run or "",
        over,
        request.of,
        0.0,
        measure,
        claim.section.where,
        tuple(request.without),
        "",
        request.memory,
    )


def _unknown(label: str, study: Study, claim: Claim) -> InputError:
    what = f"the study {study.name} has no run or trace {label!r}"
    return InputError.single(f"{claim.paper.key}.yaml", claim.id, what, "name a run or trace of this study")


def shown_figures(claims: Iterable[Claim]) -> dict[Paper, list[FigureSection]]:
    """The figures by paper: all if all claims of the paper are selected, else those that show a selected claim."""
    chosen: dict[Paper, list[Claim]] = {}
    for claim in claims:
        chosen.setdefault(claim.paper, []).append(claim)
    return {
        paper: [
            figure
            for figure in paper.figures
            if len(selected) == sum(not claim.is_rule for claim in paper.claims)
            or any(uses(claim, figure) for claim in selected)
        ]
        for paper, selected in chosen.items()
    }


def uses(claim: Claim, figure: FigureSection) -> bool:
    """Whether a claim's value is from the study or the check that a figure shows."""
    sources = [part.from_ for part in claim.parts]
    if figure.check is not None:
        check = figure.check.partition(".")[0]
        return any(isinstance(source, str) and source.partition(".")[0] == check for source in sources)
    return any(
        source is not None and not isinstance(source, str) and figure.study in source.study for source in sources
    )


def figure_tasks(paper: Paper, figure: FigureSection) -> Iterator[Task]:
    """The tasks that a figure needs."""
    if figure.study is not None:
        yield from study_tasks(paper, figure.study)
    elif figure.check is not None:
        yield figure_check(paper, figure.check)
