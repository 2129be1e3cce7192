"""The rows of candidates, one after another or in worker processes: the same rows whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from simgpu.experiments.fit.candidates import Candidate, candidates
from simgpu.experiments.fit.question import Question
from simgpu.experiments.fit.rows import FitRow
from simgpu.experiments.fit.switches import of_diffusers
from simgpu.experiments.fit.workloads import ConfiguredWorkload, Workload
from simgpu.experiments.processes import in_jobs


@dataclass(frozen=True)
class _Trials:
    """Pickled to worker processes, each of which lists the candidates again and builds its own traces."""

    question: Question

    def points(self) -> _Open:
        """The question with its candidates."""
        return _Open(self.question, _candidates(self.question))


class _Open(NamedTuple):
    question: Question
    candidates: Sequence[Candidate]


def _candidates(question: Question) -> list[Candidate]:
    """All that train the same. Where a size is searched, no other value is."""
    every = named(question.workload, candidates(question.workload.options, question.sharing))
    return [each for each in every if not (question.searched and each.searched and each.valued_at is None)]


def rows_of(question: Question, jobs: int, progress: Callable[[str], None]) -> tuple[FitRow, ...]:
    """The row of every candidate that trains the same, in their order. jobs: worker processes."""
    tried = _candidates(question)
    if jobs > 1 and len(tried) > 1:
        return tuple(_in_processes(_Trials(replace(question, traces={}, plain={})), tried, jobs, progress))
    rows = []
    for number, candidate in enumerate(tried, 1):
        progress(f"option {number} of {len(tried)}: {candidate.stage}")
        rows.append(question.row(candidate))
    return tuple(rows)


def _in_processes(
    trials: _Trials, tried: Sequence[Candidate], jobs: int, progress: Callable[[str], None]
) -> list[FitRow]:
    count, rows = len(tried), dict[int, FitRow]()
    jobs = min(jobs, count)

    def died(number: int, why: str) -> tuple[int, FitRow]:
        return number, FitRow(tried[number].without_value, None, why)

    with closing(in_jobs(trials, range(count), jobs, _row, died)) as outcomes:
        for number, row in outcomes:
            rows[number] = row
            progress(f"{len(rows)} of {count} options tried, in {jobs} processes")
    return [rows[number] for number in range(count)]


def _row(opened: _Open, number: int) -> tuple[int, FitRow]:
    return number, opened.question.row(opened.candidates[number])


def named(workload: Workload, options: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, with switches that the model's training loop can have."""
    is_of_images = isinstance(workload, ConfiguredWorkload) and workload.longest is None
    return [of_diffusers(each) if is_of_images else each for each in options]
