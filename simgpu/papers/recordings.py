"""Recordings compared with their simulation, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simgpu.analysis.tables import table_text
from simgpu.units import format_time

if TYPE_CHECKING:
    import pandas as pd

HEADINGS = ("recording", "recorded", "here", "difference")
MANAGED_HEADINGS = ("run under Unified Memory", "measured", "predicted", "ratio", "half of the kernels")


@dataclass(frozen=True, slots=True)
class Compared:
    """A number that a recording states, and the same number of a simulated iteration.

    name: of the recording. origin, device: its source. policy: the one simulated. what: quantity. unit: ns, bytes or
    kernels. note: why the two differ, where they do.
    """

    name: str
    origin: str
    device: str
    policy: str
    what: str
    unit: str
    recorded: int
    simulated: int
    note: str = ""

    @property
    def difference(self) -> int:
        """Simulated less recorded."""
        return self.simulated - self.recorded

    @property
    def equal(self) -> bool:
        """Whether the two are the same to the last nanosecond, byte or kernel."""
        return self.simulated == self.recorded


@dataclass(frozen=True, slots=True)
class Trial:
    """A managed run predicted under other assumptions.

    label: what is assumed. predicted_ns: the iteration. quarter, half, three_quarters: of the kernels that moved data,
    a quarter (half, three quarters) have a ratio of predicted to measured time up to this.
    """

    label: str
    predicted_ns: int
    quarter: float
    half: float
    three_quarters: float


@dataclass(frozen=True, slots=True)
class Managed:
    """A measured iteration of a managed run and the predicted one.

    what: the quantity. node, budget: of the prediction, bytes of memory. ideal_ns: the iteration with all data on the
    GPU. trials: the prediction first, then those under other assumptions. unmeasured: iterations by label that nobody
    measured, predicted for comparison. note: how it was measured, and the evidence for that in the recording.
    """

    name: str
    origin: str
    device: str
    what: str
    policy: str
    node: str
    budget: int
    ideal_ns: int
    measured_ns: int
    trials: tuple[Trial, ...]
    unmeasured: Mapping[str, int]
    note: str

    @property
    def predicted_ns(self) -> int:
        """The iteration with the policy as it is."""
        return self.trials[0].predicted_ns

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_ns / self.measured_ns

    @property
    def experiments(self) -> dict[str, int]:
        """The iteration under other assumptions, by what is assumed."""
        return {trial.label: trial.predicted_ns for trial in self.trials[1:]}

    @property
    def nearest(self) -> Trial:
        """The trial whose iteration is nearest to the measured one, as a ratio."""
        return min(self.trials, key=lambda trial: _apart(trial.predicted_ns, self.measured_ns))


def _apart(one: int, other: int) -> float:
    return max(one / other, other / one)


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A recording, or a part of one, that is not compared, and why."""

    name: str
    why: str


@dataclass(frozen=True, repr=False)
class Recordings:
    """Comparisons with recordings. Prints as tables; `frame` has one row per compared number."""

    compared: tuple[Compared, ...] = ()
    managed: tuple[Managed, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    failed: tuple[NotCompared, ...] = ()

    @cached_property
    def unequal(self) -> tuple[Compared, ...]:
        """The numbers that differ from the recording's."""
        return tuple(row for row in self.compared if not row.equal)

    def frame(self) -> pd.DataFrame:
        """One row per number: name, origin, device, policy, what, unit, recorded, simulated, difference, equal, note.

        Managed runs have rows too: measured as recorded, predicted as simulated.
        """
        import pandas as pd

        return pd.DataFrame([*map(_compared, self.compared), *map(_as_compared, self.managed)])

    def to_dict(self) -> dict[str, Any]:
        """All results as plain values, for JSON."""
        return {
            "compared": [_compared(row) for row in self.compared],
            "managed": [
                asdict(row)
                | {"predicted_ns": row.predicted_ns, "ratio": row.ratio, "nearest": row.nearest.label}
                | {"trials": [asdict(trial) for trial in row.trials]}
                for row in self.managed
            ],
            "not_compared": [asdict(row) for row in self.not_compared],
            "failed": [asdict(row) for row in self.failed],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the columns in `HEADINGS`: one per recording, and one per number below it."""
        rows: list[tuple[str, ...]] = []
        for name in dict.fromkeys(row.name for row in self.compared):
            own = [row for row in self.compared if row.name == name]
            rows.append((f"{name} ({own[0].origin}, {own[0].device})", "", "", ""))
            rows += [_row(row) for row in own]
        return rows

    def managed_rows(self) -> list[tuple[str, ...]]:
        """Rows of the columns in `MANAGED_HEADINGS`: one per measured run, and one per prediction below it.

        The last column is the interquartile range of the ratios of the kernels that moved data.
        """
        rows: list[tuple[str, ...]] = []
        for row in self.managed:
            measured = format_time(row.measured_ns)
            rows.append((f"{row.name}, {row.what}, on {row.node}", measured, *_trial(row, row.trials[0])))
            rows += [(f"  {trial.label}", "", *_trial(row, trial)) for trial in row.trials[1:]]
            rows.append(("  all data on the GPU (ideal)", "", format_time(row.ideal_ns), "", ""))
            rows += [(f"  {label}", "not measured", format_time(ns), "", "") for label, ns in row.unmeasured.items()]
        return rows

    def notes(self) -> list[str]:
        """Notes below the tables, a line each: why numbers differ, how runs were measured, what is missing."""
        lines = [f"{row.name}, {row.what}: {row.note}" for row in self.compared if row.note]
        for managed in self.managed:
            near, ratio = managed.nearest, managed.nearest.predicted_ns / managed.measured_ns
            lines.append(
                f"{managed.name}, {managed.what}: {managed.note} Nearest to the measured time: {near.label} "
                f"({ratio:.3g})."
            )
        reasons = dict.fromkeys(row.why for row in self.not_compared)
        lines += [f"{', '.join(row.name for row in self.not_compared if row.why == why)}: {why}" for why in reasons]
        return lines + [f"{row.name}: FAILED: {row.why}" for row in self.failed]

    def __repr__(self) -> str:
        tables = [table_text(HEADINGS, self.rows())]
        if self.managed:
            tables.append(table_text(MANAGED_HEADINGS, self.managed_rows()))
        return "\n\n".join((*tables, "\n".join(self.notes())))


def _compared(row: Compared) -> dict[str, Any]:
    return asdict(row) | {"difference": row.difference, "equal": row.equal}


def _as_compared(row: Managed) -> dict[str, Any]:
    same = Compared(
        row.name, row.origin, row.device, row.policy, row.what, "ns", row.measured_ns, row.predicted_ns, row.note
    )
    return _compared(same)


def _row(row: Compared) -> tuple[str, ...]:
    """A number with all its digits.

    >>> _row(Compared("a", "imported", "H100", "ideal", "kernels", "kernels", 1369, 1369))
    ('  kernels', '1,369', '1,369', 'equal')
    >>> _row(Compared("a", "imported", "H100", "none", "peak memory", "bytes", 1000, 990))
    ('  peak memory', '1,000 bytes', '990 bytes', '-10 bytes (-1.000%)')
    """
    unit = "" if row.unit == "kernels" else f" {row.unit}"
    share = f" ({row.difference / row.recorded:+.3%})" if row.recorded else ""
    difference = "equal" if row.equal else f"{row.difference:+,}{unit}{share}"
    return f"  {row.what}", f"{row.recorded:,}{unit}", f"{row.simulated:,}{unit}", difference


def _trial(row: Managed, trial: Trial) -> tuple[str, ...]:
    ratio = f"{trial.predicted_ns / row.measured_ns:.3g}"
    return format_time(trial.predicted_ns), ratio, f"{trial.quarter:.2g} to {trial.three_quarters:.2g}"
