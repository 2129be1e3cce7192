"""Numbers and labels of a sweep's figures and tables: units of columns, and numbers of varied values with units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from simgpu.analysis.panels import AxisInfo
from simgpu.errors import InputError, did_you_mean
from simgpu.io.input_files import parse_json
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

#: Divisor and unit of the numbers in a column, by the column's ending; sizes have the unit of the largest.
_UNITS = {
    "_bytes_per_s": (10**9, "GB/s"),
    "_ns": (10**6, "ms"),
    "_per_s": (1, "1/s"),
}
_SIZE = "_bytes"
_NAMES = {
    "budget_bytes": "budget",
    "device_peak_bytes": "peak device memory",
    "iteration_ns": "step time",
    "d2h_bytes_per_s": "link, device to host",
}
_PATHS = {
    "trace.batch": "batch",
    "trace.length": "tokens per sample",
    "node.gpu.memory": "device memory",
    "node.link.d2h_bandwidth": "link, device to host",
    "node.link.h2d_bandwidth": "link, host to device",
}


class _Quantity(NamedTuple):
    """A kind of varied values. usual: the unit of values that are written in several; None for that of the largest."""

    kind: str
    parse: Callable[[object], int]
    units: Mapping[str, int]
    usual: str | None = None


_QUANTITIES = (
    _Quantity("sizes", parse_bytes, BYTE_UNITS),
    _Quantity("bandwidths", parse_bandwidth, BANDWIDTH_UNITS, "GB/s"),
    _Quantity("times", parse_time, TIME_UNITS, "ms"),
)
#: Other kinds of varied values. The last two have no numbers.
_NUMBERS, _PERCENTAGES, _TEXTS, _NOTHING = "plain numbers", "percentages", "texts", "nothing"


class ShownColumn(NamedTuple):
    """How a column is shown. scale: what its numbers are divided by. label: its name, and the unit of the quotients."""

    scale: float
    label: str

    @classmethod
    def of(cls, column: str, numbers: Iterable[float]) -> ShownColumn:
        """How these numbers of a column are shown.

        >>> ShownColumn.of("iteration_ns", [10**6]), ShownColumn.of("slowdown", [1.5])
        (ShownColumn(scale=1000000, label='step time (ms)'), ShownColumn(scale=1, label='slowdown'))
        >>> [ShownColumn.of("budget_bytes", [size]).label for size in (20 * 2**20, 2**30)]
        ['budget (MiB)', 'budget (GiB)']
        """
        if column == "samples_per_s":
            return cls(1, "samples/s")
        ending = next((ending for ending in (*_UNITS, _SIZE) if column.endswith(ending)), "")
        name = _NAMES.get(column) or column.removesuffix(ending).replace("_", " ")
        if not ending:
            return cls(1, name)
        scale, unit = _size_unit(numbers) if ending == _SIZE else _UNITS[ending]
        return cls(scale, f"{name} ({unit})")


def _size_unit(sizes: Iterable[float]) -> tuple[float, str]:
    """The divisor and the unit of sizes along an axis."""
    return AxisInfo("", "size").unit(max(sizes, default=0.0))


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
        others = [name for name in sweep.paths if name != "seed"]
        numeric = [each for name in others if (each := _numeric(sweep, name))]
        if not numeric:
            # If the user meant one of them, it is one with some numbers.
            if partly := next((name for name in others if not {*_by_kind(sweep, name)} <= {_TEXTS, _NOTHING}), None):
                raise _not_numeric(sweep, partly)
            what = f"varies no number that a figure could have on its axis: {', '.join(sweep.paths)}"
            raise InputError.single(sweep.name, "sweep", what, "vary a size, a bandwidth or a number, such as budget")
        return numeric[0]
    if path not in sweep.paths:
        what = f"{path!r} is not varied by this sweep"
        raise InputError.single(sweep.name, "sweep", what, did_you_mean(path, sweep.paths))
    numeric_one = _numeric(sweep, path)
    if numeric_one is None:
        raise _not_numeric(sweep, path)
    return numeric_one


def _not_numeric(sweep: Sweep, path: str) -> InputError:
    """The error for a path whose values are not numbers of one kind."""
    by_kind = _by_kind(sweep, path)
    if _NOTHING in by_kind:
        what, remedy = f"{path} has no value at some points", "give it one at every point"
    elif len(by_kind) == 1:
        what, remedy = f"the values of {path} are not numbers: {_shortened(_values(sweep, path))}", ""
    else:
        listed = (f"{kind} ({_shortened(values)})" for kind, values in by_kind.items())
        kinds = (f"all as {kind}" for kind in by_kind if kind != _TEXTS)
        what, remedy = f"the values of {path} mix {' and '.join(listed)}", f"give {' or '.join(kinds)}"
    return InputError.single(sweep.name, "sweep", what, f"{remedy}{', or ' if remedy else ''}name another path")


def _values(sweep: Sweep, path: str) -> list[object]:
    """The values of a path at the steps of its axis, None where a step does not set it."""
    return [step.get(path) for axis in sweep.axes if path in axis.paths for step in axis.steps]


def _shortened(values: Sequence[object]) -> str:
    text = ", ".join(map(str, values))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _numeric(sweep: Sweep, path: str) -> NumericPath | None:
    by_kind, name = _by_kind(sweep, path), _PATHS.get(path, path)
    if len(by_kind) > 1:
        return None
    ((kind, values),) = by_kind.items()
    if kind == _NUMBERS:
        return NumericPath(path, name, float)
    if kind == _PERCENTAGES:
        of = "% of the peak without offloading" if path == "budget" else "%"
        return NumericPath(path, f"{name} ({of})", lambda text: float(100 * parse_percentage(text)))
    for _, parse, units, usual in (each for each in _QUANTITIES if each.kind == kind):
        written = {_unit(str(value)) for value in values}
        unit = written.pop() if len(written) == 1 else usual or _size_unit(map(parse, values))[1]
        return NumericPath(path, f"{name} ({unit})", partial(_in_unit, parse, units[unit]))
    return None


def _by_kind(sweep: Sweep, path: str) -> dict[str, list[object]]:
    """The values of a path by their kind."""
    results: dict[str, list[object]] = {}
    for value in _values(sweep, path):
        results.setdefault(_kind(value), []).append(value)
    return results


def _kind(value: object) -> str:
    """The kind of a varied value.

    >>> [_kind(value) for value in (8, "8 GiB", "8 GB/s", "8 ms", "8%", "vdnn", None)]
    ['plain numbers', 'sizes', 'bandwidths', 'times', 'percentages', 'texts', 'nothing']
    """
    if value is None:
        return _NOTHING
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _NUMBERS
    if is_percentage(value):
        return _PERCENTAGES
    unit = _unit(value) if isinstance(value, str) else ""
    return next((each.kind for each in _QUANTITIES if unit in each.units), _TEXTS)


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
        values = parse_json(given, sweep.name) if isinstance(given, str) else given
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
