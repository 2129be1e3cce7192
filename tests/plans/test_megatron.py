"""Settings of Megatron-LM: which parts of layers they recompute and offload, and which have no counterpart."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.hardware.nodes import load_node
from simgpu.plans.candidate import Candidate
from simgpu.plans.megatron import Selective
from simgpu.plans.regions import Steps
from simgpu.plans.repeats import equal_layers
from simgpu.recorder import record
from simgpu.recorder.workload import find_factory
from tests.plans.models import Gpt

NODE = load_node("v100")
LAYERS = 5
SIZE = {"tokens": 512, "layers": LAYERS, "width": 256, "heads": 4, "vocabulary": 64}
SELECTIVE = "--recompute-granularity selective --recompute-modules"
OFFLOAD = "--fine-grained-activation-offloading --offload-modules"
#: Bytes of the input of a layer.
WIDTH = 16 * SIZE["tokens"] * SIZE["width"] * 4


@cache
def fused() -> Selective:
    """A GPT with fused attention: `norm1`, `attention` with `qkv` and `out`, `norm2` and `mlp` in each block."""
    return of(partial(find_factory("gpt2-small"), **SIZE), batch=16)


def of(factory: Any, batch: int) -> Selective:
    steps = Steps(record(factory, batch=batch, gpu="v100"))
    return Selective(steps, equal_layers(steps))


@cache
def settings() -> dict[str, Candidate]:
    return dict(fused().settings())


def again(candidate: Candidate) -> set[str]:
    """What runs again in the first layer, as module and operator."""
    kernels = candidate.steps.trace.kernels
    names = {f"{kernels[k].layer}:{kernels[k].op}" for rerun in candidate.planned.reruns for k in rerun}
    return {name.removeprefix("blocks.0.") for name in names if name.startswith("blocks.0.")}


def peak(candidate: Candidate) -> int:
    return candidate.trail(NODE).peak


def test_layernorm_runs_the_norms_again_and_drops_their_outputs() -> None:
    candidate = settings()[f"{SELECTIVE} layernorm"]
    assert again(candidate) == {"norm1:aten::native_layer_norm", "norm2:aten::native_layer_norm"}
    dropped = peak(Candidate(candidate.steps)) - peak(candidate)
    assert (2 * LAYERS - 1) * WIDTH <= dropped <= (2 * LAYERS + 1) * WIDTH


def test_mlp_with_layernorm_keeps_only_the_input_of_the_norm() -> None:
    candidate = settings()[f"{SELECTIVE} layernorm mlp"]
    assert again(candidate) == {
        "norm1:aten::native_layer_norm", "norm2:aten::native_layer_norm", "mlp.fc:aten::addmm", "mlp.gelu:aten::gelu"
    }  # fmt: skip
    assert peak(candidate) < peak(settings()[f"{SELECTIVE} mlp"]) < peak(settings()[f"{SELECTIVE} layernorm"])


def test_offloaded_modules_lose_what_they_save_except_in_the_last_layer() -> None:
    def blocks(names: str) -> set[str]:
        return set(settings()[f"{OFFLOAD} {names}"].offloaded)

    qkv = {f"blocks.{n}.attention.qkv:addmm" for n in range(LAYERS - 1)}
    assert blocks("core_attn") == qkv
    assert len(blocks("core_attn attn_proj") - qkv) == LAYERS - 1
    assert blocks("mlp_norm") == {f"blocks.{n}:add" for n in range(LAYERS - 1)}
    assert blocks("core_attn --activation-offload-fraction 0.5") == {f"blocks.{n}.attention.qkv:addmm" for n in (0, 1)}


def test_modules_that_exclude_each_other_are_not_combined() -> None:
    for text in settings():
        recomputed, _, rest = text.removeprefix(SELECTIVE).partition(OFFLOAD)
        offloaded = rest.partition("--")[0].split()
        assert "attn_proj" not in offloaded or "core_attn" in offloaded
        assert not ("layernorm" in recomputed and "qkv_linear" in offloaded)


def test_fused_attention_is_not_recomputed_and_other_attention_is() -> None:
    assert "core_attn (attention is one fused operator)" in fused().unmapped
    assert not any("core_attn" in text.partition(OFFLOAD)[0] for text in settings())

    def factory(batch: int) -> tuple[object, ...]:
        tokens = torch.randint(50, (batch, 12))
        return Gpt(layers=4, fused=False), tokens, torch.randint(50, (batch * 12,)), nn.CrossEntropyLoss()

    other = of(factory, batch=256)
    candidate = dict(other.settings())[f"{SELECTIVE} core_attn"]
    assert {"attention:aten::bmm", "attention:aten::_softmax"} <= again(candidate)
    assert peak(candidate) < peak(Candidate(candidate.steps))
    assert not any("attention.q:" in name or "attention.out:" in name for name in again(candidate))
    # Scores are scaled, so autograd saves no result of the projections of query and key.
    assert "layernorm (no region drops its output alone)" in other.unmapped
    assert "offloaded core_attn (saves nothing large)" in other.unmapped
    assert not any(OFFLOAD in text for text, _ in other.settings())


def test_layers_without_attention_have_no_selective_settings() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> Any:
            return self.blocks(x)

    selective = of(lambda batch: (Chain(), torch.randn(batch, 64), torch.randn(batch, 64), nn.MSELoss()), batch=8)
    assert list(selective.settings()) == []
    assert selective.unmapped.startswith("selective (no attention between modules)")
