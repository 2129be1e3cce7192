"""Training loops of other kinds: several calls of a model or its parts, several runs of backward, compiled parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from tests.plans.models import Gpt, ResNet


class Training(NamedTuple):
    """A model, its optimizers, and a step of its loop."""

    model: nn.Module
    optimizers: list[Optimizer]
    step: Callable[..., None]

    def after_steps(self, around: AbstractContextManager[None]) -> list[torch.Tensor]:
        """The state after two steps inside a context; afterwards all is as before."""
        parts = [self.model, *self.optimizers]
        before, drawn = copy.deepcopy([each.state_dict() for each in parts]), torch.get_rng_state()
        with around:
            self.step()
            self.step()
        result = self.state()
        for each, values in zip(parts, before, strict=True):
            each.load_state_dict(values)
        torch.set_rng_state(drawn)
        return result

    def state(self) -> list[torch.Tensor]:
        """Weights and statistics, and the state of the optimizers."""
        values = list(self.model.state_dict().values())
        for each in self.optimizers:
            values += [value for entry in each.state.values() for value in entry.values() if torch.is_tensor(value)]
        return [value.clone() for value in values]


class Networks(nn.Module):
    """Two networks that compete; the loop calls them, not the module."""

    def __init__(self) -> None:
        super().__init__()
        sides = ((16, 256), (256, 256), (256, 32)), ((32, 256), (256, 256), (256, 1))
        self.maker, self.judge = (
            nn.Sequential(*(part for pair in each for part in (nn.Linear(*pair), nn.GELU()))) for each in sides
        )


class Teaching(nn.Module):
    """A network, and a frozen one that it learns from; forward calls both."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ResNet()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.body(x.flip(-1))
        return functional.mse_loss(self.body(x), target)


def accumulating() -> Training:
    """Gradients of micro-batches are added up."""
    model, images, labels = ResNet(), torch.randn(32, 3, 16, 16), torch.randint(10, (32,))
    optimizer = Adam(model.parameters())

    def step(micro_batches: int = 4) -> None:
        optimizer.zero_grad()
        for x, y in zip(images.split(8)[:micro_batches], labels.split(8), strict=False):
            (functional.cross_entropy(model(x), y) / micro_batches).backward()
        optimizer.step()

    return Training(model, [optimizer], step)


def contrasting() -> Training:
    """Two calls of a model, then backward through both."""
    model, images = ResNet(), torch.randn(16, 3, 16, 16)
    optimizer = SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        one, two = (functional.normalize(model(each)) for each in (images, images.flip(-1)))
        (one @ two.T).logsumexp(0).mean().backward()
        optimizer.step()

    return Training(model, [optimizer], step)


def competing() -> Training:
    """Two networks, two optimizers, and tensors that cross from one to the other."""
    model, real = Networks(), torch.randn(256, 32)
    optimizers = [Adam(model.judge.parameters()), Adam(model.maker.parameters())]

    def step() -> None:
        made = model.maker(torch.randn(256, 16))
        optimizers[0].zero_grad()
        losses: list[Any] = [functional.softplus(-model.judge(real)), functional.softplus(model.judge(made.detach()))]
        (losses[0].mean() + losses[1].mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        functional.softplus(-model.judge(made)).mean().backward()
        optimizers[1].step()

    return Training(model, optimizers, step)


def teaching() -> Training:
    """Some calls of a part record no gradients."""
    model, images = Teaching(), torch.randn(16, 3, 16, 16)
    optimizer = SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(images).backward()
        optimizer.step()

    return Training(model, [optimizer], step)


class Conditioned(nn.Module):
    """Its scale is an attribute, which the loop sets before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(64, 256), nn.Linear(256, 64), torch.ones(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(torch.relu(self.first(x)))) * self.scale


def conditioned() -> Training:
    """Two calls of modules that read a tensor which is not among their inputs."""
    model = nn.Sequential(*(Conditioned() for _ in range(3)))
    optimizer = SGD(model.parameters(), 0.1)

    def call(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for part in model:
            part.scale = scale
        result: torch.Tensor = model(x)
        return result

    def step() -> None:
        optimizer.zero_grad()
        one, two = (call(torch.randn(256, 64), torch.rand(64)) for _ in range(2))
        (one * two).square().mean().backward()
        optimizer.step()

    return Training(model, [optimizer], step)


def evaluated() -> Training:
    """The model evaluates between forward and backward."""
    model, images = ResNet(), torch.randn(16, 3, 16, 16)
    optimizer = SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        output = model(images)
        model.eval()
        with torch.no_grad():
            target = model(images.flip(-1))
        functional.mse_loss(output, target).backward()
        model.train()
        optimizer.step()

    return Training(model, [optimizer], step)


def backward_twice() -> Training:
    """Two losses, each with a run of backward through the same forward."""
    model, images, labels = ResNet(), torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    optimizer = SGD(model.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        output = model(images)
        output.square().mean().backward(retain_graph=True)
        functional.cross_entropy(output, labels).backward()
        optimizer.step()

    return Training(model, [optimizer], step)


def compiled() -> Training:
    """Blocks that are compiled, one of them in part."""
    model, words = Gpt(), torch.randint(50, (16, 12))
    model.blocks[0].mlp = torch.compile(model.blocks[0].mlp)
    for block in model.blocks[1:]:
        block.compile()
    optimizer = Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(words).flatten(0, -2), words.flatten()).backward()
        optimizer.step()

    return Training(model, [optimizer], step)


LOOPS: dict[str, Callable[[], Training]] = {
    "accumulating": accumulating,
    "contrasting": contrasting,
    "competing": competing,
    "teaching": teaching,
    "conditioned": conditioned,
    "evaluated": evaluated,
    "backward-twice": backward_twice,
    "compiled": compiled,
}
