"""A sweep: one scenario at many points, which are loaded on request; and digests of the files it reads."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from simgpu.errors import InputError
from simgpu.experiments.scenarios.load import ScenarioLoading
from simgpu.experiments.scenarios.model import Scenario
from simgpu.experiments.scenarios.reading import Library
from simgpu.experiments.scenarios.sweep_axes import Axis, count_of, steps_of
from simgpu.hardware.layering import read_layered
from simgpu.hardware.nodes import SCHEMA
from simgpu.hardware.spec import NodeSpec
from simgpu.io.input_files import open_input, pieces
from simgpu.io.schema import put
from simgpu.io.shipped import Kind, find
from simgpu.io.yaml_files import YamlMapping

NODE_VALUE = "node."


class Given(NamedTuple):
    """A value that a point sets. path: its key. place: its place in the file. changed: whether an override sets it."""

    path: str
    value: object
    place: str
    changed: bool


@dataclass(frozen=True, repr=False, eq=False)
class Sweep:
    """A checked scenario and the axes along which it varies. A point can only fail by the files loaded for it.

    source: its name on the command line
    document: the scenario without its sweep and without keys that do not change results
    overrides: overrides of the scenario, by path
    lines: line numbers of the sweep section, by place
    folder: base of relative paths in the file
    here: base of relative paths in overrides
    """

    name: str
    description: str
    source: str
    document: YamlMapping
    overrides: Mapping[str, object]
    axes: tuple[Axis, ...]
    lines: Mapping[str, int]
    folder: Path
    here: Path

    @property
    def count(self) -> int:
        """The number of points."""
        return count_of(self.axes)

    def __len__(self) -> int:
        return self.count

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that vary, in the order of the axes."""
        return tuple(path for axis in self.axes for path in axis.paths)

    def values(self, point: int) -> dict[str, object]:
        """The values that a point sets, by path, as written. Points count from 0; the last axis varies fastest.

        >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
        >>> sweep = load_sweep("memory-sweep")
        >>> sweep.count, sweep.values(2)
        (10, {'budget': '24 MiB', 'node.link.d2h_bandwidth': '1 GB/s', 'node.link.h2d_bandwidth': '1 GB/s'})
        """
        return {given.path: given.value for given in self.given(steps_of(self.axes, point))}

    def given(self, steps: Iterable[int]) -> Iterator[Given]:
        """The values at a step of each axis."""
        for axis, step in zip(self.axes, steps, strict=True):
            for path, value in axis.steps[step].items():
                yield Given(path, value, axis.place(path, step), axis.changed)

    def scenario(self, point: int) -> Scenario:
        """Load and check the scenario of a point. Raises `InputError` for problems that only loading shows."""
        return Points(self).scenario(point)

    def points(self) -> Points:
        """All points; their scenarios share loaded traces and nodes."""
        return Points(self)

    def inputs(self) -> dict[str, str]:
        """Digests of the traces and nodes that the sweep names, by ``trace NAME`` and ``node NAME``."""
        return digests_of(self)

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.count} points"]
        for axis in self.axes:
            steps = len(axis.steps)
            lines.append(f"  {', '.join(axis.paths)}: {steps} {'step' if steps == 1 else 'steps'}")
        return "\n".join(lines)


class Points:
    """The scenarios of a sweep's points. Traces and nodes that several of them need are loaded once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._library = Library()

    def scenario(self, point: int) -> Scenario:
        """Load and check the scenario of a point."""
        sweep = self.sweep
        return PointLoading(sweep, sweep.given(steps_of(sweep.axes, point)), self._library).scenario()

    def nodes(self) -> Iterator[NodeSpec]:
        """The nodes at the first point, and at each step of the axes that change the node; without invalid ones."""
        changing = [any(path.split(".")[0] == "node" for path in axis.paths) for axis in self.sweep.axes]
        first = tuple(0 for _ in changing)
        steps = [
            (*first[:number], step, *first[number + 1 :])
            for number, (axis, changes) in enumerate(zip(self.sweep.axes, changing, strict=True))
            for step in range(len(axis.steps) if changes else 0)
        ]
        for each in dict.fromkeys([first, *steps]):
            loading = PointLoading(self.sweep, self.sweep.given(each), self._library)
            values = loading.values
            if node := loading.node(values.get("node"), "node", {"overrides": values.get("overrides")}):
                yield node

    def policies(self, point: int) -> list[object]:
        """The policies of a point as written."""
        sweep = self.sweep
        written = PointLoading(sweep, sweep.given(steps_of(sweep.axes, point))).values.get("policies")
        return written if isinstance(written, list) else [written]


class PointLoading(ScenarioLoading):
    """Loads a sweep's scenario with the values of a point."""

    def __init__(self, sweep: Sweep, given: Iterable[Given], library: Library | None = None) -> None:
        values = tuple(given)
        changes = {each.path: each.value for each in values if each.changed}
        document = _with(sweep, [each for each in values if not each.changed])
        super().__init__(document, {**sweep.overrides, **changes}, library)
        self._sweep = sweep

    def _base(self, place: str) -> Path | None:
        return self._sweep.here if self._is_changed(place) else self._sweep.folder


def _with(sweep: Sweep, given: Iterable[Given]) -> YamlMapping:
    """The scenario's document with these values, whose line numbers are those of the sweep section."""
    values: dict[str, Any] = copy.deepcopy(dict(sweep.document.values))
    lines = dict(sweep.document.lines)
    for path, value, place, _ in given:
        at = f"overrides.{path}" if path.startswith(NODE_VALUE) else path
        for line in [line for line in lines if line.startswith((f"{at}.", f"{at}["))]:
            del lines[line]
        lines[at] = sweep.lines.get(place, 0)
        if path.startswith(NODE_VALUE):
            others = {key: other for key, other in (values.get("overrides") or {}).items() if key != path}
            values["overrides"] = {**others, path: value}  # later entries take precedence
        else:
            put(values, path, copy.deepcopy(value))
    return replace(sweep.document, values=values, lines={place: line for place, line in lines.items() if line})


_WORDS: Mapping[Kind, str] = {"traces": "trace", "configs": "node"}


class Named(NamedTuple):
    """A trace or node as named in a scenario, and the base folder of its path."""

    kind: Kind
    name: str
    folder: Path

    @property
    def title(self) -> str:
        """Its kind and name, for example ``trace NAME``."""
        return f"{_WORDS[self.kind]} {self.name}"


def digests_of(sweep: Sweep) -> dict[str, str]:
    """SHA-256 of each trace's and each node's files by ``trace NAME`` and ``node NAME``, sorted.

    The digest is ``missing`` if the files cannot be read.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> list(digests_of(load_sweep("memory-sweep")))
    ['node laptop-2gb', 'trace resnet20-cifar-cpu']
    """
    return {named.title: _digest(named) for named in sorted(set(_named(sweep)))}


def _named(sweep: Sweep) -> Iterator[Named]:
    """The traces and nodes that the scenario and each step of each axis name."""
    yield from _in(sweep.document.values, sweep.folder)
    yield from _in(sweep.overrides, sweep.here)
    for axis in sweep.axes:
        for step in axis.steps:
            yield from _in(step, sweep.here if axis.changed else sweep.folder)


def _in(values: Mapping[str, object], folder: Path) -> Iterator[Named]:
    trace = values.get("trace")
    gpus: Iterable[object] = (
        values.get("node"),
        values.get("trace.gpu"),
        trace.get("gpu") if isinstance(trace, dict) else None,
    )
    if isinstance(trace, str):
        yield Named("traces", trace, folder)
    for name in gpus:
        if isinstance(name, str):
            yield Named("configs", name, folder)


def _digest(named: Named) -> str:
    try:
        path = find(named.kind, named.name, named.folder)
        if named.kind == "traces":
            files = sorted(file for file in path.iterdir() if file.is_file())
        else:
            files = [Path(document.file) for document in read_layered(path, SCHEMA).files]
        digest = hashlib.sha256()
        for file in files:
            with open_input(file) as stream:
                digest.update(f"{file.name}\0{os.fstat(stream.fileno()).st_size}\0".encode())
                for piece in pieces(stream, file):
                    digest.update(piece)
    except (OSError, InputError):
        return "missing"
    return digest.hexdigest()
