"""Convolution algorithms: when each applies, its operations and bytes, and its workspace. `works` lists them.

Applicability follows cuDNN's documentation of its algorithms (cuDNN developer guide, enumerations
cudnnConvolutionFwdAlgo_t, BwdDataAlgo_t and BwdFilterAlgo_t). With N images, C input and K result channels, R x S
filters, P x Q results, 4-byte values:

===================== ================================ =======================================================
algorithm             applies to                       workspace, bytes
===================== ================================ =======================================================
implicit_gemm         always                           none
implicit_precomp_gemm always                           4 (CRS + NPQ): an offset per tap and per result
gemm                  always                           4 CRS NPQ: the matrix of all taps of all results
winograd              3 x 3, stride 1; not for weights 4 x 16 CK: transformed filters
winograd_nonfused     3 x 3, stride 1                  4 x 36 (T (C + K) + CK): T tiles of 4 x 4 results, filters
fft                   stride 1, padded side up to 256  8 F (NC + NK + CK): spectra, F = side (side / 2 + 1)
fft_tiling            stride 1, filter side up to 32   the same with tiles of 32 x 32 for images
===================== ================================ =======================================================

"Stride 1" also requires no dilation. A formula counts what the algorithm must store at once; a library may store less
by working in portions, or more for padding. Published measurements: cuDNN's fused Winograd needs 256 KiB for 64 to 64
channels (LBANN, pull request 437), as here; and for 32 images of 56 x 56, 64 to 64 channels, 3 x 3, the fast choice
fits into 256 MB and not into 128 MB (sonots/cumo, pull request 502). That source does not name the choice; the formulas
give 111 MiB for the non-fused Winograd, 132 MiB for FFT.

Simplifications: the non-fused Winograd applies only to 3 x 3, although cuDNN's guide lists 5 x 5 too (its tile sizes
are not published, so its arithmetic and workspace cannot be counted). 1 x 1 filters use no transforms, which would save
nothing. Transforms process groups one after another in the same workspace, each as a separate convolution, as Torch and
Caffe did before cuDNN 7 had groups; cuDNN's own method is not published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2
from typing import Literal

from simgpu.workloads.timemodel.operation import ConvolutionShape, Direction, GemmShape

AlgorithmName = Literal[
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "winograd", "winograd_nonfused", "fft", "fft_tiling"
]

#: Bytes of a single-precision complex number, and of one precomputed index offset.
_COMPLEX, _OFFSET = 8, 4
#: Longest padded side that the whole-image transform supports; tile side of the tiled one.
_FFT_LIMIT, _FFT_TILE = 256, 32


@dataclass(frozen=True, slots=True)
class AlgorithmWork:
    """The work of one algorithm for a convolution.

    product: the matrix product that it computes.
    product_flops: operations of that product.
    other_flops: operations of the transforms around it.
    extra_bytes: traffic in addition to operands and result, such as transformed tiles written and read.
    workspace_bytes: its workspace.
    matrix_units: whether it can use them.
    kernels: number of kernels, launched one after another.
    times: repetitions of `product` and `product_flops`, one after another; the other fields cover all of them.
    """

    name: AlgorithmName
    product: GemmShape
    product_flops: int
    other_flops: int = 0
    extra_bytes: int = 0
    workspace_bytes: int = 0
    matrix_units: bool = False
    kernels: int = 1
    times: int = 1


def product_of(shape: ConvolutionShape, direction: Direction) -> GemmShape:
    """The matrix product that computes a convolution after im2col, one matrix entry per tap of each result.

    >>> shape = ConvolutionShape(2, 3, (8, 8), 16, (3, 3), padding=(1, 1))
    >>> product_of(shape, Direction.FORWARD)
    GemmShape(m=128, n=16, k=27, count=1, aligned=True)
    >>> product_of(shape, Direction.BACKWARD_WEIGHTS)
    GemmShape(m=16, n=27, k=128, count=1, aligned=True)
    """
    (rows, columns), (height, width) = shape.kernel, shape.out_size
    inputs, outputs = shape.in_channels // shape.groups, shape.out_channels // shape.groups
    taps, results = rows * columns, shape.batch * height * width
    match direction:
        case Direction.FORWARD:
            return GemmShape(results, outputs, inputs * taps, shape.groups)
        case Direction.BACKWARD_DATA:
            # Each input pixel contributes to about taps / stride^2 results: the same arithmetic as forward.
            pixels = shape.batch * shape.in_size[0] * shape.in_size[1]
            depth = max(1, ceil(results * outputs * taps / pixels))
            return GemmShape(pixels, inputs, depth, shape.groups)
        case Direction.BACKWARD_WEIGHTS:
            return GemmShape(outputs, inputs * taps, results, shape.groups)


@lru_cache(maxsize=4096)
def works(shape: ConvolutionShape, direction: Direction, itemsize: int = 4) -> tuple[AlgorithmWork, ...]:
    """Every algorithm that applies, in no particular order. itemsize: bytes of one value.

    Cached: networks repeat shapes, and the same shapes are priced for many GPUs and parameters.
    """
    return tuple(_works(shape, direction, itemsize))


def _works(shape: ConvolutionShape, direction: Direction, itemsize: int) -> Iterator[AlgorithmWork]:
    product, flops = product_of(shape, direction), 2 * shape.macs
    yield AlgorithmWork("implicit_gemm", product, flops, matrix_units=True)
    taps = shape.in_channels // shape.groups * shape.kernel[0] * shape.kernel[1]
    positions = shape.batch * shape.out_size[0] * shape.out_size[1]
    yield AlgorithmWork(
        "implicit_precomp_gemm",
        product,
        flops,
        workspace_bytes=_OFFSET * (taps + positions),
        matrix_units=True,
    )
    matrix = itemsize * positions * taps * shape.groups
    yield AlgorithmWork(
        "gemm", product, flops, extra_bytes=2 * matrix, workspace_bytes=matrix, matrix_units=True, kernels=2
    )
    if shape.stride == (1, 1) and shape.dilation == (1, 1):
        inputs, outputs = shape.in_channels // shape.groups, shape.out_channels // shape.groups
        group = replace(shape, in_channels=inputs, out_channels=outputs, groups=1)
        for work in _by_transforms(group, direction, itemsize):
            yield _repeated(work, shape.groups)


def image_by_image(shape: ConvolutionShape, direction: Direction, itemsize: int) -> AlgorithmWork:
    """The work of a framework's own convolution where the library has none: im2col and a product, image by image.

    As in PyTorch (aten/src/ATen/native/cuda/ConvolutionMM2d.cu): for each image and group, one kernel writes the matrix
    of all taps and one multiplies it, in the same workspace. In forward and for weights, 1 x 1 filters of stride 1
    need no matrix.

    >>> shape = ConvolutionShape(2, 3, (8, 8), 16, (3, 3), padding=(1, 1))
    >>> work = image_by_image(shape, Direction.FORWARD, itemsize=2)
    >>> work.product, work.times, work.workspace_bytes, work.kernels  # 2 bytes of 27 taps of 64 results
    (GemmShape(m=64, n=16, k=27, count=1, aligned=True), 2, 3456, 4)
    """
    inputs, outputs = shape.in_channels // shape.groups, shape.out_channels // shape.groups
    one = replace(shape, batch=1, in_channels=inputs, out_channels=outputs, groups=1)
    times = shape.batch * shape.groups
    is_plain = (one.kernel, one.stride, one.padding) == ((1, 1), (1, 1), (0, 0))
    if is_plain and direction is not Direction.BACKWARD_DATA:
        return AlgorithmWork("gemm", product_of(one, direction), 2 * one.macs, kernels=times, times=times)
    (rows, columns), (height, width) = one.kernel, one.out_size
    matrix = itemsize * inputs * rows * columns * height * width
    return AlgorithmWork(
        "gemm",
        product_of(one, direction),
        2 * one.macs,
        extra_bytes=times * 2 * matrix,
        workspace_bytes=matrix,
        kernels=2 * times,
        times=times,
    )


def _by_transforms(shape: ConvolutionShape, direction: Direction, itemsize: int) -> Iterator[AlgorithmWork]:
    """The transform algorithms that apply to a convolution of stride 1 without groups."""
    if shape.kernel == (3, 3):
        if direction is not Direction.BACKWARD_WEIGHTS:
            yield _winograd_fused(shape, itemsize)
        yield _winograd_nonfused(shape, itemsize)
    if shape.kernel != (1, 1):
        yield from _transforms(shape)


def _repeated(work: AlgorithmWork, times: int) -> AlgorithmWork:
    """The work repeated `times` times, one after another in the same workspace."""
    return replace(
        work,
        product=replace(work.product, count=times * work.product.count),
        product_flops=times * work.product_flops,
        other_flops=times * work.other_flops,
        extra_bytes=times * work.extra_bytes,
        kernels=times * work.kernels,
    )


def _tiles(shape: ConvolutionShape, side: int) -> int:
    """Number of tiles of side x side results that cover all images."""
    height, width = shape.out_size
    return shape.batch * ceil(height / side) * ceil(width / side)


def _winograd_fused(shape: ConvolutionShape, itemsize: int) -> AlgorithmWork:
    """F(2x2, 3x3): 16 multiplies for 4 results instead of 36; only the transformed filters are stored.

    Additions of the transforms from Lavin and Gray (CVPR 2016), section 4.1: 32 per tile of the input, 28 per filter,
    24 per tile of the result.
    """
    tiles, channels = _tiles(shape, 2), shape.in_channels * shape.out_channels
    product = GemmShape(tiles, shape.out_channels, shape.in_channels, 16)
    additions = tiles * (32 * shape.in_channels + 24 * shape.out_channels) + 28 * channels
    filters = 16 * channels * itemsize
    return AlgorithmWork("winograd", product, 2 * product.macs, additions, 2 * filters, filters, kernels=2)


def _winograd_nonfused(shape: ConvolutionShape, itemsize: int) -> AlgorithmWork:
    """F(4x4, 3x3): 36 multiplies for 16 results instead of 144; transformed tiles and filters are stored.

    Operations of the transforms from Lavin and Gray (CVPR 2016), section 4.3: 156 per tile of the input, 72 per
    filter, 90 per tile of the result.
    """
    tiles, channels = _tiles(shape, 4), shape.in_channels * shape.out_channels
    product = GemmShape(tiles, shape.out_channels, shape.in_channels, 36)
    transforms = tiles * (156 * shape.in_channels + 90 * shape.out_channels) + 72 * channels
    stored = 36 * itemsize * (tiles * (shape.in_channels + shape.out_channels) + channels)
    return AlgorithmWork("winograd_nonfused", product, 2 * product.macs, transforms, 2 * stored, stored, kernels=4)


def _transforms(shape: ConvolutionShape) -> Iterator[AlgorithmWork]:
    """FFT algorithms: of entire images padded to a power of two, and of 32 x 32 tiles."""
    padded = max(side + 2 * padding for side, padding in zip(shape.in_size, shape.padding, strict=True))
    if padded <= _FFT_LIMIT and max(shape.kernel) <= padded:
        side = 1 << max(padded - 1, 1).bit_length()
        yield _spectral(shape, "fft", side, shape.batch)
    if max(shape.kernel) <= _FFT_TILE:
        height, width = (
            ceil(out / (_FFT_TILE - kernel + 1)) for out, kernel in zip(shape.out_size, shape.kernel, strict=True)
        )
        yield _spectral(shape, "fft_tiling", _FFT_TILE, shape.batch * height * width)


def _spectral(shape: ConvolutionShape, name: AlgorithmName, side: int, images: int) -> AlgorithmWork:
    """The work to transform both operands, multiply the spectra per frequency, and transform back.

    A real transform of side x side values takes 2.5 n log2 n operations (n = side squared) and returns
    side x (side / 2 + 1) complex numbers; a complex multiply-accumulate is four real ones.
    """
    frequencies, values = side * (side // 2 + 1), side * side
    planes = images * (shape.in_channels + shape.out_channels) + shape.in_channels * shape.out_channels
    spectra = _COMPLEX * frequencies * planes
    product = GemmShape(images, shape.out_channels, shape.in_channels, frequencies)
    transforms = ceil(2.5 * values * log2(values) * planes)
    return AlgorithmWork(name, product, 8 * product.macs, transforms, 2 * spectra, spectra, kernels=4)
