"""Loading a sweep by name or path; all problems of its paths and values are reported at once, before anything runs."""

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
from simgpu.experiments.scenarios.reading import Library, Reading, inside_named_trace
from simgpu.experiments.scenarios.sweep import Given, PointLoading, Sweep
from simgpu.experiments.scenarios.sweep_axes import Axis, SweepSection, axes_of, section_problems
from simgpu.io.schema import Where, path_steps, put, validate
from simgpu.io.shipped import find
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
    such as a budget above the memory of a point's node, is reported for the point when it runs.

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
    # Problems of points are stored as results, which must not depend on the folder of the file.
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
        result = group if isinstance(group, dict) else {}
        return {
            path: steps for path, steps in result.items() if isinstance(path, str) and isinstance(steps, list) and steps
        }

    def entries(key: str) -> list[Any]:
        result = block.get(key)
        return result if isinstance(result, list) else []

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


#: Keys of a scenario that have keys or entries inside, and those that are one value.
_WITH_INSIDE = ("trace", "node", "policies", "data_parallel")
_SCALARS = ("budget", "iterations", "epoch", "seed", "pool", "alignment")
_CHANGES_NOTHING = ("schema", "name", "description", "outputs", "sweep")
_PARTS_OF_A_NODE = ("gpu", "gpus", "link", "host", "switches")


def checked_paths(
    axes: Sequence[Axis], values: Mapping[str, Any], overrides: Iterable[str], where: Where
) -> tuple[tuple[Axis, ...], list[Problem]]:
    """The axes whose paths lead somewhere, and what is wrong with those of the others.

    values: of the scenario without its sweep. overrides: paths that an override gives.
    """
    problems: list[Problem] = []
    sound = []
    varied = [path for axis in axes for path in axis.paths]
    named = {path: [wrong] for path in varied if (wrong := inside_named_trace(values, path, varied))}
    taken: dict[tuple[int | str, ...], str] = {tuple(path_steps(path)): "given by an override" for path in overrides}
    for axis in axes:
        results = [
            Problem(*where(_first_place(axis, path)), what, remedy)
            for path in axis.paths
            for what, remedy in (*_leads_nowhere(path, values), *named.get(path, ()), *_meets(path, taken))
        ]
        problems += results
        sound += [] if results else [axis]
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
    return tuple(sound), problems


def _first_place(axis: Axis, path: str) -> str:
    step = next(step for step, values in enumerate(axis.steps) if path in values)
    return axis.place(path, step).removesuffix("[0]")


def _leads_nowhere(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a path by itself, and with the list or policy of the scenario that it leads into."""
    head, *inside = path_steps(path)
    known = (*_WITH_INSIDE, *_SCALARS)
    if head in _PARTS_OF_A_NODE:
        yield "unknown key", f"did you mean 'node.{path}'?"
    elif head == "overrides":
        yield "is not varied as a whole", "vary its values: node.gpu.memory, without 'overrides.' before it"
    elif head in _CHANGES_NOTHING:
        yield "is not varied: it changes no result", "leave it out"
    elif head not in known:
        yield "unknown key", did_you_mean(str(head), known)
    elif head in _SCALARS and inside:
        yield f"{head} has no keys inside", f"vary {head} itself"
    else:
        current: Any = values.get(str(head))
        for step in inside:
            if isinstance(step, int) and head != "node":
                if not isinstance(current, list):
                    yield f"the scenario gives no list for {path.partition('[')[0]}", "write one, with all its entries"
                    return
                if step >= len(current):
                    yield f"there is no entry {step}: the scenario gives {len(current)}, from 0", "name one of them"
                    return
                current = current[step]
            else:
                if head == "policies" and (other := _name_of(current)) not in (None, step):
                    yield f"that policy is {other}, not {step}", "name its own parameter, or another entry"
                    return
                current = current.get(step) if isinstance(current, dict) else None


def _name_of(policy: object) -> str | None:
    """The name of a policy as written, None within one."""
    if isinstance(policy, dict):
        return str(next(iter(policy))) if len(policy) == 1 else None
    return policy if isinstance(policy, str) else None


def _meets(path: str, taken: Mapping[tuple[int | str, ...], str]) -> Iterator[tuple[str, str]]:
    """Whether a path, or what is inside or around it, is given elsewhere."""
    steps = tuple(path_steps(path))
    for other, how in taken.items():
        shared = min(len(steps), len(other))
        if steps[:shared] != other[:shared] or (len(steps) != len(other) and ("node",) in (steps, other)):
            continue  # a node's name is not around its values: they change whichever node it is
        relation = "it is" if steps == other else "what is inside it is" if shared == len(steps) else "what it is in is"
        yield f"{relation} {how} too", "keep one of them"


def value_problems(sweep: Sweep, base: Mapping[str, Any], unsound: set[str] | None) -> list[Problem]:
    """What the scenario's schema, its nodes and its policies refuse of each value of each axis.

    Each value is checked with the first step of every other axis. If it is refused there, it may be valid with other
    steps of related keys: a value that is refused in all cases is reported here, any other one at its points.

    base: the scenario's values with what a sweep leaves out. unsound: paths of axes that were left out because they are
    wrong, so that what they give is missing; None where anything may be.
    """
    checking = _Checking(sweep)
    firsts = [0] * len(sweep.axes)
    problems = checking.of_the_rest(base)
    common = checking.problems_at(firsts)
    if sweep.axes:
        last = checking.problems_at([len(axis.steps) - 1 for axis in sweep.axes])
        common = [problem for problem in common if problem in last]
    given = None if unsound is None else {path_steps(path)[0] for path in unsound}
    problems += [each for each in common if not (each.what == "is missing" and (given is None or each.place in given))]
    known = set(common)
    for number, axis in enumerate(sweep.axes):
        for step in range(len(axis.steps)):
            result = checking.refused(number, step, known)
            problems += result
            known |= set(result)
    return problems


class _Checking:
    """The schema's view of a sweep; nodes are loaded once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.library = Library(size=256)
        self.heads = [{path_steps(path)[0] for path in axis.paths} for axis in sweep.axes]

    def of_the_rest(self, base: Mapping[str, Any]) -> list[Problem]:
        """Problems of what a sweep leaves out of the scenario, such as its outputs."""
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
        """Problems with this step on each axis; heads: keys of the scenario to look at, by default all."""
        return self._problems(tuple(self.sweep.given(steps)), heads)

    def refused(self, number: int, step: int, known: set[Problem]) -> list[Problem]:
        """Problems of a step of an axis; none where it is accepted in any of the cases that are tried."""
        texts: list[Problem] | None = None
        for given in self._cases(number, step):
            results = [problem for problem in self._problems(given, self.heads[number]) if problem not in known]
            if not results:
                return []
            texts = texts or results
        return texts or []

    def _cases(self, number: int, step: int) -> Iterator[tuple[Given, ...]]:
        """The values of a step with the first of all other axes, then with others of related axes, then alone."""
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
    """A point's scenario, looked at without loading its trace."""

    def look(self, heads: set[int | str] | None) -> None:
        """Notes the problems of these keys; None for all of them."""
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
        elif isinstance(written, dict):
            entry = self.attempt(lambda: validate(ModelledTrace, written, lambda inner: self.where(f"trace.{inner}")))
            if entry is not None:
                network = (entry.zoo, entry.input, repr(entry.variant))
                self.build(lambda: self.library.get(network, entry.network), "trace")
                if entry.gpu is not None:
                    self.gpu_for(entry.gpu, "trace", None, None)
