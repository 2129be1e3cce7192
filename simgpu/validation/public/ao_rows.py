"""The benchmark of torchao's optimizers on timm's ViT-giant of DINOv2, as its table of August 2024 has it.

`benchmarks/benchmark_low_bit_adam.py` at commit 1b1e94c5 (pull request 584), images of 224 x 224 and 45 classes; the
model is that of timm's `vision_transformer.py`, with one reentrant checkpoint a block, as then. AdamW is PyTorch's, on
the GPU or by torchao's `CPUOffloadOptimizer`: parameters below 4,096 values are updated on the GPU, the others and
their states live on the host, and gradients stay on the GPU until the step ends.

Rows of `torch.compile` run the same operators here. Each block holds its input only, compiled or not; what the compiler
fuses inside a block changes times (`fused.py`), not peaks. It follows no reentrant checkpoints, so that these are the
others. Images come from data that are loaded in advance; their copy to the GPU, 10 MB, takes no time here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.timed_loop import Runs, whole_model

_WIDTH, _DEPTH, _HEADS, _HIDDEN, _PATCH, _IMAGE, _CLASSES = 1536, 40, 24, 4096, 14, 224, 45
#: Two channels of DDR4-3200, nominal: the source has a Ryzen 5600 with DDR4 of a rate that it does not state.
_HOST = {"host.memory_bandwidth": "51.2 GB/s"}
#: Smaller parameters are updated on the GPU.
_ON_GPU = 4096


class _Block(nn.Module):
    """Attention, and a gated feed-forward part whose first product makes both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH, eps=1e-6), nn.LayerNorm(_WIDTH, eps=1e-6)
        self.qkv, self.proj = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.fc1, self.fc2 = nn.Linear(_WIDTH, 2 * _HIDDEN), nn.Linear(_HIDDEN, _WIDTH)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((_WIDTH,), 1e-5)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._attended(self.norm1(x)) * self.gamma1
        return x + self._fed(self.norm2(x)) * self.gamma2

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = f.scaled_dot_product_attention(q, k, v)
        result: torch.Tensor = self.proj(x.transpose(1, 2).reshape(batch, length, _WIDTH))
        return result

    def _fed(self, x: torch.Tensor) -> torch.Tensor:
        gate, wide = self.fc1(x).chunk(2, dim=-1)
        result: torch.Tensor = self.fc2(f.silu(gate) * wide)
        return result


class VisionTransformer(nn.Module):
    """The model with a checkpoint a block. amp: with autocast to bfloat16."""

    def __init__(self, *, amp: bool, reentrant: bool) -> None:
        super().__init__()
        self._amp, self._reentrant = amp, reentrant
        self.proj = nn.Conv2d(3, _WIDTH, _PATCH, stride=_PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, (_IMAGE // _PATCH) ** 2 + 1, _WIDTH))
        self.blocks = nn.ModuleList(_Block() for _ in range(_DEPTH))
        self.norm = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, which the benchmark computes under autocast too."""
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self._amp):
            return {"loss": f.cross_entropy(self._scores(images), labels)}

    def _scores(self, images: torch.Tensor) -> torch.Tensor:
        x = self.proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self._reentrant)
        result: torch.Tensor = self.head(self.norm(x)[:, 0])
        return result


class OffloadedAdamW(torch.optim.Optimizer):
    """What `CPUOffloadOptimizer` does on the GPU: it updates small parameters, and frees all gradients in the end."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        given = self.param_groups[0]["params"]
        self._small = torch.optim.AdamW([each for each in given if each.numel() < _ON_GPU], lr=1e-4, fused=True)

    def step(self, closure: Any = None) -> Any:
        """One step; there is no closure."""
        self._small.step()


def ao_loop(row: PublishedRow) -> Loop:
    """What a row of the table runs."""
    assert row.sequences is not None
    amp = "autocast" in row.uses
    return Loop(
        partial(_made, amp, "compile" not in row.uses),
        sequences=row.sequences,
        optimizer=OffloadedAdamW if "optimizer on host" in row.uses else partial(torch.optim.AdamW, fused=True),
        zero_grad="end",
    )


def timed_ao_loop(row: PublishedRow) -> tuple[Loop, Runs]:
    """The loop with all updates as the GPU would run them, and what the host does instead.

    The optimizer's hooks run after backward where the whole model is compiled.
    """
    loop, graph = ao_loop(row), whole_model if "compile" in row.uses else None
    if "optimizer on host" not in row.uses:
        return loop, Runs(graph)
    on_gpu = replace(loop, optimizer=partial(torch.optim.AdamW, fused=True))
    return on_gpu, Runs(graph, "step" if graph else "backward", _HOST)


def _made(amp: bool, reentrant: bool, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    images, labels = torch.zeros(batch, 3, _IMAGE, _IMAGE), torch.randint(_CLASSES, (batch,))
    model = VisionTransformer(amp=amp, reentrant=reentrant)
    if amp:
        return model, (images, labels), (), None
    return model.to(torch.bfloat16), (images.to(torch.bfloat16), labels), (), None
