"""Samples of codec times: drawn from a surface with measurement noise, or read from a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from simgpu.compression.codecs.gpu.setting import LaunchSetting, launch_problems, tensor_problems
from simgpu.compression.codecs.gpu.surface import ResponseSurface
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.compression.codecs.registry import codec_names
from simgpu.errors import InputError, Problem
from simgpu.io.input_files import read_text

#: Standard deviation of the logarithm of a measured time. The paper measured its samples and does not state their
#: noise. This is the median of five measurements with `simgpu.compression.codecs.scatter` on two cores of a server's
#: CPU, which gave 1.6 to 2.9%.
NOISE = 0.016


@dataclass(frozen=True, slots=True)
class CodecSample:
    """One tensor encoded and decoded once. bytes: uncompressed; sparsity: share of zeros; times in nanoseconds."""

    codec: str
    bytes: int
    sparsity: float
    grid: int
    threads: int
    encode_ns: int
    decode_ns: int


def draw_samples(
    surface: ResponseSurface,
    codec: str,
    tensors: Iterable[SparseTensor],
    setting: LaunchSetting,
    generator: np.random.Generator,
    noise: float = NOISE,
) -> tuple[CodecSample, ...]:
    """Codec times of the tensors on a surface, each multiplied by exp(noise x a standard normal number).

    Raises `InputError` for a negative noise, and like `ResponseSurface.encode_ns`.

    >>> from simgpu import load_node
    >>> from simgpu.compression.codecs.gpu.response import response_of
    >>> surface, best = response_of(load_node("v100").gpu), LaunchSetting(80, 128)
    >>> [sample] = draw_samples(surface, "zvc", [SparseTensor(10**9, 0.5)], best, np.random.default_rng(0), noise=0)
    >>> sample.encode_ns == surface.encode_ns("zvc", 10**9, 0.5, 80, 128)
    True
    """
    if not 0 <= noise < float("inf"):
        raise InputError.single(
            "", "noise", f"{noise!r} is not a relative standard deviation", "give 0 or more, such as 0.02"
        )
    tensors = tuple(tensors)
    sizes = np.array([tensor.bytes for tensor in tensors], np.int64)
    shares = np.array([tensor.sparsity for tensor in tensors], np.float64)
    factors = np.exp(noise * generator.standard_normal((2, len(tensors))))
    encode = np.rint(surface.encode_times(codec, sizes, shares, setting.grid, setting.threads) * factors[0])
    decode = np.rint(surface.decode_times(codec, sizes, shares, setting.grid, setting.threads) * factors[1])
    return tuple(
        CodecSample(codec, tensor.bytes, tensor.sparsity, setting.grid, setting.threads, int(coded), int(decoded))
        for tensor, coded, decoded in zip(tensors, encode, decode, strict=True)
    )


_COLUMNS = tuple(field.name for field in fields(CodecSample))


def read_samples(path: str | Path) -> tuple[CodecSample, ...]:
    """Measured samples in a CSV file with the columns of `CodecSample`, in any order.

    Raises `InputError` for a missing, empty or binary file, missing or unknown columns, and every invalid value.
    """
    file = str(path)
    text = read_text(path, "a CSV text file", if_empty="write a header and samples")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        return _samples(file, rows)
    except csv.Error as error:
        what = f"not readable as CSV ({error}); is a quote left open?"
        raise InputError.single(file, f"row {rows.line_num}", what, "write the file again") from None


def _samples(file: str, rows: csv.DictReader[str]) -> tuple[CodecSample, ...]:
    columns = rows.fieldnames or []
    if sorted(columns) != sorted(_COLUMNS):
        what = f"the columns are {', '.join(columns)}"
        raise InputError.single(file, "row 1", what, f"write exactly these: {', '.join(_COLUMNS)}")
    samples, problems = [], []
    for row, values in enumerate(rows, start=2):
        sample, result = _sample(file, f"row {row}", values)
        samples += [sample] if sample else []
        problems += result
    if not samples and not problems:
        problems.append(Problem(file, "", "contains no samples", "write at least one row"))
    if problems:
        raise InputError(problems)
    return tuple(samples)


def _sample(file: str, row: str, values: dict[str, str]) -> tuple[CodecSample | None, list[Problem]]:
    """One row as a sample, or its problems."""
    numbers: dict[str, Any] = {}
    problems = []
    for column in _COLUMNS[1:]:
        kind, description = (float, "a number") if column == "sparsity" else (int, "a whole number")
        try:
            numbers[column] = kind(values[column])
        except (TypeError, ValueError):
            what = f"{values[column]!r} is not {description}"
            problems.append(Problem(file, f"{row}, column {column}", what, f"write {description}"))
    if problems:
        return None, problems
    sample = CodecSample(values["codec"], **numbers)
    wrong = tensor_problems(sample.codec, sample.bytes, sample.sparsity, codec_names())
    wrong += launch_problems(sample.grid, sample.threads)
    for column in ("encode_ns", "decode_ns"):
        if getattr(sample, column) <= 0:
            wrong.append(Problem("", column, f"{getattr(sample, column)} is no time", "give nanoseconds above 0"))
    located = [Problem(file, f"{row}, column {each.place}", each.what, each.remedy) for each in wrong]
    return (None, located) if wrong else (sample, [])
