"""``machine.yaml``: a measured machine on disk.

Imports pydantic, so it is imported only when a file is read.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field

from simgpu.io.schema import Alignment, Bandwidth, FileModel, Size, TimeOrZero, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.units import BANDWIDTH_UNITS, BYTE_UNITS
from simgpu.validation.measured import Copies, MeasuredMachine

FILE = "machine.yaml"
SCHEMA = "simgpu.machine/1"
_HEAD = "# Measured by simgpu validate record.\n"


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"{text!r} is not a day: write 'YYYY-MM-DD'") from None


Text = Annotated[str, Field(min_length=1)]


class CopiesSection(FileModel):
    """How fast copies are, see `Copies`."""

    d2h: Bandwidth
    h2d: Bandwidth
    both_d2h: Bandwidth
    both_h2d: Bandwidth
    latency: TimeOrZero
    blocking: TimeOrZero


class MachineFile(FileModel):
    """The whole file, see `MeasuredMachine`."""

    schema_: Literal["simgpu.machine/1"] = Field(alias="schema")
    device: Text
    kind: Literal["cuda", "cpu"]
    memory: Size
    alignment: Alignment
    copy_engines: Annotated[int, Field(ge=1)]
    launch: TimeOrZero
    saving_waits: bool
    host: Text
    date: Annotated[str, AfterValidator(_day)]
    copies: CopiesSection
    versions: dict[str, str]
    settings: dict[str, str]


def read_machine(path: Path) -> MeasuredMachine:
    """The machine in a file; raises `InputError` with every problem found."""
    document = read_yaml_mapping(path, SCHEMA)
    read = validate(MachineFile, document.values, lambda dotted: (str(path), document.place(dotted)))
    copies = read.copies
    return MeasuredMachine(
        read.device,
        read.kind,
        read.memory,
        read.alignment,
        read.copy_engines,
        Copies(copies.d2h, copies.h2d, copies.both_d2h, copies.both_h2d, copies.latency, copies.blocking),
        read.launch,
        read.host,
        read.date,
        read.versions,
        read.settings,
        read.saving_waits,
    )


def machine_text(machine: MeasuredMachine) -> str:
    """The file's text, from which `read_machine` reads exactly the same numbers."""
    copies = machine.copies
    document = {
        "schema": SCHEMA,
        "device": machine.device,
        "kind": machine.kind,
        "memory": _size(machine.memory),
        "alignment": _size(machine.alignment),
        "copy_engines": machine.copy_engines,
        "launch": f"{machine.launch_ns} ns",
        "saving_waits": machine.saving_waits,
        "host": machine.host,
        "date": machine.date,
        "copies": {
            "d2h": _speed(copies.d2h),
            "h2d": _speed(copies.h2d),
            "both_d2h": _speed(copies.both_d2h),
            "both_h2d": _speed(copies.both_h2d),
            "latency": f"{copies.latency_ns} ns",
            "blocking": f"{copies.blocking_ns} ns",
        },
        "versions": dict(machine.versions),
        "settings": dict(machine.settings),
    }
    return _HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def _size(number: int) -> str:
    """In the largest binary unit of which it is a whole number."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if number % BYTE_UNITS[unit] == 0), "B")
    return f"{number // BYTE_UNITS[unit]} {unit}"


def _speed(number: int) -> str:
    """To the byte per second.

    >>> _speed(54_321_098_765)
    '54.321098765 GB/s'
    """
    return f"{Decimal(number) / BANDWIDTH_UNITS['GB/s']:f} GB/s"
