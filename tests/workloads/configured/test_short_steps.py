"""Short steps wait for the host: Qwen's published times of fine-tuning, with and without launches."""

from __future__ import annotations

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of
from simgpu.workloads.timemodel.host import OPERATOR_NS

#: Sizes of Qwen-1.8B by its config.json on huggingface.co, as those of a Qwen2, whose layers do the same.
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151936,
}
#: Seconds of a step by tokens, with LoRA: QwenLM/Qwen, README.md, profiling of memory and speed.
PUBLISHED = {256: 1.0, 1024: 1.1}


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "waits"), [(256, True), (1024, False)])
def test_published_times_of_short_steps_are_those_of_launches(tokens: int, waits: bool) -> None:
    model = model_of(QWEN, name="qwen")
    training = {"lora": 64, "lora_targets": ("all-linear",), "autocast": "bfloat16", "micro_batches": 8}
    plain = load_node("a100-80gb")
    launching = load_node("a100-80gb", {"host.launch": f"{OPERATOR_NS} ns"})
    trace = model_iteration(
        model, SampleSizes(length=tokens), batch=8, gpu=plain.gpu, options=options_of(model, training)
    ).trace
    times = [simulate(trace, node, "checkpoint", iterations=2).iteration_ns / 1e9 for node in (plain, launching)]
    without, counted = (time / PUBLISHED[tokens] - 1 for time in times)
    assert abs(counted) < 0.15
    assert (without < -0.3) is waits
