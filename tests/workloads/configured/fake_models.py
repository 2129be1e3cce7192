"""Models of transformers on fake tensors, and what autograd saves in their forward pass.

Most tests take them from `transformers_models`, which needs the version that most families are modelled after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("transformers", reason="transformers, whose modules are compared, is not installed")

import torch
import transformers
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import modeling_flash_attention_utils
from transformers.utils import import_utils

from simgpu.recorder import record
from simgpu.recorder.modelled.gpu_forms import gpu_forms
from simgpu.recorder.workload import Workload
from simgpu.trace.model import Trace

#: Decoders read no images, and torchvision may be built for another PyTorch.
import_utils._torchvision_available = False


class Expected(NamedTuple):
    """parameters: trained. saved: path of the module and bytes of each block that autograd saves, without weights."""

    parameters: int
    saved: list[tuple[str, int]]


def _config(values: dict[str, Any]) -> Any:
    """The configuration; of a model with images, that of the text part, which the language model takes."""
    options = {**values, "use_cache": False}
    config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
    if config.model_type in ("gemma3", "llama4"):
        config = config.get_text_config()
        config.use_cache = False
    return config


def model(values: dict[str, Any], dtype: str = "bfloat16", attention: str = "sdpa") -> Any:
    """The model of a configuration, in training mode, without a cache of keys and values."""
    config = _config(values)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    with _flash_package() if attention == "flash_attention_2" else nullcontext():
        created = auto.from_config(config, torch_dtype=getattr(torch, dtype), attn_implementation=attention)
    return created.train()


@contextmanager
def _flash_package() -> Iterator[None]:
    """Transformers takes the package flash-attn as installed; its function runs PyTorch's copy of the same kernels.

    What the function's operands are, and what runs before and after it, is transformers' own code.
    """
    base = transformers.PreTrainedModel
    before = base._check_and_enable_flash_attn_2

    def enabled(config: Any, *_: Any, **__: Any) -> Any:
        config._attn_implementation = "flash_attention_2"
        return config

    utilities = modeling_flash_attention_utils
    utilities.flash_attn_func, utilities._flash_supports_window_size = _flash_attn_func, True
    for family in ("olmoe", "qwen2_moe", "stablelm"):  # they import it only if the package is there
        earlier: Any = import_module(f"transformers.models.{family}.modeling_{family}")
        earlier._flash_attention_forward = utilities._flash_attention_forward
    base._check_and_enable_flash_attn_2 = enabled
    try:
        yield
    finally:
        base._check_and_enable_flash_attn_2 = before


def _flash_attn_func(
    query: Any, key: Any, value: Any, dropout: float, *, softmax_scale: float, causal: bool, **_: Any
) -> Any:
    heads = (each.transpose(1, 2) for each in (query, key, value))
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    return attend(*heads, dropout, causal, scale=softmax_scale)[0].transpose(1, 2)


def expected(
    values: dict[str, Any], batch: int, length: int, dtype: str = "bfloat16", attention: str = "sdpa"
) -> Expected:
    """Runs forward on fake tensors with the operators of an H100."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with balanced_routing(values), short_samples(), fake, gpu_forms("hopper"):
        module = model(values, dtype, attention)
        weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
        path, saved, held = [""], {}, []

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights and storage._cdata not in saved and not _on_host(tensor, path[-1]):
                saved[storage._cdata] = path[-1], _bytes_on_cuda(tensor, path[-1])
                held.append(tensor)
            return tensor

        for name, part in module.named_modules():
            part.register_forward_pre_hook(_entering(path, name))
            part.register_forward_hook(_leaving(path))
        tokens = torch.zeros(batch, length, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(input_ids=tokens, labels=torch.zeros(batch, length, dtype=torch.int64))
        return Expected(sum(weight.numel() for weight in module.parameters()), list(saved.values()))


@contextmanager
def balanced_routing(values: dict[str, Any]) -> Iterator[None]:
    """Fake tensors have no values that a router could choose by: `nonzero` gives each expert an equal number of tokens.

    The first of them have one more if they do not divide.
    """
    config = _config(values)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((getattr(config, name) for name in names if hasattr(config, name)), None)
    operators = fake_impls.op_implementations_dict
    nonzero, calls = torch.ops.aten.nonzero.default, iter(range(2**30))
    before = operators[nonzero]

    def balanced(mode: Any, func: Any, mask: Any) -> Any:
        chosen, tokens = mask.shape
        each, rest = divmod(chosen * tokens, count)
        rows = each + (next(calls) % count < rest)
        return mask.new_empty_strided((rows, 2), (1, rows), dtype=torch.int64)

    if count is None:
        yield
        return
    operators[nonzero] = balanced
    try:
        yield
    finally:
        operators[nonzero] = before


@contextmanager
def short_samples() -> Iterator[None]:
    """Where a module asks whether samples are longer than those of pretraining (longrope), they are not."""
    operators, scalar = fake_impls.op_implementations_dict, torch.ops.aten._local_scalar_dense.default
    before = operators[scalar]

    def answer(mode: Any, func: Any, value: Any) -> Any:
        return False if value.dtype is torch.bool else before(mode, func, value)

    operators[scalar] = answer
    try:
        yield
    finally:
        operators[scalar] = before


def _entering(path: list[str], name: str) -> Callable[..., None]:
    return lambda *_: path.append(name)


def _leaving(path: list[str]) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        path.pop()

    return leave


def _on_host(tensor: Any, path: str) -> bool:
    """Whether it is the number by which Gemma scales its embedding: created in Python, so on the host."""
    return bool(tensor.dim() == 0 and tensor.dtype is torch.bfloat16 and path == "model")


def _bytes_on_cuda(tensor: Any, path: str) -> int:
    """Bytes of the block behind a saved tensor.

    Layer normalization keeps its statistics in float32 on CUDA, and in the input's format on the CPU, whose fake
    tensors these are (``native_layer_norm`` in PyTorch's ``torch/_refs/__init__.py``).
    """
    size: int = tensor.untyped_storage().nbytes()
    is_statistic = tensor.dim() == 3 and tensor.shape[-1] == 1 and tensor.dtype is torch.bfloat16
    return 2 * size if is_statistic else size


def recorded(
    values: dict[str, Any],
    batch: int,
    length: int,
    dtype: str = "bfloat16",
    attention: str = "sdpa",
    *,
    targets: int | None = None,
    padding: bool = False,
    changed: Callable[[Any], Any] = lambda module: module,
    optimizer: Callable[[Any], Any] = lambda weights: torch.optim.AdamW(weights, lr=1e-4),
    **options: Any,
) -> Trace:
    """One training iteration, followed on fake tensors for an H100.

    targets: tokens of the labels of each sample, by default as many as its own. padding: whether the model is given a
    mask of padded tokens, of which there are none, as the collators of transformers do.
    changed: returns the model to train from that of the configuration. optimizer: of its weights; AdamW by default.
    options: of `simgpu.recorder.record`.
    """
    samples = batch // options.get("micro_batches", 1)

    def workload() -> Workload:
        tokens, labels = (torch.zeros(samples, count, dtype=torch.int64) for count in (length, targets or length))
        mask = {"attention_mask": torch.ones_like(tokens)} if padding else {}
        module = changed(model(values, dtype, attention))
        return Workload(module, {"input_ids": tokens, "labels": labels, **mask}, (), lambda output: output.loss)

    return record(workload, batch=batch, gpu="h100", optimizer=optimizer, **options)


class Adapted(torch.nn.Module):
    """LoRA's adapters around a frozen linear layer, in the structure of peft's ``lora.Linear``."""

    def __init__(self, frozen: Any, rank: int, dtype: Any, rate: float = 0.0) -> None:
        super().__init__()
        self.base_layer = frozen
        first = torch.nn.Linear(frozen.in_features, rank, bias=False, dtype=dtype)
        second = torch.nn.Linear(rank, frozen.out_features, bias=False, dtype=dtype)
        self.lora_A, self.lora_B = torch.nn.ModuleDict({"default": first}), torch.nn.ModuleDict({"default": second})
        dropout = torch.nn.Dropout(rate) if rate else torch.nn.Identity()
        self.lora_dropout = torch.nn.ModuleDict({"default": dropout})

    def forward(self, x: Any) -> Any:
        result = self.base_layer(x)
        first, second, dropout = self.lora_A["default"], self.lora_B["default"], self.lora_dropout["default"]
        changed = result + second(first(dropout(x.to(first.weight.dtype)))) * 2.0
        return changed.to(result.dtype)


def adapted(rank: int, targets: tuple[str, ...], dtype: str = "float32", rate: float = 0.0) -> Callable[[Any], Any]:
    """Returns a function that freezes a model and adds adapters of this format to its linear layers of these names.

    rate: of their dropout.
    """

    def changed(module: Any) -> Any:
        module.requires_grad_(False)
        for name, part in list(module.named_modules()):
            parent, _, last = name.rpartition(".")
            if isinstance(part, torch.nn.Linear) and any(f".{name}".endswith(f".{each}") for each in targets):
                setattr(module.get_submodule(parent), last, Adapted(part, rank, getattr(torch, dtype), rate))
        return module

    return changed


class InBackward(torch.optim.Optimizer):
    """An optimizer for each weight, called by a hook of its gradient (torchtune's ``register_optim_in_bwd_hooks``)."""

    def __init__(self, weights: Iterable[Any]) -> None:
        weights = list(weights)
        super().__init__(weights, {})
        own = {weight: torch.optim.AdamW([weight], lr=1e-4, fused=True) for weight in weights}

        def update(weight: Any) -> None:
            own[weight].step()
            own[weight].zero_grad()

        for weight in weights:
            weight.register_post_accumulate_grad_hook(update)

    def step(self, closure: Any = None) -> None:
        """Nothing is left to do."""


def autocasting(dtype: str) -> Callable[[Any], Any]:
    """Returns a function that runs a model's forward pass, loss included, under CUDA's autocast."""

    def changed(module: Any) -> Any:
        module.forward = torch.autocast("cuda", dtype=getattr(torch, dtype))(module.forward)
        return module

    return changed
