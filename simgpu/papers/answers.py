"""The simulated value of each part of a claim, the figures shown with claims, and the tasks that both need."""

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
    """A task that a value needs failed; its text says why."""


@dataclass(frozen=True)
class Changed:
    """Changed assumptions: changes to studies, arguments of checks, and other sources of parts."""

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
    """The value of a part; None where no run has one. Raises `NotRunError` where a task it needs failed."""
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
    """The value of a check, by CHECK.NAME. Raises `NotRunError` where the check failed."""
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
    """A study with the cells that a row needs; with all of them without a request."""
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
    """The sources of a claim's numbers as text: studies, and checks with what they do; each once."""
    return tuple(dict.fromkeys(text for part in claim.parts for text in _source_texts(claim, part)))


def _source_texts(claim: Claim, part: PartSection) -> Iterator[str]:
    if isinstance(part.from_, str):
        check = checks(claim.paper.key)[part.from_.partition(".")[0]]
        said = " ".join((check.__doc__ or "").strip().partition("\n\n")[0].split())
        yield f"{check.__module__}.{check.__name__}" + (f": {said}" if said else "")
    elif part.from_ is not None:
        for study in part.from_.study:
            changed = f" with what claims/{claim.paper.key}.yaml changes" if study in claim.paper.studies else ""
            yield f"simgpu study {study}{changed}"


def study_tasks(paper: Paper, name: str) -> Iterator[Task]:
    """Every cell of a study, for its figures."""
    changes = changes_of(paper, name)
    study = outlined(name, changes)
    return (Cell.of(name, changes, trace, run.label) for trace in study.traces for run in study.runs)


def changes_of(paper: Paper, study: str, changed: Changed = AS_IT_IS) -> str:
    """The changes to a study: those of its paper's file, and those of an experiment."""
    return written({**paper.studies.get(study, {}), **changed.study})


def figure_check(paper: Paper, name: str) -> Check:
    """The check that a figure shows."""
    return _check(paper, name, AS_IT_IS)


def _check(paper: Paper, name: str, changed: Changed) -> Check:
    check = name.partition(".")[0]
    if check not in (known := checks(paper.key)):
        place = f"{paper.key}.yaml"
        raise InputError.single(place, name, f"there is no check {check!r}", did_you_mean(check, known))
    return Check(paper.key, check, written(changed.check))


def _result(task: Task, cache: ResultCache, failed: Mapping[str, str]) -> Any:
    if task.key in failed:
        raise NotRunError(failed[task.key])
    result = cache.get(task.key)
    if result is None:
        raise NotRunError("did not run")
    return result


def _row(request: FromStudy, study: Study, claim: Claim) -> PublishedNumber:
    """A request as a published number of a study; its labels are checked."""
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
    return InputError.single(f"{claim.paper.key}.yaml", claim.id, what, "name one of its own")


def shown_figures(claims: Iterable[Claim]) -> dict[Paper, list[FigureSection]]:
    """The figures of each paper: all with all of its claims, else those that show one of them."""
    chosen: dict[Paper, list[Claim]] = {}
    for claim in claims:
        chosen.setdefault(claim.paper, []).append(claim)
    return {
        paper: [
            figure
            for figure in paper.figures
            if len(some) == sum(not claim.is_rule for claim in paper.claims)
            or any(uses(claim, figure) for claim in some)
        ]
        for paper, some in chosen.items()
    }


def uses(claim: Claim, figure: FigureSection) -> bool:
    """Whether a claim has a value from the study or the check that a figure shows."""
    sources = [part.from_ for part in claim.parts]
    if figure.check is not None:
        check = figure.check.partition(".")[0]
        return any(isinstance(source, str) and source.partition(".")[0] == check for source in sources)
    return any(
        source is not None and not isinstance(source, str) and figure.study in source.study for source in sources
    )


def figure_tasks(paper: Paper, figure: FigureSection) -> Iterator[Task]:
    """The tasks of a figure."""
    if figure.study is not None:
        yield from study_tasks(paper, figure.study)
    elif figure.check is not None:
        yield figure_check(paper, figure.check)
