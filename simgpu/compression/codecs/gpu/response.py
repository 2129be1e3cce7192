"""Response surfaces: times of a GPU to encode or decode a tensor, fitted, scaled from another GPU, or measured.

One direction takes, for a tensor of B bytes with m(s) bytes moved per byte at sparsity s, and g thread blocks of t
threads on M multiprocessors,

    launch + B m(s) (1 / D + (ceil(g / M) + h / t) / (g R)) + w(t) (c g + d g^2)

D: the memory's bandwidth, bytes per second; R: bandwidth of one full multiprocessor; h: number of threads that reach
half of R. The fullest multiprocessor runs ceil(g / M) blocks: a small grid leaves multiprocessors idle, and with a grid
that is not a multiple of M some wait for others. c and d: time per block and per pair of blocks, whatever the tensor;
w(t): 1 for blocks of 64 threads, else the ratio of these times for 128 threads to those for 64. m(s) is interpolated
linearly between evenly spaced sparsities.

Sources: CSWAP (Chen et al., CLUSTER 2021), sections IV-C (linear in bytes and in sparsity), IV-D with figure 5, V-D
with figure 12.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.gpu.samples import CodecSample, read_samples
from simgpu.compression.codecs.gpu.setting import THREADS
from simgpu.compression.codecs.gpu.surface import Basis, ResponseSurface
from simgpu.compression.codecs.gpu.timemodel import PIECES, CodecTimeModel
from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec

if TYPE_CHECKING:
    from simgpu.compression.codecs.gpu.table import GpuCoefficients, ResponseTable


@dataclass(frozen=True)
class FormulaSurface(ResponseSurface):
    """The formula of this module with the coefficients of one GPU. curves: m(s) of encoding and decoding, by codec."""

    coefficients: GpuCoefficients
    curves: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]

    @property
    def codecs(self) -> tuple[str, ...]:
        return tuple(self.curves)

    def _encode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return self._time(self.curves[codec][0], tensor_bytes, sparsity, grid, threads)

    def _decode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return self._time(self.curves[codec][1], tensor_bytes, sparsity, grid, threads)

    def _time(self, curve: tuple[float, ...], tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        """The formula, in operations that give bit-identical results for numbers and arrays."""
        wide_block = self.coefficients.wide_block
        if isinstance(grid, int):
            wide = wide_block if threads != THREADS[0] else 1.0
            return round(self._of(tensor_bytes * _along(curve, sparsity), grid, threads, wide))
        wides = np.where(threads != THREADS[0], wide_block, 1.0)
        return np.rint(self._of(tensor_bytes * _along_array(np.array(curve), sparsity), grid, threads, wides))

    def _of(self, moved: Any, grid: Any, threads: Any, wide: Any) -> Any:
        gpu = self.coefficients
        fullest = -(-grid // gpu.multiprocessors)
        at_memory = moved * (1e9 / gpu.dram_bandwidth)
        at_multiprocessors = moved * (1e9 / gpu.multiprocessor_rate) / grid * (fullest + gpu.half_threads / threads)
        blocks = wide * (gpu.block_ns * grid + gpu.contention_ns * (grid * grid))
        return gpu.launch + (at_memory + at_multiprocessors) + blocks


@dataclass(frozen=True)
class InstantSurface(ResponseSurface):
    """Codecs that take no time. of: the surface whose codecs and GPU it has."""

    of: ResponseSurface

    @property
    def codecs(self) -> tuple[str, ...]:
        return self.of.codecs

    def _encode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return np.zeros_like(tensor_bytes)

    def _decode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return np.zeros_like(tensor_bytes)


@dataclass(frozen=True)
class MeasuredSurface(ResponseSurface):
    """Codec times from samples measured on the GPU: time models by codec, block size and ascending grid.

    Times outside the range of measured grids, and of codecs that were not measured, raise `InputError`. A tuner needs
    every grid, so measure grids 1 and 4096 with both block sizes.
    """

    models: Mapping[str, Mapping[int, Mapping[int, CodecTimeModel]]]

    @classmethod
    def read(cls, gpu: str, path: Path) -> MeasuredSurface:
        """The surface of a file of samples.

        Raises `InputError` for a damaged file or too few samples of a setting, and `MissingExtraError` without
        scikit-learn.
        """
        return cls.of(gpu, read_samples(path), str(path))

    @classmethod
    def of(cls, gpu: str, samples: Iterable[CodecSample], file: str = "") -> MeasuredSurface:
        """The surface of samples. file: their source, for messages."""
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
        return self._each(0, codec, tensor_bytes, sparsity, grid, threads)

    def _decode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return self._each(1, codec, tensor_bytes, sparsity, grid, threads)

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
            what = f"({grid}, {threads}) is outside the measured range of {codec} on {self.gpu}"
            raise InputError.single("", "grid", what, f"measured with {threads} threads: {known}")
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
        remedy = "measure at least two"
        raise InputError.single(file, place, f"samples of only {len(shares)} sparsity", remedy)
    try:
        return CodecTimeModel.fit(samples, min(PIECES, len(shares) - 1), (shares[0], shares[-1]))
    except InputError as error:
        raise InputError.single(file, place, "; ".join(problem.what for problem in error.problems)) from None


def _along(curve: tuple[float, ...], sparsity: float) -> float:
    pieces = len(curve) - 1
    piece = min(int(sparsity * pieces), pieces - 1)
    return curve[piece] + (curve[piece + 1] - curve[piece]) * (sparsity * pieces - piece)


def _along_array(curve: NDArray[np.float64], sparsity: NDArray[np.float64]) -> NDArray[np.float64]:
    pieces = len(curve) - 1
    piece = np.minimum((sparsity * pieces).astype(np.int64), pieces - 1)
    along: NDArray[np.float64] = curve[piece] + (curve[piece + 1] - curve[piece]) * (sparsity * pieces - piece)
    return along


def response_of(gpu: GpuSpec, path: Path | None = None) -> ResponseSurface:
    """The surface of a GPU: measured if the file names samples of it, else from its own coefficients, else scaled.

    path: a file such as `response.yaml`; None for the shipped one. Scaling uses D and M of the GPU's description and
    all other coefficients of the fitted GPU, so times of another generation are a guess; then `basis` is ``scaled``.
    Raises `InputError` for an invalid file, and for a GPU that is not in it and whose description lacks DRAM bandwidth
    or multiprocessors; `MissingExtraError` if samples need scikit-learn and it is not installed.

    >>> from simgpu import load_node
    >>> [response_of(load_node(name).gpu).basis for name in ("v100", "2080ti", "p100")]
    ['fitted', 'scaled', 'scaled']
    """
    from simgpu.compression.codecs.gpu.table import RESPONSE, load_table

    if gpu.instant_codecs:
        timed = response_of(replace(gpu, instant_codecs=False), path)
        return InstantSurface(gpu.name, timed.basis, "no time at all", timed)
    file = path or RESPONSE
    table = load_table(file)
    for name, samples in table.measured.items():
        if gpu.is_called(name):
            return MeasuredSurface.read(gpu.name, file.parent / samples)
    for name, coefficients in table.gpus.items():
        if gpu.is_called(name):
            return _surface(gpu.name, coefficients, table)
    return _surface(gpu.name, scaled(gpu, fitted_coefficients(table)), table)


def fitted_coefficients(table: ResponseTable) -> GpuCoefficients:
    """The coefficients of the fitted GPU; a table has exactly one."""
    return next(result for result in table.gpus.values() if result.basis == "fitted")


def scaled(gpu: GpuSpec, fitted: GpuCoefficients) -> GpuCoefficients:
    """Coefficients for another GPU: its own DRAM bandwidth and multiprocessors, the rest unchanged."""
    named = {"dram_bandwidth": gpu.dram_bandwidth, "multiprocessors": gpu.multiprocessors}
    missing = [name for name, value in named.items() if value is None]
    if missing:
        what = f"codec times of GPU {gpu.name!r} are neither fitted nor measured, and its description is incomplete"
        raise InputError.single("", ", ".join(f"gpu.{name}" for name in missing), what, "add the missing values")
    return fitted.model_copy(update={"basis": "scaled", **named})


def _surface(gpu: str, coefficients: GpuCoefficients, table: ResponseTable) -> FormulaSurface:
    descriptions: dict[Basis, str] = {
        "fitted": "fitted to figures 5 and 12 of CSWAP, as many coefficients as there are figures less one",
        "scaled": "scaled from the fitted GPU by DRAM bandwidth and multiprocessors",
    }
    curves = {name: (tuple(each.encode), tuple(each.decode)) for name, each in table.codecs.items()}
    return FormulaSurface(gpu, coefficients.basis, descriptions[coefficients.basis], coefficients, curves)
