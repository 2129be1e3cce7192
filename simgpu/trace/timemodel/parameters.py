"""The parameters of the time model: the file beside this module, checked, as plain values.

Lives here: the model of the file and its reading. Does not live here: formulas (the modules beside this one) or how
the values are fitted (`simgpu.trace.timemodel.calibration`). Imports pydantic and yaml, so import it when needed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simgpu.trace.timemodel.operation import Direction, OperationKind
from simgpu.validation import FileModel, TimeOrZero, validate
from simgpu.yamlfile import read_yaml_mapping

SCHEMA = "simgpu.timemodel/1"
PARAMETERS = Path(__file__).with_name("parameters.yaml")

Share = Annotated[float, Field(gt=0, le=1, description="part of a peak rate, more than 0 and at most 1")]
Count = Annotated[float, Field(ge=0)]
Of = Annotated[Direction, Field(strict=False)]
Kind = Annotated[OperationKind, Field(strict=False)]
Text = Annotated[str, Field(min_length=1)]
AlgorithmName = Literal[
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "winograd", "winograd_nonfused", "fft", "fft_tiling"
]


class Halves(FileModel):
    """How much of something lets a kernel run at half its full rate; more lets it come nearer to all of it."""

    rows: Count = Field(description="rows of a product (images times positions in a convolution)")
    columns: Count = Field(description="columns of a product (result channels)")
    depth: Count = Field(description="length of its sums (input channels times taps)")
    results_per_multiprocessor: Count = Field(description="values to compute per multiprocessor, products")
    threads_per_multiprocessor: Count = Field(description="values to compute per multiprocessor, all other kernels")


class Architecture(FileModel):
    """What differs between generations of GPUs."""

    compute: Share = Field(description="of the fp32 rate, for products of large matrices")
    matrix: Share | None = Field(default=None, description="of the matrix units' rate, for the same")
    memory: Share = Field(description="of the DRAM bandwidth, for long elementwise kernels")
    launch: TimeOrZero = Field(description="time that every kernel takes whatever it does")
    tf32: bool = Field(default=False, description="its matrix units take single precision, at half their rate")


class Parameters(FileModel):
    """The whole table; `sources` says of every number where it comes from, by its dotted key."""

    schema_: Literal["simgpu.timemodel/1"] = Field(alias="schema")
    halves: Halves
    split_depth: Annotated[float, Field(gt=0, description="sums longer than this are split among multiprocessors")]
    directions: dict[Of, Share]
    algorithms: dict[AlgorithmName, Share]
    kinds: dict[Kind, dict[Literal["forward", "backward"], Share]]
    architectures: dict[str, Architecture]
    sources: dict[str, Text]


@cache
def load_parameters(path: Path = PARAMETERS) -> Parameters:
    """The parameters in a file; `InputError` with every problem in it.

    >>> load_parameters().architectures["volta"].memory <= 1
    True
    """
    document = read_yaml_mapping(path, SCHEMA)
    return validate(Parameters, document.values, lambda place: (document.file, document.place(place)))
