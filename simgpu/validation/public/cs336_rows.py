"""The transformer of Stanford's course CS336 with its own layers, loss and AdamW, as one repository profiled it.

Wedsonlin/assignment2-systems at commit 8630bcf of July 2026: `cs336-basics` (`model.py`, `nn_utils.py`,
`optimizer.py`), and `memory_profile` of `cs336_systems/nsys_profile.py`, one step after five warm-ups. All products are
sums by Einstein's convention, and softmax, SiLU, norms and the loss are written in single operators.

The repository does not say which precision the four snapshots have. The recordings do: at 128 and 256 tokens, the
scores of attention take four bytes each; at 512 and 1,024 two, so that those ran under autocast.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from simgpu.validation.public.loop import Loop
from simgpu.validation.public.rows import PublishedRow


class _Sizes(NamedTuple):
    """A model. hidden: width inside the feed-forward part."""

    layers: int
    heads: int
    width: int
    hidden: int


#: By the name of a configuration, as in `scripts/run_profile_configs.sh`.
_SIZES = {"cs336-medium": _Sizes(24, 16, 1024, 4096)}
_VOCABULARY = 10000


class _Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bsi,oi->bso", x, self.weight)


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


class _Attention(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.q_proj, self.k_proj, self.v_proj, self.output_proj = (_Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        length = x.size(1)
        q, k, v = (
            each.reshape(*each.shape[:2], self.heads, -1).permute(0, 2, 1, 3)
            for each in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        q, k = _rotated(q, turns), _rotated(k, turns)
        places = torch.arange(length, device=x.device)
        mask = (places.view(-1, 1) >= places.view(1, -1))[None]
        result: torch.Tensor = self.output_proj(_attended(q, k, v, mask))
        return result


def _rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    first, second = x.reshape(*x.shape[:-1], -1, 2).permute(4, 0, 1, 2, 3).unbind(0)
    cos, sin = turns[:, : x.size(-2), :].unbind(0)
    turned_first = cos * first - sin * second
    turned_second = sin * first + cos * second
    return torch.concat((turned_first, turned_second), dim=-1)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = _softmax(scores)
    both = torch.einsum("bhqk,bhkd->bhqd", weights, v)
    batch, heads, length, each = both.shape
    return both.permute(0, 2, 1, 3).reshape(batch, length, heads * each).contiguous()


def _softmax(x: torch.Tensor) -> torch.Tensor:
    moved = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(moved)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


class _FeedForward(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.w1 = _Linear(sizes.width, sizes.hidden)
        self.w2 = _Linear(sizes.hidden, sizes.width)
        self.w3 = _Linear(sizes.width, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.w2(_silu(self.w1(x)) * self.w3(x))
        return result


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class _Block(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.attn, self.ffn = _Attention(sizes), _FeedForward(sizes)
        self.ln1, self.ln2 = _RmsNorm(sizes.width), _RmsNorm(sizes.width)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        attended = self.attn(self.ln1(x), turns)
        middle = x + attended
        fed: torch.Tensor = self.ffn(self.ln2(middle))
        return middle + fed


class CourseTransformer(nn.Module):
    """The model and its loss. amp: under autocast to bfloat16, else in float32.

    It holds the logits, as a name of the profiled step does, which was deleted before that step began.
    """

    def __init__(self, sizes: _Sizes, length: int, *, amp: bool) -> None:
        super().__init__()
        self._amp = amp
        self._output: torch.Tensor | None = None
        self.token_embeddings = nn.Parameter(torch.zeros(_VOCABULARY, sizes.width))
        self.layers = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.ln_final = _RmsNorm(sizes.width)
        self.lm_head = _Linear(sizes.width, _VOCABULARY)
        each = sizes.width // sizes.heads
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, each, 2) / each))
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss."""
        self._output = None
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self._amp):
            x = self.token_embeddings[tokens, :]
            for layer in self.layers:
                x = layer(x, self.turns)
            logits = self.lm_head(self.ln_final(x))
            self._output = logits
            return {"loss": _loss(logits, targets)}


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in single operators."""
    moved = logits - torch.max(logits, dim=-1, keepdim=True)[0]
    negative = -(moved - torch.log(torch.sum(torch.exp(moved), dim=-1, keepdim=True)))
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class CourseAdamW(torch.optim.Optimizer):
    """AdamW parameter by parameter, which makes both averages anew in each step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})

    def step(self, closure: Any = None) -> Any:
        """One step; there is no closure."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad.data, group)

    def _update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        state, (decay_1, decay_2), rate = self.state[parameter], group["betas"], group["lr"]
        step = state.get("t", 1)
        rate_now = rate * (math.sqrt(1 - decay_2**step) / (1 - decay_1**step))
        parameter.data -= rate * group["weight_decay"] * parameter.data
        before_1 = state.get("m", torch.zeros_like(grad))
        before_2 = state.get("v", torch.zeros_like(grad))
        now_1 = decay_1 * before_1 + ((1 - decay_1) * grad)
        now_2 = decay_2 * before_2 + ((1 - decay_2) * torch.square(grad))
        parameter.data -= rate_now * now_1 / (torch.sqrt(now_2) + group["eps"])
        state["m"], state["v"], state["t"] = now_1, now_2, step + 1


def cs336_loop(row: PublishedRow) -> Loop:
    """What a row of the four snapshots runs: six steps are alike from the second on."""
    assert row.config is not None and row.sequences is not None and row.tokens is not None
    return Loop(
        partial(_made, _SIZES[row.config], row.tokens, "autocast" in row.uses),
        sequences=row.sequences,
        optimizer=CourseAdamW,
        iterations=2,
        zero_grad="end",
    )


def _made(sizes: _Sizes, tokens: int, amp: bool, batch: int) -> tuple[nn.Module, Any, Any, Any]:
    words = torch.randint(_VOCABULARY, (batch, tokens))
    return CourseTransformer(sizes, tokens, amp=amp), (words, words.clone()), (), None
