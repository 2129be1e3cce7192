"""`load_sweep` loads a sweep by name or path; all problems of its paths and values are reported before a point runs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.experiments.scenarios.catalogue import read_file
from simgpu.experiments.scenarios.model import SCHEMA, ScenarioFile
from simgpu.experiments.scenarios.modelled import ModelledTrace
from simgpu.experiments.scenarios.modelled_configuration import (
    MODEL,
    ModelledConfiguration,
    is_modelled_configuration,
)
from simgpu.experiments.scenarios.reading import Library, Reading, inside_named_trace
from simgpu.experiments.scenarios.sweep import Given, PointLoading, Sweep
from simgpu.experiments.scenarios.sweep_axes import Axis, SweepSection, axes_of, section_problems
from simgpu.io.schema import Where, path_steps, put, validate
from simgpu.io.shipped import find
from simgpu.io.yaml_files import YamlMapping

_SWEEP = "sweep"
_GRID = "sweep.grid."
#: Keys of a scenario that do not change the results of a point.
_LEFT_OUT = (_SWEEP, "outputs", "description")


def load_sweep(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Sweep:
    """Load the sweep of a scenario by its shipped name or its file, and check it without loading traces.

    overrides: values by dotted key, of the scenario or its node as in `load_scenario`, and of the sweep section:
    ``sweep.grid.PATH``, a list, or None to remove the path; ``sweep.zip``; ``sweep.points``

    Raises `InputError` with all problems of the sweep section and the scenario. Problems that only loading shows, such
    as a budget above the memory of a point's node, are reported for the point when it runs.

    >>> load_sweep("memory-sweep", {"sweep.grid.budget": ["30 MiB"]})
    memory-sweep: 2 points
      budget: 1 step
      node.link.d2h_bandwidth, node.link.h2d_bandwidth: 2 steps
    """
    return _load(read_file(name_or_path, SCHEMA), dict(overrides or {}), str(name_or_path))


def make_sweep(values: Mapping[str, object], source: str, overrides: Mapping[str, object] | None = None) -> Sweep:
    """Make a sweep from values instead of a file, like `make_scenario`.

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
    valid_axes, wrong = checked_paths(axes, reading.values, others, where)
    problems = [*reading.problems, *(section_problems(section, where) if section else ()), *wrong]
    sweep = Sweep(
        name=str(reading.values.get("name") or Path(document.file).stem),
        description=str(reading.values.get("description") or ""),
        source=source,
        document=_without_sweep(document),
        overrides={key: value for key, value in others.items() if key.partition(".")[0] not in _LEFT_OUT},
        axes=valid_axes,
        lines={place: line for place, line in document.lines.items() if place.startswith(_SWEEP)},
        folder=Path(document.file).absolute().parent,
        here=Path.cwd(),
    )
    removed = {path for axis in axes if axis not in valid_axes for path in axis.paths}
    problems += value_problems(sweep, reading.values, removed if section else None)
    if problems:
        raise InputError(dict.fromkeys(problems))
    # Problems of points are stored as results, which must not depend on the folder of the file.
    return replace(sweep, document=replace(sweep.document, file=Path(document.file).name))


def _at(inner: str) -> str:
    return f"{_SWEEP}.{inner}" if inner else _SWEEP


def _block(written: object, changes: Mapping[str, object]) -> Any:
    """The sweep section with its overrides applied. A path of the grid is a single key, including its dots."""
    values: dict[str, Any] = {_SWEEP: copy.deepcopy(written)}
    for key, value in changes.items():
        if not key.startswith(_GRID):
            put(values, key, value)
            continue
        block = values[_SWEEP] = values[_SWEEP] or {}
        if not isinstance(block, dict) or not isinstance(block.setdefault("grid", {}), dict):
            return values[_SWEEP]  # the section's model reports it
        if value is None:
            block["grid"].pop(key.removeprefix(_GRID), None)
        else:
            block["grid"][key.removeprefix(_GRID)] = value
    return values[_SWEEP]


def _well_formed(written: object) -> dict[str, Any]:
    """The well-formed entries of an invalid sweep section, so that they are still checked."""

    def values(group: object) -> dict[str, Any]:
        result = group if isinstance(group, dict) else {}
        return {
            path: steps for path, steps in result.items() if isinstance(path, str) and isinstance(steps, list) and steps
        }

    def entries(key: str) -> list[Any]:
        result = block.get(key)
        return result if isinstance(result, list) else []

    block = written if isinstance(written, dict) else {}
    groups = [values(group) for group in entries("zip")]
    # Stop at the first invalid point: places of later ones would be wrong.
    points = takewhile(
        lambda point: isinstance(point, dict) and point and all(isinstance(path, str) for path in point),
        entries("points"),
    )
    return {"grid": values(block.get("grid")), "zip": list(takewhile(bool, groups)), "points": list(points)}


def _without_sweep(document: YamlMapping) -> YamlMapping:
    values = {key: value for key, value in document.values.items() if key not in _LEFT_OUT}
    lines = {place: line for place, line in document.lines.items() if not place.startswith(f"{_SWEEP}.")}
    return replace(document, values=values, lines=lines)


#: Keys of a scenario with subkeys or entries, and keys with a single value.
_WITH_SUBKEYS = ("trace", "node", "policies", "data_parallel")
_SCALARS = ("budget", "iterations", "epoch", "seed", "pool", "allocator", "alignment", "engine")
_CHANGES_NOTHING = ("schema", "name", "description", "outputs", "sweep")
_PARTS_OF_A_NODE = ("gpu", "gpus", "link", "host", "switches", "memories", "links")


def checked_paths(
    axes: Sequence[Axis], values: Mapping[str, Any], overrides: Iterable[str], where: Where
) -> tuple[tuple[Axis, ...], list[Problem]]:
    """The axes with valid paths, and the problems of the others.

    values: the scenario's values without its sweep
    overrides: paths set by an override
    """
    problems: list[Problem] = []
    valid = []
    varied = [path for axis in axes for path in axis.paths]
    named = {path: [wrong] for path in varied if (wrong := inside_named_trace(values, path, varied))}
    taken: dict[tuple[int | str, ...], str] = {tuple(path_steps(path)): "set by an override" for path in overrides}
    for axis in axes:
        results = [
            Problem(*where(_first_place(axis, path)), what, remedy)
            for path in axis.paths
            for what, remedy in (*_leads_nowhere(path, values), *named.get(path, ()), *_meets(path, taken))
        ]
        problems += results
        valid += [] if results else [axis]
        taken |= {
            tuple(path_steps(path)): f"varied at {axis.place(path, 0).removesuffix('[0]')}" for path in axis.paths
        }
        if axis.form.startswith("sweep.zip"):
            problems += [
                Problem(*where(_first_place(axis, path)), what, remedy)
                for path in axis.paths
                for what, remedy in _meets(
                    path, {tuple(path_steps(o)): f"varied as {o}" for o in axis.paths if o != path}
                )
            ]
    return tuple(valid), problems


def _first_place(axis: Axis, path: str) -> str:
    step = next(step for step, values in enumerate(axis.steps) if path in values)
    return axis.place(path, step).removesuffix("[0]")


def _leads_nowhere(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Problems of a path on its own, and of the list or policy of the scenario that it refers to."""
    head, *inside = path_steps(path)
    known = (*_WITH_SUBKEYS, *_SCALARS)
    if head in _PARTS_OF_A_NODE:
        yield "unknown key", f"did you mean 'node.{path}'?"
    elif head == "overrides":
        yield "cannot be varied itself", "vary its values: node.gpu.memory, without the prefix 'overrides.'"
    elif head in _CHANGES_NOTHING:
        yield "cannot be varied: it does not change results", "remove it"
    elif head not in known:
        yield "unknown key", did_you_mean(str(head), known)
    elif head in _SCALARS and inside:
        yield f"{head} has no subkeys", f"vary {head} itself"
    else:
        current: Any = values.get(str(head))
        for step in inside:
            if isinstance(step, int) and head != "node":
                if not isinstance(current, list):
                    yield f"the scenario has no list {path.partition('[')[0]}", "write one, with all its entries"
                    return
                if step >= len(current):
                    what = f"there is no entry {step}: the scenario has {len(current)}, counted from 0"
                    yield what, "name one of them"
                    return
                current = current[step]
            else:
                if head == "policies" and (other := _name_of(current)) not in (None, step):
                    yield f"that policy is {other}, not {step}", "name its own parameter, or another entry"
                    return
                current = current.get(step) if isinstance(current, dict) else None


def _name_of(policy: object) -> str | None:
    """The name of a policy as written; None if the value is inside a policy."""
    if isinstance(policy, dict):
        return str(next(iter(policy))) if len(policy) == 1 else None
    return policy if isinstance(policy, str) else None


def _meets(path: str, taken: Mapping[tuple[int | str, ...], str]) -> Iterator[tuple[str, str]]:
    """Problems of a path that is set elsewhere, itself or by a key above or below it."""
    steps = tuple(path_steps(path))
    for other, how in taken.items():
        shared = min(len(steps), len(other))
        if steps[:shared] != other[:shared] or (len(steps) != len(other) and ("node",) in (steps, other)):
            continue  # a node's name and its values are independent: the values apply to any node
        inner = "one of its subkeys" if shared == len(steps) else "the key that contains it"
        yield f"{'it' if steps == other else inner} is also {how}", "keep one of them"


def value_problems(sweep: Sweep, base: Mapping[str, Any], removed: set[str] | None) -> list[Problem]:
    """Values of the axes that the scenario's schema, its nodes or its policies refuse.

    Each value is checked with the first step of every other axis. A value refused there may be valid with other steps
    of related keys: a value that is refused in all cases is reported here, any other one at its points.

    base: the scenario's values including those that a sweep ignores
    removed: paths of axes removed as invalid, whose values are therefore missing; None if any value may be missing
    """
    checking = _Checking(sweep)
    firsts = [0] * len(sweep.axes)
    problems = checking.of_the_rest(base)
    common = checking.problems_at(firsts)
    if sweep.axes:
        last = checking.problems_at([len(axis.steps) - 1 for axis in sweep.axes])
        common = [problem for problem in common if problem in last]
    given = None if removed is None else {path_steps(path)[0] for path in removed}
    problems += [each for each in common if not (each.what == "is missing" and (given is None or each.place in given))]
    known = set(common)
    for number, axis in enumerate(sweep.axes):
        for step in range(len(axis.steps)):
            result = checking.refused(number, step, known)
            problems += result
            known |= set(result)
    return problems


class _Checking:
    """Checks a sweep's values against the schema; nodes are loaded once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.library = Library(size=256)
        self.heads = [{path_steps(path)[0] for path in axis.paths} for axis in sweep.axes]

    def of_the_rest(self, base: Mapping[str, Any]) -> list[Problem]:
        """Problems of the scenario's keys that a sweep ignores, such as its outputs."""
        left_out = {
            key: value for key, value in base.items() if key not in self.sweep.document.values and key != "sweep"
        }
        loading = PointLoading(self.sweep, (), self.library)
        try:
            validate(ScenarioFile, {**loading.values, **left_out}, loading.where)
        except InputError as error:
            return [problem for problem in error.problems if any(key in problem.place for key in left_out)]
        return []

    def problems_at(self, steps: Sequence[int], heads: set[int | str] | None = None) -> list[Problem]:
        """Problems at this step of each axis. heads: keys of the scenario to check, by default all."""
        return self._problems(tuple(self.sweep.given(steps)), heads)

    def refused(self, number: int, step: int, known: set[Problem]) -> list[Problem]:
        """Problems of a step of an axis; empty if it is valid in any of the cases tried."""
        first: list[Problem] | None = None
        for given in self._cases(number, step):
            results = [problem for problem in self._problems(given, self.heads[number]) if problem not in known]
            if not results:
                return []
            first = first or results
        return first or []

    def _cases(self, number: int, step: int) -> Iterator[tuple[Given, ...]]:
        """Values of a step with the first steps of other axes, then with other steps of related axes, then alone."""
        steps = [0] * len(self.sweep.axes)
        steps[number] = step
        yield tuple(self.sweep.given(steps))
        for other, axis in enumerate(self.sweep.axes):
            if other != number and self.heads[other] & self.heads[number]:
                for other_step in range(1, len(axis.steps)):
                    yield tuple(self.sweep.given([*steps[:other], other_step, *steps[other + 1 :]]))
        own = self.sweep.axes[number]
        yield tuple(each for each in self.sweep.given(steps) if each.path in own.paths)

    def _problems(self, given: tuple[Given, ...], heads: set[int | str] | None) -> list[Problem]:
        loading = _SchemaLoading(self.sweep, given, self.library)
        loading.look(heads)
        return loading.problems


class _SchemaLoading(PointLoading):
    """Checks a point's scenario without loading its trace."""

    def look(self, heads: set[int | str] | None) -> None:
        """Collect the problems of these keys; None for all keys."""
        values = self.values
        self.attempt(lambda: validate(ScenarioFile, values, self.where))
        if heads is None or "node" in heads:
            self.node(values.get("node"), "node", {"overrides": values.get("overrides")})
        if heads is None or "trace" in heads:
            self._look_at_trace(values.get("trace"))
        if heads is None or "policies" in heads:
            self.check_policies()

    def _look_at_trace(self, written: object) -> None:
        if isinstance(written, str) and written:
            self.attempt(lambda: find("traces", written, self._base("trace")), "trace")
        elif isinstance(written, dict) and is_modelled_configuration(written):
            configured = self.attempt(
                lambda: validate(ModelledConfiguration, written, lambda inner: self.where(f"trace.{inner}"))
            )
            if configured is not None:
                self.build(lambda: configured.described_model(self._base(f"trace.{MODEL}")), "trace")
        elif isinstance(written, dict):
            entry = self.attempt(lambda: validate(ModelledTrace, written, lambda inner: self.where(f"trace.{inner}")))
            if entry is not None:
                network = (entry.zoo, entry.input, repr(entry.variant))
                self.build(lambda: self.library.get(network, entry.network), "trace")
                if entry.gpu is not None:
                    self.gpu_for(entry.gpu, "trace", None, None)
