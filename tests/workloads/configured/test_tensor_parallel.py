"""One of several GPUs that share a decoder: what it holds and exchanges, in closed forms, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.nodes import load_node
from simgpu.trace.check import check_trace
from simgpu.trace.model import Block, BlockKind, Phase
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import ModelledIteration, decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.policies.framework_runs import peak, run

_NODE = load_node("h100-x8")
_ROWS, _WIDTH, _WORDS, _LAYERS = 64, 256, 1024, 2
_SMALL = {
    "model_type": "llama",
    "hidden_size": _WIDTH,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": _LAYERS,
    "vocab_size": _WORDS,
}


def _built(count: int, values: dict[str, Any] = _SMALL, batch: int = 2, **options: Any) -> ModelledIteration:
    chosen = TrainingOptions(tensor_parallel=count, **options)
    decoder, gpu = decoder_of(values), _NODE.gpu
    return decoder_iteration(decoder, batch=batch, length=_ROWS, gpu=gpu, options=chosen, node=_NODE)


@pytest.mark.parametrize("count", [2, 4])
def test_each_gpu_has_a_part_of_all_weights_but_norms_and_their_optimizer_state(count: int) -> None:
    alone, part = _built(1), _built(count)
    norms = (2 * _LAYERS + 1) * _WIDTH
    assert part.parameters == norms + (alone.parameters - norms) // count
    assert part.of_all == alone.parameters
    state = sum(block.bytes for block in part.trace.blocks if block.kind is BlockKind.OPTIMIZER_STATE)
    assert state == 2 * 2 * part.parameters


def test_the_gradient_of_the_embedding_is_whole_on_each_gpu() -> None:
    blocks = _built(4).trace.block_by_id
    assert blocks["model.embed_tokens.weight"].bytes == 2 * _WORDS * _WIDTH // 4
    assert blocks["model.embed_tokens.weight.grad"].bytes == 2 * _WORDS * _WIDTH
    assert blocks["lm_head.weight.grad"].bytes == 2 * _WORDS * _WIDTH // 4


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_layer_saves_its_part_of_everything_but_the_gathered_inputs(count: int, attention: str) -> None:
    gathered = 2 * 2 * 2 * _ROWS * _WIDTH  # two samples in bfloat16, before attention and the feed-forward part

    def of_layer(result: ModelledIteration) -> int:
        blocks = [each.block for each in result.saved if each.layer.startswith("model.layers.1")]
        return sum(block.bytes for block in blocks if not _is_random_state(block))

    alone, part = (of_layer(_built(each, attention=attention)) for each in (1, count))
    assert part == (alone - gathered) // count + gathered


def _is_random_state(block: Block) -> bool:
    return block.shape == ()


@pytest.mark.parametrize("batch", [1, 2])
def test_collectives_are_those_of_each_layer_and_take_what_the_links_take(batch: int) -> None:
    trace = _built(4, batch=batch).trace
    check_trace(trace)
    large = [kernel for kernel in trace.kernels if kernel.op in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)]
    between = 2 * _LAYERS + 1  # two parts of each layer, and the output layer or the embedding
    assert Counter((kernel.op, kernel.phase) for kernel in large) == {
        (kind, phase): between
        for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    size = 2 * batch * _ROWS * _WIDTH
    for kernel in large:
        assert kernel.duration_ns == collective_ns(Collective(kernel.op), size, Group(4), _NODE)
    small = [kernel for kernel in trace.kernels if kernel.op == Collective.ALL_REDUCE]
    steps = 3 * (2 * _LAYERS + 1)  # of the gradients of the norms, for each operand of AdamW
    assert Counter(kernel.phase for kernel in small) == {Phase.FORWARD: 3, Phase.OPTIMIZER: steps}
    copies = [kernel for kernel in trace.kernels if kernel.op == "cat" and (kernel.layer or "").endswith("o_proj")]
    assert len(copies) == _LAYERS * (1 if batch == 1 else 2)  # several samples are copied after gathering too


@pytest.mark.parametrize("policy", ["checkpoint", "save_on_cpu", "offload_activations", "vdnn"])
def test_policies_run_on_a_part_as_on_any_trace(policy: str) -> None:
    """The backward of the loss's logarithms has no kernel, so that nothing reads what it takes back."""
    trace = _built(4).trace
    alone, result = run(trace, "none"), run(trace, policy)
    assert peak(result) <= peak(alone)
    assert result.iteration_ns >= alone.iteration_ns


def test_one_gpu_is_as_without_tensor_parallelism() -> None:
    decoder = decoder_of(_SMALL)
    assert _built(1).trace == decoder_iteration(decoder, batch=2, length=_ROWS, gpu=_NODE.gpu).trace
    assert _built(1).of_all is None


def test_what_is_not_modelled_is_refused_all_at_once() -> None:
    values = {**_SMALL, "num_key_value_heads": 2, "vocab_size": 1002, "attention_bias": True}
    with pytest.raises(InputError) as error:
        _built(4, values, loss="chunked", lora=8, optimizer="adamw-8bit", compile="layers", grad_scaler=True)
    refused = {problem.place for problem in error.value.problems}
    assert refused >= {"tensor_parallel", "loss", "lora", "optimizer", "compile", "grad_scaler"}
    assert "4 GPUs do not divide 2 heads of keys and values, 1002 words of the vocabulary" in str(error.value)
    assert "has a bias of attention's result" in str(error.value)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw-8bit"])
def test_optimizers_whose_state_would_differ_are_refused(optimizer: str) -> None:
    with pytest.raises(InputError, match=f"optimizer: the optimizer {optimizer} next to tensor parallelism"):
        _built(2, optimizer=optimizer)


@pytest.mark.parametrize("model_type", ["gpt2", "phi3", "mixtral", "gemma", "olmo2"])
def test_other_families_are_refused(model_type: str) -> None:
    with pytest.raises(InputError, match=f"is modelled for llama, mistral, qwen2, qwen3, not for {model_type}"):
        _built(2, {"model_type": model_type})


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (None, "needs 2 GPUs of a node, and one GPU is given"),
        ("h100", "needs 2 GPUs of a node, and h100 has 1"),
        ("rtx4090-x8", "does not state what its GPUs exchange data over"),
    ],
)
def test_a_node_without_gpus_or_links_is_refused(node: str | None, what: str) -> None:
    options, given = TrainingOptions(tensor_parallel=2), None if node is None else load_node(node)
    with pytest.raises(InputError, match=what):
        decoder_iteration(decoder_of(_SMALL), batch=1, length=_ROWS, gpu=_NODE.gpu, options=options, node=given)
