"""`record_node` returns a node file of the machine that it runs on, with the source of each number."""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import yaml

from simgpu.errors import InputError, MissingExtraError, Problem
from simgpu.hardware.spec import ArchitectureName
from simgpu.io.schema import put
from simgpu.recorder.machine.bandwidth import (
    DEFAULT_SIZES,
    CopyDevice,
    GpuProperties,
    Speeds,
    measure,
    measure_pageable,
)
from simgpu.recorder.machine.sharing_entries import Entry, SharingEntries, sharing_entries, speed
from simgpu.recorder.machine.together import CopyGroup, measure_together
from simgpu.units import BYTE_UNITS, format_bytes

DEFAULT_REPETITIONS = 20

#: CUDA compute capabilities, newest first, and the architecture that starts at each.
_ARCHITECTURES = (
    ((12, 0), "blackwell-rtx"),
    ((11, 0), "embedded blackwell"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
)
#: Architectures of AMD GPUs by AMD's names for them (LLVM, User Guide for AMDGPU Backend: MI300X is gfx942).
_AMD_ARCHITECTURES = {"gfx942": "cdna3"}
_HEAD = "# Measured by simgpu validate node, which cannot measure peak rates.\n"
#: Comment for an architecture that the time model has parameters for.
_TIMES = "# To model durations, add gpu.fp32_rate and gpu.tensor_rate from the data sheet.\n"
#: Comment for an architecture that the time model has no parameters for.
_NO_TIMES = """\
# gpu.architecture is left out: kernel times cannot be modelled for {}. Recorded traces run on this node.
"""


@dataclass(frozen=True, slots=True)
class HostProperties:
    """Properties that the system reports about the host.

    memory: bytes; None if not reported.
    cores: number of cores; None if not reported.
    cores_are: what was counted as cores.
    """

    memory: int | None
    cores: int | None
    cores_are: str = "physical cores of all processors"


def record_node(
    name: str,
    *,
    device: str = "cuda",
    sizes: Sequence[int] = DEFAULT_SIZES,
    repetitions: int = DEFAULT_REPETITIONS,
    date: str | None = None,
) -> str:
    """Measures this machine's GPU and returns the text of a node file; needs PyTorch and a CUDA device.

    name: name of the node.
    device: ``cuda:N`` for that GPU, ``cuda`` for the first one and all visible GPUs of its kind.
    sizes: copy sizes in bytes, at least two different ones.
    repetitions: copies of each size in each direction; the median counts.
    date: ISO 8601 date of the measurement, by default today.

    Bandwidths between device and (pinned) host are those of the largest copies, one direction at a time. Latency comes
    from a line fitted to all sizes (`bandwidth.fit_latency`). The bandwidth of device memory is what copies inside the
    device reach, which is below the data sheet's peak. Several GPUs also copy at the same time: where they are slower
    than each alone, the file has the switches and the bandwidth of host memory that they share
    (`shared_capacities`). The link is that of the first GPU.

    Raises `InputError` for invalid arguments, a missing device, or one that fails; `MissingExtraError` without PyTorch.

    >>> record_node("mine", sizes=[1024])
    Traceback (most recent call last):
    simgpu.errors.InputError: record_node: sizes: one size cannot show the latency; give at least two different sizes
    """
    _check_arguments(sizes, repetitions, date)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("measuring a node", "torch", "record")
    from simgpu.recorder.machine.cuda_copies import open_device, open_group

    day = date if date is not None else datetime.date.today().isoformat()
    try:
        facts, copies = open_device(device)
        return measured_node(name, facts, copies, open_group(device), host_properties(), sizes, repetitions, day)
    except RuntimeError as error:  # CUDA's errors, such as of a GPU that another program has for itself
        reason = str(error).partition("\n")[0]
        remedy = "end other programs on the GPUs; or choose another GPU with --device or CUDA_VISIBLE_DEVICES"
        raise InputError.single("record_node", "device", f"{device!r} failed: {reason}", remedy) from None


def measured_node(
    name: str,
    facts: GpuProperties,
    copies: CopyDevice,
    group: CopyGroup,
    host: HostProperties,
    sizes: Sequence[int],
    repetitions: int,
    day: str,
) -> str:
    """Returns the text of the node file; the copies can be measured on any `CopyDevice` and `CopyGroup`."""
    speeds = measure(copies, sizes, repetitions)
    by = f"measured by simgpu validate node on {day}"
    description = f"reported by {facts.reported_by} to simgpu validate node on {day}"
    generation, by_name = _architecture(facts)
    has_times = generation in get_args(ArchitectureName)
    median = f"median of {repetitions} copies of {format_bytes(max(sizes))}"
    pinned = f"{by}: {median}, pinned, one way at a time"
    entries = [
        ("gpu.memory", _exact(facts.memory), f"{description}: total memory, including the framework's contexts"),
        (
            "gpu.context_memory",
            _exact(facts.context_memory),
            f"{by} with {facts.reported_by}: memory in use after the CUDA context was created, without the "
            "allocator's, but with that of other programs on the GPU, if there were any",
        ),
        (
            "gpu.architecture",
            generation if has_times else None,
            f"{description}: {by_name}",
        ),
        ("gpu.multiprocessors", facts.multiprocessors, description),
        (
            "gpu.copy_engines",
            _engines(facts),
            f"the driver reports {facts.copy_engines}; at most one per direction is used",
        ),
        ("gpu.dram_bandwidth", speed(speeds.within), f"{by}: {median} inside the device, bytes read plus written"),
        ("link.d2h_bandwidth", speed(speeds.d2h), pinned),
        ("link.h2d_bandwidth", speed(speeds.h2d), pinned),
        ("link.latency", f"{speeds.latency_ns} ns", f"{by}: {_line(speeds, sizes)}"),
        (
            "host.pageable_bandwidth",
            speed(measure_pageable(copies, max(sizes), repetitions)),
            f"{by}: {median}, not pinned, as much out as back, from and to the same memory",
        ),
        ("host.memory", _exact(host.memory), f"reported by the system to simgpu validate node on {day}"),
        ("host.cores", host.cores, f"reported by the system to simgpu validate node on {day}: {host.cores_are}"),
    ]
    known = [entry for entry in entries if entry[1] is not None]
    rates = measure_together(group, max(sizes), repetitions)
    several = sharing_entries(rates, facts.copy_engines, by, median)
    comment = _TIMES if has_times or generation is None else _NO_TIMES.format(generation)
    boards = f"one {facts.name}" if group.count == 1 else f"{group.count} of {facts.name}"
    return _text(name, facts.name, f"{boards}, {by}", known, several, comment)


def _text(name: str, gpu: str, description: str, known: Sequence[Entry], several: SharingEntries, comment: str) -> str:
    """Returns a node file; comment: lines that follow the head."""
    entries = [*known, *several.entries]
    sections: dict[str, object] = {"gpu": {"name": gpu}, "link": {"kind": "host link, as measured"}}
    if several.switches:
        sections["switches"] = [{"gpus": list(gpus)} for gpus in several.switches]
    for key, value, _ in entries:
        put(sections, key, value)
    document = {
        "schema": "simgpu.node/1",
        "name": name,
        "description": description,
        **sections,
        "sources": {key: source for key, _, source in entries},
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10**6)
    return _HEAD + several.comment + comment + text


def architecture(capability: tuple[int, int]) -> str | None:
    """Returns the architecture of a CUDA compute capability; None if it is older than all known ones.

    >>> architecture((7, 5)), architecture((8, 6)), architecture((2, 0))
    ('turing', 'ampere', None)
    """
    return next((name for first, name in _ARCHITECTURES if capability >= first), None)


def _architecture(facts: GpuProperties) -> tuple[str | None, str]:
    """A GPU's architecture, and what it was recognized by."""
    if facts.amd:
        return _AMD_ARCHITECTURES.get(facts.amd, f"AMD's {facts.amd}"), f"AMD's architecture {facts.amd}"
    return architecture(facts.capability), f"compute capability {_dotted(facts.capability)}"


def host_properties(cpu_info: Path = Path("/proc/cpuinfo")) -> HostProperties:
    """Returns memory and cores of this host; threads that share a core count once if the system reports cores."""
    names = getattr(os, "sysconf_names", {})
    pages = "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if pages else None
    cores, socket = set(), ""
    for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines() if cpu_info.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "physical id":
            socket = value.strip()
        elif key.strip() == "core id":
            cores.add((socket, value.strip()))
    return (
        HostProperties(memory, len(cores))
        if cores
        else HostProperties(memory, os.cpu_count(), "hardware threads, since cores are not reported")
    )


def _check_arguments(sizes: Sequence[int], repetitions: int, date: str | None) -> None:
    problems = [
        Problem("record_node", "sizes", f"{size!r} is not a number of bytes", "give whole numbers >= 1")
        for size in sizes
        if type(size) is not int or size < 1
    ]
    if not problems and len(set(sizes)) < 2:
        remedy = "give at least two different sizes"
        problems.append(Problem("record_node", "sizes", "one size cannot show the latency", remedy))
    if type(repetitions) is not int or repetitions < 1:
        what = f"{repetitions!r} is not a number of copies"
        problems.append(Problem("record_node", "repetitions", what, "give a whole number >= 1"))
    if date is not None:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            problems.append(Problem("record_node", "date", f"{date!r} is not a day", "write YYYY-MM-DD"))
    if problems:
        raise InputError(problems)


def _engines(facts: GpuProperties) -> int | None:
    return min(facts.copy_engines, 2) if facts.copy_engines else None


def _line(speeds: Speeds, sizes: Sequence[int]) -> str:
    fitted = f"line through the medians of {len(set(sizes))} sizes from {format_bytes(min(sizes))}"
    return fitted if speeds.latency_ns else f"{fitted}, whose intercept is not above zero"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _exact(size: int | None) -> str | None:
    """Formats a size in the largest binary unit that divides it."""
    if size is None:
        return None
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if size % BYTE_UNITS[unit] == 0), "B")
    return f"{size // BYTE_UNITS[unit]} {unit}"
