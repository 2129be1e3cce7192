"""The measured peaks that ship with simgpu; the file names their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgpu.hardware.spec import GpuSpec
from simgpu.io.yaml_files import read_yaml_mapping

SCHEMA = "simgpu.measured_peaks/1"
ESTIMATORS = ("xMem", "DNNMem", "SchedTune")
_FILE = Path(__file__).with_name("xmem.yaml")
_MIB = 2**20
#: Bytes of a CUDA context for each multiprocessor: the median of 534 MiB on an H100 (132), 520 MiB on an H200 (132) and
#: 481 MiB on an A100 (108), whose sources are in the shipped node files.
CONTEXT_PER_MULTIPROCESSOR = 534 * _MIB // 132


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an estimator gave for a run: bytes, and whether it foretold that memory runs out."""

    bytes: int
    oom: bool


@dataclass(frozen=True, slots=True)
class MeasuredPeak:
    """A measured training run of four iterations.

    model, optimizer: names in `networks`. batch: samples. peak: bytes, as far as the run got. oom: whether memory ran
    out. zero_grad: where the loop calls ``zero_grad()``, None if not recorded. estimates: by estimator.
    """

    id: str
    model: str
    optimizer: str
    batch: int
    gpu: GpuSpec
    peak: int
    oom: bool
    zero_grad: str | None
    estimates: Mapping[str, Estimate]

    @property
    def capacity(self) -> int:
        """Bytes for the allocator: the device's memory without the CUDA context."""
        return self.gpu.memory - (self.gpu.multiprocessors or 0) * CONTEXT_PER_MULTIPROCESSOR


def measured_peaks() -> list[MeasuredPeak]:
    """The measured runs, in the order of the file.

    >>> len(measured_peaks()), measured_peaks()[0].model
    (55, 'convnext-base')
    """
    document = read_yaml_mapping(_FILE, SCHEMA).values
    gpus = {
        name: GpuSpec(
            gpu["name"], gpu["memory"], architecture=gpu["architecture"], multiprocessors=gpu["multiprocessors"]
        )
        for name, gpu in document["gpus"].items()
    }
    return [_row(row, gpus) for row in document["rows"]]


def _row(row: Mapping[str, Any], gpus: Mapping[str, GpuSpec]) -> MeasuredPeak:
    estimates = {
        name: Estimate(round(given[0] * _MIB), given[1])
        for name, given in zip(ESTIMATORS, row["estimates"], strict=True)
        if given is not None
    }
    return MeasuredPeak(
        id=row["id"],
        model=row["model"],
        optimizer=row["optimizer"],
        batch=row["batch"],
        gpu=gpus[row["gpu"]],
        peak=row["peak"] * _MIB,
        oom=row["oom"],
        zero_grad=row.get("zero_grad"),
        estimates=estimates,
    )
