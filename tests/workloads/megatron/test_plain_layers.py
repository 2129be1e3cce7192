"""Decoders with layer normalization, GELU and biases in a job of Megatron-LM: GPT-2, GPT-NeoX, Starcoder2."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.entry import SampleSizes
from simgpu.workloads.configured.modelled import ModelledIteration
from simgpu.workloads.configured.options import TrainingOptions
from simgpu.workloads.megatron.entry import Job, megatron_iteration, megatron_of
from simgpu.workloads.megatron.layout import Layout

_NODE = load_node("b200-x8")
_WIDTH, _INNER, _HEADS, _WORDS, _POSITIONS, _LAYERS = 256, 1024, 8, 1000, 512, 3
_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": _WIDTH,
    "n_head": _HEADS,
    "n_layer": _LAYERS,
    "n_positions": _POSITIONS,
    "vocab_size": _WORDS,
}
_ROTATED: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": _INNER,
    "num_attention_heads": _HEADS,
    "num_hidden_layers": _LAYERS,
    "vocab_size": _WORDS,
}
_NEOX = {"model_type": "gpt_neox", **_ROTATED, "use_parallel_residual": False}
_STARCODER = {"model_type": "starcoder2", **_ROTATED, "num_key_value_heads": 4}


def _built(values: dict[str, Any], tensor: int = 1) -> ModelledIteration:
    return megatron_iteration(Job(decoder_of(values), Layout(tensor=tensor), _NODE, batch=1, length=128))


def _of_layer(result: ModelledIteration) -> int:
    return sum(each.block.bytes for each in result.saved if each.layer.startswith("decoder.layers.1"))


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize(
    ("values", "keys", "drops"), [(_GPT2, _HEADS, True), (_NEOX, _HEADS, False), (_STARCODER, 4, False)]
)
def test_a_plain_layer_saves_its_part_of_everything(
    values: dict[str, Any], keys: int, drops: bool, tensor: int
) -> None:
    """GPT-2's queries, keys and values stay columns of their product, which take what copies of rotated ones take."""
    rows, each = 128, _WIDTH // _HEADS
    normalized = 2 * (2 * 2 * rows * _WIDTH + 2 * 4 * rows)  # input, result; mean and deviation in float32
    attention = 2 * rows * (2 * _HEADS + 2 * keys) * each + 4 * rows * _HEADS
    feed_forward = 2 * rows * 2 * _INNER  # before and after GELU
    masks = 2 * rows * _WIDTH if drops else 0
    random_state = 16 + 8
    expected = (normalized + attention + feed_forward + masks) // tensor + random_state
    assert _of_layer(_built(values, tensor)) == expected


def test_published_gpt2_has_its_parameters_and_a_padded_table() -> None:
    assert _built({"model_type": "gpt2"}).parameters == 124_439_808 + (50304 - 50257) * 768


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_each_gpu_has_all_positions_normalizations_and_biases_of_sums(tensor: int) -> None:
    words = -(-_WORDS // (128 * tensor)) * 128 * tensor
    of_all = _POSITIONS * _WIDTH + 2 * _WIDTH + _LAYERS * 6 * _WIDTH
    layer = 4 * _WIDTH * _WIDTH + 2 * _WIDTH * _INNER + 3 * _WIDTH + _INNER
    assert _built(_GPT2, tensor).parameters == of_all + (_LAYERS * layer + words * _WIDTH) // tensor


def test_gradients_of_biases_are_added_up_and_those_of_sums_are_all_reduced() -> None:
    trace = _built(_GPT2, 2).trace
    biases = [
        f"decoder.layers.0.{name}.bias.main_grad"
        for name in ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
    ]
    added = [[kernel.op for kernel in trace.kernels if name in kernel.writes] for name in biases]
    assert all(ops.count("add_") == 1 for ops in added)
    (reduced,) = (each for each in trace.kernels if each.op == "all_reduce" and each.phase is Phase.OPTIMIZER)
    assert reduced.duration_ns == collective_ns(Collective.ALL_REDUCE, 4 * (_LAYERS * 6 + 2) * _WIDTH, Group(2), _NODE)
    assert biases[1] in reduced.writes and biases[3] in reduced.writes and biases[0] not in reduced.writes


def test_trained_positions_are_added_before_each_gpu_takes_its_tokens() -> None:
    """Words are summed over the GPUs in place, not scattered, since each adds the positions of all tokens."""
    trace = _built(_GPT2, 2).trace
    of_embedding = [k.op for k in trace.kernels if (k.layer or "").startswith("embedding") and k.phase is Phase.FORWARD]
    assert of_embedding[-5:] == ["all_reduce", "embedding", "add", "clone", "native_dropout"]
    gathers = [k for k in trace.kernels if k.op == "all_gather" and (k.layer or "").startswith("embedding")]
    assert [kernel.phase for kernel in gathers] == [Phase.BACKWARD]
    (positions,) = (block for block in trace.blocks if block.kind is BlockKind.INPUT and "position_ids" in block.id)
    assert positions.bytes == 8 * 128


def test_columns_that_attention_reads_have_one_gradient() -> None:
    """Rotated ones are copies, whose gradients another copy puts together."""
    backward = [
        [k.op for k in _built(values).trace.kernels if k.phase is Phase.BACKWARD and k.op in ("cat", "clone")]
        for values in (_GPT2, _NEOX)
    ]
    assert backward == [[], ["cat"] * _LAYERS]


def test_biases_of_queries_alone_come_with_gated_parts() -> None:
    sizes = {**_ROTATED, "intermediate_size": 512, "num_key_value_heads": 4}
    plain, biased = (_built({"model_type": name, **sizes}) for name in ("llama", "qwen2"))
    assert biased.parameters - plain.parameters == _LAYERS * 2 * _WIDTH
    assert biased.saved_bytes == plain.saved_bytes


@pytest.mark.parametrize(
    ("values", "layout", "length", "message"),
    [
        ({**_NEOX, "use_parallel_residual": True}, "tp2", 128, "attention and feed-forward part to the same value"),
        ({**_ROTATED, "model_type": "phi"}, "tp2", 128, "attention and feed-forward part to the same value"),
        ({**_STARCODER, "use_bias": False}, "tp2", 128, "has biases in some of its linear layers only"),
        ({**_NEOX, "attention_bias": False}, "tp2", 128, "has biases in some of its linear layers only"),
        ({**_NEOX, "hidden_act": "relu"}, "tp2", 128, "of the family gpt_neox as Megatron-LM's GPT model"),
        ({**_GPT2, "embd_pdrop": 0.0}, "tp2", 128, "has several rates of dropout, which"),
        (_GPT2, "cp2", 128, r"trained positions .* with context parallelism \(cp\) are not modelled"),
        (_GPT2, "tp2", 1024, "length: 1024 tokens are more than the 512 positions"),
    ],
)
def test_what_megatron_has_no_options_for_is_refused(
    values: dict[str, Any], layout: str, length: int, message: str
) -> None:
    sizes, options = SampleSizes(length=length), TrainingOptions()
    with pytest.raises(InputError, match=message):
        megatron_of(decoder_of(values), sizes, layout, None, batch=1, node=_NODE, options=options)
