"""Number formats of products on a GPU: the arithmetic they run in, and notes about how times are modelled.

Half-precision formats that matrix units do not support are multiplied in single precision, from 2-byte values:

- float16 before Volta: PyTorch calls ``cublasGemmEx`` (``cublasSgemmEx`` on Kepler) to compute in float32
  (aten/src/ATen/cuda/CUDABlas.cpp);
- bfloat16 on Volta and Turing: inputs are shifted to float32 (PyTorch, pull request 148322). cuDNN has no such
  convolution (PyTorch, `CUDAHooks::supportsBFloat16ConvolutionWithCuDNNv8`), so PyTorch runs im2col and a product for
  one image after another (aten/src/ATen/native/cuda/ConvolutionMM2d.cu).

cuBLAS has no bfloat16 products before Volta, so they are unsupported (`parameters.yaml`, sources); and no matrix unit
multiplies float8 before Ada and Hopper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec

if TYPE_CHECKING:
    from simgpu.workloads.timemodel.parameters import Architecture

#: Bytes of one value, by PyTorch's name of the number format; other formats are unsupported.
_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
#: Formats of 8 bits: of values and weights, and of gradients.
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def itemsize_of_products(gpu: GpuSpec, architecture: Architecture, dtype: str) -> int:
    """Bytes of one value of a product. Raises `InputError` for a format without products on the GPU."""
    if dtype not in _ITEMSIZE:
        remedy = f"give one of {', '.join(_ITEMSIZE)}"
        raise InputError.single("", "time model", f"has no rate for products of {dtype!r}", remedy)
    if dtype == "bfloat16" and architecture.bf16 == "none":
        problem = f"{gpu.name} ({gpu.architecture}) has no products of 'bfloat16': cuBLAS has none before Volta"
        raise InputError.single("", "time model", problem, "give float16 or float32, or a GPU from Volta on")
    if dtype in FLOAT8 and (problem := without_float8(gpu, architecture)):
        raise InputError.single("", "time model", problem, "give bfloat16, or a GPU such as rtx4090 or h100")
    return _ITEMSIZE[dtype]


def without_float8(gpu: GpuSpec, architecture: Architecture | None = None) -> str:
    """Why the GPU's matrix units multiply no float8; empty if they do. architecture: by default the GPU's own.

    >>> from simgpu.hardware.nodes import load_node
    >>> without_float8(load_node("a10g").gpu), without_float8(load_node("l4").gpu)
    ('A10G (ampere) has no matrix units for float8, which came with Ada and Hopper', '')
    """
    architecture = architecture or architecture_of(gpu)
    if architecture is None or architecture.float8 is not None:
        missing = architecture is not None and gpu.tensor_rate is None
        return f"gpu.tensor_rate of {gpu.name} is not stated, which float8 needs" if missing else ""
    return f"{gpu.name} ({gpu.architecture}) has no matrix units for float8, which came with Ada and Hopper"


def matrix_units_take(gpu: GpuSpec, architecture: Architecture, dtype: str) -> bool:
    """Whether products of a format of at most 16 bits run on the GPU's matrix units.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.timemodel.parameters import load_parameters
    >>> volta = load_parameters().architectures["volta"]
    >>> [matrix_units_take(load_node("v100").gpu, volta, dtype) for dtype in ("float16", "bfloat16")]
    [True, False]
    """
    if gpu.tensor_rate is None or architecture.matrix is None:
        return False
    if dtype in FLOAT8:
        return architecture.float8 is not None
    return dtype == "float16" or (dtype == "bfloat16" and architecture.bf16 == "matrix units")


def product_rate(gpu: GpuSpec, dtype: str) -> int | None:
    """Peak operations per second of products in a format; None if the GPU's description lacks the rate.

    A GPU of unknown architecture multiplies both half-precision formats on its matrix units, if it has any.
    """
    architecture = architecture_of(gpu)
    if architecture is None:
        on_matrix_units = gpu.tensor_rate is not None and dtype in ("float16", "bfloat16")
    else:
        on_matrix_units = matrix_units_take(gpu, architecture, dtype)
    if on_matrix_units and dtype in FLOAT8 and gpu.tensor_rate is not None and architecture is not None:
        return round(gpu.tensor_rate * (architecture.float8 or 1))
    return gpu.tensor_rate if on_matrix_units else gpu.fp32_rate


def model_notes(gpu: GpuSpec, dtypes: Iterable[str] = ()) -> list[str]:
    """Notes on the limits of times modelled for a GPU; empty if there are none.

    dtypes: number formats of the priced products.

    >>> from simgpu.hardware.nodes import load_node
    >>> model_notes(load_node("h200").gpu, ["bfloat16"])
    ["The time model's hopper was fitted to H100, not to H200 SXM."]
    """
    architecture = architecture_of(gpu)
    if architecture is None:
        return []
    notes = [fitted] if (fitted := _fitted_for_others(gpu, architecture)) else []
    for dtype in sorted(set(dtypes) & {"float16", "bfloat16"}):
        if not matrix_units_take(gpu, architecture, dtype):
            lacks = f"matrix units for {dtype}" if gpu.tensor_rate is not None else "matrix units"
            images = ", convolutions one image after another" if dtype == "bfloat16" else ""
            notes.append(
                f"Products of {dtype} are priced in single precision with 2-byte values{images}: "
                f"{gpu.name} has no {lacks}."
            )
    return notes


def _fitted_for_others(gpu: GpuSpec, architecture: Architecture) -> str:
    """A note that the time model was fitted to other GPUs, or to none; empty if it was fitted to this one."""
    if not architecture.fitted_to:
        return f"The time model's {gpu.architecture} is chosen from published figures, not fitted to a GPU."
    names = (gpu.name, *gpu.reported_as)
    if any(_is_model(fitted, name) for fitted in architecture.fitted_to for name in names):
        return ""
    return f"The time model's {gpu.architecture} was fitted to {', '.join(architecture.fitted_to)}, not to {gpu.name}."


def _is_model(model: str, name: str) -> bool:
    """Whether a GPU's name denotes a model: 'Tesla V100 PCIe' is a V100, 'GTX 1080 Ti' is not a GTX 1080."""
    return re.search(rf"(?<!\w){re.escape(model)}(?!\w| Ti\b| SUPER\b)", name, re.IGNORECASE) is not None


def architecture_of(gpu: GpuSpec) -> Architecture | None:
    from simgpu.workloads.timemodel.parameters import load_parameters

    known = load_parameters().architectures
    return next((result for name, result in known.items() if name == gpu.architecture), None)
