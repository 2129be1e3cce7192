"""The spread of a sweep's results over its seeds: mean, standard deviation, minimum and maximum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError
from simgpu.experiments.measures import OOM
from simgpu.experiments.sweep.point import OK, OUT_OF_MEMORY
from simgpu.experiments.sweep.table import values_text
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

SEED = "seed"
#: Columns whose spread is shown: title and format of their values.
MEASURES: Mapping[str, tuple[str, Callable[[int], str]]] = {
    "iteration_ns": ("step time", format_time),
    "device_peak_bytes": ("peak memory", format_bytes),
}
SPREAD_HEADINGS = ("policy", "seeds", "mean", "std. dev.", "min", "max")
_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of some numbers, in their unit. std: of a sample, with n - 1; None for a single number."""

    mean: float
    std: float | None
    min: float
    max: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """The spread of at least one number.

        >>> Spread.of([1, 2, 3]), Spread.of([7]).std
        (Spread(mean=2.0, std=1.0, min=1, max=3), None)
        """
        std = float(stdev(numbers)) if len(numbers) > 1 else None
        return cls(fmean(numbers), std, min(numbers), max(numbers))


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """The results of a policy at one combination of the other varied values, over all seeds.

    values: the other varied values by path. seeds: how many ran. outcomes: of each of them. spreads: by column of
    `MEASURES`, over the seeds with a result; empty if there is none.
    """

    values: Mapping[str, object]
    policy: str
    outcomes: tuple[str, ...]
    spreads: Mapping[str, Spread]

    @property
    def seeds(self) -> int:
        """How many seeds ran."""
        return len(self.outcomes)

    @property
    def ok(self) -> int:
        """How many of them have a result."""
        return self.outcomes.count(OK)

    @property
    def row(self) -> dict[str, Any]:
        """The columns of a data frame: ``iteration_ns_mean`` and so on; columns without a value are omitted."""
        numbers = {
            f"{name}_{key}": value for name, spread in self.spreads.items() for key, value in asdict(spread).items()
        }
        return {**self.values, "policy": self.policy, "seeds": self.seeds, "ok": self.ok, **numbers}


def seed_spreads(sweep: Sweep, rows: Iterable[Mapping[str, Any]]) -> list[SeedSpread]:
    """The spread over the seeds of every policy at every combination of the other varied values, in their order.

    rows: of the sweep's table. Raises `InputError` for a sweep that does not vary the seed.
    """
    if SEED not in sweep.paths:
        remedy = f'vary it: simgpu sweep {sweep.source} --set "sweep.grid.seed=[0, 1, 2]"'
        raise InputError.single(sweep.document.file, "sweep", "does not vary the seed", remedy)
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        others = values_text(_others(sweep, row["point"]))
        groups.setdefault((others, str(row.get("policy", _ABSENT))), []).append(row)
    return [_spread(sweep, policy, group) for (_, policy), group in groups.items()]


def _others(sweep: Sweep, point: int) -> dict[str, object]:
    return {path: value for path, value in sweep.values(point).items() if path != SEED}


def _spread(sweep: Sweep, policy: str, rows: Sequence[Mapping[str, Any]]) -> SeedSpread:
    ran = [row for row in rows if row["outcome"] == OK]
    spreads = {name: Spread.of([row[name] for row in ran]) for name in MEASURES} if ran else {}
    outcomes = tuple(row["outcome"] for row in rows)
    return SeedSpread(_others(sweep, rows[0]["point"]), policy, outcomes, spreads)


def spread_rows(spreads: Iterable[SeedSpread], measure: str) -> list[tuple[str, ...]]:
    """The other varied values, then cells under `SPREAD_HEADINGS`, one row per spread. measure: one of `MEASURES`."""
    return [(values_text(each.values), each.policy, *_cells(each, measure)) for each in spreads]


def _cells(each: SeedSpread, measure: str) -> tuple[str, ...]:
    seeds = str(each.seeds) if each.ok == each.seeds else f"{each.ok} of {each.seeds}"
    if measure not in each.spreads:
        failed = OOM if set(each.outcomes) == {OUT_OF_MEMORY} else next(iter(each.outcomes))
        return seeds, failed, *[_ABSENT] * 3
    spread, text = each.spreads[measure], MEASURES[measure][1]
    std = _ABSENT if spread.std is None else text(round(spread.std))
    return seeds, text(round(spread.mean)), std, text(round(spread.min)), text(round(spread.max))
