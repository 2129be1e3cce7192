"""Loads and checks recordings.yaml: the recordings that the time model is fitted to and tested on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.workloads.calibration.samples import SampleUse
from simgpu.workloads.timemodel.model import Tf32

SCHEMA = "simgpu.recordings/1"
RECORDINGS = Path(__file__).with_name("recordings.yaml")

Text = Annotated[str, Field(min_length=1)]


class CalibrationRecording(FileModel):
    """One recording: its path in the user's folder, the node with its GPU, and how its operators are read."""

    path: Text
    gpu: Text
    network: Text
    batch: Annotated[int, Field(ge=1)]
    use: Annotated[SampleUse, Field(strict=False)]
    operators: Literal["zoo", "dtr", "g10"]
    source: Text
    tf32: Tf32 = Field(default=Tf32.CONVOLUTIONS, strict=False)
    input: Text | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    differs: str = ""

    @property
    def name(self) -> str:
        """GPU, network and batch, as shown in tables."""
        return f"{self.gpu} {self.network} b{self.batch}"


class SkippedRecording(FileModel):
    """A recording that cannot be compared, with the reason."""

    path: Text
    why: Text


class CalibrationRecordings(FileModel):
    """The contents of recordings.yaml."""

    schema_: Literal["simgpu.recordings/1"] = Field(alias="schema")
    description: Text
    sources: dict[str, Text]
    recordings: list[CalibrationRecording]
    not_compared: list[SkippedRecording]

    @property
    def fitted(self) -> tuple[CalibrationRecording, ...]:
        """The recordings to which the time model's parameters are fitted."""
        return tuple(recording for recording in self.recordings if recording.use is SampleUse.FIT)


def load_recordings(path: Path = RECORDINGS) -> CalibrationRecordings:
    """Returns the list of recordings. Raises `InputError` with every problem in the file.

    >>> [recording.name for recording in load_recordings().fitted]
    ['h100 vgg13 b128', 'titan-v densenet121 b84', 'a100 bert b256']
    """
    document = read_yaml_mapping(path, SCHEMA)
    result = validate(CalibrationRecordings, document.values, lambda place: (document.file, document.place(place)))
    problems = [
        Problem(
            document.file,
            document.place(f"recordings[{index}]"),
            f"{recording.source!r} is not listed under 'sources'",
            did_you_mean(recording.source, result.sources),
        )
        for index, recording in enumerate(result.recordings)
        if recording.source not in result.sources
    ]
    if problems:
        raise InputError(problems)
    return result


def require_folder(folder: Path) -> None:
    """Raises `InputError` if the folder does not exist."""
    if not folder.is_dir():
        raise InputError.single(folder, "", "no such folder", "pass the folder that contains the recordings")


def require_recordings(folder: Path, recordings: Iterable[CalibrationRecording]) -> None:
    """Raises `InputError` if the folder does not exist, or with every recording that is missing from it."""
    require_folder(folder)
    missing = [
        Problem(str(folder / recording.path), "", f"recording {recording.name} is missing", "copy it there")
        for recording in recordings
        if not (folder / recording.path).exists()
    ]
    if missing:
        raise InputError(missing)
