"""Results of comparing recordings with their simulation: `Recordings`, as tables, a data frame or JSON."""

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
    """A number from a recording and the same number of a simulated iteration.

    name: the recording's.
    origin, device: its source and GPU.
    policy: the simulated policy.
    what: the quantity.
    unit: ns, bytes or kernels.
    note: why the two numbers differ; empty if they are equal.
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
        """Simulated minus recorded."""
        return self.simulated - self.recorded

    @property
    def equal(self) -> bool:
        """Whether both numbers are exactly the same."""
        return self.simulated == self.recorded


@dataclass(frozen=True, slots=True)
class Trial:
    """A managed run predicted under some assumptions.

    label: the assumptions.
    predicted_ns: time of the iteration, ns.
    quarter, half, three_quarters: quartiles of predicted over measured time, over the kernels that moved data.
    """

    label: str
    predicted_ns: int
    quarter: float
    half: float
    three_quarters: float


@dataclass(frozen=True, slots=True)
class Managed:
    """A measured iteration of a managed run and the predicted one.

    name, origin, device, policy: as in `Compared`.
    what: what was measured.
    node, budget: node of the prediction and its GPU memory, bytes.
    ideal_ns: the iteration with all data on the GPU, ns.
    measured_ns: the measured iteration, ns.
    trials: the prediction, then predictions under other assumptions.
    unmeasured: predicted iterations without a measurement, ns by label.
    note: how it was measured, and the evidence for that in the recording.
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
        """The iteration under the unchanged policy, ns."""
        return self.trials[0].predicted_ns

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_ns / self.measured_ns

    @property
    def experiments(self) -> dict[str, int]:
        """The iteration under other assumptions, ns by label."""
        return {trial.label: trial.predicted_ns for trial in self.trials[1:]}

    @property
    def nearest(self) -> Trial:
        """The trial whose iteration is nearest to the measured one, by ratio."""
        return min(self.trials, key=lambda trial: _distance(trial.predicted_ns, self.measured_ns))


def _distance(one: int, other: int) -> float:
    return max(one / other, other / one)


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A recording, or part of one, that was not compared, and why."""

    name: str
    why: str


@dataclass(frozen=True, repr=False)
class Recordings:
    """Comparisons with recordings. Prints as tables; `frame` has one row per compared number.

    compared: numbers of recorded and simulated iterations.
    managed: measured and predicted managed runs.
    not_compared: recordings without a comparison. failed: comparisons that raised an error.
    """

    compared: tuple[Compared, ...] = ()
    managed: tuple[Managed, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    failed: tuple[NotCompared, ...] = ()

    @cached_property
    def unequal(self) -> tuple[Compared, ...]:
        """The simulated numbers that differ from the recorded ones."""
        return tuple(row for row in self.compared if not row.equal)

    def frame(self) -> pd.DataFrame:
        """One row per number: name, origin, device, policy, what, unit, recorded, simulated, difference, equal, note.

        Managed runs have rows too, with the measured time as recorded and the predicted time as simulated.
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
        """Rows with the columns `HEADINGS`: one per recording, each followed by one per number."""
        rows: list[tuple[str, ...]] = []
        for name in dict.fromkeys(row.name for row in self.compared):
            own = [row for row in self.compared if row.name == name]
            rows.append((f"{name} ({own[0].origin}, {own[0].device})", "", "", ""))
            rows += [_row(row) for row in own]
        return rows

    def managed_rows(self) -> list[tuple[str, ...]]:
        """Rows with the columns `MANAGED_HEADINGS`: one per measured run, each followed by one per prediction.

        The last column is the interquartile range of predicted over measured time of the kernels that moved data.
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
        """Notes below the tables, one per line: why numbers differ, how runs were measured, what is missing."""
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
    """A row of the table, with all digits.

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
