"""Loading a scenario or a trace by name or path, with every problem in every file they lead to told at once.

Lives here: reading, overriding and cross-checking. Does not live here: the model of the file
(`simgpu.scenario.model`), or running anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from simgpu.errors import InputError, Problem
from simgpu.hardware.nodes import load_node
from simgpu.policies.base import Policy
from simgpu.policies.registry import make_policy
from simgpu.scenario.model import SCHEMA, Outputs, PolicyEntry, Scenario, ScenarioFile
from simgpu.shipped import find
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace
from simgpu.units import format_bytes
from simgpu.validation import put, validate
from simgpu.yamlfile import YamlMapping, read_yaml_mapping

_NODE = "node."
#: What people write who leave that prefix out.
_NODE_PARTS = ("gpu.", "link.", "host.")
Loaded = TypeVar("Loaded")


def load_trace(name_or_path: str | Path, base: Path | None = None) -> Trace:
    """A trace by its shipped name or its folder; a relative path starts at `base`, or at the current folder.

    Raises `InputError` with every problem of the folder's files.
    """
    return read_trace(find("traces", name_or_path, base))


def load_scenario(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Scenario:
    """A scenario by its shipped name or its file, with its trace, node and policies loaded and checked.

    overrides: values by dotted key, of the scenario (``iterations``, ``outputs.folder``) or of its node
    (``node.gpu.memory``), quantities as texts with units. They win over the file's own ``overrides``. A path
    in an override starts at the current folder, one in the file at the file's folder.

    Raises `InputError` with the problems of the scenario, the node, the trace and the policies together.
    """
    return _Loading(read_yaml_mapping(find("scenarios", name_or_path), SCHEMA), dict(overrides or {})).scenario()


def make_scenario(values: Mapping[str, object], source: str, overrides: Mapping[str, object] | None = None) -> Scenario:
    """The scenario that a file with these values would be, where there is no file; paths start at the current folder.

    values: as a file has them, without `schema`. source: what problems name in place of a file. overrides, and what
    is raised: as `load_scenario`.

    >>> made = make_scenario({"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none"}, "an example")
    >>> made.trace.name, made.node.name, made.iterations
    ('resnet20-cifar-cpu', 'laptop-2gb', 3)
    """
    return _Loading(YamlMapping(source, {"schema": SCHEMA, **values}, {}), dict(overrides or {})).scenario()


class _Loading:
    """One scenario on its way in: its values with the overrides in place, and the problems found so far."""

    def __init__(self, document: YamlMapping, overrides: Mapping[str, object]) -> None:
        self.document = document
        self.changes = {key: value for key, value in overrides.items() if not key.startswith(_NODE)}
        self.node_changes = {key: value for key, value in overrides.items() if key.startswith(_NODE)}
        self.values: dict[str, Any] = copy.deepcopy(dict(document.values))
        for key, value in self.changes.items():
            put(self.values, key, value)
        self.problems: list[Problem] = []

    def scenario(self) -> Scenario:
        file = self._attempt(lambda: validate(ScenarioFile, self.values, self._where))
        node = self._attempt(lambda: load_node(self._text("node"), self._node_overrides(), self._base("node")), "node")
        trace = self._attempt(lambda: load_trace(self._text("trace"), self._base("trace")), "trace")
        self._check_policies()
        if file and node and file.budget is not None and file.budget > node.budget:
            what = f"{self.values['budget']} is more than the {format_bytes(node.budget)} that node {node.name} has"
            self.problems.append(Problem(*self._where("budget"), what, "lower it, or raise node.gpu.memory"))
        if self.problems or file is None or node is None or trace is None:
            raise InputError(self.problems)
        outputs = file.outputs
        return Scenario(
            name=file.name or Path(self.document.file).stem,
            description=file.description,
            trace=trace,
            node=node,
            policies=tuple(file.policies),
            budget=file.budget,
            iterations=file.iterations,
            seed=file.seed,
            pool=file.pool,
            alignment=file.alignment,
            outputs=Outputs(
                folder=Path(outputs.folder) if outputs.folder is not None else None,
                timeline=tuple(dict.fromkeys(outputs.timeline)),
                plots=tuple(dict.fromkeys(outputs.plots)),
                image=outputs.image,
            ),
        )

    def _attempt(self, load: Callable[[], Loaded], key: str = "") -> Loaded | None:
        """What `load` gives; its problems are kept, those without a file told at `key`. None if there are any."""
        value = self.values.get(key)
        if key and not (isinstance(value, str) and value):
            return None  # the model of the file has already said so
        try:
            return load()
        except InputError as error:
            self.problems += [self._at_home(problem, key) for problem in error.problems]
            return None

    def _at_home(self, problem: Problem, key: str) -> Problem:
        """A problem as this scenario's reader sees it: in this file when it is this file that names the thing."""
        own = f"overrides.{problem.place}"
        if problem.file == "override" and problem.place not in self.node_changes and own in self.document.lines:
            return Problem(self.document.file, self.document.place(own), problem.what, problem.remedy)
        if problem.file == "override" and problem.place.startswith(_NODE_PARTS) and problem.what == "unknown key":
            return replace(problem, remedy=f"did you mean '{_NODE}{problem.place}'?")
        if problem.file:
            return problem
        file, place = self._where(key)
        return Problem(file, place, problem.what, problem.remedy)

    def _where(self, place: str) -> tuple[str, str]:
        if any(place == key or place.startswith((f"{key}.", f"{key}[")) for key in self.changes):
            return "override", place
        if place not in self.document.lines:
            made = [key for key in self.changes if key.startswith(f"{place}.")]
            if made:
                return "override", made[0]
        return self.document.file, self.document.place(place)

    def _text(self, key: str) -> str:
        return str(self.values[key])

    def _base(self, key: str) -> Path | None:
        return None if key in self.changes else Path(self.document.file).parent

    def _node_overrides(self) -> dict[str, object]:
        own = self.values.get("overrides")
        own = own if isinstance(own, dict) else {}
        foreign = [key for key in own if not key.startswith(_NODE)]
        remedy = "only node.* stands here, for example 'node.gpu.memory: 8 GiB'; set the scenario's own keys directly"
        self.problems += [Problem(*self._where(f"overrides.{key}"), "is not of the node", remedy) for key in foreign]
        both = {key: value for key, value in own.items() if key.startswith(_NODE)} | self.node_changes
        return {key.removeprefix(_NODE): value for key, value in both.items()}

    def _check_policies(self) -> None:
        """Unknown policies, unknown or wrong parameters, and the same policy twice."""
        written = self.values.get("policies")
        entries = [written] if isinstance(written, str | dict) else written if isinstance(written, list) else []
        seen: list[Policy] = []
        for index, entry in enumerate(entries):
            try:
                choice = PolicyEntry.read(entry)
            except ValueError:
                continue  # the model of the file has already said so
            place = f"policies[{index}]" if entries is written else "policies"
            try:
                policy = make_policy(choice.name, choice.parameters)
                if policy in seen:
                    self.problems.append(Problem(*self._where(place), f"{entry!r} is given twice", "keep one of them"))
                seen.append(policy)
            except InputError as error:
                for problem in error.problems:
                    inner = problem.place.removeprefix("parameters")
                    inside = f"{place}.{choice.name}{inner}" if inner != problem.place and choice.parameters else place
                    self.problems.append(Problem(*self._where(inside), problem.what, problem.remedy))
