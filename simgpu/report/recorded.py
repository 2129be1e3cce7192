"""The input of a report: the document of a run and each policy's timeline, from a folder or from memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem
from simgpu.experiments.compare import Comparison
from simgpu.experiments.outputs import REPORT, REPORT_SCHEMA, TABLES, folder_names, report_document, timeline_file
from simgpu.io.input_files import read_json
from simgpu.simulation.addresses import address_ranges
from simgpu.timeline.addresses import ADDRESSES, MemoryRange
from simgpu.timeline.model import Timeline
from simgpu.timeline.reading import read_timeline
from simgpu.trace.columns import BLOCKS, KERNELS, LARGEST
from simgpu.trace.model import Block, Kernel, Origin, OutputLife, TraceInfo
from simgpu.trace.tables import ReadTable, read_table
from simgpu.version import __version__

_RUN = "give a folder that `simgpu run NAME -o DIR` wrote, or a scenario"
_TABLES_OF_TIMELINES = "outputs.timeline: [csv]"
_RERUN = f"run it again: `simgpu run NAME -o DIR`, with {_TABLES_OF_TIMELINES} (the default)"
#: Outputs of other commands, by prefix of the schema in their report.json.
_OTHERS = {
    "simgpu.study-report/": "contains a study",
    "simgpu.search-report/": "contains a search",
    "simgpu.buddy-profile/": "contains a profile of compressed memory",
    "simgpu.sweep": "contains a sweep",
}
#: Required fields and their types, by path in the report.
_TRACE = {"model": str, "batch": int, "dtype": str, "origin": str, "device": str, "tool": str, "date": str}
_NODE = {
    "name": str,
    "gpu.name": str,
    "gpu.memory": int,
    "link.kind": str,
    "link.d2h_bandwidth": int,
    "link.h2d_bandwidth": int,
}
_ENTRY = {"policy": str, "parameters": dict}
_COMPLETED = {
    **dict.fromkeys(("budget_bytes", "iterations", "seed", "epoch"), int),
    "pool": str,
    "timeline.iteration_ends_ns": list,
    **{f"metrics.{key}": int for key in ("iteration_ns", "compute_ns", "overlap_ns")},
    **{f"metrics.{way}_{how}_ns": int for way in ("d2h", "h2d") for how in ("overlapped", "exposed")},
    **{f"metrics.device_peak_{what}": int for what in ("bytes", "used_bytes")},
}
_KINDS: Mapping[type, str] = {str: "a string", int: "an integer", list: "a list", dict: "a mapping"}
#: A policy's entry has one of these in addition to label, policy and parameters.
_OUTCOMES = ("metrics", "out_of_memory", "refused", "error")


@dataclass(frozen=True)
class Ran:
    """One policy of a run.

    entry: its results, as in report.json. name: its unique file name. timeline: None if the run did not complete.
    kernels, blocks: those that the timeline's names refer to. addresses: where blocks and segments were; empty without
    PyTorch's allocator.
    """

    entry: Mapping[str, Any]
    name: str
    timeline: Timeline | None = None
    kernels: tuple[Kernel, ...] = ()
    blocks: tuple[Block, ...] = ()
    addresses: tuple[MemoryRange, ...] = ()

    @property
    def label(self) -> str:
        """The policy with its non-default parameters."""
        return str(self.entry["label"])


@dataclass(frozen=True)
class ReportInput:
    """A run of one or several policies.

    document: content of report.json. runs: the policies, in order. source: path of report.json, empty if none.
    """

    document: Mapping[str, Any]
    runs: tuple[Ran, ...]
    source: str = ""

    @property
    def info(self) -> TraceInfo:
        """The origin of the trace."""
        texts = {name: value for name, value in self.document["trace"].items() if name != "name"}
        output = OutputLife(texts["output"]) if texts.get("output") else None
        return TraceInfo(**{**texts, "origin": Origin(texts["origin"]), "output": output})

    @property
    def title(self) -> str:
        """Name of the scenario, or of the trace and the node."""
        trace, node = self.document["trace"], self.document["node"]
        return str(self.document.get("scenario") or f"{trace['name'] or trace['model']} on {node['name']}")


def recorded_from(comparison: Comparison, about: Mapping[str, Any] | None = None) -> ReportInput:
    """The report input of a comparison. about: facts on the command; by default the version."""
    document = report_document(comparison, {"simgpu": __version__} if about is None else about)
    plain = json.loads(json.dumps(document, allow_nan=False))
    names = folder_names(run.label for run in comparison)
    runs = []
    for run, entry, name in zip(comparison, plain["results"], names, strict=True):
        result = run.result
        if result is None:
            runs.append(Ran(entry, name))
        else:
            graph = result.graph
            tasks = tuple(graph.kernels), tuple(graph.blocks)
            runs.append(Ran(entry, name, result.timeline, *tasks, address_ranges(result)))
    return ReportInput(plain, tuple(runs))


def read_run(folder: str | Path) -> ReportInput:
    """The report input in a folder of `simgpu run`. Raises `InputError` with all missing or damaged data."""
    root = Path(folder)
    document = _document(root)
    runs: list[Ran] = []
    problems: list[Problem] = []
    names = folder_names(entry["label"] for entry in document["results"])
    for entry, name in zip(document["results"], names, strict=True):
        try:
            runs.append(_read_policy(root / name, entry, name) if "metrics" in entry else Ran(entry, name))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return ReportInput(document, tuple(runs), str(root / REPORT))


def _document(root: Path) -> Mapping[str, Any]:
    path = root / REPORT
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "no such folder"
        raise InputError.single(root, "", what, _RUN)
    if not path.exists():
        raise InputError.single(root, "", f"contains no {REPORT}, so it is not the folder of a run", _RUN)
    document = read_json(path, "the report of a run", "run it again")
    schema = str(document.get("schema", "")) if isinstance(document, dict) else ""
    if schema != REPORT_SCHEMA:
        other = next((what for start, what in _OTHERS.items() if schema.startswith(start)), "")
        what = f"{other} (schema {schema!r})" if other else f"schema {schema[:60]!r} is not {REPORT_SCHEMA!r}"
        raise InputError.single(path, "", what, _RUN)
    if "trainings" in document:
        raise InputError.single(path, "", "contains epochs of a training, written by `simgpu epochs`", _RUN)
    problems = [Problem(str(path), place, what, "run it again") for place, what in _missing(document)]
    if problems:
        raise InputError(problems)
    return dict(document)


def _missing(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Missing or invalid fields of a report: place and problem."""
    collected = [
        (name, "is missing or not a mapping") for name in ("trace", "node") if not isinstance(document.get(name), dict)
    ]
    if not collected:
        collected += [*_invalid_fields(document, "trace", _TRACE), *_invalid_fields(document, "node", _NODE)]
    results = document.get("results")
    if not isinstance(results, list) or not results:
        return [*collected, ("results", "is missing or empty")]
    for number, entry in enumerate(results):
        place = f"results[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("label"), str):
            collected.append((place, "is not the entry of a policy"))
        elif not any(name in entry for name in _OUTCOMES):
            collected.append((place, f"has none of {', '.join(_OUTCOMES)}"))
        elif "metrics" in entry and "timeline" not in entry:
            collected.append((place, "has no timeline: it was written by an earlier version of simgpu"))
        else:
            required = {**_ENTRY, **(_COMPLETED if "metrics" in entry else {})}
            collected += _invalid_fields({place: entry}, place, required)
            collected += _invalid_timeline(place, entry.get("timeline"))
    return collected


def _invalid_timeline(place: str, summary: object) -> Iterator[tuple[str, str]]:
    """Invalid ends and capacities in an entry's timeline; a capacity of None is unlimited."""
    if not isinstance(summary, dict):
        return
    ends = summary.get("iteration_ends_ns")
    if isinstance(ends, list) and not (ends and all(type(end) is int and 0 <= end <= LARGEST for end in ends)):
        yield f"{place}.timeline.iteration_ends_ns", "is not a list of integers >= 0"
    for key in ("device_capacity_bytes", "host_capacity_bytes", *_capacities(summary)):
        value = summary.get(key)
        if key not in summary or not (value is None or (type(value) is int and 0 <= value <= LARGEST)):
            yield f"{place}.timeline.{key}", "is missing, or is neither an integer >= 0 nor null"


def _capacities(summary: Mapping[str, Any]) -> dict[str, str]:
    """The keys of capacities in an entry's timeline, with the names of their memories."""
    end = "_capacity_bytes"
    return {key: key.removesuffix(end) for key in summary if isinstance(key, str) and key.endswith(end)}


def _invalid_fields(document: Mapping[str, Any], name: str, required: Mapping[str, type]) -> Iterator[tuple[str, str]]:
    """Required fields below `name` that are missing or have the wrong type."""
    for path, kind in required.items():
        value: Any = document[name]
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            yield f"{name}.{path}", f"is missing or not {_KINDS[kind]}"


def _read_policy(folder: Path, entry: Mapping[str, Any], name: str) -> Ran:
    events = next((folder / timeline_file(form) for form in TABLES if (folder / timeline_file(form)).exists()), None)
    if events is None:
        expected = " or ".join(timeline_file(form) for form in TABLES)
        raise InputError.single(folder, "", f"contains no {expected}, which the report needs", _RERUN)
    summary = entry["timeline"]
    problems: list[Problem] = []
    timeline = None
    try:
        timeline = read_timeline(
            events,
            folder / "memory.csv",
            iteration_ends_ns=summary["iteration_ends_ns"],
            capacities={memory: summary[key] for key, memory in _capacities(summary).items()},
        )
    except InputError as error:
        problems += error.problems
    kernels, blocks = read_table(folder / KERNELS.file, KERNELS), read_table(folder / BLOCKS.file, BLOCKS)
    file = folder / ADDRESSES.file
    # An earlier version wrote no such file.
    addresses = read_table(file, ADDRESSES) if file.exists() else ReadTable[MemoryRange]()
    problems += kernels.problems + blocks.problems + addresses.problems
    if timeline is None or problems:
        raise InputError(problems)
    return Ran(entry, name, timeline, tuple(kernels.rows), tuple(blocks.rows), tuple(addresses.rows))
