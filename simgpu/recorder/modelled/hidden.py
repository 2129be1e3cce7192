"""Memory that CUDA operators allocate for themselves, in addition to their results.

- Convolutions. cuDNN's tensor-core kernels need the channels last, so it converts contiguous operands and results: the
  workspace has the size of operands, result and filter. A recording of VGG-13 on an H100 (PyTorch's profiler, batch
  512) requests this, up to 512 bytes more, for eight of nine forward convolutions on tensor cores; the ninth does not
  convert its result. Backward requests it for each direction, and up to 8.4 MB more. The first convolution, of three
  channels, uses no tensor cores and no workspace. On GPUs whose tensor cores have no TF32, the workspace of float32
  convolutions is that of the time model's fastest algorithm. Depthwise convolutions of contiguous float32 tensors run
  in PyTorch's own kernel (``use_cudnn_depthwise`` in ``ATen/native/Convolution.cpp``).
- Matrix products. PyTorch gives cuBLAS a workspace for each thread that calls it, and never frees it: 8,519,680 bytes,
  32 MiB on Hopper and Blackwell, 128 MiB on CDNA 3 (``ATen/cuda/CublasHandlePool.cpp``). Backward runs in a thread of
  its own.
- Temporaries: `simgpu.recorder.modelled.temporaries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simgpu.recorder.allocation_log import Hidden, Life
from simgpu.recorder.modelled.operations import PRODUCTS, arguments, tensor_bytes, work_of
from simgpu.recorder.modelled.pricing import allows_tf32
from simgpu.recorder.modelled.temporaries import has_temporaries, temporaries
from simgpu.workloads.timemodel.prices import Prices, algorithm_costs

#: Architectures whose tensor cores compute float32 convolutions as TF32, PyTorch's default.
TF32 = frozenset(("ampere", "ada", "hopper", "blackwell", "blackwell-rtx"))
#: Those with tensor cores for half-precision numbers.
_HALF = TF32 | {"volta", "turing", "cdna3"}
#: Bytes to which cuDNN's tensor-core kernels need the channels of a value aligned.
_ALIGNMENT = 16
_PRODUCTS = frozenset(name for name in PRODUCTS if not name.startswith(("convolution", "_scaled_dot_product")))
#: Bytes of the workspace of matrix products, on the architectures that have another one.
_WORKSPACE = 8_519_680
_WORKSPACES = {"hopper": 32 * 2**20, "blackwell": 32 * 2**20, "cdna3": 128 * 2**20}


class CudaOperators:
    """Returns the hidden memory of each call, on a GPU of this architecture.

    prices: of convolutions on GPUs whose tensor cores have no TF32; None where no time model is known: they then count
    as needing no workspace.
    """

    def __init__(self, architecture: str | None, prices: Prices | None = None) -> None:
        self._architecture = architecture
        self._prices = prices
        self._cublas = _WORKSPACES.get(architecture or "", _WORKSPACE)

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> Sequence[Hidden]:
        """The memory in addition to the results, in order."""
        name = func._schema.name.removeprefix("aten::")
        if name in _PRODUCTS:
            thread = "forward" if torch._C._current_autograd_node() is None else "backward"
            return (Hidden(self._cublas, 1, Life.LASTING, f"cuBLAS in {thread}"),)
        if name == "convolution":
            given = arguments(func, args, kwargs)
            bytes_ = self._convolution(given["input"], given["weight"], returned, given["groups"], func, args, kwargs)
            return (Hidden(bytes_, 1, Life.MOMENT, "cuDNN"),) if bytes_ else ()
        if name == "convolution_backward":
            given = arguments(func, args, kwargs)
            x, weight, gradient = given["input"], given["weight"], given["grad_output"]
            bytes_ = self._convolution(x, weight, gradient, given["groups"], func, args, kwargs, returned)
            wanted = [place + 1 for place in range(2) if given["output_mask"][place]]
            return tuple(Hidden(bytes_, place, Life.MOMENT, "cuDNN") for place in wanted) if bytes_ else ()
        if has_temporaries(name):
            return temporaries(name, arguments(func, args, kwargs))
        return ()

    def _convolution(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        y: torch.Tensor,
        groups: int,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        returned: Any = None,
    ) -> int:
        """Bytes of workspace of each direction of a convolution."""
        contiguous = x.is_contiguous()
        if groups > 1 and groups == x.shape[1] and x.dtype is torch.float32 and contiguous:
            return 0  # PyTorch's own depthwise kernel
        if self._on_tensor_cores(x, weight):
            return tensor_bytes(x) + tensor_bytes(y) + tensor_bytes(weight) if contiguous else 0
        if self._prices is None or self._architecture in TF32:
            return 0
        costs = algorithm_costs(
            self._prices, work_of(func, args, kwargs, y if returned is None else returned).operations
        )
        return costs[0].workspace_bytes if costs else 0

    def _on_tensor_cores(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        if x.dtype is torch.float32:
            allowed = allows_tf32(torch.backends.cudnn, "conv") and self._architecture in TF32
        else:
            allowed = x.dtype in (torch.float16, torch.bfloat16) and self._architecture in _HALF
        step = _ALIGNMENT // x.element_size()
        return bool(allowed and weight.shape[1] % step == 0 and weight.shape[0] % step == 0)
