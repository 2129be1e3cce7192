"""Simulates the claims of papers and judges them: `reproduce`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from simgpu.experiments.processes import Progress, in_jobs
from simgpu.papers.answers import (
    AS_IT_IS,
    Changed,
    NotRunError,
    figure_tasks,
    shown_figures,
    simulated,
    sources_of,
    tasks_of,
)
from simgpu.papers.cache import ResultCache
from simgpu.papers.claims import Claim, select
from simgpu.papers.claims_file import AssumptionSection, PartSection
from simgpu.papers.outcome import ClaimOutcome, Experiment, PartOutcome, Step
from simgpu.papers.recordings_tasks import recording_tasks, recordings_of
from simgpu.papers.reproduction import Reproduction
from simgpu.papers.tasks import Done, Groups, Task, run_group
from simgpu.papers.verdicts import Judgement, Verdict, judge

#: Stands for all tasks of a group whose process died, in place of a task's key.
_ALL = ""


def reproduce(
    what: str | Iterable[str] = (),
    *,
    quick: bool = False,
    causes: bool = False,
    recordings: str | Path | bool = False,
    folder: str | Path | None = None,
    jobs: int = 1,
    restart: bool = False,
    progress: Progress | None = None,
) -> Reproduction:
    """Simulate the claims of papers, compare them with the published numbers, and list the rules with their tests.

    what: papers by key (``cswap``), or claims by id or by a prefix of the id that ends at a dot; by default all.
    quick: run only the cheap claims, a few seconds together.
    causes: also run the experiments that explain claims that are off.
    recordings: also compare the shipped recordings; a folder adds the recordings in it.
    folder: cache for finished work.
    jobs: number of processes.
    restart: delete the cached work first.
    progress: called with the number of finished tasks and the total.

    Raises `InputError` for an unknown claim, or if `folder` contains other files.

    >>> result = reproduce(["cdma.batches", "cdma.sparsity.alexnet"])
    >>> print(result["cdma.sparsity.alexnet"].verdict, *(rule.id for rule in result.rules))
    within 10% cdma.batches
    """
    return Run(select([what] if isinstance(what, str) else what, quick=quick), folder, restart).outcome(
        causes=causes, recordings=recordings, jobs=jobs, progress=progress
    )


class Run:
    """Claims and the results of their tasks."""

    def __init__(self, claims: Sequence[Claim], folder: str | Path | None = None, restart: bool = False) -> None:
        self.claims = tuple(claim for claim in claims if not claim.is_rule)
        self.rules = tuple(claim for claim in claims if claim.is_rule)
        self.cache = ResultCache(None if folder is None else Path(folder), restart=restart)
        self.failed: dict[str, str] = {}

    def outcome(
        self,
        *,
        causes: bool,
        figures: bool = False,
        recordings: str | Path | bool = False,
        jobs: int = 1,
        progress: Progress | None = None,
    ) -> Reproduction:
        """Run the missing tasks and judge the claims.

        figures: also run the tasks that only figures need. For the other arguments see `reproduce`.
        """
        tasks: list[Task] = [task for claim in self.claims for part in claim.parts for task in tasks_of(claim, part)]
        if causes:
            tasks += [task for claim in self.claims for task in _experiment_tasks(claim)]
        if figures:
            shown = shown_figures(self.claims).items()
            tasks += [task for paper, drawn in shown for figure in drawn for task in figure_tasks(paper, figure)]
        recorded = None if isinstance(recordings, bool) else recordings
        if recordings:
            tasks += recording_tasks(recorded)
        self._carry_out(tasks, jobs, progress)
        return Reproduction(
            tuple(self._outcome(claim, causes) for claim in self.claims),
            self.rules,
            recordings_of(self.cache, self.failed, recorded) if recordings else None,
        )

    def _carry_out(self, tasks: Sequence[Task], jobs: int, progress: Progress | None) -> None:
        wanted = dict.fromkeys(tasks)
        missing = Groups.of(task for task in wanted if self.cache.get(task.key) is None)
        done, total = len(wanted) - sum(map(len, missing.groups)), len(wanted)
        if progress:
            progress(done, total)
        points = range(len(missing.groups))
        finished = in_jobs(missing, points, min(jobs, len(points) or 1), run_group, _died)
        with closing(finished):
            for group in finished:
                self._store(group, missing)
                done += len(missing.groups[group.group])
                if progress:
                    progress(done, total)

    def _store(self, done: Done, groups: Groups) -> None:
        for key, result in done.results.items():
            self.cache.put(key, result)
        for task in groups.groups[done.group]:
            if task.key not in done.results:
                self.failed[task.key] = done.failed.get(task.key) or done.failed[_ALL]

    def _outcome(self, claim: Claim, causes: bool) -> ClaimOutcome:
        parts = tuple(self._part(claim, part) for part in claim.parts)
        outcome = ClaimOutcome(claim, parts, sources=sources_of(claim))
        if not causes or outcome.verdict not in (Verdict.OFF, Verdict.BROKEN, Verdict.NEAR):
            return outcome
        return replace(outcome, experiments=tuple(self._experiments(claim)))

    def _experiments(self, claim: Claim) -> Iterator[Experiment]:
        for name in claim.section.causes:
            assumption = claim.paper.assumptions[name]
            steps = tuple(
                Step(
                    label,
                    {part.name: self._part(claim, part, Changed.of(step)) for part in moved_parts(claim, assumption)},
                )
                for label, step in assumption.steps.items()
            )
            yield Experiment(name, assumption, steps)

    def _part(self, claim: Claim, part: PartSection, changed: Changed = AS_IT_IS) -> PartOutcome:
        try:
            value = simulated(claim, part, self.cache, self.failed, changed)
        except NotRunError as error:
            return PartOutcome(part, None, Judgement(Verdict.FAILED, detail=str(error)))
        return PartOutcome(part, value, judge(part, value))


def moved_parts(claim: Claim, assumption: AssumptionSection) -> list[PartSection]:
    """The parts of a claim that an experiment simulates."""
    return [part for part in claim.parts if not part.cannot and (not assumption.parts or part.name in assumption.parts)]


def _experiment_tasks(claim: Claim) -> Iterator[Task]:
    for name in claim.section.causes:
        assumption = claim.paper.assumptions[name]
        for step in assumption.steps.values():
            for part in moved_parts(claim, assumption):
                yield from tasks_of(claim, part, Changed.of(step))


def _died(group: int, why: str) -> Done:
    return Done(group, {}, {_ALL: why})
