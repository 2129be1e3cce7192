"""Without a device: constructors read small tensors back as Python numbers, and large ones stay without memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.trace.model import BlockKind, Trace
from tests.recorder.small_models import kernels, named, record_module, summed


def modelled(module: Callable[[], nn.Module], *inputs: Any) -> Trace:
    """The module on random inputs of these shapes, its loss the sum of its outputs."""
    return record(
        lambda: (module(), tuple(torch.randn(shape) for shape in inputs), (), summed),
        batch=inputs[0][0],
        gpu="v100",
        date="2026-01-01",
    )


def refusal(module: Callable[[], nn.Module], *inputs: Any) -> str:
    with pytest.raises(InputError) as caught:
        modelled(module, *inputs)
    return str(caught.value)


def weights(trace: Trace) -> dict[str, tuple[int, ...] | None]:
    return {block.id: block.shape for block in trace.blocks if block.kind is BlockKind.WEIGHT}


class _DropRows(nn.Module):
    """Stochastic depth by row, as torchvision has it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.p < 0.0 or self.p > 1.0:
            raise ValueError(self.p)
        survival_rate = 1.0 - self.p
        noise = torch.empty([x.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device).bernoulli_(survival_rate)
        if survival_rate > 0.0:
            noise.div_(survival_rate)
        return x * noise


class _ConvNextLike(nn.Module):
    """Drop rates off ``linspace``, weights truncated normal: what ConvNeXt and Swin do in their constructors."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0, 0.3, depth)]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 7, padding=3, groups=width), nn.GELU(), _DropRows(rate))
            for rate in rates
        )
        self.head = nn.Linear(width, 1000)
        for part in self.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def test_drop_rates_read_in_a_constructor_are_modelled_as_they_are_recorded() -> None:
    created: list[_ConvNextLike] = []

    def factory() -> nn.Module:
        created.append(_ConvNextLike(width=512, depth=4))
        return created[-1]

    trace = modelled(factory, (2, 512, 8, 8))
    rates = [block[2].p for block in created[0].blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    recorded = record_module(factory, torch.randn(2, 512, 8, 8))
    assert weights(trace) == weights(recorded)
    ops = [[k.op for k in t.kernels if k.phase == "forward"] for t in (trace, recorded)]
    assert ops[0] == ops[1] and len(kernels(trace, "bernoulli_")) == 4
    assert all(kernel.pure is False for kernel in kernels(trace, "bernoulli_"))


def _regnet_stages(depth: int, first: int, slope: float, step: float) -> tuple[list[int], list[int]]:
    """Widths and depths of a RegNet's stages, by the operators of torchvision's constructor."""
    continuous = torch.arange(depth) * slope + first
    capacity = torch.round(torch.log(continuous / first) / math.log(step))
    widths = (torch.round(torch.divide(first * torch.pow(step, capacity), 8)) * 8).int()
    begins = [0, *(torch.diff(widths).nonzero().flatten() + 1).tolist(), depth]
    return torch.unique(widths).tolist(), torch.diff(torch.tensor(begins)).int().tolist()


def test_widths_computed_in_a_constructor_are_those_of_the_paper() -> None:
    """RegNetX-400MF (Radosavovic et al. 2020) has 1, 2, 7 and 12 blocks in its stages.

    Their widths are 24 * 2.54**k to the nearest 8: 24, 61, 155, 393 become 24, 64, 152, 392.
    """

    def regnet() -> nn.Module:
        widths, depths = _regnet_stages(depth=22, first=24, slope=24.48, step=2.54)
        layers: dict[str, nn.Module] = {}
        before = 3
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for place in range(depth):
                layers[f"s{stage}b{place}"] = nn.Conv2d(before, width, 1, bias=False)
                before = width
        return named(**layers)

    shapes = weights(modelled(regnet, (2, 3, 8, 8)))
    expected = [24, 64, 64] + [152] * 7 + [392] * 12
    assert [shape[0] for shape in shapes.values() if shape is not None] == expected


class _ReadsEachStep(nn.Module):
    """Scales by a number that it reads off a tensor in every forward."""

    def __init__(self, scales: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.scales = scales()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.scales[1].item() > 0.5 else -x


def test_constants_of_the_constructor_decide_in_the_iteration_too() -> None:
    def module(last: float) -> nn.Module:
        return named(fc=nn.Linear(4, 4), read=_ReadsEachStep(lambda: torch.linspace(0, last, 2).mul_(2)))

    assert not kernels(modelled(lambda: module(0.3), (2, 4)), "neg", "forward")
    assert kernels(modelled(lambda: module(0.2), (2, 4)), "neg", "forward")


def test_operators_on_lists_change_constants_in_place() -> None:
    def scales() -> torch.Tensor:
        first, second = torch.zeros(2), torch.zeros(1)
        torch._foreach_add_([first, second], 1.0)
        return first

    assert not kernels(modelled(lambda: named(fc=nn.Linear(4, 4), read=_ReadsEachStep(scales)), (2, 4)), "neg")


def _overwritten() -> torch.Tensor:
    small = torch.ones(2)
    view = small[:]
    view.copy_(torch.randn(10_000, 2).sum(0))
    return small


def test_a_constant_overwritten_by_unknown_values_is_no_constant() -> None:
    message = refusal(lambda: named(fc=nn.Linear(4, 4), read=_ReadsEachStep(_overwritten)), (2, 4))
    assert "needs the values of a tensor, which do not exist in a modelled iteration" in message


class _ByWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight if self.weight.sum() > 0 else x


class _ByChance(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.rand(2).max() > 0.5 else x


class _ByInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.max() > 0.5 else x


@pytest.mark.parametrize("deciding", [_ByWeight, _ByChance, _ByInput])
def test_reading_a_computed_or_random_value_is_refused_with_its_line(deciding: type[nn.Module]) -> None:
    """However small they are: a weight, an input and a random number have other values in every step."""
    message = refusal(lambda: named(fc=nn.Linear(4, 4), choice=deciding()), (2, 4))
    number = deciding.forward.__code__.co_firstlineno + 1
    assert ": iteration, " in message and f"test_known_values.py:{number}: aten." in message
    assert "needs the values of a tensor" in message


class _DropsLayers(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg() if torch.rand([]) < self.share else x


@pytest.mark.parametrize(("share", "drops"), [(0.0, False), (1.0, True)])
def test_a_single_random_number_decides_whether_a_layer_runs(share: float, drops: bool) -> None:
    """As in ``layerdrop`` of Hugging Face models; the number is drawn on the host."""
    run = kernels(modelled(lambda: named(fc=nn.Linear(4, 4), drop=_DropsLayers(share)), (2, 4)), "neg")
    assert bool(run) is drops


class _ByMask(nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = tokens.float()
        return x.neg() if bool(torch.all(mask == 1)) else x


@pytest.mark.parametrize("padded", [False, True])
def test_tokens_and_masks_of_the_batch_have_their_values(padded: bool) -> None:
    """A mask of 200 x 1000 numbers takes more than other known values may."""
    mask = torch.ones(200, 1000, dtype=torch.int64)
    mask[0, 0] = 0 if padded else 1

    def factory() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        model = nn.Sequential()
        model.mask, model.fc = _ByMask(), nn.Linear(1000, 2)
        model.forward = lambda tokens, mask: model.fc(model.mask(tokens, mask))
        return model, (torch.ones_like(mask), mask)

    run = kernels(record(factory, batch=200, gpu="v100"), "neg")
    assert bool(run) is not padded


def test_a_large_tensor_read_in_a_constructor_is_refused_with_its_line() -> None:
    def factory() -> nn.Module:
        layer = nn.Linear(4, 100_000)
        assert layer.weight.max() > 0
        return layer

    message = refusal(factory, (2, 4))
    assert f"test_known_values.py:{factory.__code__.co_firstlineno + 2}: aten." in message
    assert ": factory, " in message
