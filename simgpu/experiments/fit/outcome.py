"""`FitOutcome`: the rows of a question, and which of them matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simgpu.experiments.fit.question import Question
from simgpu.experiments.fit.rows import FitRow, FitRun
from simgpu.trace.model import TraceInfo

#: Memory that differs by less than this factor is the same.
_EQUAL = 1.02
#: Costs below this share are none.
FREE = 0.005


@dataclass(frozen=True, repr=False)
class FitOutcome:
    """The answers for all candidates.

    question: the model, the GPU and the size. rows: one per candidate, in the order of the table. info: of a trace
    that was run. context: bytes of the CUDA context that the budget does not include; None if the node does not say.
    larger_gpus: shipped GPUs on which the candidate of the least memory fits, where none fits here.
    """

    question: Question
    rows: tuple[FitRow, ...]
    info: TraceInfo
    context: int | None
    larger_gpus: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[FitRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, option: str) -> FitRow:
        for row in self.rows:
            if row.candidate.label == option:
                return row
        raise KeyError(option)

    @property
    def fitting(self) -> list[FitRow]:
        """The rows that fit and train what was requested."""
        return [row for row in self.rows if row.fits and not row.candidate.changes]

    @property
    def best(self) -> FitRow | None:
        """The fastest that fits; where a size is searched, of those of the largest size. None if none fits.

        Some come after others, whatever their speed (`Candidate.standing`). Of those that
        are less than 0.5% slower than the fastest, it is the first in the table that is not tight.
        """
        fastest = max(self.fitting, key=self.rank, default=None)
        if fastest is None:
            return None
        *group, speed = self.rank(fastest)
        near = (row for row in self.fitting if [*self.rank(row)[:2]] == group and _speed(row) >= (1 - FREE) * speed)
        return next((row for row in near if self.margin(row) >= self.question.margin), fastest)

    def rank(self, row: FitRow) -> tuple[int, int, float]:
        """The order of rows that fit, worst first: by size where one is searched, standing, and speed."""
        return row.size(self.question.searched), row.candidate.standing, _speed(row)

    @property
    def smallest(self) -> FitRow | None:
        """The row of the least memory, of several within 2% of it the fastest; None if every candidate was refused."""
        return self._smallest(self.rows)

    @property
    def smallest_alone(self) -> FitRow | None:
        """The same of those that divide no weights among GPUs."""
        return self._smallest([row for row in self.rows if row.candidate.shares == 1])

    def _smallest(self, rows: Sequence[FitRow]) -> FitRow | None:
        runs = [row for row in rows if row.run is not None and not row.candidate.changes]
        least = min((run_of(row).reserved for row in runs), default=0)
        return max((row for row in runs if run_of(row).reserved <= _EQUAL * least), key=_speed, default=None)

    @property
    def front(self) -> list[FitRow]:
        """The Pareto front, ascending: of memory and speed, or of the searched size and speed."""
        runs = [row for row in self.rows if row.run is not None and not row.candidate.changes]
        if self.question.searched:
            runs = [row for row in runs if row.fits]

        def along(row: FitRow) -> int:
            return -row.size(self.question.searched) if self.question.searched else run_of(row).reserved

        front: list[FitRow] = []
        for row in sorted(runs, key=lambda row: (along(row), -_speed(row))):
            if not front or _speed(row) > _speed(front[-1]):
                front.append(row)
        return front[::-1] if self.question.searched else front

    def margin(self, row: FitRow) -> int:
        """Bytes of the budget that a row leaves; negative where it does not fit."""
        return self.question.budget - run_of(row).reserved

    @property
    def speed_unit(self) -> str:
        """The unit of the speeds."""
        return "samples/s" if self.question.workload.longest is None else "tokens/s"


def run_of(row: FitRow) -> FitRun:
    """The run of a row that has one."""
    assert row.run is not None, "the row has a run"
    return row.run


def _speed(row: FitRow) -> float:
    return run_of(row).speed
