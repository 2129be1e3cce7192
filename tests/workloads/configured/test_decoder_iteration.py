"""Decoders from configurations without PyTorch: parameters, memory, time, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Phase
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.entry import options_of
from simgpu.workloads.configured.modelled import ModelledIteration, decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.sets import slow_except
from tests.workloads.configured.published import PUBLISHED

SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def built(values: dict[str, Any], length: int = 32, **options: Any) -> ModelledIteration:
    given = {name: options.pop(name) for name in ("batch", "gpu") if name in options}
    given = {"batch": 2, "length": options.pop("length", length), "gpu": load_node("h100").gpu, **given}
    return decoder_iteration(decoder_of(values), **given, options=TrainingOptions(**options))


#: The smallest model of families that differ; building one takes up to a second, of many experts longer.
SMALLEST = ("openai-community/gpt2", "EleutherAI/pythia-410m", "Qwen/Qwen3-0.6B")
SMALLEST += ("google/gemma-2b", "google/gemma-3-1b-pt", "allenai/OLMo-2-0425-1B")


@pytest.mark.parametrize("name", slow_except(PUBLISHED, *SMALLEST))
def test_parameters_are_those_published(name: str) -> None:
    values, parameters = PUBLISHED[name]
    assert built(values, attention=options_of(decoder_of(values), {}).attention).parameters == parameters


def test_trace_is_valid_and_complete() -> None:
    trace = built(SMALL).trace
    check_trace(trace)
    assert {kernel.phase for kernel in trace.kernels} == set(Phase)
    weights, gradients = (
        {block.id: block.bytes for block in trace.blocks if block.kind is kind}
        for kind in (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT)
    )
    assert {f"{name}.grad": size for name, size in weights.items()} == gradients


def test_saved_bytes_grow_linearly_with_tokens_in_fused_attention_and_faster_in_eager() -> None:
    fused, eager = (
        [built(SMALL, length, attention=form).saved_bytes for length in (128, 256, 384)] for form in ("sdpa", "eager")
    )
    assert fused[2] - fused[1] == fused[1] - fused[0]
    assert eager[2] - eager[1] > eager[1] - eager[0]


def test_float32_weights_take_twice_the_memory_of_bfloat16() -> None:
    sizes = [
        sum(block.bytes for block in built(SMALL, dtype=dtype).trace.blocks if block.kind is BlockKind.WEIGHT)
        for dtype in ("bfloat16", "float32")
    ]
    assert sizes[1] == 2 * sizes[0]


def test_states_in_8_bits_take_two_bytes_a_value_and_a_scale_each_for_256_values() -> None:
    trace = built({**SMALL, "vocab_size": 5000}, 1, optimizer="adamw-8bit").trace
    blocks, expected = trace.block_by_id, 0
    for weight in (block for block in trace.blocks if block.kind is BlockKind.WEIGHT):
        values = weight.bytes // 2
        expected += 2 * 4 * values if values < 4096 else 2 * (values + 4 * -(-values // 256))
    assert sum(block.bytes for block in trace.blocks if block.kind is BlockKind.OPTIMIZER_STATE) == expected
    updates = [kernel for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER]
    assert len(updates) == sum(block.kind is BlockKind.WEIGHT for block in trace.blocks)
    assert all(any(blocks[name].kind is BlockKind.WEIGHT_GRADIENT for name in kernel.reads) for kernel in updates)


def test_fused_optimizer_needs_no_temporaries() -> None:
    peaks = {}
    for optimizer in ("adamw", "adamw-fused"):
        trace = built({**SMALL, "vocab_size": 5000}, 1, optimizer=optimizer).trace
        peak = trace_stats(trace).peak_recorded
        assert peak is not None
        peaks[optimizer] = peak.bytes
    assert peaks["adamw-fused"] < peaks["adamw"]


MIXTURE = {**SMALL, "model_type": "mixtral", "num_local_experts": 8, "num_key_value_heads": 4}


def test_bytes_that_experts_save_are_the_same_for_more_experts_of_fewer_tokens_each() -> None:
    """Only the router's softmax has one more value per token for each expert."""
    few, many = (built({**MIXTURE, "num_local_experts": count}).saved_bytes for count in (8, 16))
    tokens, layers, float32 = 64, 2, 4
    assert many - few == tokens * layers * (16 - 8) * float32


def test_time_of_experts_is_at_least_that_of_a_dense_decoder_of_the_active_size() -> None:
    """Two of eight experts are as wide together as one dense part; routing and small products add less than half."""
    sizes = {"hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32, "vocab_size": 32000}
    experts, dense = (
        built({**sizes, "num_key_value_heads": 8, **others}, 4096).trace
        for others in (
            {"model_type": "mixtral", "intermediate_size": 14336},
            {"model_type": "llama", "intermediate_size": 2 * 14336},
        )
    )
    times = [
        sum(kernel.duration_ns for kernel in trace.kernels if kernel.phase in (Phase.FORWARD, Phase.BACKWARD))
        for trace in (experts, dense)
    ]
    assert times[1] < times[0] < 1.5 * times[1]
    assert "balanced routing" in experts.info.notes and "balanced routing" not in dense.info.notes


def test_fewer_tokens_than_experts_are_refused() -> None:
    with pytest.raises(InputError, match="2 tokens are too few for the 8 experts"):
        built(MIXTURE, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length: 0 is not a number from 1"),
        ({"batch": 0}, "batch: 0 is not a number from 1"),
        ({"dtype": "float8"}, "dtype: unknown value 'float8'"),
        ({"attention": "flash"}, "attention: unknown value 'flash'"),
        ({"autocast": "float8"}, "autocast: unknown value 'float8'"),
        ({"micro_batches": 3}, "a batch of 2 cannot be split into 3 equal micro-batches; give a divisor"),
        ({"lora": 0}, "lora: 0 is not a rank; give at least 1"),
        ({"lora": 8, "lora_targets": ("q_pro",)}, "no linear layer 'q_pro'; did you mean 'q_proj'"),
        ({"lora_dtype": "bfloat16"}, "lora_dtype: is the number format of LoRA's adapters, and LoRA is off"),
        ({"lora": 8, "lora_dtype": "float16"}, "adapters of float16 next to weights of bfloat16 are not modelled"),
        ({"lora_dropout": 0.1}, "lora_dropout: drops values of the input of LoRA's adapters, and LoRA is off"),
        ({"lora": 8, "lora_dropout": 1.0}, "lora_dropout: 1.0 is no rate; give at least 0, below 1"),
        ({"tf32": True, "dtype": "float32", "gpu": load_node("v100").gpu}, "tf32: .* has no matrix units for TF32"),
        ({"optimizer_in_backward": True, "micro_batches": 2}, "needs the whole gradient, .*; leave out one of the two"),
        ({"optimizer": "lion"}, "optimizer: unknown value 'lion'"),
        ({"length": 2**39}, "more bytes or operations than a trace can hold"),
        ({"gpu": load_node("v100").gpu}, "no fused attention for bfloat16 and heads of 16 values; give eager"),
        ({"attention": "flash_attention_2", "dtype": "float32"}, "no flash_attention_2 for float32 and heads of 16"),
        ({"attention": "flash_attention_3", "gpu": load_node("l4").gpu}, "no FlashAttention-3, which is for Hopper"),
    ],
)
def test_values_that_cannot_be_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(SMALL, **options)


def test_compiled_normalized_heads_of_stablelm_are_refused() -> None:
    values = {**SMALL, "model_type": "stablelm", "num_key_value_heads": 4, "partial_rotary_factor": 0.5}
    assert built(values, compile="layers").saved_bytes > 0
    with pytest.raises(InputError, match="compile: normalized queries and keys of StableLM"):
        built({**values, "qk_layernorm": True}, compile="layers")


def test_tf32_shortens_products_of_single_precision_and_nothing_else() -> None:
    plain, fast = (built(SMALL, dtype="float32", tf32=tf32).trace for tf32 in (False, True))
    shorter = {one.op for one, other in zip(plain.kernels, fast.kernels, strict=True) if one != other}
    assert shorter and all("mm" in op or "attention" in op for op in shorter)
    assert fast.compute_ns < plain.compute_ns and fast.blocks == plain.blocks
    assert "float32 products in TF32" in fast.info.notes


def test_length_beyond_trained_positions_is_refused() -> None:
    with pytest.raises(InputError, match="1025 tokens are more than the 1024 positions"):
        built({"model_type": "gpt2", "n_layer": 1}, 1025)


def test_a_length_beyond_the_sliding_window_saves_a_mask_in_each_layer() -> None:
    windowed = {**SMALL, "model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 64}
    whole = {**windowed, "sliding_window": None}
    assert built(windowed, 63).saved_bytes == built(whole, 63).saved_bytes
    earlier = built(windowed, 64, gpu=load_node("rtx4090").gpu)
    masks = [each for each in earlier.saved if each.block.shape == (2, 1, 64, 72)]
    assert [mask.layer for mask in masks] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


@pytest.mark.parametrize("length", [64, 100])
@pytest.mark.parametrize("gpu", ["h100", "gb200"])
def test_all_layers_save_one_mask_for_cudnn(gpu: str, length: int) -> None:
    """Both samples and all layers have the mask in common: a row for each token, of one column more than tokens."""
    windowed = {**SMALL, "model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 64}
    whole = {**windowed, "sliding_window": None}
    masked, plain = (built(each, length, gpu=load_node(gpu).gpu) for each in (windowed, whole))
    assert {kernel.op for kernel in masked.trace.kernels if "_attention" in kernel.op} == {
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
    }
    assert masked.saved_bytes - plain.saved_bytes == 2 * length * (length + 1)


@pytest.mark.parametrize(
    ("change", "gpu", "op"),
    [
        ({}, "h100", "cudnn"),
        ({"attention_dropout": 0.125}, "h100", "cudnn"),
        ({"attention_dropout": 0.1}, "h100", "flash"),
        ({"head_dim": 256}, "h100", "cudnn"),
        ({"head_dim": 256}, "gb200", "flash"),
        ({}, "a100", "flash"),
    ],
)
def test_the_kernel_of_attention_follows_from_widths_dropout_and_gpu(change: dict[str, Any], gpu: str, op: str) -> None:
    values = {**SMALL, "model_type": "qwen3", "num_key_value_heads": 4, **change}
    ops = {kernel.op for kernel in built(values, gpu=load_node(gpu).gpu).trace.kernels}
    assert [each for each in sorted(ops) if "_attention" in each] == [
        f"_scaled_dot_product_{op}_attention",
        f"_scaled_dot_product_{op}_attention_backward",
    ]


@pytest.mark.parametrize(
    ("inside", "options"), [("checkpoint", {}), ("none", {"dtype": "float32", "autocast": "bfloat16"})]
)
def test_micro_batches_need_the_memory_of_the_policy_that_accumulates(options: dict[str, Any], inside: str) -> None:
    """`accumulate` splits the trace of the whole batch; it does not model the divided loss, four bytes."""
    values, node = {**SMALL, "vocab_size": 5000}, load_node("h100")
    whole, parts = (built(values, 128, batch=8, micro_batches=count, **options).trace for count in (1, 4))
    check_trace(parts)
    by_policy = simgpu.simulate(whole, node, "accumulate", parameters={"micro_batches": 4, "inside": inside})
    own = simgpu.simulate(parts, node, inside)
    assert own.metrics.device_peak_bytes - by_policy.metrics.device_peak_bytes == 4


def test_autocast_halves_what_products_save_and_keeps_weights_in_float32() -> None:
    plain, mixed = (built(SMALL, dtype="float32", autocast=autocast) for autocast in (None, "bfloat16"))
    weights = [
        sum(block.bytes for block in each.trace.blocks if block.kind is BlockKind.WEIGHT) for each in (plain, mixed)
    ]
    assert weights[0] == weights[1]
    inputs = {block.shape: block.dtype for block, layer in mixed.saved if layer.endswith("down_proj")}
    assert inputs == {(2, 32, 128): "bfloat16", (64, 128): "bfloat16"}
    assert mixed.trace.info.compute == "bfloat16 (autocast)"


def test_saved_bytes_are_those_of_one_micro_batch() -> None:
    parts, one = built(SMALL, batch=6, micro_batches=3), built(SMALL, batch=2)
    assert (parts.saved_bytes, len(parts.saved)) == (one.saved_bytes, len(one.saved))


@pytest.mark.parametrize(("form", "throughout", "in_step"), [(None, 6, 8), ("copied", 14, 18), ("main-grad", 18, 18)])
def test_master_weights_take_bytes_by_closed_form(form: str | None, throughout: int, in_step: int) -> None:
    """Bytes per parameter: 2 for weights; 4 for copies, and two averages of AdamW in their format; gradients of 2 or 4.

    Without copies, averages have 2 bytes each. Before the step, ``copied`` gradients of 2 bytes become 4.
    """
    result = built(SMALL, optimizer="adamw-fused", master_weights=form)
    trace, count = result.trace, result.parameters
    of_steps = sum(block.bytes for block in trace.blocks if block.id.endswith(".step"))
    kinds = (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.WEIGHT_GRADIENT)
    persistent = [block for block in trace.blocks if block.persistent and block.kind in kinds]
    assert sum(block.bytes for block in persistent) - of_steps == throughout * count
    (update,) = (kernel for kernel in trace.kernels if kernel.op == "_fused_adamw_")
    used = {*update.reads, *update.writes, *(block.id for block in persistent)}
    assert sum(trace.block_by_id[name].bytes for name in used) - of_steps == in_step * count


def test_master_weights_of_float32_weights_are_an_error() -> None:
    for options in ({"dtype": "float32"}, {"lora": 4}):
        with pytest.raises(InputError, match=r"master_weights: float32 copies of .* are not modelled; give bfloat16"):
            built(SMALL, master_weights="copied", **options)


@pytest.mark.parametrize("gpu", ["rtx4090", "h100", "gb200", "mi300x"])
def test_the_package_saves_no_repeated_heads_and_no_copy_of_its_result(gpu: str) -> None:
    """By hand, for each layer: keys and values of one head instead of four, and the result of four once, not twice.

    A head has 2 x 32 tokens of 16 values in bfloat16. The random state of cuDNN's attention has a number less.
    """
    values = {**SMALL, "num_key_value_heads": 1}
    repeated, own = (
        built(values, attention=form, gpu=load_node(gpu).gpu).saved_bytes for form in ("sdpa", "flash_attention_2")
    )
    state = 8 if gpu in ("h100", "gb200") else 0
    assert repeated - own == 2 * ((2 * 3 + 4) * 2 * 32 * 16 * 2 - state)
