"""Durations of kernels on a named GPU, from what they compute and move.

Lives here: the roofline. Does not live here: the numbers (`parameters.yaml`), counts of convolution algorithms
(`simgpu.trace.timemodel.algorithms`), or where operations come from.

A kernel takes the launch time plus the longer of its arithmetic and its traffic, each at a share of the GPU's peak
rate. The share of a product falls with small sides by a smooth law, (m + a)(n + b)(k + c) / mnk, which stands for
tiles that are not full; any kernel's share falls with few results by (r + h) / r, where h is what the
multiprocessors together need to be half busy. Both are smooth instead of steps of whole waves: a step's place depends
on each kernel's tile, which nobody but the library knows, and the law is exact in both limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.timemodel.algorithms import AlgorithmWork, works
from simgpu.trace.timemodel.operation import Direction, GemmShape, Operation, OperationKind
from simgpu.trace.timemodel.parameters import Architecture, Parameters, load_parameters

_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}


class Tf32(StrEnum):
    """Which single-precision products run on matrix units that take them (Ampere and later)."""

    NONE = "none"
    CONVOLUTIONS = "convolutions"  # PyTorch's default
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a convolution: its name, duration and the device memory that it needs meanwhile."""

    name: str
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True)
class TimeModel:
    """Durations on one GPU; make it with `time_model`."""

    gpu: GpuSpec
    architecture: Architecture
    parameters: Parameters
    tf32: Tf32
    fp32_rate: int
    dram_bandwidth: int
    multiprocessors: int

    def duration_ns(self, operation: Operation) -> int:
        """How long the kernel takes, whole nanoseconds; a convolution by its fastest algorithm.

        Raises `InputError` for a product of numbers other than float32, float16 and bfloat16.

        >>> from simgpu.hardware.nodes import load_node
        >>> relu = Operation(OperationKind.ELEMENTWISE, flops=10**8, bytes=8 * 10**8, results=10**8)
        >>> time_model(load_node("v100").gpu).duration_ns(relu) > 800_000_000 / 900
        True
        """
        if operation.convolution is not None and operation.kind is OperationKind.CONVOLUTION:
            return self.algorithms(operation)[0].duration_ns
        if operation.gemm is not None:
            work = AlgorithmWork("implicit_precomp_gemm", operation.gemm, operation.flops, matrix_units=True)
            return self._product_ns(operation, work, self._matrix_gemm(operation))
        return self._other_ns(operation)

    def algorithms(self, operation: Operation) -> tuple[Algorithm, ...]:
        """The algorithms that can compute a convolution, fastest first; then less workspace, then by name.

        Empty for any other operation. Raises `InputError` as `duration_ns`.
        """
        shape = operation.convolution
        if shape is None or operation.kind is not OperationKind.CONVOLUTION:
            return ()
        found = [
            Algorithm(
                work.name,
                self._product_ns(operation, work, self._matrix_convolution(operation)),
                work.workspace_bytes,
            )
            for work in works(shape, operation.direction, self._itemsize(operation))
        ]
        return tuple(sorted(found, key=lambda each: (each.duration_ns, each.workspace_bytes, each.name)))

    def _matrix_convolution(self, operation: Operation) -> bool:
        return operation.dtype != "float32" or self.tf32 is not Tf32.NONE

    def _matrix_gemm(self, operation: Operation) -> bool:
        return operation.dtype != "float32" or self.tf32 is Tf32.ALL

    def _itemsize(self, operation: Operation) -> int:
        if operation.dtype not in _ITEMSIZE:
            remedy = f"give one of {', '.join(_ITEMSIZE)}"
            raise InputError.single("", "time model", f"knows no rate for products of {operation.dtype!r}", remedy)
        return _ITEMSIZE[operation.dtype]

    def _peak(self, operation: Operation, matrix: bool) -> float:
        """Operations per second that the best product of this type of number reaches."""
        kind, rate = self.architecture, self.gpu.tensor_rate
        if matrix and rate is not None and kind.matrix is not None:
            if operation.dtype != "float32":
                return rate * kind.matrix
            if kind.tf32:
                return rate / 2 * kind.matrix
        return self.fp32_rate * kind.compute

    def _product_ns(self, operation: Operation, work: AlgorithmWork, matrix: bool) -> int:
        table = self.parameters
        share = table.algorithms[work.name] * table.directions[operation.direction]
        rate = self._peak(operation, matrix and work.matrix_units) * share
        arithmetic = work.product_flops * self._padding(work.product) * self._idle(work.product) / rate
        transforms = work.other_flops / (self.fp32_rate * self.architecture.compute)
        moved = (operation.bytes + work.extra_bytes) / self._bandwidth(operation)
        launches = work.kernels * self.architecture.launch
        return launches + ceil(max(arithmetic + transforms, moved) * 1e9)

    def _padding(self, product: GemmShape) -> float:
        """How much longer a product takes because its sides do not fill the tiles it is computed in."""
        half = self.parameters.halves
        m, n = max(product.m, product.n), min(product.m, product.n)
        return (1 + half.rows / m) * (1 + half.columns / n) * (1 + half.depth / product.k)

    def _idle(self, product: GemmShape) -> float:
        """How much longer a product takes because its results do not fill the multiprocessors."""
        parts = max(1.0, product.k / self.parameters.split_depth)
        results = product.count * product.m * product.n * parts
        return 1 + self.parameters.halves.results_per_multiprocessor * self.multiprocessors / results

    def _bandwidth(self, operation: Operation) -> float:
        table = self.parameters.kinds[operation.kind]
        share = table["forward" if operation.direction is Direction.FORWARD else "backward"]
        return self.dram_bandwidth * self.architecture.memory * share

    def _other_ns(self, operation: Operation) -> int:
        busy = self.parameters.halves.threads_per_multiprocessor * self.multiprocessors
        idle = 1 + busy / max(1, operation.results)
        arithmetic = operation.flops / (self.fp32_rate * self.architecture.compute)
        moved = operation.bytes / self._bandwidth(operation)
        return self.architecture.launch + ceil(max(arithmetic, moved) * idle * 1e9)


def time_model(gpu: GpuSpec, *, tf32: Tf32 = Tf32.CONVOLUTIONS) -> TimeModel:
    """The time model of a GPU.

    tf32: which single-precision products use matrix units, where the GPU has such that take them.

    Raises `InputError` naming everything that the GPU's description lacks, and an architecture without parameters.

    >>> time_model(GpuSpec("bare", memory=1))
    Traceback (most recent call last):
    simgpu.errors.InputError: bare: gpu.architecture: is not stated; ...
    """
    parameters = load_parameters()
    needed = {
        "architecture": gpu.architecture,
        "multiprocessors": gpu.multiprocessors,
        "fp32_rate": gpu.fp32_rate,
        "dram_bandwidth": gpu.dram_bandwidth,
    }
    problems = [
        Problem(gpu.name, f"gpu.{name}", "is not stated", "the time model needs it: add it to the node's file")
        for name, value in needed.items()
        if value is None
    ]
    if gpu.architecture is not None and gpu.architecture not in parameters.architectures:
        what = f"the time model has no parameters for {gpu.architecture!r}"
        problems.append(
            Problem(gpu.name, "gpu.architecture", what, did_you_mean(gpu.architecture, parameters.architectures))
        )
    if problems:
        raise InputError(problems)
    assert gpu.architecture is not None and gpu.multiprocessors is not None
    assert gpu.fp32_rate is not None and gpu.dram_bandwidth is not None
    architecture = parameters.architectures[gpu.architecture]
    return TimeModel(gpu, architecture, parameters, tf32, gpu.fp32_rate, gpu.dram_bandwidth, gpu.multiprocessors)
