"""Runs one point of a sweep under its policies. Returns rows of plain data, also if it fails."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, PolicyError
from simgpu.experiments.compare import policy_from
from simgpu.policies.base import policy_label
from simgpu.simulation.plain_peak import PeakPart
from simgpu.simulation.run import Result, simulate

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.experiments.scenarios.sweep import Points

OK, OUT_OF_MEMORY, REFUSED, ERROR = OUTCOMES = "ok", "out of memory", "refused", "error"

#: Columns of a run's numbers besides its metrics.
NUMBERS = ("ideal_ns", "high_water_bytes", "retired_instructions", "spans", "plain_peak_bytes")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PointRows:
    """The outcome of a point: one row per policy, as plain data by column; columns without a value are omitted.

    again: whether the point must run again, since it failed with an error or a package is not installed
    """

    point: int
    again: bool
    rows: tuple[Row, ...]


#: Runs one point.
RunPoint = Callable[["Points", int], PointRows]


def run_point(points: Points, point: int) -> PointRows:
    """Run a point under all its policies. Never raises an `Exception`.

    The rows do not depend on the time, the process or the machine.
    """
    try:
        scenario = points.scenario(point)
    except Exception as error:
        return _without_scenario(points, point, error)
    about = _about(scenario)
    ran = [_run(scenario, policy_from(choice)) for choice in scenario.policies]
    return PointRows(point, any(again for again, _ in ran), tuple({**about, **row} for _, row in ran))


def died(point: int, why: str) -> PointRows:
    """The rows of a point whose process died."""
    return PointRows(point, True, ({"outcome": ERROR, "message": why},))


def _without_scenario(points: Points, point: int, error: Exception) -> PointRows:
    """The rows of a point whose scenario cannot be loaded: one for each policy of the file."""
    again, outcome = _failure(error)
    return PointRows(point, again, tuple({**policy, **outcome} for policy in written_policies(points, point)))


def written_policies(points: Points, point: int) -> list[Row]:
    """The policies of a point as its file has them, valid or not, as columns of its rows."""
    return [_written(each) for each in points.policies(point)]


def _written(policy: object) -> Row:
    if isinstance(policy, str | Mapping):
        with suppress(Exception):  # the point reports it
            return _policy(policy_from(policy))
    return {"policy": str(policy)}


def _run(scenario: Scenario, policy: Any) -> tuple[bool, Row]:
    about = _policy(policy)
    try:
        result = simulate(scenario.trace, scenario.node, policy, scenario.config)
        return False, {**about, "outcome": OK, **_numbers(result)}
    except Exception as error:
        again, outcome = _failure(error)
        return again, {**about, **outcome}


def _failure(error: Exception) -> tuple[bool, Row]:
    """Whether the point must run again, and a row with outcome and message."""
    if isinstance(error, OutOfMemoryError):
        return False, {"outcome": OUT_OF_MEMORY, "message": str(error)}
    if isinstance(error, PolicyError):
        return True, {"outcome": ERROR, "message": str(error)}
    if isinstance(error, InputError):
        return False, {"outcome": REFUSED, "message": "; ".join(error.lines())}
    if isinstance(error, MissingExtraError):
        return True, {"outcome": REFUSED, "message": str(error)}
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    where = f"in {frame.f_globals.get('__name__')}.{frame.f_code.co_name}, line {line}"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return True, {"outcome": ERROR, "message": f"{text} ({where})"}


def _policy(policy: Any) -> dict[str, Any]:
    parameters = json.dumps(policy.parameters, default=str)
    return {"policy": policy_label(policy), "policy_name": policy.name, "parameters": parameters}


def _about(scenario: Scenario) -> dict[str, Any]:
    """The settings of all rows of a point, in base units. The budget is by default the node's."""
    info, how = scenario.trace.info, scenario.data_parallel
    return {
        "trace_name": scenario.trace.name or info.model,
        "model": info.model,
        "batch": info.batch,
        "node_name": scenario.node.name,
        "d2h_bytes_per_s": scenario.node.link.d2h_bandwidth,
        "h2d_bytes_per_s": scenario.node.link.h2d_bandwidth,
        "memory_bytes": scenario.node.gpu.memory,
        "budget_bytes": scenario.available,
        "iterations": scenario.iterations,
        "epoch": scenario.epoch,
        "seed": scenario.seed,
        "pool": scenario.pool,
        "alignment_bytes": scenario.node.gpu.alignment if scenario.alignment is None else scenario.alignment,
        "gpus": how.gpus if how else 1,
        "exchange": str(how.exchange) if how else None,
        "cores": how.cores if how else None,
        "origin": info.origin.value,
        "device": info.device,
        "date": info.date,
        "tool": info.tool,
        **({"plain_peak_bytes": scenario.budget.peak} if isinstance(scenario.budget, PeakPart) else {}),
    }


def _numbers(result: Result) -> dict[str, Any]:
    return {
        "pool": result.pool,
        "steady": result.steady,
        "ideal_ns": result.ideal_ns,
        "high_water_bytes": result.high_water,
        "retired_instructions": result.retired,
        "spans": len(result.timeline),
        **result.metrics.by_key,
    }
