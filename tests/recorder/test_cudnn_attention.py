"""cuDNN's attention without a device: where PyTorch 2.13 takes it on Hopper and Blackwell, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.recorder.modelled.attention import Attention
from simgpu.recorder.modelled.temporaries import temporaries
from simgpu.recorder.operators import operator_name

_HEADS, _TOKENS, _WIDTH = 4, 16, 64
#: Makes the mask of a call.
_Mask = Callable[[], torch.Tensor]


class _Calls(TorchDispatchMode):
    """Notes the operators, with what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.results[operator_name(func).removeprefix("aten::")] = result
        return result


def _attend(
    architecture: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    width: int = _WIDTH,
    values: int | None = None,
    keys: int = _TOKENS,
    key_heads: int = _HEADS,
    mask: _Mask | None = None,
    **options: Any,
) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor | None]:
    """The operators of a call for two samples, with their results; the result and the mask."""
    with FakeTensorMode():
        query = torch.empty(2, _HEADS, _TOKENS, width, dtype=dtype, requires_grad=True)
        key = torch.empty(2, key_heads, keys, width, dtype=dtype)
        value = torch.empty(2, key_heads, keys, values or width, dtype=dtype)
        added = None if mask is None else mask()
        with _Calls() as calls:
            result = Attention(architecture)(query, key, value, added, **options)
    return calls.results, result, added


def _kernel(architecture: str, **options: Any) -> str | None:
    """The name of the fused operator; None for plain products."""
    names = [each for each in _attend(architecture, **options)[0] if "_attention" in each]
    return names[0].removeprefix("_scaled_dot_product_").removesuffix("_attention") if names else None


def _empty(*shape: int, **options: Any) -> _Mask:
    return lambda: torch.empty(shape, **{"dtype": torch.bfloat16, **options})


@pytest.mark.parametrize(
    ("architecture", "options", "expected"),
    [
        ("hopper", {}, "cudnn"),
        ("blackwell", {}, "cudnn"),
        ("ada", {}, "flash"),
        ("hopper", {"dtype": torch.float16}, "cudnn"),
        ("hopper", {"dtype": torch.float32}, "efficient"),
        ("hopper", {"width": 256}, "cudnn"),
        ("blackwell", {"width": 256}, "flash"),
        ("hopper", {"width": 264}, "efficient"),
        ("hopper", {"width": 12}, "flash"),
        ("hopper", {"width": 192, "values": 128}, "cudnn"),
        ("blackwell", {"width": 192, "values": 128}, "cudnn"),
        ("blackwell", {"width": 192, "values": 64}, "efficient"),
        ("ada", {"width": 192, "values": 128}, "efficient"),
        ("hopper", {"dropout_p": 0.1}, "flash"),
        ("hopper", {"dropout_p": 0.125}, "cudnn"),
        ("hopper", {"key_heads": 2, "enable_gqa": True}, "cudnn"),
        ("hopper", {"keys": 1}, "flash"),
        ("hopper", {"keys": 8, "is_causal": True}, "cudnn"),
        ("ada", {"keys": 8, "is_causal": True}, "efficient"),
    ],
)
def test_cudnn_is_taken_for_operands_that_it_supports(architecture: str, options: Any, expected: str) -> None:
    assert _kernel(architecture, **options) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (_empty(_TOKENS, _TOKENS), "cudnn"),
        (_empty(2, 1, 1, _TOKENS), "cudnn"),
        (_empty(2, _HEADS, _TOKENS, _TOKENS), "cudnn"),
        (_empty(_TOKENS, _TOKENS, dtype=torch.bool), "cudnn"),
        (_empty(_HEADS, _TOKENS, _TOKENS), "efficient"),
        (_empty(_TOKENS, _TOKENS, requires_grad=True), "efficient"),
        (lambda: torch.empty(_TOKENS, _TOKENS, dtype=torch.bfloat16).t(), None),
    ],
)
def test_cudnn_is_taken_with_masks_that_it_supports(mask: _Mask, expected: str | None) -> None:
    assert _kernel("hopper", mask=mask) == expected
    assert _kernel("ada", mask=mask) == (None if expected is None else "efficient")


def _shapes() -> Iterator[tuple[int, ...]]:
    for rows in (1, _TOKENS, 3):
        yield rows, _TOKENS
        yield _TOKENS, rows
        yield _HEADS, rows, _TOKENS
        yield from ((samples, heads, rows, _TOKENS) for samples in (1, 2, 3) for heads in (1, _HEADS, 2))


@pytest.mark.parametrize("trained", [False, True])
def test_conditions_on_a_mask_are_those_of_pytorch(trained: bool) -> None:
    """``check_attn_mask_shape``, by the choice that PyTorch makes for a CPU, whose flash attention has it too."""
    taken = set()
    for shape in _shapes():
        x, mask = torch.ones(2, _HEADS, _TOKENS, 8), torch.zeros(shape, requires_grad=trained)
        choice = torch._fused_sdp_choice(x, x, x, mask)
        is_flash = choice == SDPBackend.FLASH_ATTENTION.value
        try:
            names = _attend("hopper", mask=_empty(*shape, requires_grad=trained))[0]
        except RuntimeError:  # no kernel can expand it to the scores
            names = {}
        assert ("_scaled_dot_product_cudnn_attention" in names) == is_flash, shape
        taken.add(is_flash)
    assert taken == ({False} if trained else {False, True})


@contextmanager
def _set(enable: Callable[[], None], restore: Callable[[], None]) -> Iterator[None]:
    enable()
    try:
        yield
    finally:
        restore()


def _deterministic(warn_only: bool) -> AbstractContextManager[None]:
    use = torch.use_deterministic_algorithms
    return _set(lambda: use(True, warn_only=warn_only), lambda: use(False))


@pytest.mark.parametrize(
    ("setting", "plain", "masked"),
    [
        (lambda: sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]), "flash", "efficient"),
        (lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), "cudnn", "cudnn"),
        (lambda: _deterministic(warn_only=False), "flash", "efficient"),
        (lambda: _deterministic(warn_only=True), "cudnn", "cudnn"),
    ],
)
def test_settings_of_pytorch_turn_cudnns_attention_off(setting: Any, plain: str, masked: str) -> None:
    with setting():
        assert (_kernel("hopper"), _kernel("hopper", mask=_empty(_TOKENS, _TOKENS))) == (plain, masked)


@pytest.mark.parametrize("architecture", ["hopper", "ada"])
def test_cudnn_keeps_a_mask_whose_rows_are_not_aligned_and_others_copy_it(architecture: str) -> None:
    calls, result, mask = _attend(
        architecture, mask=lambda: torch.empty(2, 1, _TOKENS, _TOKENS + 1, dtype=torch.bfloat16)[..., :-1]
    )
    function: Any = result.grad_fn
    saved = function._saved_attn_bias
    assert mask is not None
    is_own = saved.untyped_storage()._cdata == mask.untyped_storage()._cdata
    assert is_own == (architecture == "hopper") == ("constant_pad_nd" not in calls)
    if is_own:
        _, sums, *_, seed, offset, _ = calls["_scaled_dot_product_cudnn_attention"]
        assert (sums.shape, sums.dtype) == ((2, _HEADS, _TOKENS, 1), torch.float32)
        assert function._saved_logsumexp.shape == sums.shape
        assert {(x.shape, x.dtype) for x in (seed, offset)} == {((), torch.int64)}
        assert (saved.shape, saved.stride()) == (mask.shape, mask.stride())


def test_cudnns_backward_sums_gradients_of_queries_in_one_workspace() -> None:
    x = torch.empty(2, _HEADS, _TOKENS, _WIDTH, device="meta")
    (workspace,) = temporaries("_scaled_dot_product_cudnn_attention_backward", {"query": x})
    assert workspace.bytes == 4 * 2 * _HEADS * _TOKENS * (_WIDTH + 1)
