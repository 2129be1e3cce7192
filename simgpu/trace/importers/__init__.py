"""Bringing in recordings that other tools made.

Lives here: recognising a recording by what is in it, and the list of formats. Each format has its own module with
the rules by which it is read. Does not live here: writing the trace (`simgpu.trace.folder`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.importers import dtr, g10, triosim
from simgpu.trace.importers.provenance import Told
from simgpu.trace.model import Trace

__all__ = ["IMPORTERS", "Importer", "Told", "detect", "import_trace"]


@dataclass(frozen=True, slots=True)
class Importer:
    """One format: what it is called, what gives it away, how to tell it and how to read it."""

    name: str
    looks_like: str
    recognises: Callable[[Path], bool]
    load: Callable[[Path, Told], Trace]


#: All formats, in the order in which they are tried.
IMPORTERS: tuple[Importer, ...] = (
    Importer("TrioSim CSV", "a folder with trace.csv and tensor.csv", triosim.recognises, triosim.load),
    Importer("DTR log", "lines of JSON, each with an INSTRUCTION", dtr.recognises, dtr.load),
    Importer("G10 folder", "a folder with kernels.config, tensors.config and cudnnB.txt", g10.recognises, g10.load),
)


def detect(path: str | Path) -> Importer:
    r"""The importer for a recording, found by its content; `InputError` when none knows it.

    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "net-b4.log"
    >>> _ = log.write_text('{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}\n')
    >>> detect(log).name
    'DTR log'
    """
    source = Path(path)
    if not source.exists():
        raise InputError.single(source, "", "no such file or folder", "check the path")
    if source.is_dir() and (source / "trace.yaml").exists():
        raise InputError.single(source, "", "is a simgpu trace already", "use it as it is, without importing")
    if source.is_file() and not source.stat().st_size:
        raise InputError.single(source, "", "is empty", "record it again")
    for importer in IMPORTERS:
        if importer.recognises(source):
            return importer
    known = "; ".join(f"{importer.name} ({importer.looks_like})" for importer in IMPORTERS)
    raise InputError.single(source, "", "not a recording of a known format", f"known formats: {known}")


def import_trace(path: str | Path, told: Told | None = None) -> tuple[Trace, str]:
    r"""The recording at a path as a checked trace, and the name of the format it was recognised as.

    told: what the user knows and the recording does not say (batch, device, dtype, model, date).
    Raises `InputError` when the format is unknown or the recording is damaged.

    >>> import json, tempfile
    >>> instructions = [
    ...     {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"},
    ...     {"INSTRUCTION": "CONSTANT", "NAME": "x"},
    ...     {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"},
    ...     {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["x"], "RESULT": ["y"], "TIME": "5"},
    ...     {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "64"},
    ...     {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"},
    ... ]
    >>> log = Path(tempfile.mkdtemp()) / "net-b4.log"
    >>> _ = log.write_text("".join(json.dumps(line) + "\n" for line in instructions))
    >>> trace, recognised = import_trace(log, Told(device="Titan V"))
    >>> recognised, trace.info.batch, [kernel.op for kernel in trace.kernels]
    ('DTR log', 4, ['relu'])
    """
    importer = detect(path)
    trace = importer.load(Path(path), told or Told())
    trace = replace(trace, name=trace.info.model)
    if problems := check_trace(trace):
        raise InputError([replace(problem, file=str(path)) for problem in problems])
    return trace, importer.name
