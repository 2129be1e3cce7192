"""The codec time model: linear regressions in bytes and sparsity, one for each range of sparsity, fitted to samples.

Codec times depend on the product of bytes and sparsity, which a single linear model lacks; within a narrow range of
sparsity the dependence is nearly linear.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.gpu.samples import CodecSample
from simgpu.compression.codecs.gpu.setting import is_integer, tensor_problems
from simgpu.compression.codecs.gpu.tensors import TRAINED
from simgpu.errors import InputError, MissingExtraError, Problem

#: Number of sub-models; the paper does not state it. Six cover a range of 0.1 each.
PIECES = 6
#: Samples that the three unknowns of a sub-model need.
_FEWEST = 3
#: Bounds of ranges are compared after rounding, so that 0.2 + 0.6 / 3 is 0.4.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class SubModel:
    """ns = intercept + a_byte x bytes + a_share x sparsity, fitted to sparsities from `low` to `high`."""

    low: float
    high: float
    intercept: float
    a_byte: float
    a_share: float

    def ns(self, tensor_bytes: int, sparsity: float) -> int:
        """The predicted time, at least 0."""
        return max(0, round(self.intercept + self.a_byte * tensor_bytes + self.a_share * sparsity))


@dataclass(frozen=True)
class CodecTimeModel:
    """Predicted times of codecs at the launch setting of the samples.

    encode, decode: sub-models by codec, with ascending sparsities.
    """

    encode: Mapping[str, tuple[SubModel, ...]]
    decode: Mapping[str, tuple[SubModel, ...]]

    @classmethod
    def fit(
        cls, samples: Iterable[CodecSample], pieces: int = PIECES, sparsity: tuple[float, float] = TRAINED
    ) -> CodecTimeModel:
        """Fits a model for every codec in the samples.

        Samples outside the range of sparsities are not used; one on the bound between two sub-models is used by both.

        Raises `MissingExtraError` without scikit-learn, and `InputError` for an invalid number of pieces or range,
        samples of several launch settings, and every sub-model with fewer than three samples.
        """
        require_sklearn("predicting codec times")
        samples = tuple(samples)
        ranges = sparsity_ranges(pieces, sparsity)
        settings = {(sample.grid, sample.threads) for sample in samples}
        if len(settings) > 1:
            remedy = "give samples of one setting"
            raise InputError.single(
                "", "samples", f"have {len(settings)} launch settings, but a time model has one", remedy
            )
        of_codec: dict[str, list[CodecSample]] = {}
        for sample in samples:
            of_codec.setdefault(sample.codec, []).append(sample)
        problems = [problem for codec, own in of_codec.items() for problem in _too_few(codec, own, ranges)]
        if not samples:
            problems.append(Problem("", "samples", "are empty", "give samples of at least one codec"))
        if problems:
            raise InputError(problems)
        return cls(
            {codec: _sub_models(own, [each.encode_ns for each in own], ranges) for codec, own in of_codec.items()},
            {codec: _sub_models(own, [each.decode_ns for each in own], ranges) for codec, own in of_codec.items()},
        )

    def predict_ns(self, codec: str, tensor_bytes: int, sparsity: float) -> tuple[int, int]:
        """Predicted nanoseconds to encode and to decode a tensor.

        Outside the trained sparsities the nearest sub-model is extrapolated. Raises `InputError` for a codec that the
        model was not fitted to, negative bytes or a sparsity outside 0..1.
        """
        problems = tensor_problems(codec, tensor_bytes, sparsity, self.encode)
        if problems:
            raise InputError(problems)
        return (
            _at(self.encode[codec], sparsity).ns(tensor_bytes, sparsity),
            _at(self.decode[codec], sparsity).ns(tensor_bytes, sparsity),
        )


def sparsity_ranges(pieces: int, sparsity: tuple[float, float] = TRAINED) -> tuple[tuple[float, float], ...]:
    """The range of each sub-model.

    >>> sparsity_ranges(3)
    ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8))
    """
    low, high = sparsity
    problems = []
    if not is_integer(pieces) or pieces < 1:
        problems.append(Problem("", "pieces", f"{pieces!r} is not a number of sub-models", "give 1 or more"))
    if not 0 <= low < high <= 1:
        remedy = "give two numbers from 0 to 1, the smaller first"
        problems.append(Problem("", "sparsity", f"{low!r} to {high!r} is not a range of shares of zeros", remedy))
    if problems:
        raise InputError(problems)
    bounds = [round(low + (high - low) * piece / pieces, _DIGITS) for piece in range(pieces + 1)]
    return tuple(pairwise(bounds))


def require_sklearn(purpose: str) -> None:
    """Raises `MissingExtraError` if scikit-learn is not installed. purpose: what needs it, for the message."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtraError(purpose, "scikit-learn", "cswap")


def features(samples: Sequence[CodecSample]) -> NDArray[np.float64]:
    """MB and sparsity of each sample, shape (n, 2). MB keep the regressions well-conditioned."""
    return np.array([(sample.bytes / 1e6, sample.sparsity) for sample in samples], np.float64)


def _inside(sample: CodecSample, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= round(sample.sparsity, _DIGITS) <= bounds[1]


def _too_few(codec: str, samples: Sequence[CodecSample], ranges: Iterable[tuple[float, float]]) -> list[Problem]:
    problems = []
    for bounds in ranges:
        count = sum(_inside(sample, bounds) for sample in samples)
        if count < _FEWEST:
            what = f"only {count} samples of {codec} have sparsities from {bounds[0]:.3g} to {bounds[1]:.3g}"
            remedy = f"give at least {_FEWEST}, or fewer sub-models"
            problems.append(Problem("", "samples", what, remedy))
    return problems


def _sub_models(
    samples: Sequence[CodecSample], times: Sequence[int], ranges: Iterable[tuple[float, float]]
) -> tuple[SubModel, ...]:
    from sklearn.linear_model import LinearRegression

    models = []
    every, measured = features(samples), np.array(times, np.float64) / 1e6
    for bounds in ranges:
        own = [_inside(sample, bounds) for sample in samples]
        result = LinearRegression().fit(every[own], measured[own])
        a_byte, a_share = (float(each) for each in result.coef_)
        models.append(SubModel(*bounds, float(result.intercept_) * 1e6, a_byte, a_share * 1e6))
    return tuple(models)


def _at(models: tuple[SubModel, ...], sparsity: float) -> SubModel:
    """The sub-model of a sparsity: the upper one on a bound, the nearest one outside all ranges."""
    return next((model for model in models if sparsity < model.high), models[-1])
