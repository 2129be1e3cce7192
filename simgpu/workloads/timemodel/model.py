"""`time_model` models the durations of kernels on a GPU from their operations and bytes.

A kernel takes the launch time plus the longer of its arithmetic and its memory traffic, each at a fraction of the GPU's
peak rate. Additional passes, such as the transforms of a Winograd convolution, are added. Small kernels reach a smaller
fraction, by smooth laws:

- a product of m x k and k x n takes (1 + a/m)(1 + b/n)(1 + c/k) times as long as its arithmetic (m: the longer side of
  the result), for partly filled tiles and short loops;
- and sqrt(1 + (h M / r)^2) times, for idle multiprocessors: r results, M multiprocessors, h results to fill one; sums
  longer than `split_depth` are split into parts of that length (k above), and each part counts as a result;
- products of matrices follow measured rates instead where `Products.MEASURED` is chosen, as for recorded models: they
  have one rate in all directions, and an h of their own without matrix units; tiny ones, such as those of a classifier
  of two labels, take no longer than if every multiplication read its two values from memory, without tiles;
- large half-precision products of matrices sustain the rate that the GPU's description states (`sustained_tensor_rate`,
  which a board's power limit lowers), by default the architecture's share of the matrix units' rate; those in float8 a
  multiple of it;
- fused attention in half precision has a law of its own (`simgpu.workloads.timemodel.attention`);
- any other kernel moves an additional `in_flight` bytes per multiprocessor: the bytes in flight that saturate the
  memory (Little's law).

These laws approximate waves of tiles without their steps, whose positions depend on the tile size that the library
chooses, which is not published. The laws are exact in both limits.

A separate kernel adds a convolution's bias by reading and writing its result: cuDNN's convolutions have no bias, and
PyTorch, TensorFlow and Torch run such a kernel after them (in PyTorch ``add_``, aten/src/ATen/native/cudnn).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, sqrt
from typing import TYPE_CHECKING

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.timemodel.algorithms import AlgorithmWork, image_by_image, works
from simgpu.workloads.timemodel.attention import fused_seconds, products_of_attention
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

if TYPE_CHECKING:
    from simgpu.workloads.timemodel.parameters import Architecture, Parameters


#: The product with which a board's sustained rate is measured (`GpuSpec.sustained_tensor_rate`).
SUSTAINED = GemmShape(8192, 8192, 8192)


class Tf32(StrEnum):
    """Which single-precision products run on matrix units that support TF32 (Ampere and later)."""

    NONE = "none"
    CONVOLUTIONS = "convolutions"  # PyTorch's default
    ALL = "all"


class Products(StrEnum):
    """Where the laws of small products of matrices, and of those of backward, come from."""

    FITTED = "fitted"  # with the convolutional networks of the zoo, whose last layers they are
    MEASURED = "measured"


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
    products: Products = Products.FITTED

    def duration_ns(self, operation: Operation) -> int:
        """The kernel's duration in whole nanoseconds; that of the fastest algorithm for a convolution.

        Raises `InputError` for products in formats other than float32, float16, bfloat16, float8_e4m3fn and
        float8_e5m2, and for one that the GPU does not support (`simgpu.workloads.timemodel.formats`).

        >>> from simgpu.hardware.nodes import load_node
        >>> relu = Operation(OperationKind.ELEMENTWISE, flops=10**8, bytes=9 * 10**8, results=10**8)
        >>> time_model(load_node("v100").gpu).duration_ns(relu) > 1_000_000
        True
        """
        if operation.kind is OperationKind.CONVOLUTION and operation.convolution is not None:
            return self.algorithms(operation)[0].duration_ns
        if operation.attention is not None:
            return self._attention_ns(operation, operation.attention)
        if operation.gemm is not None:
            work = AlgorithmWork("implicit_precomp_gemm", operation.gemm, operation.flops, matrix_units=True)
            return self._product_ns(operation, work, on_matrix_units=self._uses_matrix_units(operation, Tf32.ALL))
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
                self._product_ns(operation, work, on_matrix_units=matrix_units and work.matrix_units),
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
        if self.gpu.sustained_tensor_rate is not None:
            half = self.gpu.sustained_tensor_rate * self._padding(SUSTAINED)
        else:
            half = rate * (self.architecture.half_products or share)
        return half * self._float8_factor if operation.dtype in FLOAT8 else half

    @property
    def _float8_factor(self) -> float:
        """The rate of the best product in float8, as a multiple of that in half precision."""
        of = self.architecture
        ratio = of.float8_products / of.half_products if of.float8_products and of.half_products else 1.0
        return (of.float8 or 1.0) * ratio

    def _is_measured(self, operation: Operation) -> bool:
        return self.products is Products.MEASURED and operation.convolution is None

    def _direction_share(self, operation: Operation, on_matrix_units: bool) -> float:
        """Fraction of the forward rate in a product's direction; 1 for half-precision products of matrices.

        In backward, such a product has other sides but the same kernels; the fitted fractions are of convolutions,
        mostly.
        """
        is_half = on_matrix_units and operation.convolution is None and operation.dtype != "float32"
        return 1.0 if is_half or self._is_measured(operation) else self.parameters.directions[operation.direction]

    def _product_ns(self, operation: Operation, work: AlgorithmWork, *, on_matrix_units: bool) -> int:
        itemsize = itemsize_of_products(self.gpu, self.architecture, operation.dtype)
        if not work.product_flops:  # of an empty batch
            return work.kernels * self.architecture.launch
        share = self.parameters.algorithms[work.name] * self._direction_share(operation, on_matrix_units)
        rate = self._peak(operation, on_matrix_units) * share
        bandwidth, half = self._bandwidth(operation), self._half(operation, on_matrix_units)
        arithmetic = (
            work.times * work.product_flops * self._padding(work.product) * self._idle(work.product, half) / rate
        )
        if self._is_measured(operation):
            untiled = 2 * work.product.macs * itemsize + self.parameters.in_flight * self.multiprocessors
            arithmetic = min(arithmetic, untiled / bandwidth)
        # Matrix units need channels last and frameworks store channels first: operands and result are reordered.
        reordered = 2 * operation.bytes if on_matrix_units and operation.convolution is not None else 0
        around = max(
            work.other_flops / (self.fp32_rate * self.architecture.compute),
            (work.extra_bytes + reordered) / bandwidth,
        )
        seconds = max(arithmetic, operation.bytes / bandwidth) + around
        return work.kernels * self.architecture.launch + ceil(seconds * 1e9) + self._bias_ns(operation)

    def _attention_ns(self, operation: Operation, shape: AttentionShape) -> int:
        itemsize_of_products(self.gpu, self.architecture, operation.dtype)
        launch, shares = self.architecture.launch, self.architecture.attention
        if not operation.flops:  # of an empty batch
            return launch
        on_matrix_units = self._uses_matrix_units(operation, Tf32.ALL)
        rate = self._peak(operation, on_matrix_units)
        if shares is not None and operation.dtype != "float32":
            fp32, table = self.fp32_rate, self.parameters.attention
            seconds = fused_seconds(shape, operation.direction, rate, fp32, self.multiprocessors, shares, table)
        else:
            kept = operation.flops / (rate * self._direction_share(operation, on_matrix_units))
            products = products_of_attention(shape, operation.direction)
            whole = sum(each.macs for each in products)
            half = self._half(operation, on_matrix_units)
            slowed = sum(each.macs * self._padding(each) * self._idle(each, half) for each in products)
            seconds = kept * slowed / whole
        return launch + ceil(max(seconds, operation.bytes / self._bandwidth(operation)) * 1e9)

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

    def _half(self, operation: Operation, on_matrix_units: bool) -> float:
        """Results of a multiprocessor at which a product runs at half its full rate."""
        half = self.parameters.halves
        return half.products if self._is_measured(operation) and not on_matrix_units else half.results

    def _idle(self, product: GemmShape, half: float) -> float:
        """Slowdown factor of a product whose results do not fill the multiprocessors."""
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
    products: Products = Products.FITTED,
    parameters: Parameters | None = None,
) -> TimeModel:
    """The time model of a GPU.

    tf32: which single-precision products use matrix units, if the GPU's support them.
    without: algorithms that the library lacks, such as ``winograd`` before cuDNN 5.
    workspace_limit: bytes; algorithms that need more are not used.
    task_limit: bytes of a convolution's inputs, result and workspace together; None for no limit. Algorithms that need
    more are not used, but for those without a workspace.
    products: laws of products of matrices.
    parameters: by default the table shipped with simgpu.

    Raises `InputError` for values missing in the GPU's description, an architecture without parameters, and for unknown
    algorithms or ``implicit_gemm`` in `without`.

    >>> time_model(GpuSpec("bare", memory=1))
    Traceback (most recent call last):
    simgpu.errors.InputError: bare: gpu.architecture: is not stated; ...
    """
    from simgpu.workloads.timemodel.parameters import load_parameters

    table = parameters or load_parameters()
    needed = ("architecture", "multiprocessors", "fp32_rate", "dram_bandwidth")
    problems = [
        Problem(gpu.name, f"gpu.{name}", "is not stated", "the time model needs it: add it to the node's file")
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
        products,
    )
