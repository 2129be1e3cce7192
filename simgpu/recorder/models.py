"""Built-in small networks in plain torch.nn for 32x32 images or tokens, and scikit-learn's handwritten digits."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simgpu.errors import InputError, MissingExtraError
from simgpu.recorder.workload import Workload

_VGG11 = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")
_CLASSES = 10


def convolutions(plan: Iterable[int | str]) -> tuple[OrderedDict[str, nn.Module], int]:
    """Returns layers for a three-channel image, and the number of output channels.

    plan: a number adds a 3x3 convolution of that width with a ReLU, a string adds a pooling layer.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, stage, place = 3, 1, 1
    for width in plan:
        if isinstance(width, int):
            layers[f"conv{stage}_{place}"] = nn.Conv2d(channels, width, 3, padding=1)
            layers[f"relu{stage}_{place}"] = nn.ReLU(inplace=True)
            channels, place = width, place + 1
        else:
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
            stage, place = stage + 1, 1
    return layers, channels


def _of_images(module: nn.Module, batch: int) -> Workload:
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(_CLASSES, (batch,))
    return Workload(module, (images,), (labels,), nn.functional.cross_entropy, data="random images and labels")


def vgg11(batch: int) -> Workload:
    """VGG configuration A (Simonyan and Zisserman 2015, table 1) for 32x32 images, with a classifier of width 512."""
    layers, channels = convolutions(_VGG11)
    layers["flatten"] = nn.Flatten()
    for number in (6, 7):
        layers[f"fc{number}"] = nn.Linear(channels, 512)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        layers[f"drop{number}"] = nn.Dropout(0.5)
        channels = 512
    layers["fc8"] = nn.Linear(channels, _CLASSES)
    return _of_images(nn.Sequential(layers), batch)


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions; the shortcut subsamples and pads channels with zeros, without weights (option A)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.stride = stride
        self.extra = width - channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        if self.extra:
            retained = x[:, :, :: self.stride, :: self.stride]
            shortcut = nn.functional.pad(retained, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + shortcut)


def resnet20(batch: int) -> Workload:
    """Three stages of three residual blocks, 16, 32 and 64 channels wide."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 16, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(16),
        relu1=nn.ReLU(inplace=True),
    )
    channels = 16
    for stage, (width, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        for index in range(3):
            layers[f"stage{stage}_{index + 1}"] = _ResidualBlock(channels, width, stride if index == 0 else 1)
            channels = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, _CLASSES)
    return _of_images(nn.Sequential(layers), batch)


def mlp(batch: int) -> Workload:
    """Three linear layers, 512 wide."""
    module = nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(3 * 32 * 32, 512),
            relu1=nn.ReLU(),
            fc2=nn.Linear(512, 512),
            relu2=nn.ReLU(),
            fc3=nn.Linear(512, _CLASSES),
        )
    )
    return _of_images(module, batch)


class _TokenLabeller(nn.Module):
    """Embeds tokens, applies a transformer encoder, and computes a score per token and word."""

    def __init__(self, words: int, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.randn(tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position)).flatten(0, 1)


def transformer(batch: int) -> Workload:
    """`_TokenLabeller` on random tokens with random labels."""
    words, tokens = 1000, 64
    inputs = torch.randint(words, (batch, tokens))
    labels = torch.randint(words, (batch * tokens,))
    module = _TokenLabeller(words, tokens, 128)
    return Workload(module, (inputs,), (labels,), nn.functional.cross_entropy, data="random tokens and labels")


def digits_cnn(batch: int) -> Workload:
    """Four 3x3 convolutions and three linear layers, ReLU after each but the last, on scikit-learn's digits.

    The layers are ordered as in AlexNet and VGG (convolution, ReLU, sometimes pooling, then fully connected layers with
    dropout), so that the sparsity of its feature maps can be compared with published values of theirs. Weights are
    initialized normally, scaled for ReLU (He et al. 2015, equation 10); biases are zero.
    """
    images, labels = digits(batch)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 1
    for number, (width, pooled) in enumerate(((32, True), (64, True), (128, False), (128, True)), start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        if pooled:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        channels = width
    layers["flatten"] = nn.Flatten()
    features = channels * (DIGIT_SIDE // 8) ** 2
    for number, width in ((5, 256), (6, 128)):
        layers[f"fc{number}"] = nn.Linear(features, width)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        layers[f"drop{number}"] = nn.Dropout(0.5)
        features = width
    layers["fc7"] = nn.Linear(features, _CLASSES)
    module = nn.Sequential(layers)
    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    batches = DataLoader(TensorDataset(images, labels), batch_size=batch, shuffle=True)
    return Workload(
        module,
        (images[:batch],),
        (labels[:batch],),
        nn.functional.cross_entropy,
        batches,
        f"the first {batch} of scikit-learn's {len(images)} handwritten digits, scaled to {DIGIT_SIDE}x{DIGIT_SIDE}",
    )


#: Side length in pixels to which the 8x8 digits are scaled.
DIGIT_SIDE = 32


def digits(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images (n, 1, 32, 32) and labels (n,) of scikit-learn's digits; n is at least `batch`.

    They are the 1797 test digits of the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
    1998), in scikit-learn's order: 8x8 pixels from 0 to 16. They are scaled bilinearly and normalized to mean 0 and
    standard deviation 1 over the entire set.

    Raises `MissingExtraError` without scikit-learn, `InputError` if the batch is larger than the set.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtraError("training on handwritten digits", "scikit-learn", "record")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    if batch > len(pixels):
        what = f"{batch} exceeds the {len(pixels)} digits of the data set"
        raise InputError.single("record", "batch", what, f"give at most {len(pixels)}")
    small = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    images = torch.nn.functional.interpolate(small, DIGIT_SIDE, mode="bilinear", align_corners=False)
    return (images - images.mean()) / images.std(), torch.tensor(labels, dtype=torch.long)
