"""Small models of many kinds, as factories for `simgpu.record`: what plans are made for, applied to and checked on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: A factory: batch -> (module, inputs, labels, loss).
Factory = Callable[[int], tuple[Any, ...]]

_CLASSES, _WIDTH, _WORDS, _TOKENS = 10, 32, 50, 12


class ConvNet(nn.Module):
    """Convolutions, batch normalization, ReLUs in place, pooling and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, _CLASSES))

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.features(x).flatten(1))


class Residual(nn.Module):
    """A residual block; `squeeze` weighs its channels."""

    def __init__(self, before: int, after: int, squeeze: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.gate = nn.Sequential(nn.Linear(after, 4), nn.ReLU(), nn.Linear(4, after)) if squeeze else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.gate is not None:
            y = y * self.gate(y.mean((2, 3))).sigmoid()[:, :, None, None]
        return functional.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Residual blocks."""

    def __init__(self, squeeze: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(16 if n < 2 else 24, 16 if n < 1 else 24, squeeze) for n in range(4)))
        self.fc = nn.Linear(24, _CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Dense(nn.Module):
    """Layers that get the concatenation of all earlier results, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 6 * n), nn.ReLU(), nn.Conv2d(8 + 6 * n, 6, 3, padding=1)) for n in range(4)
        )
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(8 + 24, _CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat((x, layer(x)), 1)
        return self.fc(x.mean((2, 3)))


class Inception(nn.Module):
    """Branches that are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2)
        self.wide = nn.Sequential(nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Conv2d(8, 16, 5, padding=2), nn.ReLU())
        self.narrow = nn.Sequential(nn.Conv2d(16, 8, 1), nn.ReLU())
        self.pool = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), nn.Conv2d(16, 8, 1))
        self.fc = nn.Linear(32, _CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x).relu()
        x = torch.cat((self.wide(x), self.narrow(x), self.pool(x)), 1)
        return self.fc(x.mean((2, 3)))


class Mobile(nn.Module):
    """Inverted residuals with depthwise convolutions, as in MobileNet."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6(inplace=True)),
                *(nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(24), nn.ReLU6(inplace=True)),
                *(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8)),
            )
            for _ in range(3)
        )
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.fc = nn.Linear(8, _CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = functional.hardswish(self.stem(x))
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x.mean((2, 3)))


class ConvNext(nn.Module):
    """Depthwise convolutions with layer normalization and a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.depthwise = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, groups=16) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)) for _ in range(3))
        self.scale = nn.Parameter(torch.full((16,), 0.1))
        self.fc = nn.Linear(16, _CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        for conv, norm, mlp in zip(self.depthwise, self.norms, self.mlps, strict=True):
            x = x + (self.scale * mlp(norm(conv(x).permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
        return self.fc(x.mean((2, 3)))


class UNet(nn.Module):
    """An encoder and a decoder with skip connections."""

    def __init__(self) -> None:
        super().__init__()

        def double(before: int, after: int) -> nn.Sequential:
            convs = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
            return nn.Sequential(
                convs[0], nn.BatchNorm2d(after), nn.ReLU(inplace=True), convs[1], nn.ReLU(inplace=True)
            )

        self.down1, self.down2, self.bottom = double(3, 8), double(8, 16), double(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.join2, self.join1 = double(32, 16), double(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        x = self.up2(self.bottom(functional.max_pool2d(two, 2)))
        x = self.up1(self.join2(torch.cat((two, x), 1)))
        return self.out(self.join1(torch.cat((one, x), 1)))


class Attention(nn.Module):
    """Attention with heads: of its input, or of `memory`; `fused` uses PyTorch's own."""

    def __init__(self, causal: bool = False, fused: bool = True, bias: bool = False, groups: int = 4) -> None:
        super().__init__()
        self.causal, self.fused, self.groups = causal, fused, groups
        self.q, self.out = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.kv = nn.Linear(_WIDTH, 2 * groups * 8)
        self.bias = nn.Embedding(8, 4) if bias else None

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        source = x if memory is None else memory
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = (each.unflatten(-1, (self.groups, 8)).transpose(1, 2) for each in self.kv(source).chunk(2, dim=-1))
        if self.groups < 4:
            k, v = (each.repeat_interleave(4 // self.groups, 1) for each in (k, v))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) / 8**0.5
            if self.bias is not None:
                steps = torch.arange(k.shape[2])[None] - torch.arange(q.shape[2])[:, None]
                scores = scores + self.bias(steps.clamp(-4, 3) + 4).permute(2, 0, 1)
            if self.causal:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
            y = functional.dropout(scores.softmax(-1), 0.1, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block, with attention to `memory` if it has `cross`."""

    def __init__(self, mlp: nn.Module, cross: bool = False, dropout: float = 0.0, **attention: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention, self.mlp = Attention(**attention), mlp
        self.cross = Attention(fused=False) if cross else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        if self.cross is not None:
            x = x + self.cross(x, memory=memory)
        return x + self.dropout(self.mlp(self.norm2(x)))


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))


class Gpt(nn.Module):
    """A decoder; `tied` uses the embedding as the last layer's weight."""

    def __init__(self, tied: bool = False, dropout: float = 0.0, fused: bool = True, layers: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_TOKENS, _WIDTH)
        self.blocks = nn.ModuleList(Block(_mlp(), dropout=dropout, causal=True, fused=fused) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class RmsNorm(nn.Module):
    """Normalization by the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Gated(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(_WIDTH, 64, bias=False), nn.Linear(_WIDTH, 64, bias=False)
        self.down = nn.Linear(64, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    """A decoder with grouped heads, RMS norms, gated MLPs and rotated positions; `experts` makes it a mixture."""

    def __init__(self, experts: int = 0) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.ModuleList(
            Block(Experts(experts) if experts else Gated(), causal=True, groups=2) for _ in range(3)
        )
        for block in self.blocks:
            block.norm1, block.norm2 = RmsNorm(), RmsNorm()
        self.norm, self.head = RmsNorm(), nn.Linear(_WIDTH, _WORDS, bias=False)
        angles = torch.arange(_TOKENS)[:, None] * 0.1 ** torch.arange(_WIDTH // 2)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.words(tokens)
        one, two = x.chunk(2, -1)
        x = x * self.cos + torch.cat((-two, one), -1) * self.sin
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Experts(nn.Module):
    """A mixture of experts: each token goes to the two that a router prefers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, count)
        self.experts = nn.ModuleList(Gated() for _ in range(count))

    def forward(self, x: torch.Tensor) -> Any:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2)
        y = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            # Every expert sees every token, so that shapes do not depend on values.
            y = y + expert(flat) * (weights * mask).sum(-1, keepdim=True)
        return y.view_as(x)


class Bert(nn.Module):
    """PyTorch's own encoder layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 64, dropout=0.1, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.encoder(self.words(tokens))).flatten(0, 1)


class Vit(nn.Module):
    """Patches, a class token and an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, _WIDTH, 4, stride=4), nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.blocks = nn.Sequential(*(Block(_mlp()) for _ in range(3)))
        self.fc = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1)
        return self.fc(self.blocks(x)[:, 0])


class T5(nn.Module):
    """An encoder and a decoder that attends to its result, with biases by distance and shared embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.encoder = nn.ModuleList(Block(_mlp(), dropout=0.1, fused=False, bias=True) for _ in range(2))
        self.decoder = nn.ModuleList(Block(_mlp(), cross=True, dropout=0.1, causal=True, fused=False) for _ in range(2))
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, tokens: torch.Tensor) -> Any:
        memory = x = self.words(tokens)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory=memory)
        return self.head(x).flatten(0, 1)


class Recurrent(nn.Module):
    """An LSTM or a GRU of PyTorch's own, and one of cells."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.layers = kind(_WIDTH, _WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.layers(self.words(tokens))[0]).flatten(0, 1)


class Cells(nn.Module):
    """LSTM cells that run step by step: one module, called many times."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = (
            nn.Embedding(_WORDS, _WIDTH),
            nn.LSTMCell(_WIDTH, _WIDTH),
            nn.Linear(_WIDTH, _WORDS),
        )

    def forward(self, tokens: torch.Tensor) -> Any:
        hidden = torch.zeros(len(tokens), _WIDTH)
        state, outputs = (hidden, hidden), []
        for words in self.words(tokens).unbind(1):
            state = self.cell(words, state)
            outputs.append(state[0])
        return self.head(torch.stack(outputs, 1)).flatten(0, 1)


class Autocast(nn.Module):
    """Runs a model under bfloat16 autocast."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()


class Autoencoder(nn.Module):
    """An encoder and a decoder of an image; the loss compares with the image."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 3, padding=1))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(4, 8, 2, stride=2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 2, 1)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.up(self.down(x))


def _images(model: Callable[[], nn.Module], labels: str = "class") -> Factory:
    def factory(batch: int) -> tuple[Any, ...]:
        images = torch.randn(batch, 3, 16, 16)
        shape = (batch,) if labels == "class" else (batch, 16, 16)
        classes = _CLASSES if labels == "class" else 2
        return model(), (images,), torch.randint(classes, shape), nn.CrossEntropyLoss()

    return factory


def _texts(model: Callable[[], nn.Module]) -> Factory:
    def factory(batch: int) -> tuple[Any, ...]:
        tokens = torch.randint(_WORDS, (batch, _TOKENS))
        return model(), (tokens,), torch.randint(_WORDS, (batch * _TOKENS,)), nn.CrossEntropyLoss()

    return factory


MODELS: Mapping[str, Factory] = {
    "convnet": _images(ConvNet),
    "resnet": _images(ResNet),
    "se-resnet": _images(lambda: ResNet(squeeze=True)),
    "densenet": _images(Dense),
    "inception": _images(Inception),
    "mobilenet": _images(Mobile),
    "convnext": _images(ConvNext),
    "unet": _images(UNet, "pixels"),
    "autoencoder": _images(Autoencoder, "pixels"),
    "vit": _images(Vit),
    "gpt": _texts(Gpt),
    "gpt-tied": _texts(lambda: Gpt(tied=True)),
    "gpt-dropout": _texts(lambda: Gpt(dropout=0.1, fused=False)),
    "llama": _texts(Llama),
    "moe": _texts(lambda: Llama(experts=3)),
    "bert": _texts(Bert),
    "t5": _texts(T5),
    "lstm": _texts(lambda: Recurrent(nn.LSTM)),
    "gru": _texts(lambda: Recurrent(nn.GRU)),
    "lstm-cells": _texts(Cells),
    "gpt-bf16": _texts(lambda: Autocast(Gpt(dropout=0.1))),
    "bert-bf16": _texts(lambda: Autocast(Bert())),
    "resnet-bf16": _images(lambda: Autocast(ResNet())),
    "convnet-bf16": _images(lambda: Autocast(ConvNet())),
}
