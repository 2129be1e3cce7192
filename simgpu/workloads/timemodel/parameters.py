"""The parameters of the time model: the file next to this module, checked, as plain values.

Imports pydantic and yaml, so import it when needed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.spec import ArchitectureName
from simgpu.io.schema import FileModel, Size, TimeOrZero, validate
from simgpu.io.yaml_files import YamlMapping, read_yaml_mapping
from simgpu.workloads.timemodel.algorithms import AlgorithmName
from simgpu.workloads.timemodel.operation import Direction, OperationKind

SCHEMA = "simgpu.timemodel/1"
PARAMETERS = Path(__file__).with_name("parameters.yaml")

Share = Annotated[float, Field(gt=0, le=1, description="part of a peak rate, more than 0 and at most 1")]
Count = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Of = Annotated[Direction, Field(strict=False)]
Kind = Annotated[OperationKind, Field(strict=False)]


class Halves(FileModel):
    """How much of something lets a product run at half its full rate; more lets it come nearer to all of it."""

    rows: Count = Field(description="of the longer side of the result")
    columns: Count = Field(description="of the shorter side of the result")
    depth: Count = Field(description="of the length of the sums")
    results: Count = Field(description="of results per multiprocessor, sums that are split counted by their parts")


class KindShares(FileModel):
    """Parts of the bandwidth that a long elementwise kernel reaches."""

    forward: Share
    backward: Share


class Architecture(FileModel):
    """What differs between generations of GPUs."""

    compute: Share = Field(description="of the fp32 rate, for products of large matrices")
    matrix: Share | None = Field(default=None, description="of the matrix units' rate, for the same")
    memory: Share = Field(description="of the DRAM bandwidth, for long elementwise kernels")
    normalization: Share = Field(default=1.0, description="of that again, for batch norm and its like")
    launch: TimeOrZero = Field(description="time that every kernel takes whatever it does")
    tf32: bool = Field(default=False, description="its matrix units take single precision, at half their rate")
    bf16: Literal["none", "single precision", "matrix units"] = Field(
        default="none", description="what multiplies bfloat16: nothing that libraries offer, or in which arithmetic"
    )
    fitted_to: tuple[Text, ...] = Field(
        default=(), strict=False, description="GPUs whose measured times its numbers were fitted to"
    )


class Parameters(FileModel):
    """The whole table; `sources` says where its numbers come from, by dotted key or the key above it."""

    schema_: Literal["simgpu.timemodel/1"] = Field(alias="schema")
    halves: Halves
    split_depth: Annotated[float, Field(gt=0, description="sums are split into parts of this length")]
    in_flight: Size = Field(description="bytes per multiprocessor that must be under way to fill the memory's pipe")
    directions: dict[Of, Share]
    algorithms: dict[AlgorithmName, Share]
    kinds: dict[Kind, KindShares]
    architectures: dict[ArchitectureName, Architecture]
    sources: dict[str, Text]


@cache
def load_parameters(path: Path = PARAMETERS) -> Parameters:
    """The parameters in a file; `InputError` with every problem in it, a number without a source among them.

    >>> load_parameters().architectures["volta"].memory <= 1
    True
    """
    document = read_yaml_mapping(path, SCHEMA)
    parameters = validate(Parameters, document.values, lambda place: (document.file, document.place(place)))
    problems = [*_incomplete(document, parameters), *_unsourced(document, parameters)]
    if problems:
        raise InputError(problems)
    return parameters


def _incomplete(document: YamlMapping, parameters: Parameters) -> list[Problem]:
    """Words of the model that the file has no number for."""
    tables: list[tuple[str, set[str], set[str]]] = [
        ("directions", set(Direction), set(parameters.directions)),
        ("kinds", set(OperationKind), set(parameters.kinds)),
        ("algorithms", set(get_args(AlgorithmName)), set(parameters.algorithms)),
        ("architectures", set(get_args(ArchitectureName)), set(parameters.architectures)),
    ]
    return [
        Problem(document.file, document.place(f"{table}.{word}"), "is missing", "add it")
        for table, all_words, given in tables
        for word in sorted(all_words - given)
    ]


def _unsourced(document: YamlMapping, parameters: Parameters) -> list[Problem]:
    """Numbers without a source, and sources of nothing."""
    numbers = [key for key in document.lines if not key.startswith(("schema", "sources")) and _is_number(document, key)]
    problems = [
        Problem(document.file, document.place(key), "has no source", "say under 'sources' where it comes from")
        for key in numbers
        if not any(key == source or key.startswith(f"{source}.") for source in parameters.sources)
    ]
    return problems + [
        Problem(
            document.file, document.place(f"sources.{key}"), f"{key!r} is not in this file", did_you_mean(key, numbers)
        )
        for key in parameters.sources
        if key not in document.lines
    ]


def _is_number(document: YamlMapping, key: str) -> bool:
    value: object = document.values
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None  # of a list's entry: the list has the source
    return not isinstance(value, dict)
