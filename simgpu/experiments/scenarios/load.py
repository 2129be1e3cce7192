"""`load_scenario` loads a scenario by name or path; its error lists the problems of all files involved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.experiments.scenarios.catalogue import read_file
from simgpu.experiments.scenarios.model import SCHEMA, Outputs, Scenario, ScenarioFile
from simgpu.experiments.scenarios.reading import Reading
from simgpu.experiments.scenarios.sweep_axes import SweepSection, axes_of, count_of, section_problems
from simgpu.graph.work import missing_work
from simgpu.hardware.spec import NodeSpec
from simgpu.io.schema import validate
from simgpu.io.shipped import shipped_folder
from simgpu.io.yaml_files import YamlMapping
from simgpu.policies.base import Policy, policy_label
from simgpu.program.data_parallel import DataParallel
from simgpu.simulation.config import RunConfig
from simgpu.trace.model import Trace


def load_scenario(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Scenario:
    """Load and check a scenario by its shipped name or its file, with its trace, node and policies.

    overrides: values by dotted key, of the scenario (``iterations``, ``outputs.folder``) or of its node
    (``node.gpu.memory``), quantities as texts with units. They take precedence over the file's own ``overrides``.

    Paths in an override are relative to the current folder, paths in the file to the file's folder. Raises `InputError`
    with the problems of the scenario, the node, the trace and the policies together.
    """
    return ScenarioLoading(read_file(name_or_path, SCHEMA), dict(overrides or {})).scenario()


def make_scenario(values: Mapping[str, object], source: str, overrides: Mapping[str, object] | None = None) -> Scenario:
    """Make a scenario from values instead of a file. Paths are relative to the current folder.

    values: the content of a scenario file, without `schema`
    source: name to report problems at, in place of a file
    overrides: as for `load_scenario`, whose errors it raises

    >>> values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none"}
    >>> scenario = make_scenario(values, "an example")
    >>> scenario.trace.name, scenario.node.name, scenario.iterations
    ('resnet20-cifar-cpu', 'laptop-2gb', 3)
    """
    return ScenarioLoading(YamlMapping(source, {"schema": SCHEMA, **values}, {}), dict(overrides or {})).scenario()


class ScenarioLoading(Reading):
    """Loads one scenario, and collects its problems."""

    def scenario(self) -> Scenario:
        """The scenario. Raises `InputError` with every problem found."""
        values = self.values
        file = self.attempt(lambda: validate(ScenarioFile, values, self.where))
        node = self.node(values.get("node"), "node", {"overrides": values.get("overrides")})
        trace = self.trace(values.get("trace"), "trace", node, values.get("node"))
        self.check_policies()
        if file and node and trace and "power" in file.outputs.plots:
            self._check_power(node, trace)
        if file and file.allocator is not None and file.pool != "caching":
            self.report(
                "allocator", "are settings of PyTorch's caching allocator", "give pool: caching too, or leave them out"
            )
        section = file.data_parallel if file else None
        how = self.data_parallel(section, "data_parallel", node, (trace.info.batch,)) if node and trace else None
        points = self._points(file.sweep) if file and file.sweep else 0
        budget = self._budget(file, trace, node, how) if file else None
        if self.problems or file is None or node is None or trace is None:
            raise InputError(map(self._or_swept, self.problems))
        outputs = file.outputs
        return Scenario(
            name=file.name or Path(self.document.file).stem,
            description=file.description,
            trace=trace,
            node=node,
            policies=tuple(file.policies),
            budget=budget,
            iterations=file.iterations,
            epoch=file.epoch,
            seed=file.seed,
            pool=file.pool,
            alignment=file.alignment,
            engine=file.engine,
            allocator=file.allocator,
            outputs=Outputs(
                folder=Path(outputs.folder) if outputs.folder is not None else None,
                timeline=tuple(dict.fromkeys(outputs.timeline)),
                plots=tuple(dict.fromkeys(outputs.plots)),
                image=outputs.image,
            ),
            data_parallel=how,
            swept=f"{points} points, run by: simgpu sweep {self._source}" if points else "",
        )

    def _budget(
        self, file: ScenarioFile, trace: Trace | None, node: NodeSpec | None, how: DataParallel | None
    ) -> int | None:
        """The budget in bytes; None for the node's, or if it could not be computed."""
        given: int | str | None = file.budget
        if isinstance(given, str):
            if self.problems or trace is None or node is None:
                return None  # the peak follows from the rest of the file
            config = RunConfig(
                budget=given,
                iterations=file.iterations,
                pool=file.pool,
                alignment=file.alignment,
                epoch=file.epoch,
                allocator=file.allocator,
                **(how.arguments if how else {}),
            )
            given = self.part_of_peak(trace, node, config, "budget")
        self.budget(given, self.values.get("budget"), "budget", node)
        return given

    @property
    def _source(self) -> str:
        """The file's name on the command line."""
        path = Path(self.document.file)
        return path.stem if path.parent == shipped_folder("scenarios") else self.document.file

    def _points(self, section: SweepSection) -> int:
        """The number of points of the scenario's sweep."""
        self.problems += section_problems(section, self.where)
        return count_of(axes_of(section))

    def _or_swept(self, problem: Problem) -> Problem:
        """The problem; for a missing key that the file's sweep may set, its remedy also names the sweep."""
        if problem.what != "is missing" or "sweep" not in self.document.lines:
            return problem
        return replace(problem, remedy=f"{problem.remedy}, or run the sweep: simgpu sweep {self._source}")

    def _check_power(self, node: NodeSpec, trace: Trace) -> None:
        """Check that node and trace have the data for a figure of the power."""
        if node.gpu.power is None:
            what = f"cannot plot power: node {node.name} does not state the power of its GPU"
            self.report("outputs.plots", what, "remove power, or give gpu.power (configs/README.md)")
        elif missing := missing_work(trace):
            self.report("outputs.plots", f"cannot plot power: {missing}", "remove power")

    def check_policies(self) -> None:
        """Report unknown policies, unknown or invalid parameters, and repeated policies."""
        written = self.values.get("policies")
        entries = [written] if isinstance(written, str | dict) else written if isinstance(written, list) else []
        seen: list[Policy] = []
        for index, entry in enumerate(entries):
            place = f"policies[{index}]" if entries is written else "policies"
            policy = self.policy(entry, place)
            if policy is None:
                continue
            if policy in seen:
                self.report(place, f"{policy_label(policy)} is given twice", "keep one of them")
            seen.append(policy)
