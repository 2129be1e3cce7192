"""Applies CUDA's autocast rules for number formats to fake CPU tensors.

PyTorch has a list of operators per device type that run in lower precision, in float32, or in the widest format of
their arguments; others run in the format of their arguments. `autocast_as_on_gpu` replaces the CPU's list by CUDA's
(``ATen/autocast_mode.h``; "Autocast Op Reference" in PyTorch's documentation), and enables autocast for CUDA without a
CUDA device.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

from simgpu.recorder.autocast import Autocasts, replaced, watched

_LOWER_PRECISION = """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul
    einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
"""
#: Their results are float32, set by their dtype argument; their inputs are not converted.
_FLOAT32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
#: They have no dtype argument, but an overload (the value) has one.
_NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_OTHER = {"cpu": "cuda", "cuda": "cpu"}


class _Casts:
    """Caches casts of weights until autocast is left, as PyTorch does."""

    def __init__(self) -> None:
        self._created: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def clear(self) -> None:
        """Drop all cached casts."""
        self._created.clear()

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Converts an argument to another format; only floating-point tensors other than float64 are converted."""
        if isinstance(value, list | tuple):
            return type(value)(self.cast(item, dtype) for item in value)
        if not _eligible(value) or value.dtype == dtype:
            return value
        is_weight = value.dtype is torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
        if not (is_weight and dtype == _lower() and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        owner, result = self._created.get(id(value), (None, None))
        if owner is None or owner() is not value:
            result = value.to(dtype)
            self._created[id(value)] = weakref.ref(value), result
        return result


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _lower() -> torch.dtype:
    dtype: torch.dtype = torch.get_autocast_dtype("cpu")
    return dtype


def _in_lower_precision(casts: _Casts, func: Any, *args: Any, **kwargs: Any) -> Any:
    return _cast_call(casts, func, _lower(), args, kwargs)


def _in_float32(casts: _Casts, func: Any, *args: Any, **kwargs: Any) -> Any:
    return _cast_call(casts, func, torch.float32, args, kwargs)


def _cast_call(casts: _Casts, func: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Casts the last argument first, as PyTorch's builds for Linux do."""
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        named = {name: casts.cast(value, dtype) for name, value in reversed(kwargs.items())}
        given = [casts.cast(value, dtype) for value in reversed(args)]
        return func(*reversed(given), **named)


def _in_widest(casts: _Casts, func: Any, *args: Any, **kwargs: Any) -> Any:
    formats = {leaf.dtype for value in (*args, *kwargs.values()) for leaf in _tensors(value) if _eligible(leaf)}
    if formats - {torch.float32, _lower()}:  # the same message as PyTorch's
        raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return _cast_call(casts, func, torch.float32 if torch.float32 in formats else _lower(), args, kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, torch.Tensor):
            yield item


def _softmax_to_float32(casts: _Casts, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs softmax as on CUDA: the kernel reads float16 and writes float32; other formats are converted first."""
    if args[0].dtype is not torch.float16 or len(args) > 2 or kwargs.get("dtype") not in (None, torch.float32):
        return _to_float32(casts, func, *args, **kwargs)
    fused = torch.ops.aten._softmax if func is torch.ops.aten.softmax.int else torch.ops.aten._log_softmax
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        return fused(*args, True)


def _to_float32(_casts: _Casts, func: Any, *args: Any, **kwargs: Any) -> Any:
    given = list(args)
    if _eligible(given[0]):
        place = next(number for number, argument in enumerate(func._schema.arguments) if argument.name == "dtype")
        if place >= len(given):
            kwargs["dtype"] = kwargs.get("dtype") or torch.float32
        else:
            given[place] = given[place] or torch.float32
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        return func(*given, **kwargs)


def _norm_to_float32(_casts: _Casts, func: Any, *args: Any, **kwargs: Any) -> Any:
    arguments = func._schema.arguments
    missing = [argument.default_value for argument in arguments[len(args) :] if argument.name not in kwargs]
    typed = getattr(torch.ops.aten.norm, _NORMS[f"norm.{func._overloadname}"])
    dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        return typed(*args, *missing, **kwargs, dtype=dtype)


def _unsafe(*_: Any, **__: Any) -> Any:
    what = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast"
    raise RuntimeError(f"{what}; use binary_cross_entropy_with_logits or BCEWithLogitsLoss")


#: Implementations of operators under autocast, by name and overload.
POLICIES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **dict.fromkeys(_LOWER_PRECISION.split(), _in_lower_precision),
        **dict.fromkeys(_FLOAT32.split(), _in_float32),
        **dict.fromkeys(_FLOAT32_RESULT.split(), _to_float32),
        **dict.fromkeys(_NORMS, _norm_to_float32),
        **dict.fromkeys(_WIDEST.split(), _in_widest),
        **dict.fromkeys(("softmax.int", "log_softmax.int"), _softmax_to_float32),
        "binary_cross_entropy": _unsafe,
    }
)


def listed(key: str) -> set[str]:
    """Returns the names, without ``aten::``, of the operators with an autocast rule. key: such as ``AutocastCUDA``.

    >>> "linear" in listed("AutocastCUDA")
    True
    """
    names = torch._C._dispatch_get_all_op_names()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::") and has_kernel(name, key)}


@contextmanager
def autocast_as_on_gpu(name: str) -> Iterator[Autocasts]:
    """Makes CUDA's autocast and gradient scalers work on CPU tensors in the context; yields the uses of autocast."""
    rules = CudaAutocast()
    with rules.available(), watched(name, refuses=False, entered=rules.entered) as result:
        yield result


class CudaAutocast:
    """Autocast for CUDA on CPU tensors.

    A fake tensor's device is the CPU, but it represents a tensor on the GPU. So ``torch.autocast("cuda")`` and
    ``torch.autocast(x.device.type)`` are the same: settings for one device type are set for both.
    """

    def __init__(self) -> None:
        self._casts = _Casts()
        self._library: Library | None = None

    @contextmanager
    def available(self) -> Iterator[None]:
        """Inside the context, autocast and gradient scalers for CUDA can be enabled; tensors have CUDA's formats."""
        clear = torch.clear_autocast_cache

        def cleared() -> None:
            clear()
            self._casts.clear()

        common = torch.cuda.amp.common
        try:
            with (
                replaced(common, "amp_definitely_not_available", lambda: False),
                replaced(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
                replaced(torch, "clear_autocast_cache", cleared),
            ):
                yield
        finally:
            self._casts.clear()
            if self._library is not None:
                self._library._destroy()

    def entered(self, autocast: torch.autocast) -> Callable[[], None]:
        """Called when autocast is entered: sets it for the other device type too; returns a function to undo that."""
        other = _OTHER.get(autocast.device)
        if other is None:
            return lambda: None
        if self._library is None:
            self._library = Library("aten", "IMPL")
            self._register(self._library)
        enabled, dtype = torch.is_autocast_enabled(other), torch.get_autocast_dtype(other)
        torch.set_autocast_enabled(other, autocast._enabled)
        torch.set_autocast_dtype(other, autocast.fast_dtype)

        def undo() -> None:
            torch.set_autocast_enabled(other, enabled)
            torch.set_autocast_dtype(other, dtype)

        return undo

    def _register(self, library: Library) -> None:
        on_gpu = listed("AutocastCUDA")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel", UserWarning)
            for name in listed("AutocastCPU") - on_gpu:
                library.impl(name, fallthrough_kernel, "AutocastCPU")
            for name in sorted(on_gpu & set(POLICIES)):
                operator, _, overload = name.partition(".")
                func = getattr(getattr(torch.ops.aten, operator), overload or "default")
                library.impl(name, partial(POLICIES[name], self._casts, func), "AutocastCPU")
