"""`time_model` models the durations of kernels on a GPU from their operations and bytes.

A kernel takes the launch time plus the longer of its arithmetic and its memory traffic, each at a fraction of the GPU's
peak rate. Additional passes, such as the transforms of a Winograd convolution, are added. Small kernels reach a smaller
fraction, by smooth laws:

- the product of a convolution, of m x k and k x n, takes (1 + a/m)(1 + b/n)(1 + c/k) times as long as its arithmetic
  (m: the longer side of the result), for partly filled tiles and short loops;
- and sqrt(1 + (h M / r)^2) times, for idle multiprocessors: r results, M multiprocessors, h results to fill one; sums
  longer than `split_depth` are split into parts of that length (k above), and each part counts as a result;
- products of matrices take the time of the library's fastest tile (`simgpu.workloads.timemodel.products`), at one rate
  in all directions; fused attention in half precision has a law of its own (`simgpu.workloads.timemodel.attention`);
- half-precision products whose rows do not begin at multiples of 16 bytes reach the fraction `unaligned` of that rate;
- large half-precision products of matrices sustain the rate that the GPU's description states (`sustained_tensor_rate`,
  which a board's power limit lowers), by default the architecture's share of the matrix units' rate; those in float8 a
  multiple of it;
- any kernel but a convolution or attention moves an additional `in_flight` bytes per multiprocessor: the bytes in
  flight that saturate the memory (Little's law).

These laws approximate waves of tiles without their steps. They are exact in both limits.

A separate kernel adds a convolution's bias by reading and writing its result: cuDNN's convolutions have no bias, and
PyTorch, TensorFlow and Torch run such a kernel after them (in PyTorch ``add_``, aten/src/ATen/native/cudnn).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, sqrt
from typing import TYPE_CHECKING

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.timemodel.algorithms import AlgorithmWork, image_by_image, works
from simgpu.workloads.timemodel.attention import (
    FlashVersion,
    fused_seconds,
    products_of_attention,
    takes_cudnn,
    without_flash,
)
from simgpu.workloads.timemodel.formats import FLOAT8, itemsize_of_products, matrix_units_take
from simgpu.workloads.timemodel.operation import (
    AttentionShape,
    ConvolutionShape,
    Direction,
    GemmShape,
    Operation,
    OperationKind,
)
from simgpu.workloads.timemodel.prices import WORKSPACE_LIMIT
from simgpu.workloads.timemodel.products import ProductRates, product_seconds

if TYPE_CHECKING:
    from simgpu.workloads.timemodel.parameters import Architecture, FlashTable, KindShares, Parameters


_HALF = ("float16", "bfloat16")


class Tf32(StrEnum):
    """Which single-precision products run on matrix units that support TF32 (Ampere and later)."""

    NONE = "none"
    CONVOLUTIONS = "convolutions"  # PyTorch's default
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a convolution: its name, duration and workspace."""

    name: str
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True)
class TimeModel:
    """Durations on one GPU; `time_model` creates it."""

    gpu: GpuSpec
    architecture: Architecture
    parameters: Parameters
    fp32_rate: int
    dram_bandwidth: int
    multiprocessors: int
    tf32: Tf32
    without: frozenset[str]
    workspace_limit: int
    task_limit: int | None = None
    flash: FlashVersion = FlashVersion.TWO

    def duration_ns(self, operation: Operation) -> int:
        """The kernel's duration in whole nanoseconds; that of the fastest algorithm for a convolution.

        Raises `InputError` for products in formats other than float32, float16, bfloat16, float8_e4m3fn and
        float8_e5m2, and for one that the GPU does not support (`simgpu.workloads.timemodel.formats`).

        >>> from simgpu.hardware.nodes import load_node
        >>> relu = Operation(OperationKind.ELEMENTWISE, flops=10**8, bytes=9 * 10**8, results=10**8)
        >>> time_model(load_node("v100").gpu).duration_ns(relu) > 1_000_000
        True
        """
        if operation.exchange_ns is not None:
            return operation.exchange_ns
        if operation.kind is OperationKind.CONVOLUTION and operation.convolution is not None:
            return self.algorithms(operation)[0].duration_ns
        if operation.attention is not None:
            return self._attention_ns(operation, operation.attention)
        if operation.gemm is not None:
            return self._matrices_ns(operation, operation.gemm)
        return self._other_ns(operation)

    def algorithms(self, operation: Operation) -> tuple[Algorithm, ...]:
        """The algorithms that can compute a convolution, by duration, then workspace, then name.

        Empty for any other operation. Raises `InputError` like `duration_ns`.
        """
        shape = operation.convolution
        if shape is None or operation.kind is not OperationKind.CONVOLUTION:
            return ()
        matrix_units = self._uses_matrix_units(operation, Tf32.CONVOLUTIONS, Tf32.ALL)
        result = [
            Algorithm(
                work.name,
                self._convolution_ns(operation, work, on_matrix_units=matrix_units and work.matrix_units),
                work.workspace_bytes,
            )
            for work in self._works(shape, operation)
            if work.name not in self.without and work.workspace_bytes <= self._workspace_limit(operation)
        ]
        return tuple(sorted(result, key=lambda each: (each.duration_ns, each.workspace_bytes, each.name)))

    def _workspace_limit(self, operation: Operation) -> int:
        if self.task_limit is None:
            return self.workspace_limit
        return min(self.workspace_limit, max(self.task_limit - operation.bytes, 0))

    def _works(self, shape: ConvolutionShape, operation: Operation) -> tuple[AlgorithmWork, ...]:
        """The algorithms that the library has for this number format on this GPU."""
        itemsize = itemsize_of_products(self.gpu, self.architecture, operation.dtype)
        if operation.dtype == "bfloat16" and self.architecture.bf16 != "matrix units":
            return (image_by_image(shape, operation.direction, itemsize),)
        return works(shape, operation.direction, itemsize)

    def _uses_matrix_units(self, operation: Operation, *tf32: Tf32) -> bool:
        if operation.dtype == "float32":
            has_units = self.gpu.tensor_rate is not None and self.architecture.matrix is not None
            return has_units and self.architecture.tf32 and self.tf32 in tf32
        return matrix_units_take(self.gpu, self.architecture, operation.dtype)

    def _peak(self, operation: Operation, on_matrix_units: bool) -> float:
        """Operations per second that the best product in this number format reaches."""
        rate, share = self.gpu.tensor_rate, self.architecture.matrix
        if not on_matrix_units or rate is None or share is None:
            return self.fp32_rate * self.architecture.compute
        if operation.dtype == "float32":
            return rate * share / 2
        if operation.convolution is not None:
            return rate * share
        sustained = self.gpu.sustained_tensor_rate
        half = rate * (self.architecture.half_products or share) if sustained is None else sustained
        return half * self._float8_factor if operation.dtype in FLOAT8 else half

    @property
    def _float8_factor(self) -> float:
        """The rate of the best product in float8, as a multiple of that in half precision."""
        of = self.architecture
        ratio = of.float8_products / of.half_products if of.float8_products and of.half_products else 1.0
        return (of.float8 or 1.0) * ratio

    def _convolution_ns(self, operation: Operation, work: AlgorithmWork, *, on_matrix_units: bool) -> int:
        if not work.product_flops:  # of an empty batch
            return work.kernels * self.architecture.launch
        share = self.parameters.algorithms[work.name] * self.parameters.directions[operation.direction]
        rate = self._peak(operation, on_matrix_units) * share
        bandwidth = self._bandwidth(operation)
        arithmetic = work.times * work.product_flops * self._padding(work.product) * self._idle(work.product) / rate
        # Matrix units need channels last and frameworks store channels first: operands and result are reordered.
        reordered = 2 * operation.bytes if on_matrix_units else 0
        around = max(
            work.other_flops / (self.fp32_rate * self.architecture.compute),
            (work.extra_bytes + reordered) / bandwidth,
        )
        seconds = max(arithmetic, operation.bytes / bandwidth) + around
        return work.kernels * self.architecture.launch + ceil(seconds * 1e9) + self._bias_ns(operation)

    def _matrices_ns(self, operation: Operation, product: GemmShape) -> int:
        rates, launch = self._product_rates(operation), self.architecture.launch
        if not operation.flops:  # of an empty batch
            return launch
        if not product.aligned and operation.dtype in _HALF and self._uses_matrix_units(operation):
            rates = replace(rates, arithmetic=rates.arithmetic * self.parameters.unaligned)
        seconds = product_seconds(product, operation.bytes, rates)
        return launch + ceil((seconds + self.parameters.in_flight * self.multiprocessors / rates.memory) * 1e9)

    def _product_rates(self, operation: Operation) -> ProductRates:
        return ProductRates(
            self._peak(operation, self._uses_matrix_units(operation, Tf32.ALL)),
            self._bandwidth(operation),
            self.dram_bandwidth * self.parameters.cache,
            self.multiprocessors,
            itemsize_of_products(self.gpu, self.architecture, operation.dtype),
            self.architecture.launch * 1e-9,
        )

    def _attention_ns(self, operation: Operation, shape: AttentionShape) -> int:
        rates = self._product_rates(operation)
        launch, (shares, flash) = self.architecture.launch, self._flash(shape)
        if not operation.flops:  # of an empty batch
            return launch
        if shares is not None and operation.dtype != "float32":
            fp32, table, many, rate = self.fp32_rate, self.parameters.attention, self.multiprocessors, rates.arithmetic
            if flash is table.cudnn:
                rate /= self.architecture.half_products or 1
            seconds = fused_seconds(shape, operation.direction, rate, fp32, many, shares, table, flash)
        else:
            products = products_of_attention(shape, operation.direction)
            kept = operation.flops / (2 * sum(each.macs for each in products))
            seconds = kept * sum(product_seconds(each, 0, rates) for each in products)
        return launch + ceil(max(seconds, operation.bytes / rates.memory) * 1e9)

    def _flash(self, shape: AttentionShape) -> tuple[KindShares | None, FlashTable]:
        """The architecture's shares of the kernels, and what holds for them on all architectures."""
        of, table = self.architecture, self.parameters.attention
        if shape.efficient:
            return of.attention, table.flash2
        supports = takes_cudnn(self.gpu.architecture, shape.width, shape.values)
        if of.cudnn is not None and (shape.cudnn or (self.flash is FlashVersion.CUDNN and supports)):
            return of.cudnn, table.cudnn
        return (of.flash3, table.flash3) if self.flash is FlashVersion.THREE else (of.attention, table.flash2)

    def _bias_ns(self, operation: Operation) -> int:
        """Duration of the kernel that adds a convolution's bias to its result."""
        if not operation.added_bytes:
            return 0
        return self._other_ns(Operation(OperationKind.ELEMENTWISE, 0, operation.added_bytes, operation.results))

    def _padding(self, product: GemmShape) -> float:
        """Slowdown factor of a product whose sides do not fill its tiles."""
        half = self.parameters.halves
        long, short = max(product.m, product.n), min(product.m, product.n)
        depth = min(float(product.k), self.parameters.split_depth)
        return (1 + half.rows / long) * (1 + half.columns / short) * (1 + half.depth / depth)

    def _idle(self, product: GemmShape) -> float:
        """Slowdown factor of a product whose results do not fill the multiprocessors."""
        half = self.parameters.halves.results
        parts = max(1.0, product.k / self.parameters.split_depth)
        results = product.count * product.m * product.n * parts
        return sqrt(1 + (half * self.multiprocessors / results) ** 2)

    def _bandwidth(self, operation: Operation) -> float:
        shares = self.parameters.kinds[operation.kind]
        share = shares.forward if operation.direction is Direction.FORWARD else shares.backward
        if operation.kind is OperationKind.NORMALIZATION:
            share *= self.architecture.normalization
        return self.dram_bandwidth * self.architecture.memory * share

    def _other_ns(self, operation: Operation) -> int:
        in_flight = self.parameters.in_flight * self.multiprocessors
        arithmetic = operation.flops / (self.fp32_rate * self.architecture.compute)
        moved = (operation.bytes + in_flight) / self._bandwidth(operation)
        return self.architecture.launch + ceil(max(arithmetic, moved) * 1e9)


def time_model(
    gpu: GpuSpec,
    *,
    tf32: Tf32 = Tf32.CONVOLUTIONS,
    without: Iterable[str] = (),
    workspace_limit: int = WORKSPACE_LIMIT,
    task_limit: int | None = None,
    flash: FlashVersion = FlashVersion.TWO,
    parameters: Parameters | None = None,
) -> TimeModel:
    """The time model of a GPU.

    tf32: which single-precision products use matrix units, if the GPU's support them.
    without: algorithms that the library lacks, such as ``winograd`` before cuDNN 5.
    workspace_limit: bytes; algorithms that need more are not used.
    task_limit: bytes of a convolution's inputs, result and workspace together; None for no limit. Algorithms that need
    more are not used, but for those without a workspace.
    flash: the kernels of flash attention.
    parameters: by default the table shipped with simgpu.

    Raises `InputError` for values missing in the GPU's description, an architecture without parameters, a version of
    flash attention that the GPU does not have, and for unknown algorithms or ``implicit_gemm`` in `without`.

    >>> time_model(GpuSpec("bare", memory=1))
    Traceback (most recent call last):
    simgpu.errors.InputError: bare: gpu.architecture: is not stated; ...
    """
    from simgpu.workloads.timemodel.parameters import load_parameters

    table = parameters or load_parameters()
    needed = ("architecture", "multiprocessors", "fp32_rate", "dram_bandwidth")
    known = f", one of {', '.join(table.architectures)}; times of others cannot be modelled"
    add = "the time model needs it: add it to the node's file"
    problems = [
        Problem(gpu.name, f"gpu.{name}", "is not stated", f"{add}{known if name == 'architecture' else ''}")
        for name in needed
        if getattr(gpu, name) is None
    ]
    if gpu.architecture is not None and gpu.architecture not in table.architectures:
        what = f"the time model has no parameters for {gpu.architecture!r}"
        problems.append(
            Problem(gpu.name, "gpu.architecture", what, did_you_mean(gpu.architecture, table.architectures))
        )
    lacking = frozenset(without)
    for name in sorted(lacking - set(table.algorithms)):
        problems.append(Problem("", "without", f"{name!r} is not an algorithm", did_you_mean(name, table.algorithms)))
    if "implicit_gemm" in lacking:
        what = "'implicit_gemm' is the algorithm that always applies"
        problems.append(Problem("", "without", what, "do not exclude it"))
    if problems:
        raise InputError(problems)
    assert gpu.architecture is not None and gpu.multiprocessors is not None
    assert gpu.fp32_rate is not None and gpu.dram_bandwidth is not None
    architecture = next(result for name, result in table.architectures.items() if name == gpu.architecture)
    if problem := without_flash(gpu, flash, architecture):
        remedy = "give a GPU such as h100, or FlashAttention-2"
        raise InputError.single(gpu.name, "gpu.architecture", problem, remedy)
    return TimeModel(
        gpu,
        architecture,
        table,
        gpu.fp32_rate,
        gpu.dram_bandwidth,
        gpu.multiprocessors,
        tf32,
        lacking,
        workspace_limit,
        task_limit,
        flash,
    )
