"""Trains a small network on crops of real photographs and records its feature maps next to this file.

Run from anywhere with the extra ``record`` installed: ``python tests/compression/codecs/data/record_activations.py
[FOLDER]``. What it does and what came out stands in the README of this folder. One thread, fixed seeds, deterministic
operators.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SEED = 20
CROP = 64  # pixels on a side
HELD_OUT = 72  # side of the square of each quadrant that training never sees a pixel of
TRAINING_CROPS = 400  # of each class
HELD_OUT_CROPS = 40  # of each class
EPOCHS = 40
BATCH = 32
RECORDED_IMAGES = 16


def photographs() -> list[np.ndarray]:
    """The two sample photographs of scikit-learn, values 0..1, height x width x RGB."""
    from sklearn.datasets import load_sample_images

    return [image.astype(np.float32) / 255 for image in load_sample_images().images]


def quadrants(image: np.ndarray) -> list[np.ndarray]:
    middle, centre = image.shape[0] // 2, image.shape[1] // 2
    halves = image[:middle], image[middle:]
    return [part for half in halves for part in (half[:, :centre], half[:, centre:])]


def crops(area: np.ndarray, count: int, held_out: bool, random: np.random.Generator) -> list[np.ndarray]:
    """Random crops of a quadrant: within its held-out square (its middle), or without a pixel of it."""
    height, width = area.shape[:2]
    top, left = (height - HELD_OUT) // 2, (width - HELD_OUT) // 2
    result: list[np.ndarray] = []
    while len(result) < count:
        if held_out:
            y, x = (int(start + random.integers(HELD_OUT - CROP + 1)) for start in (top, left))
        else:
            y, x = int(random.integers(height - CROP + 1)), int(random.integers(width - CROP + 1))
            if top - CROP < y < top + HELD_OUT and left - CROP < x < left + HELD_OUT:
                continue
        result.append(area[y : y + CROP, x : x + CROP])
    return result


def data_set(held_out: bool, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 64, 64), centred, and their class: four quadrants of two photographs."""
    random = np.random.default_rng((SEED, held_out))
    areas = [part for image in photographs() for part in quadrants(image)]
    images = [crop for area in areas for crop in crops(area, count, held_out, random)]
    labels = np.repeat(np.arange(len(areas)), count)
    stacked = np.stack(images).transpose(0, 3, 1, 2) - np.float32(0.5)
    return np.ascontiguousarray(stacked), labels


def network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),  # relu1: 16 channels, 32 x 32
        nn.MaxPool2d(2),  # pool1
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),  # relu2: 32 channels, 16 x 16
        nn.MaxPool2d(2),  # pool2
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),  # relu3: 64 channels, 8 x 8
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),  # relu4: 64 channels, 8 x 8
        nn.MaxPool2d(2),  # pool4
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(128, 8),
    )


#: Position in the network of each recorded feature map.
RECORDED = {"relu1": 1, "pool1": 2, "relu2": 4, "pool2": 5, "relu3": 7, "relu4": 9, "pool4": 10}


def accuracy(model: Any, images: Any, labels: Any) -> float:
    import torch

    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def train() -> tuple[Any, float, float]:
    """The trained network, and its accuracy on the training and on the held-out crops."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    images, labels = map(torch.from_numpy, data_set(False, TRAINING_CROPS))
    unseen = tuple(map(torch.from_numpy, data_set(True, HELD_OUT_CROPS)))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS * 5 // 8, EPOCHS * 7 // 8], 0.1)
    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for picked in torch.randperm(len(images)).split(BATCH):
            shown = images[picked].flip(3) if torch.rand(()) < 0.5 else images[picked]
            loss = nn.functional.cross_entropy(model(shown), labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(picked)
        schedule.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {total / len(images):.4f}, held out {accuracy(model, *unseen):.3f}")
    return model, accuracy(model, images, labels), accuracy(model, *unseen)


def activations(model: Any) -> dict[str, np.ndarray]:
    """The recorded layers' outputs for held-out crops, two of each class, as (N, C, H, W)."""
    import torch

    images, _ = data_set(True, HELD_OUT_CROPS)
    values = torch.from_numpy(images[:: len(images) // RECORDED_IMAGES])
    result: dict[str, np.ndarray] = {}
    model.eval()
    with torch.no_grad():
        for position, layer in enumerate(model):
            values = layer(values)
            result |= {name: values.numpy().copy() for name, place in RECORDED.items() if place == position}
    return result


def main() -> None:
    model, seen, unseen = train()
    print(f"accuracy: training crops {seen:.3f}, held-out crops {unseen:.3f}")
    result = activations(model)
    for name, values in result.items():
        print(f"{name}: {values.shape}, zeros {np.mean(values == 0):.3f}, {values.nbytes} bytes")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    np.savez_compressed(folder / "activations.npz", **result)


if __name__ == "__main__":
    main()
