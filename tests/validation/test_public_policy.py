"""The loop of reinforcement learning: its layers and head against PyTorch's own operators, and its sizes by hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def _layer() -> tuple[Any, Any, Any]:
    """A small layer of Transformers, an input and rotations."""
    from simgpu.recorder.model_packages import transformers_package

    transformers = transformers_package()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen3Config(**sizes, head_dim=8, vocab_size=64, num_hidden_layers=1, use_cache=False)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = transformers.Qwen3Model(config)
    x = torch.randn(1, 16, 32)
    return model.layers[0], x, model.rotary_emb(x, torch.arange(16)[None])


def _gradients(layer: Any, x: Any, call: Any) -> tuple[Any, list[Any]]:
    x = x.clone().requires_grad_()
    result = call(x)
    return result.detach(), list(torch.autograd.grad(result.square().sum(), [x, *layer.parameters()]))


def test_a_compiled_layer_computes_what_that_of_transformers_does() -> None:
    from simgpu.validation.public.compiled_layers import CompiledLayer

    layer, x, turns = _layer()
    own = CompiledLayer(layer, adapted=False, grouped=True)
    expected = _gradients(layer, x, lambda each: layer(each, position_embeddings=turns)[0])
    result, gradients = _gradients(layer, x, lambda each: own(each, turns))
    assert torch.allclose(result, expected[0], atol=1e-5)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(gradients, expected[1], strict=True))


@pytest.mark.parametrize("grouped", [True, False])
def test_the_first_adapter_is_added_and_the_layer_is_frozen(grouped: bool) -> None:
    from simgpu.validation.public.compiled_layers import CompiledLayer

    layer, x, turns = _layer()
    plain = layer(x, position_embeddings=turns)[0].detach()
    own = CompiledLayer(layer, adapted=True, grouped=grouped)
    assert torch.allclose(own(x, turns), plain, atol=1e-5)  # adapters begin with zeros
    down = layer.mlp.down_proj
    with torch.no_grad():
        down.down[0].normal_(), down.up[0].normal_()
    inner = torch.randn(16, 48)
    assert torch.allclose(down(inner), down.base(inner) + inner @ down.down[0].T @ down.up[0].T, atol=1e-4)
    trained = {name.split(".")[-2] for name, each in own.named_parameters() if each.requires_grad}
    assert trained == {"down", "up"}


def test_the_chunked_head_has_the_log_probabilities_entropies_and_gradients_of_a_softmax() -> None:
    from simgpu.validation.public.prime_rl_rows import _ChunkedHead

    x, weight = torch.randn(6, 8, requires_grad=True), torch.randn(5000, 8, requires_grad=True)
    labels, of_each = torch.randint(100, (6,)), torch.randn(6)
    found, entropy = _ChunkedHead.apply(x, weight, labels)
    likely = torch.log_softmax(x @ weight.T, dim=-1)
    assert torch.allclose(found, likely.gather(1, labels[:, None])[:, 0], atol=1e-4)
    assert torch.allclose(entropy, -(likely.exp() * likely).sum(dim=-1), atol=1e-4)
    own = torch.autograd.grad(found, (x, weight), of_each)
    expected = torch.autograd.grad(likely.gather(1, labels[:, None])[:, 0], (x, weight), of_each)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(own, expected, strict=True))


def test_the_models_have_the_published_number_of_weights_and_adapters_of_rank_16() -> None:
    """By hand, with the sizes of Qwen3-4B's `config.json`: embedding, 36 layers, and the last normalization."""
    from simgpu.validation.public.prime_rl_rows import PolicyModel

    width, hidden, heads, keys = 2560, 9728, 32 * 128, 8 * 128
    layer = 2 * width * heads + 2 * width * keys + 3 * width * hidden + 2 * 128 + 2 * width
    ends = 2 * (width + heads) + 2 * (width + keys) + 3 * (width + hidden)  # inputs and outputs of linear layers
    with torch.device("meta"):
        model = PolicyModel("qwen3-4b", adapted=True, grouped=True)
    frozen = sum(each.numel() for each in model.parameters() if not each.requires_grad)
    assert frozen == 151936 * width + 36 * layer + width == 4_022_468_096
    assert sum(each.numel() for each in model.parameters()) - frozen == 36 * 4 * 16 * ends


@pytest.mark.slow
def test_what_a_step_offloads_is_the_inputs_of_its_layers_and_what_the_head_saves() -> None:
    """Of two layers, in bytes: 64 tokens of 1,024 values in bfloat16 each, and in the last normalization float32."""
    from simgpu.validation.public.prime_rl_rows import PolicyModel

    moved: list[int] = []
    model = PolicyModel("qwen3-0.6b", 2, adapted=True, grouped=True, moved=moved)
    model(torch.randint(100, (1, 64)), torch.randn(64), torch.randn(64))
    states = 64 * 1024
    assert moved[:2] == [2 * states, 2 * states] and moved.count(2 * states) >= 3
    assert all(size <= 4 * states for size in moved) and sum(moved) < 20 * states
