"""Jobs of Megatron-LM that MooreThreads/SimuMax measured on eight B200: `tools/b200` and `simu_tools` at 4dcaae51.

With TransformerEngine 2.11, micro-batches of one sample, the distributed optimizer, and nothing overlapped (its
launchers `run_pretrain_llama3.sh` and `run_pretrain_deepseekv2.sh`). Memory is the largest of any GPU, so that each
stage of a pipeline is modelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.validation.public.rows import PublishedRow
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.megatron.entry import Job, megatron_iteration
from simgpu.workloads.megatron.layout import Layout

#: Of both models with experts, in the words of DeepSeek's configurations. The routers have softmax scores and as many
#: groups as GPUs share experts (``--moe-router-num-groups``), which is added for each row.
_OF_EXPERTS: Mapping[str, Any] = MappingProxyType(
    {
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "topk_method": "group_limited_greedy",
        "topk_group": 3,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
)
#: Sizes by the row's configuration (`configs/models` of SimuMax), with the layers that are left.
_SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama-3-70b-12-layers": {
            "model_type": "llama",
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "num_hidden_layers": 12,
            "vocab_size": 128256,
        },
        "llama-3-405b-4-layers": {
            "model_type": "llama",
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_attention_heads": 128,
            "num_key_value_heads": 16,
            "num_hidden_layers": 4,
            "vocab_size": 128256,
        },
        "deepseek-v2-4-layers": {
            "model_type": "deepseek_v2",
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "vocab_size": 102400,
            **_OF_EXPERTS,
        },
        "deepseek-v3-4-layers": {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "vocab_size": 129280,
            **_OF_EXPERTS,
        },
    }
)
_SIZE = re.compile(r"(tp|pp|dp|ep|cp)(\d+)")


def layout_of(row: PublishedRow) -> Layout:
    """How the row divides the model.

    >>> from simgpu.validation.public.rows import published_rows
    >>> [layout_of(row).text for row in published_rows() if row.id in ("t-480", "t-482")]
    ['pp2,dp4', 'tp4,dp2']
    """
    return Layout.parsed(",".join(f"{name}{size}" for name, size in _SIZE.findall(row.parallelism)))


def peaks_of_job(row: PublishedRow) -> tuple[int, int]:
    """The largest peaks of allocated and of reserved bytes of any GPU."""
    assert row.node is not None
    node = load_node(row.node)
    allocated, reserved = [], []
    for trace in _stages(row):
        peak = trace_stats(trace).peak_recorded
        assert peak is not None
        allocated.append(peak.bytes)
        reserved.append(simulate(trace, node, "none", pool="caching").high_water)
    return max(allocated), max(reserved)


def time_of_job(row: PublishedRow) -> tuple[int, int, int]:
    """Nanoseconds of an iteration and of its kernels on the GPU that ends last, and its samples."""
    longest = max(sum(kernel.duration_ns for kernel in trace.kernels) for trace in _stages(row))
    return longest, longest, (row.sequences or 1) * row.micro_batches


def _stages(row: PublishedRow) -> Iterator[Trace]:
    assert row.node is not None and row.config is not None and row.tokens is not None
    layout = layout_of(row)
    sizes = {**_SIZES[row.config], "max_position_embeddings": row.tokens}
    decoder = decoder_of({**sizes, "n_group": layout.expert} if layout.expert > 1 else sizes)
    batch = (row.sequences or 1) * row.micro_batches
    job = Job(decoder, layout, load_node(row.node), batch, row.tokens, row.micro_batches)
    for stage in range(layout.pipeline):
        yield megatron_iteration(job, stage).trace
