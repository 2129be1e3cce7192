"""Workloads of real size, for what runs without memory; imported only where torch is present."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet50(batch: int) -> tuple[Any, ...]:
    """ResNet-50 on 224x224 images (He et al. 2016, table 1), stride in the 3x3 convolutions."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        pool=nn.MaxPool2d(3, 2, 1),
    )
    channels = 64
    for stage, (depth, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for place in range(depth):
            layers[f"stage{stage}_{place + 1}"] = _Bottleneck(channels, width, 2 if place == 0 and stage > 1 else 1)
            channels = 4 * width
    layers |= {"average": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(channels, 1000)}
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    return nn.Sequential(layers), images, labels, nn.functional.cross_entropy
