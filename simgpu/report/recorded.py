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
from simgpu.timeline.model import Timeline
from simgpu.timeline.reading import read_timeline
from simgpu.trace.columns import BLOCKS, KERNELS, LARGEST
from simgpu.trace.model import Block, Kernel, Origin, OutputLife, TraceInfo
from simgpu.trace.tables import read_table
from simgpu.version import __version__

_RUN = "give a folder that `simgpu run NAME -o DIR` wrote, or a scenario"
_TABLES_OF_TIMELINES = "outputs.timeline: [csv]"
_AGAIN = f"run it again: `simgpu run NAME -o DIR`, with {_TABLES_OF_TIMELINES} as it is by default"
#: What other commands write, by how the schema of their report.json begins.
_OTHERS = {
    "simgpu.study-report/": "holds a study",
    "simgpu.search-report/": "holds a search",
    "simgpu.buddy-profile/": "holds a profile of compressed memory",
    "simgpu.sweep": "holds a sweep",
}
#: What the page needs of every run, by its place in the report's mappings.
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
_ENDED = {
    **dict.fromkeys(("budget_bytes", "iterations", "seed", "epoch"), int),
    "pool": str,
    "timeline.iteration_ends_ns": list,
    **{f"metrics.{key}": int for key in ("iteration_ns", "compute_ns", "overlap_ns")},
    **{f"metrics.{way}_{how}_ns": int for way in ("d2h", "h2d") for how in ("overlapped", "exposed")},
    **{f"metrics.device_peak_{what}": int for what in ("bytes", "used_bytes")},
}
_KINDS: Mapping[type, str] = {str: "a text", int: "a whole number", list: "a list", dict: "a mapping"}
#: A policy's entry has one of these in addition to label, policy and parameters.
_OUTCOMES = ("metrics", "out_of_memory", "refused", "error")


@dataclass(frozen=True)
class Ran:
    """One policy of a run. entry: its numbers, as report.json has them. name: for files, of its own among the policies.

    timeline: what happened; None where the run did not come to its end. kernels, blocks: what its names stand for.
    """

    entry: Mapping[str, Any]
    name: str
    timeline: Timeline | None = None
    kernels: tuple[Kernel, ...] = ()
    blocks: tuple[Block, ...] = ()

    @property
    def label(self) -> str:
        """The policy with the parameters that are not its defaults."""
        return str(self.entry["label"])


@dataclass(frozen=True)
class ReportInput:
    """A run of one or several policies. document: report.json; runs: the policies in its order; source: the file, empty
    where there is none."""

    document: Mapping[str, Any]
    runs: tuple[Ran, ...]
    source: str = ""

    @property
    def info(self) -> TraceInfo:
        """Where the trace comes from."""
        texts = {name: value for name, value in self.document["trace"].items() if name != "name"}
        output = OutputLife(texts["output"]) if texts.get("output") else None
        return TraceInfo(**{**texts, "origin": Origin(texts["origin"]), "output": output})

    @property
    def title(self) -> str:
        """The scenario, or the trace on the node."""
        trace, node = self.document["trace"], self.document["node"]
        return str(self.document.get("scenario") or f"{trace['name'] or trace['model']} on {node['name']}")


def recorded_from(comparison: Comparison, about: Mapping[str, Any] | None = None) -> ReportInput:
    """The input from a comparison. about: facts of the command; by default the version."""
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
            runs.append(Ran(entry, name, result.timeline, tuple(graph.kernels), tuple(graph.blocks)))
    return ReportInput(plain, tuple(runs))


def read_run(folder: str | Path) -> ReportInput:
    """The input from a folder of `simgpu run`; `InputError` with everything that is missing or damaged in it."""
    home = Path(folder)
    document = _document(home)
    runs: list[Ran] = []
    problems: list[Problem] = []
    names = folder_names(entry["label"] for entry in document["results"])
    for entry, name in zip(document["results"], names, strict=True):
        try:
            runs.append(_read_policy(home / name, entry, name) if "metrics" in entry else Ran(entry, name))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return ReportInput(document, tuple(runs), str(home / REPORT))


def _document(home: Path) -> Mapping[str, Any]:
    path = home / REPORT
    if not home.is_dir():
        what = "is not a folder" if home.exists() else "no such folder"
        raise InputError.single(home, "", what, _RUN)
    if not path.exists():
        raise InputError.single(home, "", f"holds no {REPORT}: no run of simgpu wrote it", _RUN)
    document = read_json(path, "the report of a run", "run it again")
    schema = str(document.get("schema", "")) if isinstance(document, dict) else ""
    if schema != REPORT_SCHEMA:
        other = next((what for start, what in _OTHERS.items() if schema.startswith(start)), "")
        what = f"{other} (schema {schema!r})" if other else f"schema {schema[:60]!r} is not {REPORT_SCHEMA!r}"
        raise InputError.single(path, "", what, _RUN)
    if "trainings" in document:
        raise InputError.single(path, "", "holds trainings over epochs, of `simgpu epochs`", _RUN)
    problems = [Problem(str(path), place, what, "run it again") for place, what in _missing(document)]
    if problems:
        raise InputError(problems)
    return dict(document)


def _missing(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Places of a report at which something is not there that every run writes."""
    collected = [
        (name, "is missing or not a mapping") for name in ("trace", "node") if not isinstance(document.get(name), dict)
    ]
    if not collected:
        collected += [*_lacking(document, "trace", _TRACE), *_lacking(document, "node", _NODE)]
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
            collected.append((place, "has no timeline: an earlier simgpu wrote it"))
        else:
            collected += _lacking({place: entry}, place, {**_ENTRY, **(_ENDED if "metrics" in entry else {})})
            collected += _wrong_in_timeline(place, entry.get("timeline"))
    return collected


def _wrong_in_timeline(place: str, text: object) -> Iterator[tuple[str, str]]:
    """Places of an entry at which the timeline's ends and capacities, None without limit, are not numbers."""
    if not isinstance(text, dict):
        return
    ends = text.get("iteration_ends_ns")
    if isinstance(ends, list) and not (ends and all(type(end) is int and 0 <= end <= LARGEST for end in ends)):
        yield f"{place}.timeline.iteration_ends_ns", "is not a list of whole numbers >= 0"
    for key in ("device_capacity_bytes", "host_capacity_bytes"):
        if key not in text or not (text[key] is None or (type(text[key]) is int and 0 <= text[key] <= LARGEST)):
            yield f"{place}.timeline.{key}", "is missing or neither a whole number >= 0 nor null"


def _lacking(document: Mapping[str, Any], name: str, wanted: Mapping[str, type]) -> Iterator[tuple[str, str]]:
    """Places below `name` at which there is not what should be there: another simgpu, or another hand, wrote it."""
    for path, kind in wanted.items():
        value: Any = document[name]
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            yield f"{name}.{path}", f"is missing or not {_KINDS[kind]}"


def _read_policy(home: Path, entry: Mapping[str, Any], name: str) -> Ran:
    result = next((home / timeline_file(form) for form in TABLES if (home / timeline_file(form)).exists()), None)
    if result is None:
        wanted = " or ".join(timeline_file(form) for form in TABLES)
        raise InputError.single(home, "", f"holds no {wanted}, which the timeline is drawn from", _AGAIN)
    text = entry["timeline"]
    problems: list[Problem] = []
    timeline = None
    try:
        timeline = read_timeline(
            result,
            home / "memory.csv",
            iteration_ends_ns=text["iteration_ends_ns"],
            device_capacity=text["device_capacity_bytes"],
            host_capacity=text["host_capacity_bytes"],
        )
    except InputError as error:
        problems += error.problems
    kernels, blocks = read_table(home / KERNELS.file, KERNELS), read_table(home / BLOCKS.file, BLOCKS)
    problems += kernels.problems + blocks.problems
    if timeline is None or problems:
        raise InputError(problems)
    return Ran(entry, name, timeline, tuple(kernels.rows), tuple(blocks.rows))
