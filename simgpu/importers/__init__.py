"""Imports recordings of other tools: the list of formats, format detection, and `import_trace`.

Each format has its own module or package, whose docstring lists the import rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from simgpu.errors import InputError
from simgpu.importers import dtr, execution_trace, g10, triosim
from simgpu.importers.chakra import forms
from simgpu.importers.chakra import load as chakra
from simgpu.importers.kineto import load as kineto
from simgpu.importers.options import ImportOptions
from simgpu.importers.snapshot.load import is_snapshot
from simgpu.io.free_memory import require_memory
from simgpu.io.input_files import require_regular, unreadable
from simgpu.trace.allocation_folder import is_allocation_folder
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace

__all__ = ["IMPORTERS", "ImportOptions", "Importer", "detect", "has_only_allocations", "import_trace"]


@dataclass(frozen=True, slots=True)
class Importer:
    """One format: its name, a description of its files, and functions that recognise and load them.

    read_at_once: glob patterns of the files that are loaded into memory completely; "" is the recording itself. Empty
        for streamed formats, which limit their own memory.
    memory_factor: peak bytes of memory per byte of these files, as counted by Python. Measured; tests check it.
    """

    name: str
    looks_like: str
    recognises: Callable[[Path], bool]
    load: Callable[[Path, ImportOptions], Trace]
    read_at_once: tuple[str, ...] = ()
    memory_factor: int = 0

    def files(self, path: Path) -> list[Path]:
        """The files of a recording that are loaded into memory completely."""
        return [file for name in self.read_at_once for file in (sorted(path.glob(name)) if name else [path])]


_PROFILE = Importer("PyTorch profile", "JSON of torch.profiler, plain or gzip", kineto.recognises, kineto.load)
_JOINED = Importer(
    "PyTorch profile joined with an execution trace",
    "a folder with one of each, or a profile and --execution-trace",
    kineto.recognises_folder,
    kineto.load_folder,
)

_TRIOSIM_FILES = ("trace.csv", "tensor.csv")
_G10_FILES = ("kernels.config", "tensors.config", "cudnn*[0-9].txt", "cudnn*Workspace.txt")

#: All formats, in the order in which they are tried.
IMPORTERS: tuple[Importer, ...] = (
    Importer(
        "TrioSim CSV",
        "a folder with trace.csv and tensor.csv",
        triosim.recognises,
        triosim.load,
        read_at_once=_TRIOSIM_FILES,
        memory_factor=9,
    ),
    Importer(
        "DTR log",
        "lines of JSON, each with an INSTRUCTION, plain or gzip",
        dtr.recognises,
        dtr.load,
        read_at_once=("",),
        memory_factor=dtr.MEMORY_FACTOR,
    ),
    Importer(
        "G10 folder",
        "a folder with kernels.config, tensors.config and cudnnB.txt",
        g10.recognises,
        g10.load,
        read_at_once=_G10_FILES,
        memory_factor=4,
    ),
    Importer("Chakra trace", "MLCommons Chakra: protobuf (.et), or JSON of its tools", forms.recognises, chakra.load),
    _PROFILE,
    _JOINED,
    Importer(
        "PyTorch execution trace",
        "JSON of its observer, without times",
        execution_trace.recognises,
        execution_trace.load,
    ),
)


def detect(path: str | Path) -> Importer:
    r"""The importer for a recording, detected by its content; `InputError` for an unknown format.

    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "net-b4.log"
    >>> _ = log.write_text('{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}\n')
    >>> detect(log).name
    'DTR log'
    """
    source = Path(path)
    if not source.exists():
        raise InputError.single(source, "", "no such file or folder", "check the path")
    if source.is_dir() and is_allocation_folder(source):
        what = "is an allocation trace already"
        raise InputError.single(source, "", what, f"use it directly, for example: simgpu memory {source}")
    if source.is_dir() and (source / "trace.yaml").exists():
        raise InputError.single(source, "", "is a simgpu trace already", "use it directly, without importing")
    if not source.is_dir():
        require_regular(source, "a recording")
    if source.is_file() and not source.stat().st_size:
        raise InputError.single(source, "", "is empty", "record it again")
    try:
        for importer in IMPORTERS:
            if importer.recognises(source):
                return importer
    except OSError as error:
        raise unreadable(source, error) from None
    if source.is_file() and is_snapshot(source):
        what = "looks like a PyTorch memory snapshot: these have allocations, but no kernels"
        remedy = f"explain one with: simgpu memory {source}; or add the profile of the same run (--profile)"
        raise InputError.single(source, "", what, remedy)
    known = "; ".join(f"{importer.name} ({importer.looks_like})" for importer in IMPORTERS)
    raise InputError.single(source, "", "not a recording of a known format", f"known formats: {known}")


def has_only_allocations(path: Path) -> bool:
    """Whether a file looks like a PyTorch memory snapshot, and like no recording with kernels."""
    return path.is_file() and is_snapshot(path) and not any(importer.recognises(path) for importer in IMPORTERS)


def import_trace(path: str | Path, options: ImportOptions | None = None) -> tuple[Trace, str]:
    r"""Returns the recording at a path as a checked trace, and the name of its detected format.

    options: facts that the recording does not contain (batch, device, dtype, model, date); for a PyTorch profile also
        the execution trace to join with it, and the number of the iteration to import.
    Raises `InputError` if the format is unknown, or if the recording is damaged or larger than the free memory.

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
    >>> trace, recognised = import_trace(log, ImportOptions(device="Titan V"))
    >>> recognised, trace.info.batch, [kernel.op for kernel in trace.kernels]
    ('DTR log', 4, ['relu'])
    """
    options = options or ImportOptions()
    importer = _with_other_recordings(detect(path), path, options)
    require_memory(Path(path), importer.files(Path(path)), importer.memory_factor)
    trace = importer.load(Path(path), options)
    trace = replace(trace, name=trace.info.model)
    if problems := check_trace(trace):
        raise InputError([replace(problem, file=str(path)) for problem in problems])
    return trace, importer.name


def _with_other_recordings(importer: Importer, path: str | Path, options: ImportOptions) -> Importer:
    """The importer to use with these options; `InputError` if an option applies only to profiles, and this is none."""
    others = {"an execution trace": options.execution_trace, "a memory snapshot": options.snapshot}
    given = [what for what, file in others.items() if file is not None]
    if importer is _PROFILE and given:
        return replace(_JOINED, name=f"{_PROFILE.name} joined with {' and '.join(given)}", load=kineto.load)
    if importer is _JOINED and given == ["a memory snapshot"]:
        return replace(_JOINED, name=f"{_JOINED.name} and a memory snapshot")
    if not given and (options.iteration is None or importer in (_PROFILE, _JOINED)):
        return importer
    option = given[0] if given else "the number of an iteration"
    what = f"is a {importer.name}; {option} applies only to a PyTorch profile"
    raise InputError.single(path, "", what, "omit it, or give the path of a PyTorch profile")
