"""A metric of a sweep's points and policies as a LaTeX table, in the style of the package booktabs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simgpu.experiments.measures import OOM
from simgpu.experiments.sweep.labels import ShownColumn, policy_texts, provenance
from simgpu.experiments.sweep.metric import no_metric
from simgpu.experiments.sweep.point import OK, OUT_OF_MEMORY
from simgpu.experiments.sweep.spread import SEED, Spread
from simgpu.experiments.sweep.table import values_text

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # after the end of a row, LaTeX would read it as the row's distance
    "±": r"$\pm$",
    "µ": r"\textmu{}",
}
_ABSENT = "--"


def escaped(text: str) -> str:
    """A text with LaTeX's special characters escaped, in one line.

    >>> print(escaped("node.link.d2h_bandwidth at 50% & {vdnn: 1}"))
    node.link.d2h\\_bandwidth at 50\\% \\& \\{vdnn: 1\\}
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def latex_table(sweep: Sweep, rows: Iterable[Mapping[str, Any]], metric: str = "iteration_ns") -> str:
    """A ``tabular`` with one row per point and one column per policy; with several seeds, mean and deviation over them.

    rows: of the sweep's table. metric: a column of it with numbers. Raises `InputError` for another column.
    """
    given = list(rows)
    numbers = [row[metric] for row in given if _is_number(row.get(metric))]
    if not numbers:
        raise no_metric("metric", metric, (name for row in given for name, value in row.items() if _is_number(value)))
    shown = ShownColumn.of(metric, map(abs, numbers))
    every = [{**row, "policy": text} for row, text in zip(given, policy_texts(sweep, given), strict=True)]
    seeds = len({sweep.values(row["point"]).get(SEED) for row in every}) > 1
    paths = [path for path in dict.fromkeys(sweep.paths) if not (seeds and path == SEED)]
    policies = list(dict.fromkeys(row["policy"] for row in every))
    points: dict[str, tuple[Mapping[str, object], dict[str, list[Mapping[str, Any]]]]] = {}
    for row in every:
        values = {path: value for path, value in sweep.values(row["point"]).items() if path in paths}
        _, by_policy = points.setdefault(values_text(values), (values, {}))
        by_policy.setdefault(row["policy"], []).append(row)
    body = [
        [
            *(escaped(values_text({path: values[path]})) if path in values else _ABSENT for path in paths),
            *(_cell(by_policy.get(policy, []), metric, shown.scale) for policy in policies),
        ]
        for values, by_policy in points.values()
    ]
    title = f"{shown.label}{', mean and standard deviation over the seeds' if seeds else ''}"
    about = f"{sweep.name}: {title}; {provenance(every)}; needs \\usepackage{{booktabs}}"
    return "\n".join([f"% {' '.join(about.split())}", *_tabular(paths, policies, title, body), ""])


def _tabular(paths: Sequence[str], policies: Sequence[str], title: str, body: Sequence[Sequence[str]]) -> list[str]:
    left, last = len(paths), len(paths) + len(policies)
    return [
        rf"\begin{{tabular}}{{{'l' * left}{'r' * len(policies)}}}",
        r"\toprule",
        rf"{'& ' * left}\multicolumn{{{len(policies)}}}{{c}}{{{escaped(title)}}} \\",
        rf"\cmidrule(lr){{{left + 1}-{last}}}",
        rf"{' & '.join(map(escaped, (*paths, *policies)))} \\",
        r"\midrule",
        *(rf"{' & '.join(cells)} \\" for cells in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(rows: Sequence[Mapping[str, Any]], metric: str, scale: float) -> str:
    """The metric of a point under a policy, or why there is none. rows: of each seed. scale: divides the metric."""
    numbers = [row[metric] / scale for row in rows if row["outcome"] == OK and _is_number(row.get(metric))]
    if not numbers:
        outcome = next((row["outcome"] for row in rows), _ABSENT)
        return OOM if outcome == OUT_OF_MEMORY else outcome if outcome != OK else _ABSENT
    spread = Spread.of(numbers)
    decimals = _decimals(spread.mean)
    mean = f"{spread.mean:.{decimals}f}"
    partly = "" if len(numbers) == len(rows) else f" ({len(numbers)} of {len(rows)})"
    if spread.std is None:
        return f"{mean}{partly}"
    return rf"${mean} \pm {f'{spread.std:.{decimals}f}' if spread.std else 0}${partly}"


def _decimals(value: float) -> int:
    """The decimals with which a number has at least four digits.

    >>> [_decimals(value) for value in (1.405, 128.3, 12829.6, 0.0123, 0.0)]
    [3, 1, 0, 5, 0]
    """
    return max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
