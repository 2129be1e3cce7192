"""What a policy costs over another one at the same point of a sweep, and from which value on it is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.experiments.sweep.labels import NumericPath, numeric_path, provenance
from simgpu.experiments.sweep.point import OK, written_policies

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.experiments.scenarios.sweep import Sweep

#: Share of the step time below which a policy is free.
FREE = 0.01
#: Smallest cost in the figure, in percent.
_LEAST = 0.01


class CostCurve(NamedTuple):
    """The cost of a policy over a varied number, with the same values of all other axes.

    label: the policy and these values. baseline: the policy that it is compared with. points: pairs of the varied
    number and step time over the baseline's, minus one; ascending, without points where one of them has no result.
    """

    label: str
    baseline: str
    points: tuple[tuple[float, float], ...]

    @property
    def free_from(self) -> float | None:
        """The smallest number from which on all costs are at most 1%; None if that of the largest is more.

        >>> CostCurve("offload", "none", ((1, 0.009), (2, 0.2), (4, 0.01), (8, 0.001))).free_from
        4
        >>> CostCurve("offload", "none", ((1, 0.009), (2, 0.2))).free_from is None
        True
        """
        free = None
        for x, cost in reversed(self.points):
            if cost > FREE:
                break
            free = x
        return free

    @property
    def most(self) -> float:
        """The largest cost; 0 without points."""
        return max((cost for _, cost in self.points), default=0.0)


def check_baselines(sweep: Sweep, baselines: Sequence[str]) -> None:
    """Raises `InputError` for a baseline that is no policy of any point, before the points have run."""
    points, known = sweep.points(), dict[str, None]()
    for point in range(sweep.count):
        known |= dict.fromkeys(str(row["policy"]) for row in written_policies(points, point))
        if known.keys() >= set(baselines):
            return
    _check_known(sweep, baselines, known)


def _check_known(sweep: Sweep, baselines: Sequence[str], labels: Iterable[str]) -> None:
    known = list(dict.fromkeys(labels))
    unknown = [name for name in baselines if name not in known]
    if unknown:
        raise InputError(
            Problem("", "baseline", f"{name!r} is no policy of {sweep.name}", did_you_mean(name, known))
            for name in unknown
        )


def cost_curves(sweep: Sweep, frame: pd.DataFrame, baselines: Sequence[str], over: NumericPath) -> list[CostCurve]:
    """The costs of all policies but the baselines.

    frame: of the sweep's results. baselines: labels of policies; a policy is compared with the baseline of the same
    name, as ``checkpoint(inputs=waiting)`` with ``checkpoint``, and else with the first. over: the varied number.

    Raises `InputError` for a baseline that is not a policy of the sweep.
    """
    from simgpu.experiments.sweep.charts import labels_over  # loads matplotlib

    _check_known(sweep, baselines, frame["policy"].astype(str))
    by_name = {name.partition("(")[0]: name for name in reversed(baselines)}
    times = {
        (point, policy): ns
        for point, policy, outcome, ns in zip(
            frame["point"], frame["policy"], frame["outcome"], frame["iteration_ns"], strict=True
        )
        if outcome == OK
    }
    x = {point: over.number(sweep.values(int(point))[over.path]) for point in frame["point"].unique()}
    rows = frame[~frame["policy"].isin(baselines)]
    results = []
    for label, group in rows.groupby(labels_over(sweep, rows, [x[point] for point in rows["point"]]), sort=False):
        policy = str(group["policy"].iloc[0])
        base = by_name.get(policy.partition("(")[0], baselines[0])
        points = [
            (x[point], times[point, policy] / times[point, base] - 1)
            for point in group["point"]
            if (point, policy) in times and times.get((point, base))
        ]
        results.append(CostCurve(str(label), base, tuple(sorted(points))))
    return results


def plot_costs(sweep: Sweep, frame: pd.DataFrame, baselines: Sequence[str], path: str | None = None) -> Figure:
    """A figure of the costs over a varied number, both on logarithmic axes, with the level below which they are free.

    path: of the varied number; by default the first.
    """
    from simgpu.analysis.curves import plot_curves  # loads matplotlib
    from simgpu.experiments.sweep.charts import rows_of

    over = numeric_path(sweep, path)
    curves = cost_curves(sweep, frame, baselines, over)
    figure = plot_curves(
        {each.label: [(x, 100 * cost) for x, cost in each.points if 100 * cost >= _LEAST] for each in curves},
        title=f"{sweep.name}: cost over {', '.join(baselines)}\n{provenance(rows_of(frame))}",
        xlabel=over.label,
        ylabel="cost (% of the step time)",
        references={"free (1%)": 100 * FREE},
    )
    ax = figure.axes[0]
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=_LEAST)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:g}")
    return figure


#: Headings of `cost_rows`.
COST_HEADINGS = ("policy", "baseline", "largest cost", "free from")


def cost_rows(curves: Sequence[CostCurve]) -> list[tuple[str, ...]]:
    """The cells under `COST_HEADINGS`, one row per curve.

    >>> cost_rows([CostCurve("offload", "none", ((1024, 0.3), (2048, 0.001)))])
    [('offload', 'none', '30.0%', '2,048')]
    """
    return [
        (each.label, each.baseline, f"{each.most:.1%}", "-" if each.free_from is None else f"{each.free_from:,.10g}")
        for each in curves
    ]
