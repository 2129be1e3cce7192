"""Answers to what-ifs: what came of each change, as values that print and show as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simgpu.analysis.tables import table_html, table_text
from simgpu.errors import InputError, OutOfMemoryError, SimgpuError
from simgpu.simulation.result import Result
from simgpu.units import format_time

ANSWER_HEADINGS = ("what if", "iteration", "against now", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a change.

    change: in words. outcome: the new run, or why there is none; None where the change is none here. note: why it is
    none.
    """

    change: str
    outcome: Result | SimgpuError | None
    note: str = ""

    @property
    def result(self) -> Result | None:
        """The new run, None where there is none."""
        return self.outcome if isinstance(self.outcome, Result) else None


class Answers(tuple[Answer, ...]):
    """The answers in order, the run as it is first. Prints as a table; in a notebook it shows as one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return table_text(ANSWER_HEADINGS, answer_rows(self))

    def _repr_html_(self) -> str:
        return table_html(ANSWER_HEADINGS, answer_rows(self), "what would help", left=(0, 3))


def answer_rows(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Texts under `ANSWER_HEADINGS`."""
    now = answers[0].result
    return [(answer.change, *_answered(answer, now)) for answer in answers]


def answer_dict(answer: Answer) -> dict[str, Any]:
    """An answer as plain data for JSON."""
    if answer.result is not None:
        outcome: dict[str, Any] = {"iteration_ns": answer.result.iteration_ns}
    else:
        outcome = {"iteration_ns": None, "reason": answer.note or str(answer.outcome)}
    return {"change": answer.change, **outcome}


def signed_time(ns: int) -> str:
    """A time that may be negative."""
    return f"-{format_time(-ns)}" if ns < 0 else format_time(ns)


def _answered(answer: Answer, now: Result | None) -> tuple[str, str, str]:
    if answer.result is None:
        if isinstance(answer.outcome, OutOfMemoryError):
            return "out of memory", "", "of the host" if answer.outcome.space == "host" else ""
        return "-", "", answer.note or ("refused" if isinstance(answer.outcome, InputError) else str(answer.outcome))
    time = answer.result.iteration_ns
    if now is None or answer.result is now:
        return format_time(time), "", ""
    if time == now.iteration_ns:
        return format_time(time), "the same", ""
    return format_time(time), _change(time - now.iteration_ns, now.iteration_ns), ""


def _change(ns: int, of: int) -> str:
    """A change as a share; as a time where the share rounds to nothing, or is of nothing."""
    share = f"{ns / of:+.1%}" if of else "+0.0%"
    if share[1:] != "0.0%":
        return share
    return signed_time(ns) if ns < 0 else f"+{format_time(ns)}"
