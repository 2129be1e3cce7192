"""What Buddy Compression makes of a program: its ratio and what overflows, by design, threshold and time.

Ratios are of all allocations, in whole entries of 128 bytes, over the device memory that they take; metadata, 4 bits an
entry, are not in them. Entries that overflow their target need the buddy memory: their share is what the paper calls
buddy accesses. An allocation that is not in all snapshots counts with those it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from simgpu.analysis.tables import table_html, table_text
from simgpu.compression.buddy.snapshots import Progress, Snapshots, take_snapshots
from simgpu.compression.buddy.sources import read_snapshots
from simgpu.compression.buddy.targets import (
    LARGEST_RATIO,
    THRESHOLD,
    ProfiledAllocation,
    choose_targets,
    compression_ratio,
    mean_overflow,
    optimistic_ratio,
    overflow_share,
    targets_by_mean,
)
from simgpu.compression.codecs.entries import ENTRY_BYTES
from simgpu.errors import InputError, did_you_mean
from simgpu.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.analysis.heatmap import HeatMap

Picture = Literal["heatmap", "threshold", "drift"]

#: The thresholds of figure 9.
SWEPT = (0.10, 0.20, 0.30, 0.40)

DESIGN_HEADINGS = ("design", "ratio", "overflow")
ALLOCATION_HEADINGS = ("allocation", "size", "eight sizes", "target", "overflow")
#: Rows of the allocations in a notebook; `BuddyProfile.frame` has all.
_ROWS = 20


@dataclass(frozen=True, slots=True)
class DesignOutcome:
    """A choice of targets: device bytes per entry of each allocation, the ratio, and the share that overflows."""

    targets: tuple[int, ...]
    ratio: float
    overflow: float


@dataclass(frozen=True, slots=True)
class AllocationOutcome:
    """An allocation in the final design.

    optimistic_ratio: if every entry took its own of eight sizes, infinite if all are zero. target: device bytes per
    entry. overflow: share of its entries, mean over its snapshots; least and most: in any one of them.
    """

    name: str
    bytes: int
    optimistic_ratio: float
    target: int
    overflow: float
    least_overflow: float
    most_overflow: float


@dataclass(frozen=True, slots=True)
class SnapshotOverflow:
    """A snapshot at the final targets: bytes of the allocations in it, and the share of their entries that overflow."""

    label: str
    bytes: int
    optimistic_ratio: float
    overflow: float


@dataclass(frozen=True, repr=False, eq=False)
class BuddyProfile:
    """A program's allocations under Buddy Compression. Prints as figure 7's columns; in a notebook it shows as tables.

    naive: one target for the whole program. per_allocation: by the Buddy Threshold. final: with the target of mostly
    zero allocations too, where `mostly_zero`. optimistic_ratio: if every entry took its own of eight sizes (figure 3).
    sweep: the final design at other thresholds, and by_mean: with the targets of mean sizes, whatever overflows
    (figure 9). drift: the final targets in each snapshot (figure 8).
    """

    snapshots: Snapshots
    threshold: float
    mostly_zero: bool
    largest_ratio: float
    optimistic_ratio: float
    naive: DesignOutcome
    per_allocation: DesignOutcome
    final: DesignOutcome
    sweep: Mapping[float, DesignOutcome]
    by_mean: DesignOutcome
    allocations: tuple[AllocationOutcome, ...]
    drift: tuple[SnapshotOverflow, ...]

    @property
    def designs(self) -> dict[str, DesignOutcome]:
        """The columns of figure 7, by name."""
        return {"naive": self.naive, "per allocation": self.per_allocation, "final": self.final}

    @property
    def targets(self) -> dict[str, int]:
        """The final targets by allocation: bytes of device memory for each entry."""
        return {each.name: each.target for each in self.allocations}

    @property
    def caption(self) -> str:
        """What was profiled, and where it comes from."""
        count, times = len(self.allocations), len(self.snapshots.labels)
        head = f"{self.snapshots.name}: {counted(count, 'allocation')}, {format_bytes(self.snapshots.bytes)}"
        about = f"; {self.snapshots.about}" if self.snapshots.about else ""
        return f"{head}, {counted(times, 'snapshot')}{about}"

    def rows(self) -> list[tuple[str, ...]]:
        """Texts under `DESIGN_HEADINGS`, one row a design."""
        return [(name, ratio_text(each.ratio), share_text(each.overflow)) for name, each in self.designs.items()]

    def allocation_rows(self, most: int | None = None) -> list[tuple[str, ...]]:
        """Texts under `ALLOCATION_HEADINGS`, in order of address; of more than `most` allocations the largest."""
        largest = sorted(range(len(self.allocations)), key=lambda number: (-self.allocations[number].bytes, number))
        return [_allocation_row(self.allocations[number]) for number in sorted(largest[:most])]

    def heat_map(self) -> HeatMap | None:
        """Where entries are small (figure 6); None where it is not known where they lie."""
        from simgpu.analysis.heatmap import heat_map

        return heat_map(self.snapshots)

    def plot(self, picture: Picture = "heatmap") -> Figure:
        """``heatmap``: compressed size by place (figure 6). ``threshold``: ratio and overflow by Buddy Threshold
        (figure 9). ``drift``: overflow in each snapshot (figure 8). As a matplotlib figure.

        Raises `InputError` for another name, and for a heat map of histograms alone.
        """
        from simgpu.analysis import compressibility as draw

        title = self.caption
        if picture not in get_args(Picture):
            what = f"unknown picture {str(picture)!r}"
            raise InputError.single("", "argument picture", what, did_you_mean(str(picture), get_args(Picture)))
        if picture == "threshold":
            points = {each: (outcome.ratio, outcome.overflow) for each, outcome in self.sweep.items()}
            return draw.plot_thresholds(points, chosen=self.threshold, best=self.by_mean.ratio, title=title)
        if picture == "drift":
            return draw.plot_drift({each.label: each.overflow for each in self.drift}, self.final.ratio, title=title)
        result = self.heat_map()
        if result is None:
            what = "only histograms are known, not the position of each entry"
            raise InputError.single("", "argument picture", what, "profile arrays, or draw another picture")
        ratios = {each.name: target_text(each.target) for each in self.allocations}
        bands = [(f"{band.allocation}  {ratios[band.allocation]}", band.first, band.rows) for band in result.bands]
        times = len(self.snapshots.labels)
        return draw.plot_heatmap(result.rows, bands, pages_per_row=result.pages_per_row, snapshots=times, title=title)

    def frame(self) -> pd.DataFrame:
        """One row an allocation by name: see `AllocationOutcome`, and its target as a ratio."""
        import pandas as pd

        rows = [asdict(each) | {"target_ratio": ENTRY_BYTES / each.target} for each in self.allocations]
        return pd.DataFrame(rows).set_index("name")

    def sweep_frame(self) -> pd.DataFrame:
        """One row a threshold: ratio and share that overflows."""
        import pandas as pd

        rows = [{"threshold": t, "ratio": each.ratio, "overflow": each.overflow} for t, each in self.sweep.items()]
        return pd.DataFrame(rows).set_index("threshold")

    def drift_frame(self) -> pd.DataFrame:
        """One row a snapshot: see `SnapshotOverflow`."""
        import pandas as pd

        return pd.DataFrame([asdict(each) for each in self.drift]).set_index("label").rename_axis("snapshot")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; an infinite ratio, which is of zeros alone, is null."""
        return {
            "name": self.snapshots.name,
            "about": self.snapshots.about,
            "notes": list(self.snapshots.notes),
            "bytes": self.snapshots.bytes,
            "entries": self.snapshots.entries,
            "threshold": self.threshold,
            "mostly_zero": self.mostly_zero,
            "largest_ratio": self.largest_ratio,
            "optimistic_ratio": _finite(self.optimistic_ratio),
            "designs": {name: {"ratio": each.ratio, "overflow": each.overflow} for name, each in self.designs.items()},
            "thresholds": [
                {"threshold": each, "ratio": outcome.ratio, "overflow": outcome.overflow}
                for each, outcome in self.sweep.items()
            ],
            "by_mean_size": {"ratio": self.by_mean.ratio, "overflow": self.by_mean.overflow},
            "snapshots": [_plain(each) for each in self.drift],
            "allocations": [_plain(each) for each in self.allocations],
        }

    def __repr__(self) -> str:
        return f"{self.caption}\n{table_text(DESIGN_HEADINGS, self.rows())}"

    def _repr_html_(self) -> str:
        rows = self.allocation_rows(_ROWS)
        text = f"the {len(rows)} largest allocations" if len(rows) < len(self.allocations) else "allocations"
        caption = f"{text}, final design"
        return table_html(DESIGN_HEADINGS, self.rows(), self.caption) + table_html(ALLOCATION_HEADINGS, rows, caption)


def profile_arrays(
    snapshots: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    *,
    threshold: float = THRESHOLD,
    mostly_zero: bool = True,
    largest_ratio: float = LARGEST_RATIO,
    name: str = "arrays",
    progress: Progress | None = None,
) -> BuddyProfile:
    """The profile of arrays in memory: a mapping of allocations to arrays for each snapshot, or one such mapping.

    threshold: largest share of an allocation's entries that may overflow. mostly_zero: whether the final design has a
    target of 8 bytes. largest_ratio: of the whole program, 1 + buddy memory / device memory. progress: called with
    what is being compressed. Raises `InputError` for bad arguments and all bad arrays together.

    >>> import numpy as np
    >>> noise = np.random.default_rng(0).integers(0, 2**63, 4096)
    >>> profile_arrays({"noise": noise, "zeros": np.zeros(4096)})
    arrays: 2 allocations, 64 KiB, 1 snapshot
    design          ratio  overflow
    naive           2.00x  50.00%
    per allocation  1.60x  0.00%
    final           1.88x  0.00%
    """
    compressed = take_snapshots(snapshots, name, progress or _silent)
    return profile_snapshots(compressed, threshold=threshold, mostly_zero=mostly_zero, largest_ratio=largest_ratio)


def profile_files(
    paths: str | Path | Iterable[str | Path],
    *,
    threshold: float = THRESHOLD,
    mostly_zero: bool = True,
    largest_ratio: float = LARGEST_RATIO,
    progress: Progress | None = None,
) -> BuddyProfile:
    """The profile of ``.npy`` and ``.npz`` files, folders of them, stored entries, or a trace (a shipped one by name).

    What is an allocation and what a snapshot: see `simgpu.compression.buddy.sources`. The rest as in `profile_arrays`.
    """
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    snapshots = read_snapshots(folders, progress or _silent)
    return profile_snapshots(snapshots, threshold=threshold, mostly_zero=mostly_zero, largest_ratio=largest_ratio)


def profile_snapshots(
    snapshots: Snapshots,
    *,
    threshold: float = THRESHOLD,
    mostly_zero: bool = True,
    largest_ratio: float = LARGEST_RATIO,
) -> BuddyProfile:
    """The profile of snapshots, however they were taken; arguments as in `profile_arrays`."""
    known = snapshots.allocations
    chosen = partial(choose_targets, known, largest_ratio=largest_ratio)
    final = _outcome(known, chosen(threshold=threshold, mostly_zero=mostly_zero))
    return BuddyProfile(
        snapshots=snapshots,
        threshold=threshold,
        mostly_zero=mostly_zero,
        largest_ratio=largest_ratio,
        optimistic_ratio=optimistic_ratio(known),
        naive=_outcome(known, chosen(granularity="program")),
        per_allocation=_outcome(known, chosen(threshold=threshold, mostly_zero=False)),
        final=final,
        sweep={
            each: _outcome(known, chosen(threshold=each, mostly_zero=mostly_zero))
            for each in sorted({*SWEPT, threshold})
        },
        by_mean=_outcome(known, targets_by_mean(known, mostly_zero=mostly_zero, largest_ratio=largest_ratio)),
        allocations=tuple(_in_final(each, target) for each, target in zip(known, final.targets, strict=True)),
        drift=tuple(_moment(snapshots, number, final.targets) for number in range(len(snapshots.labels))),
    )


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "snapshot"), counted(10, "snapshot")
    ('1 snapshot', '10 snapshots')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def ratio_text(ratio: float) -> str:
    """How many times smaller.

    >>> ratio_text(4 / 3), ratio_text(float("inf"))
    ('1.33x', 'all zero')
    """
    return "all zero" if isinf(ratio) else f"{ratio:.2f}x"


def target_text(target: int) -> str:
    """A target as the paper names it.

    >>> [target_text(target) for target in (128, 96, 64, 32, 8)]
    ['1x', '1.33x', '2x', '4x', '16x']
    """
    return f"{ENTRY_BYTES / target:.3g}x"


def share_text(share: float) -> str:
    """A share in percent, fine enough for the paper's 0.08%."""
    return f"{share:.2%}"


def _silent(what: str) -> None:
    """Reports no progress."""


def _outcome(allocations: Sequence[ProfiledAllocation], targets: tuple[int, ...]) -> DesignOutcome:
    return DesignOutcome(targets, compression_ratio(allocations, targets), mean_overflow(allocations, targets))


def _in_final(allocation: ProfiledAllocation, target: int) -> AllocationOutcome:
    shares = [overflow_share(counts, target) for counts in allocation.histograms]
    own, mean = optimistic_ratio([allocation]), mean_overflow([allocation], [target])
    return AllocationOutcome(allocation.name, allocation.bytes, own, target, mean, min(shares), max(shares))


def _moment(snapshots: Snapshots, number: int, targets: Sequence[int]) -> SnapshotOverflow:
    there = snapshots.in_snapshot(number)
    known = list(there.values())
    overflow = mean_overflow(known, [targets[index] for index in there])
    return SnapshotOverflow(
        snapshots.labels[number], sum(each.bytes for each in known), optimistic_ratio(known), overflow
    )


def _allocation_row(each: AllocationOutcome) -> tuple[str, ...]:
    own, target = ratio_text(each.optimistic_ratio), target_text(each.target)
    return (each.name, format_bytes(each.bytes), own, target, share_text(each.overflow))


def _plain(each: AllocationOutcome | SnapshotOverflow) -> dict[str, Any]:
    return asdict(each) | {"optimistic_ratio": _finite(each.optimistic_ratio)}


def _finite(ratio: float) -> float | None:
    return None if isinf(ratio) else ratio
