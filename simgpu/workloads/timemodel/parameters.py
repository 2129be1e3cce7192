"""The time model's parameters: `load_parameters` reads and checks the YAML file next to this module.

Imports pydantic and yaml, so import it lazily.
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

Share = Annotated[float, Field(gt=0, le=1, description="fraction of a peak rate, more than 0 and at most 1")]
Count = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Of = Annotated[Direction, Field(strict=False)]
Kind = Annotated[OperationKind, Field(strict=False)]


class Halves(FileModel):
    """Sizes at which a convolution's product runs at half its full rate; larger ones approach the full rate."""

    rows: Count = Field(description="longer side of the result")
    columns: Count = Field(description="shorter side of the result")
    depth: Count = Field(description="length of the sums")
    results: Count = Field(description="results per multiprocessor; each part of a split sum counts as a result")


class KindShares(FileModel):
    """Fractions in both directions; of a kind of kernels, those of the bandwidth of a long elementwise kernel."""

    forward: Share
    backward: Share


class Counts(FileModel):
    """Two numbers that are not negative."""

    forward: Count
    backward: Count


class FlashTable(FileModel):
    """One kernel of flash attention, on all architectures."""

    keys: Counts = Field(description="number of keys at which its products run at half their full rate")
    causal: KindShares = Field(description="fraction of that rate with a causal mask, of the products that it keeps")


class AttentionTable(FileModel):
    """Fused attention in half precision, on all architectures (`simgpu.workloads.timemodel.attention`)."""

    softmax: Counts = Field(description="single-precision operations for each score")
    flash2: FlashTable = Field(description="FlashAttention-2, whose kernels PyTorch has")
    flash3: FlashTable = Field(description="FlashAttention-3")
    cudnn: FlashTable = Field(description="cuDNN's attention")
    efficient: KindShares = Field(description="fraction of flash attention's rate in memory-efficient attention")


class Architecture(FileModel):
    """Parameters of one GPU architecture."""

    compute: Share = Field(description="fraction of the fp32 rate reached by products of large matrices")
    matrix: Share | None = Field(default=None, description="fraction of the matrix units' rate reached by the same")
    half_products: Share | None = Field(
        default=None,
        description="fraction of the matrix units' rate reached by products of large half-precision matrices; by "
        "default that of `matrix`",
    )
    float8: Annotated[float, Field(ge=1)] | None = Field(
        default=None,
        description="rate of the matrix units on float8 inputs, as a multiple of that on half-precision inputs; by "
        "default they have no such products",
    )
    float8_products: Share | None = Field(
        default=None,
        description="fraction of that rate reached by products of large float8 matrices; by default `half_products`",
    )
    attention: KindShares | None = Field(
        default=None,
        description="fraction of half_products reached by flash attention's products; by default priced as products",
    )
    flash3: KindShares | None = Field(
        default=None,
        description="the same for FlashAttention-3; by default the GPU does not have it",
    )
    cudnn: KindShares | None = Field(
        default=None,
        description="fraction of the matrix units' rate reached by the products of cuDNN's attention; by default no "
        "figure is known",
    )
    memory: Share = Field(description="fraction of the DRAM bandwidth reached by long elementwise kernels")
    normalization: Share = Field(default=1.0, description="fraction of that bandwidth reached by normalizations")
    launch: TimeOrZero = Field(description="fixed time per kernel")
    tf32: bool = Field(default=False, description="whether matrix units support TF32, at half their rate")
    bf16: Literal["none", "single precision", "matrix units"] = Field(
        default="none", description="arithmetic of bfloat16 products; none if libraries do not support them"
    )
    fitted_to: tuple[Text, ...] = Field(
        default=(),
        strict=False,
        description="GPUs whose measured times the numbers were fitted to; none if all are chosen",
    )


class Parameters(FileModel):
    """The table of parameters. sources: the origin of each number, by its dotted key or a parent key."""

    schema_: Literal["simgpu.timemodel/1"] = Field(alias="schema")
    halves: Halves
    split_depth: Annotated[float, Field(gt=0, description="sums are split into parts of this length")]
    in_flight: Size = Field(description="bytes in flight per multiprocessor that saturate the memory")
    cache: Annotated[float, Field(gt=0, description="read bandwidth of the L2 cache, as a multiple of DRAM's")]
    unaligned: Share = Field(description="fraction of their rate reached by half-precision products of unaligned rows")
    directions: dict[Of, Share]
    algorithms: dict[AlgorithmName, Share]
    kinds: dict[Kind, KindShares]
    attention: AttentionTable
    architectures: dict[ArchitectureName, Architecture]
    sources: dict[str, Text]


@cache
def load_parameters(path: Path = PARAMETERS) -> Parameters:
    """The parameters in a file. Raises `InputError` for an invalid file, including numbers without a source.

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
    """Problems for keys of the model that the file lacks."""
    tables: list[tuple[str, set[str], set[str]]] = [
        ("directions", set(Direction), set(parameters.directions)),
        ("kinds", set(OperationKind), set(parameters.kinds)),
        ("algorithms", set(get_args(AlgorithmName)), set(parameters.algorithms)),
        ("architectures", set(get_args(ArchitectureName)), set(parameters.architectures)),
    ]
    return [
        Problem(document.file, document.place(f"{table}.{word}"), "is missing", "add it")
        for table, all_words, present in tables
        for word in sorted(all_words - present)
    ]


def _unsourced(document: YamlMapping, parameters: Parameters) -> list[Problem]:
    """Problems for numbers without a source, and for sources of unknown keys."""
    numbers = [key for key in document.lines if not key.startswith(("schema", "sources")) and _is_number(document, key)]
    problems = [
        Problem(document.file, document.place(key), "has no source", "add its origin under 'sources'")
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
        value = value.get(part) if isinstance(value, dict) else None  # entries of a list share the list's source
    return not isinstance(value, dict)
