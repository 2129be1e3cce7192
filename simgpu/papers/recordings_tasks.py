"""Comparisons with recordings as tasks, which `reproduce` runs in parallel and caches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers import detect
from simgpu.io.input_files import open_input, pieces
from simgpu.io.shipped import shipped_folder, shipped_names
from simgpu.papers.cache import ResultCache
from simgpu.papers.recordings import Compared, Managed, NotCompared, Recordings, Trial
from simgpu.papers.recordings_managed import compare_managed, fault_files
from simgpu.papers.recordings_operands import FAULTS
from simgpu.papers.recordings_runs import compare, is_trace
from simgpu.trace.header import read_header
from simgpu.trace.model import Origin

#: Depth of the search for recordings in subfolders.
_DEPTH = 4
#: Nodes of known recordings, by path in the folder of recordings.
KNOWN: Mapping[str, str] = {
    "h100-triosim/vgg13": "h100",
    "h100-kineto": "h100",
    "titanv-dtr/resnet32-b56.log": "titan-v",
    "titanv-dtr/densenet121-b84.log": "titan-v",
    "titanv-dtr/unet-b6.log": "titan-v",
    "titanv-dtr/transformer-b10.log": "titan-v",
    "a100-g10/bert-256": "a100",
    "a100-g10/vit-256": "a100",
}
#: The node with the GPU of G10's authors, for G10 recordings that are not in `KNOWN`.
_G10_NODE = "a100"
_PROFILES = "PyTorch profile", "PyTorch profile joined with an execution trace"


@dataclass(frozen=True, slots=True, order=True)
class RecordingTask:
    """A comparison with a recording.

    name: shown in tables.
    path: of the recording.
    gpu: node with the recording's GPU; empty if the trace names the device.
    part: ``ideal``, or one of `simgpu.papers.recordings_operands.FAULTS`.
    """

    name: str
    path: str
    gpu: str
    part: str = "ideal"

    @property
    def group(self) -> tuple[str, ...]:
        """A group of only this task."""
        return ("recording", self.name, self.gpu, self.part)

    @property
    def key(self) -> str:
        """Identifies the comparison, the contents of its files, and this code."""
        return "\n".join((*self.group, _hash(Path(self.path)), _source()))

    def work(self) -> object:
        """Compare; returns rows as plain data."""
        path = Path(self.path)
        if self.part != "ideal":
            return asdict(compare_managed(self.name, path, self.gpu or _G10_NODE, self.part))
        rows = [asdict(row) for row in compare(self.name, path, self.gpu)]
        return {"compared": rows, "unmanaged": _unmanaged(path)}


def _hash(path: Path) -> str:
    """A hash of a file, or of all files in a folder."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with open_input(file) as stream:
            for piece in pieces(stream, file):
                digest.update(piece)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@lru_cache
def _source() -> str:
    """A hash of the modules that compare: cached results are valid only for the same code."""
    digest = hashlib.sha256()
    for path in sorted(Path(str(files("simgpu.papers"))).glob("recordings*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _unmanaged(path: Path) -> str:
    """Why a recording has no managed run to compare with; empty if it has one or is a simgpu trace."""
    if is_trace(path) or fault_files(path):
        return ""
    if detect(path).name not in _PROFILES:
        return "no managed run: the format has no copies or faults"
    from simgpu.papers.recordings_files import link_copies

    copies = link_copies(path)
    if not copies:
        return "no managed run: no copy over the link is recorded"
    return f"{copies} copies over the link are recorded, but not whether they were for memory management"


def recording_tasks(folder: str | Path | None = None) -> list[RecordingTask]:
    """The comparisons with shipped recorded traces, and with the recordings in a folder if one is given.

    Raises `InputError` if the folder does not exist.

    >>> sorted({task.part for task in recording_tasks()})
    ['ideal']
    """
    tasks = [RecordingTask(name, str(path), "") for name, path in _shipped().items() if not _is_modelled(path)]
    if folder is None:
        return tasks
    if not Path(folder).is_dir():
        raise InputError.single(folder, "", "no such folder", "give the folder with the recordings")
    for name, path in _in_folder(Path(folder)).items():
        if not _is_modelled(path):
            gpu = KNOWN.get(name, "")
            tasks.append(RecordingTask(name, str(path), gpu))
            tasks += [RecordingTask(name, str(path), gpu, word) for word, _ in fault_files(path)]
    return tasks


def _shipped() -> dict[str, Path]:
    return {name: shipped_folder("traces") / name for name in shipped_names("traces")}


def _in_folder(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in _recordings(folder, _DEPTH)}


def _is_modelled(path: Path) -> bool:
    info = read_header(path / "trace.yaml").info if is_trace(path) else None
    return info is not None and info.origin is Origin.MODELLED


def _recordings(path: Path, depth: int) -> Iterator[Path]:
    """The recordings at a path and below it.

    A folder with a profile and its execution trace is one recording; the profile alone is another.
    """
    format_ = _format(path)
    if format_:
        yield path
    if path.is_dir() and depth and format_ in ("", _PROFILES[1]):
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith("."):
                yield from _recordings(entry, depth - 1)


def _format(path: Path) -> str:
    """The format of a recording; empty for other files and for formats without times."""
    if is_trace(path):
        return "trace"
    try:
        name = detect(path).name
    except InputError:
        return ""
    return "" if name == "PyTorch execution trace" else name


def recordings_of(cache: ResultCache, failed: Mapping[str, str], folder: str | Path | None = None) -> Recordings:
    """The results of `recording_tasks`. failed: error messages by task key."""
    compared: list[Compared] = []
    managed: list[Managed] = []
    broken: list[NotCompared] = []
    not_compared = list(_not_compared(folder))
    for task in recording_tasks(folder):
        result: Any = cache.get(task.key)
        if result is None:
            part = f", {FAULTS[task.part]}" if task.part in FAULTS else ""
            broken.append(NotCompared(f"{task.name}{part}", failed.get(task.key, "did not run")))
        elif task.part == "ideal":
            compared += [Compared(**row) for row in result["compared"]]
            not_compared += [NotCompared(task.name, result["unmanaged"])] if result["unmanaged"] else []
        else:
            managed.append(Managed(**result | {"trials": tuple(Trial(**trial) for trial in result["trials"])}))
    return Recordings(tuple(compared), tuple(managed), tuple(not_compared), tuple(broken))


def _not_compared(folder: str | Path | None) -> Iterator[NotCompared]:
    """Modelled traces, and known recordings that are missing."""
    present = {} if folder is None else _in_folder(Path(folder))
    for name, path in (_shipped() | present).items():
        if _is_modelled(path):
            yield NotCompared(name, "modelled: there is no recording to compare with")
    if folder is None:
        yield NotCompared("other recordings", "not requested: name their folder with --recordings")
    else:
        yield from (NotCompared(path, f"is not in {folder}") for path in KNOWN if path not in present)
