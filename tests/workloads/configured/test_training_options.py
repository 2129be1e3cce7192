"""Options of training compared with PyTorch's own on fake tensors: autocast and micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.trace.model import Phase
from simgpu.trace.stats import trace_stats
from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built, signature
from tests.workloads.configured.test_against_transformers import SMALL
from tests.workloads.configured.transformers_models import InBackward, adapted, autocasting, recorded

#: These run in every test run; the others take a minute together.
QUICK = {("llama", "bfloat16", "sdpa")}
AUTOCASTS = [(name, "bfloat16", "sdpa") for name in SMALL]
AUTOCASTS += [(name, "bfloat16", "eager") for name in SMALL]
AUTOCASTS += [("llama", "float16", "sdpa"), ("gpt2", "float16", "sdpa"), ("gemma3", "float16", "eager")]


@pytest.mark.parametrize(
    ("name", "autocast", "attention"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in AUTOCASTS],
)
def test_autocast_runs_and_saves_what_pytorch_does(name: str, autocast: str, attention: str) -> None:
    mine = built(SMALL[name], dtype="float32", autocast=autocast, attention=attention).trace
    theirs = recorded(SMALL[name], BATCH, LENGTH, "float32", attention, changed=autocasting(autocast))
    assert_equal(mine, theirs)
    if name in ("llama", "gemma", "deepseek_v3"):
        assert_saved_alike(mine, theirs)


@pytest.mark.parametrize(
    ("name", "dtype", "autocast"),
    [
        ("llama", "float32", "bfloat16"),
        *(pytest.param(each, "bfloat16", None, marks=pytest.mark.slow) for each in ("gemma", "gemma3", "deepseek_v3")),
    ],
)
def test_micro_batches_run_and_save_what_pytorch_does(name: str, dtype: str, autocast: str | None) -> None:
    mine = built(SMALL[name], dtype=dtype, autocast=autocast, micro_batches=2).trace
    changed = autocasting(autocast) if autocast else unchanged
    theirs = recorded(SMALL[name], BATCH, LENGTH, dtype, changed=changed, micro_batches=2)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


@pytest.mark.parametrize(
    ("name", "dtype", "targets"),
    [
        ("llama", "bfloat16", ("q_proj", "v_proj")),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("llama", "float32", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
                ("gemma2", "bfloat16", ("gate_proj", "down_proj")),
                ("gemma3", "bfloat16", ("q_proj", "k_proj", "up_proj")),
                ("olmo2", "bfloat16", ("q_proj", "k_proj", "o_proj")),
                ("granite", "bfloat16", ("v_proj", "down_proj")),
                ("qwen2", "bfloat16", ("q_proj", "o_proj")),
                ("phi3", "bfloat16", ("qkv_proj",)),
                ("phi", "bfloat16", ("q_proj", "fc1", "fc2")),
                ("gpt_neox", "bfloat16", ("query_key_value",)),
                ("llama4", "bfloat16", ("q_proj", "v_proj", "router", "down_proj")),
                ("deepseek_v3", "bfloat16", ("q_a_proj", "kv_b_proj", "o_proj", "gate_proj")),
            )
        ),
    ],
)
def test_adapters_run_and_save_what_pytorch_does(name: str, dtype: str, targets: tuple[str, ...]) -> None:
    mine = built(SMALL[name], dtype=dtype, lora=8, lora_targets=targets).trace
    theirs = recorded(SMALL[name], BATCH, LENGTH, dtype, changed=adapted(8, targets))
    assert_equal(mine, theirs)
    if name == "llama":
        assert_saved_alike(mine, theirs)


@pytest.mark.slow
def test_adapters_in_the_format_of_the_weights_run_and_save_what_pytorch_does() -> None:
    targets = ("q_proj", "v_proj", "down_proj")
    mine = built(SMALL["llama"], dtype="bfloat16", lora=8, lora_targets=targets, lora_dtype="bfloat16").trace
    theirs = recorded(SMALL["llama"], BATCH, LENGTH, "bfloat16", changed=adapted(8, targets, "bfloat16"))
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


@pytest.mark.parametrize(
    ("name", "dtype", "autocast"),
    [
        ("llama", "bfloat16", None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("llama", "float32", "bfloat16"), ("llama", "float32", None), ("gpt_neox", "bfloat16", None))
        ),
    ],
)
def test_dropout_of_adapters_runs_and_saves_what_pytorch_does(name: str, dtype: str, autocast: str | None) -> None:
    targets = ("q_proj", "v_proj", "down_proj") if name == "llama" else ("query_key_value",)
    adapt = adapted(8, targets, rate=0.1)

    def changed(module: Any) -> Any:
        return adapt(module) if autocast is None else autocasting(autocast)(adapt(module))

    options: dict[str, Any] = {"lora": 8, "lora_targets": targets, "lora_dropout": 0.1}
    mine = built(SMALL[name], dtype=dtype, autocast=autocast, **options).trace
    theirs = recorded(SMALL[name], BATCH, LENGTH, dtype, changed=changed)
    assert_equal(mine, theirs)
    if name == "llama":
        assert_saved_alike(mine, theirs)


@pytest.mark.slow
def test_scaled_gradients_run_what_pytorch_does() -> None:
    options: dict[str, Any] = {"micro_batches": 2, "grad_scaler": True}
    mine = built(SMALL["llama"], dtype="float32", autocast="float16", **options).trace
    theirs = recorded(SMALL["llama"], BATCH, LENGTH, "float32", changed=autocasting("float16"), **options)
    assert_equal(mine, theirs)
    assert_saved_alike(mine, theirs)


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_updates_in_backward_run_when_pytorch_runs_them(name: str) -> None:
    mine = built(SMALL[name], optimizer="adamw-fused", optimizer_in_backward=True).trace
    theirs = recorded(SMALL[name], BATCH, LENGTH, optimizer=InBackward)
    runs = []
    for trace in (mine, theirs):
        rows = [(signature(replace(kernel, phase=Phase.BACKWARD), trace), kernel.op) for kernel in trace.kernels]
        # PyTorch declares that fused AdamW may change gradients, too.
        runs.append([row[:3] if op.endswith("_fused_adamw_") else row for row, op in rows])
    assert runs[0] == runs[1]
    peaks = [trace_stats(trace).peak_recorded for trace in (mine, theirs)]
    assert peaks[0] is not None and peaks[1] is not None and peaks[0].bytes == peaks[1].bytes


def unchanged(module: Any) -> Any:
    return module
