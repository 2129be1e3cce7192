"""`load_table` reads and checks the coefficients of the response surface in the YAML file next to this module.

Imports pydantic and yaml, so import it lazily.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simgpu.errors import InputError, Problem
from simgpu.io.schema import Bandwidth, FileModel, TimeOrZero, validate
from simgpu.io.yaml_files import YamlMapping, read_yaml_mapping

SCHEMA = "simgpu.response/1"
RESPONSE = Path(__file__).with_name("response.yaml")

Count = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Curve = Annotated[list[Count], Field(min_length=2)]


class GpuCoefficients(FileModel):
    """Coefficients of codec times on one GPU; the times of launch and blocks apply to each direction."""

    basis: Literal["fitted", "scaled"]
    multiprocessors: Annotated[int, Field(ge=1)]
    dram_bandwidth: Bandwidth = Field(description="bytes per second that the memory moves, whatever the launch setting")
    multiprocessor_rate: Bandwidth = Field(description="bytes per second that one full multiprocessor moves")
    half_threads: Count = Field(description="threads per multiprocessor that reach half of its rate")
    launch: TimeOrZero
    block_ns: Count = Field(description="nanoseconds per thread block, whatever the tensor")
    contention_ns: Count = Field(description="nanoseconds per pair of thread blocks")
    wide_block: Positive = Field(
        description="ratio of block_ns and contention_ns for blocks of 128 threads to those for 64"
    )


class CodecCurves(FileModel):
    """Bytes moved per byte of a tensor, at evenly spaced sparsities from 0 to 1."""

    encode: Curve
    decode: Curve


class ResponseTable(FileModel):
    """The complete file. measured: by GPU, CSV files of samples in the same folder, used instead of coefficients."""

    schema_: Literal["simgpu.response/1"] = Field(alias="schema")
    gpus: dict[Text, GpuCoefficients]
    measured: dict[Text, Text] = Field(default_factory=dict)
    codecs: dict[Text, CodecCurves]
    sources: dict[Text, Text]


@cache
def load_table(path: Path = RESPONSE) -> ResponseTable:
    """The coefficients in a file. Raises `InputError` with every problem, including numbers without a source.

    >>> load_table().gpus["Tesla V100 PCIe"].basis
    'fitted'
    """
    document = read_yaml_mapping(path, SCHEMA)
    table = validate(ResponseTable, document.values, lambda place: (document.file, document.place(place)))
    problems = [*_unsourced(document, table), *_uneven(document, table), *_unfitted(document, table)]
    if problems:
        raise InputError(problems)
    return table


def _unsourced(document: YamlMapping, table: ResponseTable) -> list[Problem]:
    keys = [f"gpus.{name}.{key}" for name in table.gpus for key in GpuCoefficients.model_fields if key != "basis"]
    keys += [f"codecs.{name}.{key}" for name in table.codecs for key in CodecCurves.model_fields]
    keys += [f"measured.{name}" for name in table.measured]
    return [
        Problem(document.file, document.place(key), "has no source", "add its origin under 'sources'")
        for key in keys
        if not any(key == source or key.startswith(f"{source}.") for source in table.sources)
    ]


def _uneven(document: YamlMapping, table: ResponseTable) -> list[Problem]:
    return [
        Problem(
            document.file,
            document.place(f"codecs.{name}"),
            "encode and decode differ in length",
            "give both the same number of values",
        )
        for name, curves in table.codecs.items()
        if len(curves.encode) != len(curves.decode)
    ]


def _unfitted(document: YamlMapping, table: ResponseTable) -> list[Problem]:
    fitted = [name for name, gpu in table.gpus.items() if gpu.basis == "fitted"]
    if len(fitted) == 1:
        return []
    what = f"{len(fitted)} GPUs are fitted"
    return [
        Problem(document.file, document.place("gpus"), what, "mark exactly one as fitted; others are scaled from it")
    ]
