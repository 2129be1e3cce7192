"""`ResponseSurface`, the interface of codec times of one GPU, and total times for the tensors of a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgpu.compression.codecs.gpu.setting import (
    LARGEST_GRID,
    THREADS,
    Integers,
    LaunchSetting,
    all_settings,
    launch_problems,
    tensor_problems,
)
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.errors import InputError

#: Source of the times: fitted to published figures, scaled from another GPU, or measured on the GPU itself.
Basis = Literal["fitted", "scaled", "measured"]


@dataclass(frozen=True)
class ResponseSurface(ABC):
    """Codec times of one GPU.

    gpu: its name. basis: source of the times. description: the source as text.
    """

    gpu: str
    basis: Basis
    description: str

    @property
    @abstractmethod
    def codecs(self) -> tuple[str, ...]:
        """Names of the codecs with times."""

    @abstractmethod
    def _encode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        """Nanoseconds to encode, for checked arguments: an integer for integers, an array for arrays."""

    @abstractmethod
    def _decode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        """Nanoseconds to decode; see `_encode`."""

    def encode_ns(self, codec: str, tensor_bytes: int, sparsity: float, grid: int, threads: int) -> int:
        """Nanoseconds to encode a tensor.

        Raises `InputError` for an unknown codec, negative bytes, a sparsity outside 0..1 and an invalid setting, with
        all problems in one error.

        >>> from simgpu import load_node
        >>> from simgpu.compression.codecs.gpu.response import response_of
        >>> response_of(load_node("v100").gpu).encode_ns("zvc", 500_000_000, 0.5, grid=197, threads=64)
        6843155
        """
        self._check(codec, tensor_bytes, sparsity, grid, threads)
        return int(self._encode(codec, int(tensor_bytes), float(sparsity), int(grid), int(threads)))

    def decode_ns(self, codec: str, tensor_bytes: int, sparsity: float, grid: int, threads: int) -> int:
        """Nanoseconds to decode a tensor. tensor_bytes: uncompressed. Raises like `encode_ns`."""
        self._check(codec, tensor_bytes, sparsity, grid, threads)
        return int(self._decode(codec, int(tensor_bytes), float(sparsity), int(grid), int(threads)))

    def encode_times(
        self, codec: str, tensor_bytes: ArrayLike, sparsity: ArrayLike, grid: ArrayLike, threads: ArrayLike
    ) -> Integers:
        """`encode_ns` for arrays, which are broadcast against each other; every element equals that of `encode_ns`."""
        arrays = self._checked(codec, tensor_bytes, sparsity, grid, threads)
        return np.asarray(self._encode(codec, *arrays), np.int64)

    def decode_times(
        self, codec: str, tensor_bytes: ArrayLike, sparsity: ArrayLike, grid: ArrayLike, threads: ArrayLike
    ) -> Integers:
        """`decode_ns` for arrays, which are broadcast against each other; every element equals that of `decode_ns`."""
        arrays = self._checked(codec, tensor_bytes, sparsity, grid, threads)
        return np.asarray(self._decode(codec, *arrays), np.int64)

    def _check(self, codec: str, tensor_bytes: object, sparsity: object, grid: object, threads: object) -> None:
        problems = tensor_problems(codec, tensor_bytes, sparsity, self.codecs) + launch_problems(grid, threads)
        if problems:
            raise InputError(problems)

    def _checked(self, codec: str, *given: ArrayLike) -> list[NDArray[Any]]:
        """The arguments as arrays of one shape. Raises `InputError` with the first invalid value of each."""
        arrays = np.broadcast_arrays(*(np.asarray(each) for each in given))
        sizes, shares, grids, threads = arrays
        wrong = (
            sizes < 0,
            ~((shares >= 0) & (shares <= 1)),
            (grids < 1) | (grids > LARGEST_GRID),
            ~np.isin(threads, THREADS),
        )
        if sizes.size:
            self._check(
                codec, *(array.flat[int(bad.argmax())].item() for array, bad in zip(arrays, wrong, strict=True))
            )
        return [sizes.astype(np.int64), shares.astype(np.float64), grids.astype(np.int64), threads.astype(np.int64)]


def network_ns(surface: ResponseSurface, codec: str, tensors: Iterable[SparseTensor], setting: LaunchSetting) -> int:
    """Total nanoseconds to encode and decode every tensor at one launch setting. Raises like the surface."""
    return sum(
        surface.encode_ns(codec, tensor.bytes, tensor.sparsity, setting.grid, setting.threads)
        + surface.decode_ns(codec, tensor.bytes, tensor.sparsity, setting.grid, setting.threads)
        for tensor in tensors
    )


def network_times(surface: ResponseSurface, codec: str, tensors: Iterable[SparseTensor]) -> Integers:
    """`network_ns` for each of `all_settings()`, in that order."""
    grids, threads = all_settings()
    total = np.zeros(len(grids), np.int64)
    for tensor in tensors:
        total += surface.encode_times(codec, tensor.bytes, tensor.sparsity, grids, threads)
        total += surface.decode_times(codec, tensor.bytes, tensor.sparsity, grids, threads)
    return total
