"""Options of frameworks with gradient accumulation: under `accumulate`, and on iterations recorded in micro-batches."""

from __future__ import annotations

from functools import cache

import pytest

from simgpu.policies.registry import policy_written
from simgpu.simulation.run import Result
from simgpu.trace.model import Trace
from tests.policies.framework_runs import peak, run
from tests.sets import slow_except
from tests.workloads.configured.test_decoder_iteration import SMALL, built

#: A policy for each option of `simgpu/policies/FRAMEWORKS.md`.
OPTIONS = (
    "checkpoint(early_stop=false)",
    "checkpoint(every=2)",
    "checkpoint(group=2, early_stop=false)",
    "checkpoint(keep=[torchtitan], early_stop=false)",
    "checkpoint(modules=[core_attn, layernorm, mlp], early_stop=false)",
    "checkpoint(inputs=waiting)",
    "checkpoint(inputs=overlapped)",
    "save_on_cpu",
    "offload_activations",
    "offload_activations(saved_again=offloaded)",
    "offload_activations(use_streams=false)",
    "offload_groups(num_layers=1, min_elements=1024)",
    "offload_groups(schedule=transformer_engine_v1)",
    "offload_groups(schedule=megatron, modules=[attn_norm, core_attn], min_elements=1024)",
)


@cache
def decoder(micro_batches: int) -> Trace:
    # The loop holds the logits, so that the peak is in backward: at the loss, the recording has fewer labels.
    return built({**SMALL, "num_hidden_layers": 2}, 256, micro_batches=micro_batches, hold_output=True).trace


def fast(trace: Trace, option: str) -> Result:
    policy = policy_written(option)
    return run(trace, policy.name, bandwidth=10**15, **policy.parameters)


@pytest.mark.parametrize("option", slow_except(OPTIONS, *OPTIONS[0:8:3], *OPTIONS[7:9], OPTIONS[-1]))
def test_both_ways_to_have_two_micro_batches_agree(option: str):
    """The recording has two kernels more, and copies of a few bytes that the split of the batch does not know."""
    split = fast(decoder(1), f"accumulate(micro_batches=2, inside={option})")
    recorded = fast(decoder(2), option)
    assert recorded.metrics.copied_bytes == pytest.approx(split.metrics.copied_bytes, rel=1e-4)
    assert peak(recorded) == pytest.approx(peak(split), rel=1e-3)
    assert peak(recorded) < peak(fast(decoder(1), option))
    assert split.iteration_ns < recorded.iteration_ns < 1.01 * split.iteration_ns
