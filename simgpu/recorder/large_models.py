"""Built-in networks of published size in plain torch.nn: VGG-16, ResNet-50 and GPT-2 small.

Each is a chain of modules with one input and one output tensor, so each module can be checkpointed as a single call:
`vgg16` has ``stage1`` to ``stage5`` and ``classifier``; `resnet50` has ``stem``, ``layer1.0`` to ``layer4.2`` and
``head``; `gpt2_small` has ``embed``, ``blocks.0`` to ``blocks.11`` and ``head``.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from simgpu.recorder.workload import Workload

_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_RESNET50 = ((64, 3), (128, 4), (256, 6), (512, 3))
#: Ratio of a bottleneck's output channels to its inner channels.
_EXPANSION = 4
#: Standard deviation of GPT-2's initial weights.
_GPT2_SPREAD = 0.02


def vgg16(batch: int, *, image: int = 224, classes: int = 1000) -> Workload:
    """VGG configuration D (Simonyan and Zisserman 2015, table 1): 138,357,544 weights at the published size.

    image: side of the images in pixels, a multiple of 32; it sets the input width of the first linear layer.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for stage, (width, count) in enumerate(_VGG16, start=1):
        inside: OrderedDict[str, nn.Module] = OrderedDict()
        for place in range(1, count + 1):
            inside[f"conv{place}"] = nn.Conv2d(channels, width, 3, padding=1)
            inside[f"relu{place}"] = nn.ReLU(inplace=True)
            channels = width
        inside["pool"] = nn.MaxPool2d(2)
        layers[f"stage{stage}"] = nn.Sequential(inside)
    classifier: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    features = channels * (image // 32) ** 2
    for number in (6, 7):
        classifier[f"fc{number}"] = nn.Linear(features, 4096)
        classifier[f"relu{number}"] = nn.ReLU(inplace=True)
        classifier[f"drop{number}"] = nn.Dropout(0.5)
        features = 4096
    classifier["fc8"] = nn.Linear(features, classes)
    layers["classifier"] = nn.Sequential(classifier)
    return _of_pictures(nn.Sequential(layers), batch, image, classes)


class _Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3, 1x1, each with batch norm; the shortcut is projected if its shape differs."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, _EXPANSION * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(_EXPANSION * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if channels != _EXPANSION * width:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(channels, _EXPANSION * width, 1, stride, bias=False),
                    bn=nn.BatchNorm2d(_EXPANSION * width),
                )
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


def resnet50(batch: int, *, image: int = 224, classes: int = 1000) -> Workload:
    """ResNet-50 (He et al. 2016, table 1): 25,557,032 weights with 1000 classes.

    A stage halves the image sides in the 3x3 convolution of its first block, as in torchvision and most training code;
    in the paper, the first 1x1 convolution of that block does.
    """
    stem = OrderedDict(
        conv=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        bn=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
    )
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(stem))
    channels = 64
    for number, (width, count) in enumerate(_RESNET50, start=1):
        blocks = []
        for place in range(count):
            blocks.append(_Bottleneck(channels, width, stride=2 if place == 0 and number > 1 else 1))
            channels = _EXPANSION * width
        layers[f"layer{number}"] = nn.Sequential(*blocks)
    head = OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes))
    layers["head"] = nn.Sequential(head)
    return _of_pictures(nn.Sequential(layers), batch, image, classes)


def _of_pictures(module: nn.Module, batch: int, image: int, classes: int) -> Workload:
    pictures, labels = torch.randn(batch, 3, image, image), torch.randint(classes, (batch,))
    return Workload(module, (pictures,), (labels,), nn.functional.cross_entropy, data="random images and labels")


class _Embedding(nn.Module):
    """Adds a learned vector per word and one per position."""

    def __init__(self, vocabulary: int, tokens: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(_GPT2_SPREAD * torch.randn(tokens, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens) + self.positions


class _Attention(nn.Module):
    """Causal self-attention; one linear layer computes queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.qkv(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in split)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """Attention, then two linear layers; each part follows a layer norm and has a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(
                fc=nn.Linear(width, 4 * width), gelu=nn.GELU(approximate="tanh"), out=nn.Linear(4 * width, width)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def gpt2_small(
    batch: int, *, tokens: int = 1024, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257
) -> Workload:
    """GPT-2 small (Radford et al. 2019): 124,439,808 weights; the head shares those of the embedding (tied).

    It has no dropout, as in later training code; attention is one fused operator. It is trained to predict the next
    word. tokens: tokens per row, and the number of learned positions.
    """
    embed = _Embedding(vocabulary, tokens, width)
    scores = nn.Linear(width, vocabulary, bias=False)
    module = nn.Sequential(
        OrderedDict(
            embed=embed,
            blocks=nn.Sequential(*(_Block(width, heads) for _ in range(layers))),
            head=nn.Sequential(OrderedDict(norm=nn.LayerNorm(width), scores=scores)),
        )
    )
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=_GPT2_SPREAD)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    scores.weight = embed.words.weight
    words = torch.randint(vocabulary, (batch, tokens + 1))
    following = words[:, 1:].contiguous()
    return Workload(module, (words[:, :-1].contiguous(),), (following,), _of_next_words, data="random words")


def _of_next_words(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
