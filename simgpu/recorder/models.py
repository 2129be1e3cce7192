"""Built-in small networks in plain torch.nn for 32x32 images, and the handwritten digits of scikit-learn."""

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
    """3x3 convolutions of these widths on three channels, each with its ReLU; a pooling for each word.

    With them the channels that come out.
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
    """VGG configuration A (Simonyan and Zisserman 2015, table 1) with a classifier narrowed to 512 for 32x32 images."""
    layers, channels = convolutions(_VGG11)
    layers["flatten"] = nn.Flatten()
    for number in (6, 7):
        layers[f"fc{number}"] = nn.Linear(channels, 512)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        layers[f"drop{number}"] = nn.Dropout(0.5)
        channels = 512
    layers["fc8"] = nn.Linear(channels, _CLASSES)
    return _of_images(nn.Sequential(layers), batch)


class _ResidualBlock(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions; the shortcut subsamples and pads with zero channels, so it has no weights (option A)."""

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


class _TokenLabeller(nn.Module):  # type: ignore[misc]
    """Embeds tokens, runs a transformer encoder over them, and scores every word for each token."""

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
    """`_TokenLabeller` on random tokens, with a random label for each."""
    words, tokens = 1000, 64
    inputs = torch.randint(words, (batch, tokens))
    labels = torch.randint(words, (batch * tokens,))
    module = _TokenLabeller(words, tokens, 128)
    return Workload(module, (inputs,), (labels,), nn.functional.cross_entropy, data="random tokens and labels")


def digits_cnn(batch: int) -> Workload:
    """Four 3x3 convolutions and three linear layers, ReLU after each but the last, on the digits of scikit-learn.

    The order is that of AlexNet and VGG (convolution, ReLU, now and then pooling, fully connected layers with dropout
    at the end), so that the sparsity of its feature maps can be compared with what is known of theirs. Weights begin
    normal, scaled for ReLU (He et al. 2015, equation 10), biases zero.
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


#: Pixels on a side that the digits, 8x8 as they come, are scaled to.
DIGIT_SIDE = 32


def digits(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 32, 32) and labels (n,) of scikit-learn's digits, at least `batch` of them.

    They are the 1797 test digits of the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
    1998), in scikit-learn's order: 8x8 pixels from 0 to 16. They are scaled bilinearly and shifted and stretched to
    mean 0 and standard deviation 1 over the whole set.

    Raises `MissingExtraError` without scikit-learn, `InputError` where the batch is larger than the set.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtraError("training on handwritten digits", "scikit-learn", "record")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    if batch > len(pixels):
        what = f"{batch} is more than the {len(pixels)} digits there are"
        raise InputError.single("record", "batch", what, f"give at most {len(pixels)}")
    small = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    images = torch.nn.functional.interpolate(small, DIGIT_SIDE, mode="bilinear", align_corners=False)
    return (images - images.mean()) / images.std(), torch.tensor(labels, dtype=torch.long)
