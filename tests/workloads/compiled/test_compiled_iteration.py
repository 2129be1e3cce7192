"""Iterations with compiled graphs without PyTorch: memory and traffic in closed form, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Kernel, Phase, Trace
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import ModelledIteration, decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.sets import slow_except

_BATCH, _LENGTH, _HEADS, _WIDTH, _INNER, _WORDS = 2, 48, 4, 64, 176, 512
_TOKENS = _BATCH * _LENGTH
SMALL = {
    "model_type": "llama",
    "hidden_size": _WIDTH,
    "intermediate_size": _INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 2,
    "vocab_size": _WORDS,
}


def built(compiled: str | None, changes: dict[str, Any] | None = None, **options: Any) -> ModelledIteration:
    given = TrainingOptions.of({"compile": compiled, **options})
    decoder, gpu = decoder_of({**SMALL, **(changes or {})}), load_node("h100").gpu
    return decoder_iteration(decoder, batch=_BATCH * given.micro_batches, length=_LENGTH, gpu=gpu, options=given)


def kernels(trace: Trace, phase: Phase, layer: str, op: str = "triton_fused") -> list[Kernel]:
    of_layer = (kernel for kernel in trace.kernels if f"{kernel.layer}.".startswith(f"{layer}."))
    return [kernel for kernel in of_layer if kernel.phase is phase and kernel.op == op]


@pytest.mark.parametrize("form", ["layers", "model"])
def test_compiled_layer_saves_its_closed_form_for_each_token(form: str) -> None:
    one, two = (built(form, {"num_hidden_layers": layers}).saved_bytes for layers in (1, 2))
    # In bfloat16: the input, both normalized values, queries, keys and values of all heads, the result of attention in
    # two layouts, and its projection; gate, up and their product. In float32: sums of attention, two inverse roots.
    token = 2 * (9 * _WIDTH + 3 * _INNER) + 4 * _HEADS + 2 * 4
    random_state = 2 * 8
    assert two - one == _TOKENS * token + random_state


def test_fused_kernels_read_and_write_only_what_others_need() -> None:
    trace = built("layers").trace
    widths = [kernel.dram_bytes for kernel in kernels(trace, Phase.FORWARD, "model.layers.0")]
    queries, keys, angles = _TOKENS * _WIDTH, _TOKENS * _WIDTH // 2, _LENGTH * _WIDTH // _HEADS
    values = [
        2 * _TOKENS * _WIDTH + _WIDTH + 2 * _TOKENS,  # normalization: values, weight and an inverse root in float32
        queries + keys + 2 * angles + 2 * queries,  # rotation, with keys repeated for each head of queries
        keys + queries,  # values repeated
        2 * queries,  # heads joined
        3 * _TOKENS * _WIDTH + _WIDTH + 2 * _TOKENS,  # sum with the input, and its normalization
        3 * _TOKENS * _INNER,  # gate times up
        4 * _TOKENS * _WIDTH,  # the sum of three values
    ]
    assert widths == [2 * each for each in values]
    (backward,) = kernels(trace, Phase.BACKWARD, "model.layers.0.mlp")
    assert backward.dram_bytes == 2 * 5 * _TOKENS * _INNER  # gate, up and a gradient to two gradients


@pytest.mark.parametrize(
    ("form", "options"),
    [("layers", {}), ("model", {"autocast": "bfloat16"}), ("model", {"lora": 4, "lora_targets": ("all-linear",)})],
)
def test_compiled_iteration_is_valid_shorter_and_smaller(form: str, options: dict[str, Any]) -> None:
    compiled, eager = built(form, **options), built(None, **options)
    check_trace(compiled.trace)
    assert compiled.parameters == eager.parameters
    assert sum(k.duration_ns for k in compiled.trace.kernels) < sum(k.duration_ns for k in eager.trace.kernels)
    assert compiled.saved_bytes < eager.saved_bytes
    products = [[k.duration_ns for k in x.trace.kernels if k.op == "mm"] for x in (compiled, eager)]
    assert sum(products[0]) == sum(products[1])


def test_compiled_model_has_no_logits_in_float32_and_zeros_for_their_gradient() -> None:
    compiled, eager = (built(form).trace for form in ("model", None))
    logits = _TOKENS * _WORDS
    wide = [[block for block in trace.blocks if block.bytes == 4 * logits] for trace in (compiled, eager)]
    assert not wide[0] and wide[1]
    (zeros,) = (kernel for kernel in compiled.kernels if kernel.op == "zeros")
    (reader,) = (kernel for kernel in compiled.kernels if zeros.writes[0] in kernel.reads)
    assert compiled.block_by_id[zeros.writes[0]].bytes == 2 * logits and reader.layer == "loss"


def test_compiled_layers_under_autocast_keep_the_weights_of_products_in_half_precision() -> None:
    trace = built("layers", autocast="bfloat16").trace
    blocks = trace.block_by_id
    copies = {row.block for row in trace.saved if row.layer == "model.layers.1.mlp.down_proj" and row.shape is not None}
    assert 2 * _WIDTH * _INNER in {blocks[each].bytes for each in copies}


def test_compiled_layers_keep_matrices_of_four_bits_in_half_precision() -> None:
    options: dict[str, Any] = {"lora": 4, "lora_targets": ("all-linear",), "four_bit": "nf4-double"}
    compiled, eager = (built(form, **options).trace for form in ("layers", None))
    check_trace(compiled)
    kinds = {row.block for row in compiled.saved if "dequantize_4bit" in row.block and "mlp" in row.block}
    assert len(kinds) == 3 * 2  # each layer's
    assert not any("dequantize_4bit" in row.block for row in eager.saved)
    made = [sum(kernel.op == "dequantize_4bit" for kernel in trace.kernels) for trace in (compiled, eager)]
    assert made[1] == 2 * made[0] - 3  # nothing in front of the first layer's queries, keys and values is trained


@pytest.mark.parametrize("form", slow_except(["layers", "model"], "model"))
def test_micro_batches_run_the_graphs_again_in_the_same_memory(form: str) -> None:
    once, twice = built(form), built(form, micro_batches=2)
    check_trace(twice.trace)
    assert once.saved_bytes == twice.saved_bytes
    generated = [sum(k.op == "triton_fused" for k in x.trace.kernels) for x in (once, twice)]
    assert generated[1] == 2 * generated[0]


def test_updates_in_backward_come_after_each_compiled_graph() -> None:
    model, layers = (built(form, optimizer_in_backward=True).trace for form in ("model", "layers"))
    phases = [kernel.phase for kernel in model.kernels]
    assert phases == sorted(phases, key=list(Phase).index)
    # A layer's weights are updated before the layer in front of it runs backward.
    updated = [any("layers.1" in block for block in k.writes) and k.phase is Phase.OPTIMIZER for k in layers.kernels]
    backward = [k.phase is Phase.BACKWARD and (k.layer or "").startswith("model.layers.0") for k in layers.kernels]
    assert max(place for place, each in enumerate(updated) if each) < backward.index(True)


@pytest.mark.parametrize(
    ("changes", "options", "problem"),
    [
        ({}, {"compile": "layer"}, "compile: unknown value 'layer'; did you mean 'layers'"),
        ({}, {"attention": "eager"}, "attention: attention other than PyTorch's fused operator"),
        ({}, {"float8": "tensorwise"}, "float8: float8 in graphs of torch.compile is not modelled"),
        ({}, {"compile": "model", "loss": "chunked-compiled"}, "loss: the compiled model computes its loss itself"),
        ({"model_type": "mixtral", "num_local_experts": 4}, {}, "compile: experts, whose numbers of tokens"),
    ],
)
def test_unsupported_combinations_name_their_place(
    changes: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        built(options.pop("compile", "layers"), changes, **options)
    assert problem in str(caught.value)


def test_gpus_without_triton_are_refused() -> None:
    pascal = replace(load_node("h100").gpu, architecture="pascal")
    with pytest.raises(InputError, match=r"compile: TorchInductor generates no code for .* before Volta"):
        decoder_iteration(
            decoder_of(SMALL), batch=1, length=_LENGTH, gpu=pascal, options=TrainingOptions(compile="layers")
        )


def test_weights_keep_their_gradients() -> None:
    trace = built("layers").trace
    weights, gradients = (
        {block.id: block.bytes for block in trace.blocks if block.kind is kind}
        for kind in (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT)
    )
    assert {f"{name}.grad": size for name, size in weights.items()} == gradients


def test_all_compiled_layers_with_adapters_on_every_product_are_checkpointed() -> None:
    """Backward of the last layer begins in a module that forward runs only parts of: its product and its adapter."""
    trace = built("layers", lora=4, lora_targets=("all-linear",), lora_dtype="bfloat16").trace
    result = simulate(trace, load_node("h100"), "checkpoint")
    assert [section.name for section in result.program.sections] == ["model.layers.0", "model.layers.1"]
