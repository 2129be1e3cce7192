"""Loading a sweep by name or path, with every problem told at once before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.experiments.scenarios.catalogue import read_file
from simgpu.experiments.scenarios.model import SCHEMA
from simgpu.experiments.scenarios.reading import Reading
from simgpu.experiments.scenarios.sweep import Sweep
from simgpu.experiments.scenarios.sweep_axes import SweepSection, axes_of, section_problems
from simgpu.experiments.scenarios.sweep_check import checked_paths, value_problems
from simgpu.io.schema import put, validate
from simgpu.io.yaml_files import YamlMapping

_SWEEP = "sweep"
_GRID = "sweep.grid."
#: Of a scenario, what changes no result.
_LEFT_OUT = (_SWEEP, "outputs", "description")


def load_sweep(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Sweep:
    """The sweep of a scenario by its shipped name or its file, checked as far as that goes without loading traces.

    overrides: values by dotted key, of the scenario or its node as in `load_scenario`, and of the block:
    ``sweep.grid.PATH``, a list, or None to leave the path out; ``sweep.zip``; ``sweep.points``.

    Raises `InputError` with all mistakes of the block and of the scenario. What shows only with everything loaded,
    such as a budget above the memory of a point's node, is told of the point when it runs.

    >>> load_sweep("memory-sweep", {"sweep.grid.budget": ["30 MiB"]})
    memory-sweep: 2 points
      budget: 1 step
      node.link.d2h_bandwidth, node.link.h2d_bandwidth: 2 steps
    """
    return _load(read_file(name_or_path, SCHEMA), dict(overrides or {}), str(name_or_path))


def make_sweep(values: Mapping[str, object], source: str, overrides: Mapping[str, object] | None = None) -> Sweep:
    """The sweep that a file with these values would have, where there is no file; as `make_scenario`.

    >>> values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none"}
    >>> make_sweep({**values, "sweep": {"grid": {"seed": [1, 2, 3]}}}, "an example").count
    3
    """
    return _load(YamlMapping(source, {"schema": SCHEMA, **values}, {}), dict(overrides or {}), source)


def _load(document: YamlMapping, overrides: dict[str, object], source: str) -> Sweep:
    of_block = {key: value for key, value in overrides.items() if key == _SWEEP or key.startswith(f"{_SWEEP}.")}
    others = {key: value for key, value in overrides.items() if key not in of_block}
    reading = Reading(document, others)

    def is_changed(place: str) -> bool:
        return any(f"{place}.".startswith((f"{key}.", f"{key}[")) or key.startswith(f"{place}[") for key in of_block)

    def where(place: str) -> tuple[str, str]:
        return ("override", place) if is_changed(place) else (document.file, document.place(place))

    written = _block(document.values.get(_SWEEP), of_block)
    if written is None:
        remedy = f"write a block 'sweep:' (scenarios/README.md), or use: simgpu run {source}"
        raise InputError.single(document.file, "", "has no sweep", remedy)
    section = reading.attempt(lambda: validate(SweepSection, written, lambda inner: where(_at(inner))))
    well_formed = section or SweepSection.model_validate(_well_formed(written))
    axes = axes_of(well_formed, is_changed)
    sound, wrong = checked_paths(axes, reading.values, others, where)
    problems = [*reading.problems, *(section_problems(section, where) if section else ()), *wrong]
    sweep = Sweep(
        name=str(reading.values.get("name") or Path(document.file).stem),
        description=str(reading.values.get("description") or ""),
        source=source,
        document=_without_sweep(document),
        overrides={key: value for key, value in others.items() if key.partition(".")[0] not in _LEFT_OUT},
        axes=sound,
        lines={place: line for place, line in document.lines.items() if place.startswith(_SWEEP)},
        folder=Path(document.file).absolute().parent,
        here=Path.cwd(),
    )
    unsound = {path for axis in axes if axis not in sound for path in axis.paths}
    problems += value_problems(sweep, reading.values, unsound if section else None)
    if problems:
        raise InputError(dict.fromkeys(problems))
    # Problems of points are kept as results, which say the same wherever the file lies.
    return replace(sweep, document=replace(sweep.document, file=Path(document.file).name))


def _at(inner: str) -> str:
    return f"{_SWEEP}.{inner}" if inner else _SWEEP


def _block(written: object, changes: Mapping[str, object]) -> Any:
    """The block with its overrides in place; a path of the grid is one key there, whatever dots it has."""
    values: dict[str, Any] = {_SWEEP: copy.deepcopy(written)}
    for key, value in changes.items():
        if not key.startswith(_GRID):
            put(values, key, value)
            continue
        block = values[_SWEEP] = values[_SWEEP] or {}
        if not isinstance(block, dict) or not isinstance(block.setdefault("grid", {}), dict):
            return values[_SWEEP]  # the model of the block says so
        if value is None:
            block["grid"].pop(key.removeprefix(_GRID), None)
        else:
            block["grid"][key.removeprefix(_GRID)] = value
    return values[_SWEEP]


def _well_formed(written: object) -> dict[str, Any]:
    """What the model of the block takes of one that it refuses, so that the rest is checked all the same."""

    def values(group: object) -> dict[str, Any]:
        found = group if isinstance(group, dict) else {}
        return {
            path: steps for path, steps in found.items() if isinstance(path, str) and isinstance(steps, list) and steps
        }

    def entries(key: str) -> list[Any]:
        found = block.get(key)
        return found if isinstance(found, list) else []

    block = written if isinstance(written, dict) else {}
    groups = [values(group) for group in entries("zip")]
    # Up to the first that is refused: of those behind it the places would not be true.
    points = takewhile(
        lambda point: isinstance(point, dict) and point and all(isinstance(path, str) for path in point),
        entries("points"),
    )
    return {"grid": values(block.get("grid")), "zip": list(takewhile(bool, groups)), "points": list(points)}


def _without_sweep(document: YamlMapping) -> YamlMapping:
    values = {key: value for key, value in document.values.items() if key not in _LEFT_OUT}
    lines = {place: line for place, line in document.lines.items() if not place.startswith(f"{_SWEEP}.")}
    return replace(document, values=values, lines=lines)
