"""Reads totals of recorded iterations from the recordings' files, without the importers.

Comparing them with imported traces reveals data that an importer drops or changes.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from simgpu.importers.json_stream import read_unzipped
from simgpu.io.input_files import parse_json, read_text, text_of

#: Names of facts.
KERNELS = "kernels"
COMPUTE = "total kernel time"
TIMELINE = "time from first to last kernel"
CONSTANTS = "constants"
PEAK = "peak memory"


@dataclass(frozen=True, slots=True)
class Fact:
    """A number from a recording's files. what: one of the names above. note: further observations in the files."""

    what: str
    value: int
    note: str = ""


def of_folder(path: Path) -> list[Fact]:
    """Facts of a simgpu trace, from kernels.csv."""
    rows = list(csv.DictReader(read_text(path / "kernels.csv").splitlines()))
    return [Fact(KERNELS, len(rows)), Fact(COMPUTE, sum(int(row["duration_ns"]) for row in rows))]


def of_triosim(path: Path) -> list[Fact]:
    """Facts of a TrioSim recording, from trace.csv (microseconds)."""
    rows = list(csv.DictReader(read_text(path / "trace.csv").splitlines()))
    times = [Decimal(row["Operator_cudatimenooverlap"]) for row in rows]
    return [Fact(KERNELS, len(rows)), Fact(COMPUTE, int(sum(times) * 1000))]


def g10_times(path: Path) -> list[int]:
    """Nanoseconds of the kernels in a G10 file, in order."""
    return [int(Decimal(line.split()[1]) * 10**6) for line in read_text(path).splitlines()]


def of_g10(path: Path) -> list[Fact]:
    """Facts of a G10 folder, from cudnnB.txt (milliseconds); zero if there are several such files."""
    files = [file for file in path.glob("cudnn*.txt") if file.stem.removeprefix("cudnn").isdecimal()]
    times = g10_times(files[0]) if len(files) == 1 else []
    return [Fact(KERNELS, len(times)), Fact(COMPUTE, sum(times))]


def of_profile(path: Path) -> list[Fact]:
    """Facts of a PyTorch profile (microseconds), or of the profile in a folder.

    Empty if it contains several iterations: an import takes only one of them.
    """
    events = _profile(path)
    if sum(str(event.get("name", "")).startswith("ProfilerStep#") for event in events) > 1:
        return []
    kernels = sorted(_work(events, "kernel"), key=lambda event: event["ts"])
    begins = [int(Decimal(str(event["ts"])) * 1000) for event in kernels]
    durations = [int(Decimal(str(event["dur"])) * 1000) for event in kernels]
    ends = [begin + duration for begin, duration in zip(begins, durations, strict=True)]
    facts = [Fact(KERNELS, len(kernels)), Fact(COMPUTE, sum(durations))]
    if len({event.get("args", {}).get("stream") for event in kernels}) == 1:
        facts.append(Fact(TIMELINE, max(ends) - begins[0], _gaps(events, kernels, begins, ends)))
    totals = [
        int(event["args"]["Total Allocated"])
        for event in events
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == 1
    ]
    return [*facts, Fact(PEAK, max(totals))] if totals else facts


def _gaps(events: list[dict[str, Any]], kernels: list[dict[str, Any]], begins: list[int], ends: list[int]) -> str:
    """A note on the gaps between the kernels of a stream and the number of kernels launched late."""
    launched = {
        event["args"]["correlation"]: int(Decimal(str(event["ts"] + event["dur"])) * 1000)
        for event in _work(events, "cuda_runtime")
        if "correlation" in event.get("args", {})
    }
    late = between = count = 0
    for number in range(1, len(kernels)):
        gap = begins[number] - ends[number - 1]
        between += gap
        count += gap > 0
        if launched.get(kernels[number]["args"].get("correlation"), 0) > ends[number - 1]:
            late += 1
    fills = list(_work(events, "gpu_memset"))
    filling = int(sum(Decimal(str(event["dur"])) for event in fills) * 1000)
    return (
        f"ideal runs kernels back to back; the recording has {count} gaps between them, {between:,} ns in total, in "
        f"which {len(fills)} memory fills take {filling:,} ns; {late} of the {len(kernels)} kernels were launched "
        "after the previous one had ended, in which case a GPU waits for its host"
    )


def link_copies(path: Path) -> int:
    """The number of copies between host and GPU in a profile."""
    names = (str(event.get("name", "")) for event in _work(_profile(path), "gpu_memcpy"))
    return sum("HtoD" in name or "DtoH" in name or "Unified" in name for name in names)


def _work(events: list[dict[str, Any]], category: str) -> Iterator[dict[str, Any]]:
    return (event for event in events if event.get("ph") == "X" and event.get("cat") == category)


def _profile(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    for file in files:
        document = parse_json(text_of(read_unzipped(file, 1), file), file)
        if "traceEvents" in document:
            events: list[dict[str, Any]] = document["traceEvents"]
            return events
    return []


def of_dtr(path: Path) -> list[Fact]:
    """Facts of a DTR log: operators and their time, constants, and the peak bytes of storages that have a name."""
    walk = _Storages()
    text = text_of(read_unzipped(path, 1), path)
    lines = [parse_json(line, path) for line in text.splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if line.get("ANNOTATION") == "START")
    for line in lines[start + 1 :]:
        walk.follow(line)
    totals = {KERNELS: walk.calls, COMPUTE: walk.time, CONSTANTS: walk.constants, PEAK: walk.peak}
    return [Fact(what, value) for what, value in totals.items()]


class _Storages:
    """Follows the storages of a log, line by line.

    calls, time: number of operators and their total time, ns.
    constants: bytes of constants.
    live, peak: current and largest total bytes of storages.
    """

    def __init__(self) -> None:
        self.calls = self.time = self.constants = self.live = self.peak = 0
        self._of: dict[str, str] = {}
        self._names: Counter[str] = Counter()
        self._bytes: dict[str, int] = {}
        self._arguments: list[str] = []
        self._constant = ""

    def follow(self, line: dict[str, Any]) -> None:
        match line:
            case {"INSTRUCTION": "CONSTANT", "NAME": name}:
                self._constant = name
            case {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": size}:
                self._bytes[name] = int(size)
                if name == self._constant:
                    self.constants += int(size)
                    self._begin(name)
            case {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": "-1"}:
                self._begin(name)
            case {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": place}:
                self._name(name, self._arguments[int(place)])
            case {"INSTRUCTION": "CALL" | "MUTATE", "ARGS": arguments, "TIME": time}:
                self._arguments = arguments
                self.calls += 1
                self.time += int(time)
            case {"INSTRUCTION": "COPY" | "COPY_FROM", "DST": new, "SRC": old}:
                before = self._of.get(new)
                self._name(new, old)
                self._leave(before)
            case {"INSTRUCTION": "RELEASE", "NAME": name}:
                self._leave(self._of.pop(name))

    def _begin(self, name: str) -> None:
        self._of[name], self._names[name] = name, 1
        self.live += self._bytes[name]
        self.peak = max(self.peak, self.live)

    def _name(self, new: str, old: str) -> None:
        storage = self._of[new] = self._of[old]
        self._names[storage] += 1

    def _leave(self, storage: str | None) -> None:
        if storage is not None:
            self._names[storage] -= 1
            self.live -= 0 if self._names[storage] else self._bytes[storage]


#: Readers by the name of the importer that recognizes a recording.
READERS: dict[str, Callable[[Path], list[Fact]]] = {
    "TrioSim CSV": of_triosim,
    "DTR log": of_dtr,
    "G10 folder": of_g10,
    "PyTorch profile": of_profile,
    "PyTorch profile joined with an execution trace": of_profile,
}
