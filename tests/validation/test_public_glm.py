"""INTELLECT-3's layers against plain operators, its number of weights, and predicted times against bounds by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.validation.public.several_times import stored_times_of_several

torch = pytest.importorskip("torch")

#: Rows of eight GPUs: with recomputed layers, and with their inputs offloaded, too.
RECOMPUTED, OFFLOADED = "t-190", "t-191"


def _small() -> Any:
    from simgpu.validation.public.glm_layers import GlmSizes

    return GlmSizes(words=64, width=8, layers=2, heads=4, keys=2, head=4, turned=2, hidden=12, experts=4, chosen=2)


def _random(module: Any) -> Any:
    """The module in double precision with random weights."""
    torch.manual_seed(0)
    module = module.double()
    for each in module.parameters():
        torch.nn.init.normal_(each)
    return module


def _gradients(call: Any, x: Any) -> tuple[Any, Any]:
    x = x.clone().requires_grad_()
    result = call(x)
    return result.detach(), torch.autograd.grad(result.square().sum(), x)[0]


def test_the_model_has_the_published_number_of_weights() -> None:
    """106,852,251,264 with a bias of each expert, as a table of Hugging Face's models by others lists INTELLECT-3.

    The model's own page was not read; a report of training GLM-4.5-Air counts 5,760 less, without these biases.
    """
    from simgpu.validation.public.glm_layers import GLM_SIZES, GlmModel, is_adapter

    with torch.device("meta"):
        model = GlmModel(GLM_SIZES["intellect-3"], grouped=True)
    counts = {name: each.numel() for name, each in model.named_parameters() if not is_adapter(name)}
    biases = [each.numel() for name, each in model.named_buffers()]
    assert sum(counts.values()) + sum(biases) == 106_852_251_264
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {name for name, _ in model.named_parameters()} - counts.keys()


def test_the_adapters_of_a_layer_have_rank_16_for_attention_and_each_expert() -> None:
    from simgpu.validation.public.glm_layers import GLM_SIZES, GlmModel, is_adapter

    with torch.device("meta"):
        layers = GlmModel(GLM_SIZES["intellect-3"], 2, grouped=True).layers
    width, heads, keys = 4096, 96 * 128, 8 * 128
    attention = 2 * (width + heads) + 2 * (width + keys)
    for layer, sides in zip(layers, (3 * (width + 10944), 128 * 3 * (width + 1408)), strict=True):
        found = sum(each.numel() for name, each in layer.named_parameters() if is_adapter(name))
        assert found == 4 * 16 * (attention + sides)  # four adapters


def test_experts_in_one_product_compute_what_they_compute_one_by_one() -> None:
    """Tokens that choose every expert equally often, one token and one expert at a time."""
    from simgpu.validation.public.glm_layers import _SCALE, _Mixture

    part = _random(_Mixture(_small()))
    x = torch.randn(1, 8, 8, dtype=torch.double) / 10
    for token in range(8):
        x[0, token, :4] = -1.0
        x[0, token, [token % 4, (token + 1 + token // 4) % 4]] = torch.tensor([2.0, 1.0], dtype=torch.double)
    with torch.no_grad():
        part.router.weight.zero_()
        part.router.weight[:, :4] = torch.eye(4)

    def product(of: Any, expert: int, each: Any) -> Any:
        return of.weight[expert] @ each + _SCALE * of.up[0][expert] @ (of.down[0][expert] @ each)

    def token_by_token(x: Any) -> Any:
        silu, rows = torch.nn.functional.silu, []
        for each in x[0]:
            best, chosen = torch.sigmoid(part.router.weight @ each).topk(2)
            row = part.shared_down.weight @ (silu(part.shared[0].weight @ each) * (part.shared[1].weight @ each))
            for share, expert in zip(best / best.sum(), chosen.tolist(), strict=True):
                of = part.experts
                inner = silu(product(of.gate, expert, each)) * product(of.into, expert, each)
                row = row + share * product(of.out, expert, inner)
            rows.append(row)
        return torch.stack(rows)[None]

    own, expected = _gradients(part, x), _gradients(token_by_token, x)
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-4) for one, other in zip(own, expected, strict=True))


def test_the_first_values_of_each_head_are_rotated() -> None:
    """By complex numbers: pairs of values, half of the rotated part from each other."""
    from simgpu.validation.public.glm_layers import _rotated, _Rotation

    x = torch.randn(1, 5, 3, 8)
    turns = _Rotation(4)(x, torch.arange(5)[None])
    angles = torch.arange(5)[:, None, None] * torch.tensor([1.0, 10000.0**-0.5])
    turned = torch.complex(x[..., :2], x[..., 2:4]) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag, x[..., 4:]], dim=-1)
    assert torch.allclose(_rotated(x, turns), expected, atol=1e-6)


def test_a_step_takes_longer_than_its_products_at_the_peak_rate() -> None:
    """By hand: products forward, again in backward, and for gradients of their inputs; half of the scores."""
    width, heads, tokens = 4096, 96 * 128, 16384
    attention, expert = 2 * width * heads + 2 * width * 1024, 3 * width * 1408
    weights = 46 * attention + 3 * width * 10944 + 45 * (9 * expert + 128 * width) + 4 / 3 * 151552 * width
    scores = 46 * 2 * 2 * tokens * heads / 2  # of a token, with their product with values
    least = 2 * tokens * (3 * 2 * weights + 4.5 * scores) / 989.4e12 * 1e9  # two micro-batches
    assert 1.2 < stored_times_of_several()[RECOMPUTED].kernels_ns / least < 2


def test_offload_takes_the_time_of_copies_of_each_layers_input_and_two_of_the_head() -> None:
    stored, link = stored_times_of_several()[OFFLOADED], load_node("h200").link
    size = 2 * (46 + 2) * 16384 * 4096 * 2  # of two micro-batches: layers, the last normalization and the head
    copies = size * (1 / link.d2h_bandwidth + 1 / link.h2d_bandwidth) * 1e9
    assert stored.step_ns - stored.kernels_ns == pytest.approx(copies, rel=0.01)
