"""Numbers and labels of a sweep's figures and tables: units of columns, and numbers of varied values with units."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, did_you_mean
from simgpu.policies.base import policy_label
from simgpu.policies.registry import make_policy
from simgpu.trace.model import Origin, TraceInfo
from simgpu.units import (
    BANDWIDTH_UNITS,
    BYTE_UNITS,
    TIME_UNITS,
    is_percentage,
    parse_bandwidth,
    parse_bytes,
    parse_percentage,
    parse_time,
)

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

#: Divisor and unit of the numbers in a column, by the column's ending.
_UNITS = {
    "_bytes_per_s": (10**9, "GB/s"),
    "_bytes": (2**30, "GiB"),
    "_ns": (10**6, "ms"),
    "_per_s": (1, "1/s"),
}
_LABELS = {
    "samples_per_s": "samples/s",
    "budget_bytes": "budget (GiB)",
    "device_peak_bytes": "peak device memory (GiB)",
    "iteration_ns": "step time (ms)",
    "d2h_bytes_per_s": "link, device to host (GB/s)",
}
_PATHS = {
    "trace.batch": "batch",
    "node.gpu.memory": "device memory",
    "node.link.d2h_bandwidth": "link, device to host",
    "node.link.h2d_bandwidth": "link, host to device",
}
#: Quantities in varied values: their parser, their units, and the unit of values that are written in several.
_QUANTITIES: tuple[tuple[Callable[[object], int], Mapping[str, int], str], ...] = (
    (parse_bytes, BYTE_UNITS, "GiB"),
    (parse_bandwidth, BANDWIDTH_UNITS, "GB/s"),
    (parse_time, TIME_UNITS, "ms"),
)


def scale_of(column: str) -> float:
    """What the numbers of a column are divided by, where they are shown under `column_label`.

    >>> scale_of("iteration_ns"), scale_of("slowdown")
    (1000000, 1)
    """
    return next((scale for ending, (scale, _) in _UNITS.items() if column.endswith(ending)), 1)


def column_label(column: str) -> str:
    """The label of a column, with its unit.

    >>> column_label("iteration_ns"), column_label("stalled_h2d_ns"), column_label("slowdown")
    ('step time (ms)', 'stalled h2d (ms)', 'slowdown')
    """
    ending = next((ending for ending in _UNITS if column.endswith(ending)), None)
    if column in _LABELS or ending is None:
        return _LABELS.get(column) or column.replace("_", " ")
    return f"{column.removesuffix(ending).replace('_', ' ')} ({_UNITS[ending][1]})"


@dataclass(frozen=True)
class NumericPath:
    """A varied path whose values are numbers. label: with the unit of the numbers. number: of a value as written."""

    path: str
    label: str
    number: Callable[[Any], float]


def numeric_path(sweep: Sweep, path: str | None = None) -> NumericPath:
    """A path that the sweep varies over numbers: sizes, bandwidths, times, percentages or plain numbers.

    path: by default the first such path that is not the seed. Raises `InputError` if there is none, or if it is not
    numeric.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> budget = numeric_path(load_sweep("memory-sweep"))
    >>> budget.label, budget.number("24 MiB")
    ('budget (MiB)', 24.0)
    """
    if path is None:
        numeric = [each for name in sweep.paths if name != "seed" and (each := _numeric(sweep, name))]
        if not numeric:
            what = f"varies no number that a figure could have on its axis: {', '.join(sweep.paths)}"
            raise InputError.single(sweep.name, "sweep", what, "vary a size, a bandwidth or a number, such as budget")
        return numeric[0]
    if path not in sweep.paths:
        what = f"{path!r} is not varied by this sweep"
        raise InputError.single(sweep.name, "sweep", what, did_you_mean(path, sweep.paths))
    numeric_one = _numeric(sweep, path)
    if numeric_one is None:
        what = f"the values of {path} are not numbers of one kind at every point: {_shortened(_values(sweep, path))}"
        raise InputError.single(sweep.name, "sweep", what, "name another path")
    return numeric_one


def _values(sweep: Sweep, path: str) -> list[object]:
    """The values of a path at the steps of its axis, None where a step does not set it."""
    return [step.get(path) for axis in sweep.axes if path in axis.paths for step in axis.steps]


def _shortened(values: Sequence[object]) -> str:
    text = ", ".join(map(str, values))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _numeric(sweep: Sweep, path: str) -> NumericPath | None:
    values, name = _values(sweep, path), _PATHS.get(path, path)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return NumericPath(path, name, float)
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        return None
    if all(map(is_percentage, texts)):
        of = "% of the peak without offloading" if path == "budget" else "%"
        return NumericPath(path, f"{name} ({of})", lambda text: float(100 * parse_percentage(text)))
    for parse, units, usual in _QUANTITIES:
        if all(_unit(text) in units for text in texts):
            written = {_unit(text) for text in texts}
            unit = written.pop() if len(written) == 1 else usual
            return NumericPath(path, f"{name} ({unit})", partial(_in_unit, parse, units[unit]))
    return None


def _in_unit(parse: Callable[[object], int], unit: int, text: object) -> float:
    return parse(text) / unit


def _unit(text: str) -> str:
    """The unit of a quantity as written.

    >>> _unit("1.5 GB/s"), _unit("16MiB")
    ('GB/s', 'MiB')
    """
    return text.strip().lstrip("0123456789._").strip()


#: A path to a parameter of a policy.
_PARAMETER = re.compile(r"policies\[\d+\]\.(\w+)\.(\w+)")


def policy_texts(sweep: Sweep, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The policy of each row, without the parameters that the sweep varies, where that keeps the policies distinct."""
    varied = {match.groups() for path in sweep.paths if (match := _PARAMETER.fullmatch(path))}
    texts = []
    for row in rows:
        name, given = row.get("policy_name"), row.get("parameters")
        if name is None or given is None or not any(policy == name for policy, _ in varied):
            texts.append(str(row.get("policy", "-")))
            continue
        values = json.loads(given) if isinstance(given, str) else given
        others = {key: value for key, value in values.items() if (name, key) not in varied}
        texts.append(policy_label(make_policy(name, others)))
    if len(set(zip((row["point"] for row in rows), texts, strict=True))) < len(rows):
        return [str(row.get("policy", "-")) for row in rows]
    return texts


def provenance(rows: Sequence[Mapping[str, Any]]) -> str:
    """Where the traces of a sweep's rows come from; empty if no row has a trace."""
    texts = dict.fromkeys(
        TraceInfo(
            row["model"], row["batch"], row["device"], "", Origin(row["origin"]), row["tool"], row["date"]
        ).provenance
        for row in rows
        if row.get("origin") is not None
    )
    return "; ".join(texts)
