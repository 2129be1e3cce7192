"""Reads scenario and study files: applies overrides, collects problems with their places, caches traces and nodes."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from simgpu.errors import InputError, Problem
from simgpu.experiments.scenarios.model import DataParallelSection, PolicyEntry
from simgpu.experiments.scenarios.modelled import ModelledBatches, ModelledTrace, TraceBatches
from simgpu.experiments.scenarios.modelled_configuration import (
    MODEL,
    ModelledConfiguration,
    is_modelled_configuration,
)
from simgpu.graph.replicate import Exchange
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.io.schema import path_steps, put, validate
from simgpu.io.shipped import find
from simgpu.io.yaml_files import YamlMapping
from simgpu.policies.base import Policy
from simgpu.policies.registry import make_policy
from simgpu.program.data_parallel import DataParallel, priced, share_of
from simgpu.simulation.config import RunConfig
from simgpu.simulation.plain_peak import PeakPart
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace
from simgpu.units import format_bytes

_NODE = "node."
#: First parts of the node's keys, to detect a missing prefix.
_NODE_PARTS = ("gpu.", "link.", "host.")
Loaded = TypeVar("Loaded")


def inside_named_trace(values: Mapping[str, Any], key: str, given: Collection[str]) -> tuple[str, str] | None:
    """The problem and remedy of a dotted key inside a trace that is given by its name; None for other keys.

    Only a network of the zoo has subkeys; setting one would replace the trace's name by a mapping.

    values: the file's values
    given: all dotted keys; if they replace the named trace by a network, there is no problem

    >>> inside_named_trace({"trace": "vgg11-cifar-cpu"}, "trace.batch", ["trace.batch"])[0]
    "the trace 'vgg11-cifar-cpu' is given by its name and has one batch; trace.batch applies to a network of the zoo"
    """
    head, *inside = path_steps(key)
    if head not in ("trace", "traces") or len(inside) < (1 if head == "trace" else 2):
        return None
    outer, named = "trace", values.get(head)
    if head == "traces":
        label = inside.pop(0)
        outer, named = f"traces.{label}", named.get(label) if isinstance(named, dict) else None
    if not isinstance(named, str) or not {outer, f"{outer}.zoo", f"{outer}.trace"}.isdisjoint(given):
        return None
    modelled = f"to model a network, write {outer}: {{zoo: NETWORK, batch: N}}"
    what = f"the trace '{named}' is given by its name"
    if inside[0] not in ("batch", "batches"):
        return f"{what}; {key} applies to a network of the zoo", modelled
    recorded = f"'traces: {{LABEL: {{trace: {named}, batches: [16, 32]}}}}' (simgpu study)"
    remedy = f"a study runs a recorded trace at other batches: {recorded}; {modelled}"
    return f"{what} and has one batch; {key} applies to a network of the zoo", remedy


class Reading:
    """Reads a file: holds its values with the overrides applied, and the problems found so far.

    overrides: values by dotted key, including those of the node
    library: cache of traces and nodes loaded by earlier readings
    """

    def __init__(self, document: YamlMapping, overrides: Mapping[str, object], library: Library | None = None) -> None:
        self.document = document
        self.library = library or Library()
        self.changes = {key: value for key, value in overrides.items() if not key.startswith(_NODE)}
        self.node_changes = {key: value for key, value in overrides.items() if key.startswith(_NODE)}
        self.values: dict[str, Any] = copy.deepcopy(dict(document.values))
        self.problems: list[Problem] = []
        for key, value in self.changes.items():
            if wrong := inside_named_trace(self.values, key, self.changes):
                self.problems.append(Problem("override", key, *wrong))
            else:
                put(self.values, key, value)

    def where(self, place: str) -> tuple[str, str]:
        """The file and the place of a dotted key, for messages."""
        if self._is_changed(place):
            return "override", place
        if place not in self.document.lines:
            created = [key for key in self.changes if key.startswith((f"{place}.", f"{place}["))]
            if created:
                return "override", created[0]
        return self.document.file, self.document.place(place)

    def attempt(self, load: Callable[[], Loaded], place: str = "", sections: tuple[str, ...] = ()) -> Loaded | None:
        """The result of `load`; None if it has problems, which are collected.

        place: the place to report problems without a file at
        sections: sections of the file that may change the node, innermost first
        """
        try:
            return load()
        except InputError as error:
            self.problems += [self._at_home(problem, place, sections) for problem in error.problems]
            return None

    def node(self, written: object, place: str, sections: Mapping[str, object]) -> NodeSpec | None:
        """The node named at a place, with the changes of these sections of the file, innermost first."""
        changes: dict[str, object] = {}
        for section in reversed(tuple(sections)):
            changes |= self._node_changes_in(section, sections[section])
        if not (isinstance(written, str) and written):
            return None  # the file's model reports it
        changes |= {key.removeprefix(_NODE): value for key, value in self.node_changes.items()}
        return self.attempt(lambda: self._load_node(written, changes, place), place, tuple(sections))

    def _load_node(self, name: str, changes: Mapping[str, object], place: str) -> NodeSpec:
        base = self._base(place)
        # repr, as the node's name depends on the order of the changes
        return self.library.get(("node", name, base, repr(changes)), lambda: load_node(name, changes, base))

    def trace(self, written: object, place: str, node: NodeSpec | None, node_name: object) -> Trace | None:
        """The trace named at a place, or modelled, by default for the node's GPU."""
        if isinstance(written, str) and written:
            return self.attempt(lambda: self._read_trace(written, place), place)
        if not isinstance(written, dict):
            return None  # the file's model reports it
        if is_modelled_configuration(written):
            return self._configured(written, place, node, node_name)
        entry = self.attempt(lambda: validate(ModelledTrace, written, lambda inner: self.where(f"{place}.{inner}")))
        gpu = self.gpu_for(entry.gpu, place, node, node_name) if entry is not None else None
        if entry is None or gpu is None:
            return None
        return self.build(lambda: self.library.get((entry.model_dump_json(), gpu), partial(entry.trace, *gpu)), place)

    def _configured(
        self, written: Mapping[str, Any], place: str, node: NodeSpec | None, node_name: object
    ) -> Trace | None:
        """The trace of a model that is modelled from its configuration."""
        entry = self.attempt(
            lambda: validate(ModelledConfiguration, written, lambda inner: self.where(f"{place}.{inner}"))
        )
        found = self.node_for(entry.gpu, place, node, node_name) if entry is not None else None
        if entry is None or found is None:
            return None
        base = self._base(f"{place}.{MODEL}")
        key = (entry.model_dump_json(), base, entry.needs(found[0]), found[1])
        return self.build(lambda: self.library.get(key, partial(entry.trace, base, *found)), place)

    def _read_trace(self, name: str, place: str) -> Trace:
        folder = find("traces", name, self._base(place))
        return self.library.get(("trace", folder), partial(read_trace, folder))

    def batches(self, written: Mapping[str, Any], place: str, node: NodeSpec | None, node_name: object) -> list[Trace]:
        """The traces of the sweep of batches at a place; stops at the first that cannot be derived."""
        model: type[TraceBatches | ModelledBatches] = TraceBatches if "trace" in written else ModelledBatches
        entry = self.attempt(lambda: validate(model, written, lambda inner: self.where(f"{place}.{inner}")))
        if entry is None:
            return []
        make = self._maker(entry, place, node, node_name)
        if make is None:
            return []
        results: list[Trace] = []
        for batch in entry.batches:
            trace = self.build(partial(make, batch), place)
            if trace is None:
                break
            results.append(trace)
        return results

    def _maker(
        self, entry: TraceBatches | ModelledBatches, place: str, node: NodeSpec | None, node_name: object
    ) -> Callable[[int], Trace] | None:
        """A function that returns the trace of a sweep at a batch; None if the trace or node could not be read."""
        if isinstance(entry, ModelledBatches):
            gpu = self.gpu_for(entry.gpu, place, node, node_name)
            return None if gpu is None else lambda batch: entry.at(batch, *gpu)
        trace = self.trace(entry.trace, f"{place}.trace", node, node_name)
        if trace is None:
            return None
        from simgpu.workloads.rescale import at_batch

        # the node's file may state more about the GPU than the shipped node of that name
        own = node.gpu if node and node.gpu.is_called(trace.info.device) and node.gpu.architecture else None
        return lambda batch: at_batch(trace, batch, own)

    def node_for(
        self, named: str | None, place: str, node: NodeSpec | None, node_name: object
    ) -> tuple[NodeSpec, str] | None:
        """The node to model for and its name: the node named at a place, or else the file's node."""
        name = str(node_name)
        if named is not None:
            name, at = named, f"{place}.gpu"
            node = self.attempt(lambda: self._load_node(name, {}, at), at)
        return None if node is None else (node, Path(name).stem)

    def gpu_for(
        self, named: str | None, place: str, node: NodeSpec | None, node_name: object
    ) -> tuple[GpuSpec, str] | None:
        """The GPU to model for and the name of its node, as `node_for`."""
        found = self.node_for(named, place, node, node_name)
        return None if found is None else (found[0].gpu, found[1])

    def build(self, make: Callable[[], Loaded], place: str) -> Loaded | None:
        """The result of `make`, or None if it has problems, which are collected at the subkeys of the place."""
        try:
            return make()
        except InputError as error:
            for problem in error.problems:
                located = problem if problem.file else self._located(f"{place}.{problem.place}", problem)
                self.problems.append(located)
            return None

    def policy(self, entry: object, place: str) -> Policy | None:
        """The policy written at a place."""
        try:
            choice = PolicyEntry.read(entry)
        except ValueError:
            return None  # the file's model reports it
        try:
            return make_policy(choice.name, choice.parameters)
        except InputError as error:
            for problem in error.problems:
                inner = problem.place.removeprefix("parameters")
                inside = f"{place}.{choice.name}{inner}" if inner != problem.place and choice.parameters else place
                self.problems.append(self._located(inside, problem))
            return None

    def budget(self, size: int | None, written: object, place: str, node: NodeSpec | None) -> None:
        """Report a budget that exceeds the node's. written: the budget as the message shows it."""
        if size is not None and node is not None and size > node.budget:
            size_text = f" ({format_bytes(size)})" if isinstance(size, PeakPart) else ""
            what = f"{written}{size_text} is more than the {format_bytes(node.budget)} that node {node.name} has"
            self.report(place, what, "lower it, or raise node.gpu.memory")

    def part_of_peak(self, trace: Trace, node: NodeSpec, config: RunConfig, place: str) -> PeakPart | None:
        """The budget in bytes of a config with a percentage; None if the peak is not known, which is reported."""
        try:
            budget = config.with_bytes(trace, node).budget
        except InputError as error:
            for problem in error.problems:
                self.report(place, problem.what, problem.remedy)
            return None
        assert isinstance(budget, PeakPart)
        return budget

    def data_parallel(
        self, section: DataParallelSection | None, place: str, node: NodeSpec | None, batches: Iterable[int]
    ) -> DataParallel | None:
        """The data-parallel setup; None for one GPU.

        Reports a node with too few GPUs, batches that are not divisible, and missing data on the exchange's cost.
        """
        if section is None or section.gpus == 1:
            return None
        how = DataParallel(section.gpus, Exchange(section.exchange), section.cores)
        if node is None:
            return how
        checks: list[Callable[[], object]] = [partial(share_of, batch, how, node) for batch in dict.fromkeys(batches)]
        checks.append(partial(priced, how, node))
        for check in checks:
            try:
                check()
            except InputError as error:
                for problem in error.problems:
                    key = problem.place.removeprefix("argument ")
                    own = key in DataParallelSection.model_fields
                    at = f"{place}.{key}" if own else f"{place}.exchange"
                    what = problem.what if own else f"{section.exchange} needs {problem.place}, which {problem.what}"
                    self.report(at, what, problem.remedy)
        return how

    def report(self, place: str, what: str, remedy: str) -> None:
        """Collect a problem at a place of the file."""
        self.problems.append(Problem(*self.where(place), what, remedy))

    def _located(self, place: str, problem: Problem) -> Problem:
        return Problem(*self.where(place), problem.what, problem.remedy)

    def _at_home(self, problem: Problem, place: str, sections: tuple[str, ...]) -> Problem:
        """A problem, placed in this file if this file names the value that causes it."""
        if problem.file == "override" and problem.place not in self.node_changes:
            for own in (f"{section}.{problem.place}" for section in sections):
                if own in self.document.lines:
                    return Problem(self.document.file, self.document.place(own), problem.what, problem.remedy)
        if problem.file == "override" and problem.place.startswith(_NODE_PARTS) and problem.what == "unknown key":
            return replace(problem, remedy=f"did you mean '{_NODE}{problem.place}'?")
        return problem if problem.file else self._located(place, problem)

    def _is_changed(self, place: str) -> bool:
        return any(place == key or place.startswith((f"{key}.", f"{key}[")) for key in self.changes)

    def _base(self, place: str) -> Path | None:
        """The base folder of a relative path at a place; None for the current folder."""
        return None if self._is_changed(place) else Path(self.document.file).parent

    def _node_changes_in(self, section: str, written: object) -> dict[str, object]:
        own = written if isinstance(written, dict) else {}
        remedy = "overrides takes only node.*, such as 'node.gpu.memory: 8 GiB'; set the file's own keys directly"
        for key in own:
            if not key.startswith(_NODE):
                self.report(f"{section}.{key}", "is not a key of the node", remedy)
        return {key.removeprefix(_NODE): value for key, value in own.items() if key.startswith(_NODE)}


class Library:
    """A cache of the most recently requested values. The key must contain everything a value depends on. Thread-safe.

    Failures are not cached. A file that changes while it is cached is not read again.

    >>> library = Library(size=2)
    >>> [library.get(key, lambda: key.upper()) for key in ("a", "b", "a", "c")], library.get("a", lambda: "again")
    (['A', 'B', 'A', 'C'], 'A')
    """

    def __init__(self, size: int = 32) -> None:
        self._size = size
        self._cached: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """The cached value of a key, else the result of `load`."""
        with self._lock:
            if key not in self._cached:
                self._cached[key] = load()
                if len(self._cached) > self._size:
                    self._cached.popitem(last=False)
            self._cached.move_to_end(key)
            result: Loaded = self._cached[key]
            return result
