"""The photographs and the text that built-in networks learn from, and the reported accuracy."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.language_models import VOCABULARY, sentences
from simgpu.recorder.photo_models import PATCH_SIDE, PATCH_STEP, QUARTERS, photos
from tests.recorder.small_models import plain_sgd


@pytest.fixture(scope="module")
def patches() -> tuple[torch.Tensor, torch.Tensor]:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: simgpu with its extra 'record'")
    pytest.importorskip("PIL", reason="Pillow is not installed: simgpu with its extra 'record'")
    return photos(32)


def test_patches_are_all_there_in_four_ways(patches: tuple[torch.Tensor, torch.Tensor]) -> None:
    images, labels = patches
    places = ((427 - PATCH_SIDE) // PATCH_STEP + 1) * ((640 - PATCH_SIDE) // PATCH_STEP + 1)
    assert images.shape == (2 * places * 4, 3, PATCH_SIDE, PATCH_SIDE)
    assert set(labels.tolist()) == set(range(QUARTERS))
    assert images.mean((0, 2, 3)).abs().max() < 1e-3 and (images.std((0, 2, 3)) - 1).abs().max() < 1e-3
    upright = images[0]
    ways = [upright, upright.flip(2), upright.flip(1), upright.flip(1, 2)]
    result = [[bool(torch.equal(way, image)) for image in images] for way in ways]
    assert all(any(row) for row in result), "each patch also mirrored, upside down, and both"
    assert {int(labels[row.index(True)]) for row in result} == {int(labels[0])}


@pytest.mark.slow
def test_the_order_of_patches_does_not_follow_the_seed(patches: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(77)
    again = photos(1)
    assert torch.equal(again[0], patches[0]) and torch.equal(again[1], patches[1])


def test_tokens_of_a_text_follow_each_other() -> None:
    words, following = sentences(4, 7)
    assert torch.equal(words.flatten()[1:], following.flatten()[:-1])
    assert words.dtype is torch.long and int(words.min()) >= 0 and int(words.max()) <= VOCABULARY
    counts = torch.bincount(words.flatten())
    assert counts[1] > counts[10] > counts[1000] > 0, "numbers follow frequency"


@pytest.mark.parametrize(("model", "what"), [("photos-vgg", "patches"), ("words-lstm", "rows of 5 words")])
def test_a_batch_larger_than_the_data_is_reported(model: str, what: str) -> None:
    with pytest.raises(InputError, match=rf"batch: 1000000 exceeds the \d+ {what}.*give at most \d+"):
        record(model, batch=1_000_000)


def _points(batch: int) -> tuple[Any, ...]:
    """Ten points of two classes that a line parts, but for the last one."""
    x = torch.arange(10.0)[:, None] - 4.5
    labels = (x[:, 0] > 0).long()
    labels[-1] = 0
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[-5.0], [5.0]]))
        module.bias.zero_()
    batches = [(x[:4], labels[:4]), (x[4:], labels[4:])]
    return nn.Sequential(module, nn.Dropout(0.9)), x[:batch], labels[:batch], nn.functional.cross_entropy, batches


def _still(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def test_accuracy_is_reported_without_dropout() -> None:
    trace = record(_points, batch=4, repetitions=1, epochs=1, optimizer=_still)
    assert "It then finds 90.0% of the labels." in trace.info.notes


def test_accuracy_is_omitted_for_labels_that_are_no_classes() -> None:
    def regression(batch: int) -> tuple[Any, ...]:
        return nn.Linear(3, 1), torch.ones(batch, 3), torch.ones(batch, 1), nn.functional.mse_loss

    def unlabelled(batch: int) -> tuple[Any, ...]:
        return nn.Linear(3, 1), torch.ones(batch, 3), (), lambda output: (output**2).sum()

    for factory in (regression, unlabelled):
        trace = record(factory, batch=4, repetitions=1, epochs=2, optimizer=plain_sgd)
        assert "in the last." in trace.info.notes and "labels" not in trace.info.notes.partition("in the last.")[2]
