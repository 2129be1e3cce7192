"""Codec times of a GPU from samples measured on it, in place of fitted coefficients.

Beyond the measured grids, and of codecs that were not measured, there is nothing; a tuner asks for every grid, so let
the samples have grids 1 and 4096 of both block sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simgpu.compression.codecs.gpu.response import ResponseSurface
from simgpu.compression.codecs.gpu.samples import CodecSample, read_samples
from simgpu.compression.codecs.gpu.timemodel import PIECES, CodecTimeModel
from simgpu.errors import InputError

_ENCODE, _DECODE = 0, 1


@dataclass(frozen=True)
class MeasuredSurface(ResponseSurface):
    """Time models by codec, block size and grid; grids rising."""

    models: Mapping[str, Mapping[int, Mapping[int, CodecTimeModel]]]

    @classmethod
    def read(cls, gpu: str, path: Path) -> MeasuredSurface:
        """The surface of a file of samples. Raises `InputError` for a damaged file and too few samples of a setting,
        `MissingExtraError` without scikit-learn."""
        return cls.of(gpu, read_samples(path), str(path))

    @classmethod
    def of(cls, gpu: str, samples: Iterable[CodecSample], file: str = "") -> MeasuredSurface:
        """The surface of samples; `file` is where they are from, for messages."""
        samples = tuple(samples)
        groups: dict[tuple[str, int, int], list[CodecSample]] = {}
        for sample in samples:
            groups.setdefault((sample.codec, sample.threads, sample.grid), []).append(sample)
        models: dict[str, dict[int, dict[int, CodecTimeModel]]] = {}
        for (codec, threads, grid), own in sorted(groups.items()):
            model = _model(own, file, f"{codec} at ({grid}, {threads})")
            models.setdefault(codec, {}).setdefault(threads, {})[grid] = model
        return cls(gpu, "measured", f"measured, {len(samples)} samples of {file or 'a device'}", models)

    @property
    def codecs(self) -> tuple[str, ...]:
        return tuple(self.models)

    def _encode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return self._each(_ENCODE, codec, tensor_bytes, sparsity, grid, threads)

    def _decode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return self._each(_DECODE, codec, tensor_bytes, sparsity, grid, threads)

    def _each(self, direction: int, codec: str, *of: Any) -> Any:
        if isinstance(of[0], int):
            return self._ns(direction, codec, *of)
        rows = zip(*(array.ravel().tolist() for array in of), strict=True)
        return np.array([self._ns(direction, codec, *row) for row in rows], np.int64).reshape(of[0].shape)

    def _ns(self, direction: int, codec: str, tensor_bytes: int, sparsity: float, grid: int, threads: int) -> int:
        own = self.models[codec].get(threads, {})
        grids = list(own)
        above = bisect_left(grids, grid)
        if above == len(grids) or grid < grids[0]:
            known = f"grids {grids[0]} to {grids[-1]}" if grids else "no grid"
            what = f"({grid}, {threads}) is beyond what was measured of {codec} on {self.gpu}"
            raise InputError.single("", "grid", what, f"{known} of {threads} threads are known")
        upper = own[grids[above]].predict_ns(codec, tensor_bytes, sparsity)[direction]
        if grids[above] == grid:
            return upper
        lower = own[grids[above - 1]].predict_ns(codec, tensor_bytes, sparsity)[direction]
        share = (grid - grids[above - 1]) / (grids[above] - grids[above - 1])
        return round(lower + (upper - lower) * share)


def _model(samples: list[CodecSample], file: str, place: str) -> CodecTimeModel:
    """The time model of one codec at one setting."""
    shares = sorted({sample.sparsity for sample in samples})
    if len(shares) < 2:
        told = "measure at least two"
        raise InputError.single(file, place, f"{len(shares)} sparsity was measured", told)
    try:
        return CodecTimeModel.fit(samples, min(PIECES, len(shares) - 1), (shares[0], shares[-1]))
    except InputError as error:
        raise InputError.single(file, place, "; ".join(problem.what for problem in error.problems)) from None
