"""Axolotl's comparison of checkpointing and offload on Qwen3-8B (pull request 3776), by a recording and a policy.

`simgpu.record` follows Transformers' model on fake tensors; the policy of `simgpu.policies` that does what the option
does (`simgpu/policies/FRAMEWORKS.md`) is simulated, and its peak above the start of the step is the prediction.

The pull request states neither the GPU, nor the implementation of attention, nor that of the loss. Taken here: `sdpa`
and the loss in float32, as Transformers 4.51 has them without further settings. What differs from the measured peaks:

* 4.51 repeats keys and values for each head, and later versions do not. Without that, 0.17 GB less in a layer's
  backward: 17.16 GB for `checkpoint_hs`, measured 17.09.
* With `gc` the simulated peak is at the loss, 17.62 GB, where three copies of the logits in float32 take 14.9 GB.
  Measured were 17.16 GB, both with inputs on the device and offloaded: that loss took less.
* Measured, `alst` takes 0.13 GB more than `checkpoint_hs`, two hidden states: a reentrant checkpoint holds a layer's
  input and output during its backward. The policy frees both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import DEVICE
from simgpu.recorder import record
from simgpu.recorder.model_packages import transformers_package
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace
from simgpu.validation.public.loop import PLENTY
from simgpu.validation.public.rows import PublishedRow

VOCABULARY = 151936
_LAYERS: dict[str, object] = {"blocks": ("model.layers.*",)}
_OFFLOADED: dict[str, object] = {**_LAYERS, "inputs": "overlapped"}
#: The policies by the first word of a row's options. In Axolotl at commit 9f8e548d, `checkpoint_hs` and `alst` are
#: `activation_offloading: hidden_states` without and with `use_reentrant`, the latter without early stop; `trl_gc` is
#: `activation_offloading: true` with checkpointing, and `trl_all` without.
POLICIES: dict[str, tuple[str, dict[str, object]]] = {
    "gc": ("checkpoint", _LAYERS),
    "checkpoint_hs": ("checkpoint", _OFFLOADED),
    "alst": ("checkpoint", {**_OFFLOADED, "early_stop": False}),
    "trl_gc": ("checkpoint", _OFFLOADED),
    "trl_all": ("offload_activations", {}),
}


class Qwen(nn.Module):
    """Qwen3-8B by its `config.json`, with the logits in float32 for the loss."""

    def __init__(self) -> None:
        super().__init__()
        transformers = transformers_package()
        config = transformers.Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            sliding_window=None,
            use_cache=False,
        )
        config._attn_implementation = "sdpa"
        whole = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
        self.model, self.lm_head = whole.model, whole.lm_head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits, a row for each position."""
        states = self.model(input_ids=ids, use_cache=False).last_hidden_state
        logits: torch.Tensor = self.lm_head(states).float().view(-1, VOCABULARY)
        return logits


@cache
def qwen_step(tokens: int, node: str) -> Trace:
    """A step with one sequence; without an optimizer's states, which are there before the step."""
    return record(partial(_made, tokens), batch=1, gpu=load_node(node).gpu)


def _made(tokens: int, batch: int) -> tuple[Any, ...]:
    ids, labels = torch.randint(1000, (batch, tokens)), torch.randint(1000, (batch * tokens,))
    return Qwen(), ids, labels, nn.CrossEntropyLoss()


def above_the_start(trace: Trace, node: str, policy: str, **parameters: object) -> int:
    """The peak of device memory above what is there when a step begins, in bytes, on a GPU with memory enough."""
    spec = load_node(node)
    spec = replace(spec, gpu=replace(spec.gpu, memory=PLENTY))
    result = simulate(trace, spec, policy, parameters=parameters)
    start = sum(block.bytes for block in trace.blocks if block.persistent)
    return int(result.timeline.memory(DEVICE).used.max()) - start


def peak_above_start(row: PublishedRow, node: str) -> int:
    """What a row of the table has as its peak."""
    assert row.tokens is not None
    policy, parameters = POLICIES[row.options.split()[0]]
    return above_the_start(qwen_step(row.tokens, node), node, policy, **parameters)
