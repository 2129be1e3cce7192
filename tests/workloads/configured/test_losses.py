"""The loss in chunks and the fused loss, compared with PyTorch on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.trace.model import Trace
from simgpu.workloads.configured.options import CHUNKS
from tests.workloads.configured.comparison import BATCH, LENGTH, assert_equal, assert_saved_alike, built
from tests.workloads.configured.test_against_transformers import SMALL
from tests.workloads.configured.transformers_models import adapted, autocasting, recorded

from tests.workloads.configured.loss_modules import last_of_each_ignored, saved_by_partitioner, with_loss  # isort: skip  # needs PyTorch

_SLOW: list[tuple[str, str, dict[str, Any]]] = [
    ("chunked", "llama", {"micro_batches": 2}),
    ("chunked", "llama", {"lora": 8}),
    ("chunked", "phi", {}),
    ("chunked", "gpt2", {}),
    ("chunked", "llama-biased", {"autocast": "bfloat16", "dtype": "float32"}),
    ("fused", "llama", {"micro_batches": 2}),
    ("fused", "llama", {"lora": 8}),
    ("fused", "gemma2", {}),
    ("chunked", "gemma3", {}),
    ("fused", "gemma3", {}),
    ("fused", "olmo2", {}),
    ("fused", "llama-biased", {"dtype": "float32"}),
    ("fused", "llama", {"autocast": "bfloat16", "dtype": "float32", "micro_batches": 2}),
    ("fused", "llama-biased", {"autocast": "float16", "dtype": "float32"}),
    ("fused", "llama", {"autocast": "bfloat16", "dtype": "float32", "lora": 8}),
    ("fused", "gemma3", {"autocast": "bfloat16", "dtype": "float32"}),
    ("fused", "llama", {"autocast": "bfloat16"}),
]


@pytest.mark.parametrize(
    ("form", "name", "options"),
    [
        ("chunked", "llama", {}),
        ("fused", "llama", {}),
        ("fused", "llama", {"autocast": "bfloat16", "dtype": "float32"}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in _SLOW),
    ],
)
def test_losses_run_and_save_what_pytorch_does(form: str, name: str, options: dict[str, Any]) -> None:
    mine = built(SMALL[name], loss=form, **options).trace
    rest = {key: value for key, value in options.items() if key == "micro_batches"}

    def changed(module: Any) -> Any:
        if "lora" in options:
            module = adapted(options["lora"], ("q_proj", "v_proj"))(module)
        module = with_loss(form, scaled="micro_batches" in options)(module)
        return autocasting(options["autocast"])(module) if "autocast" in options else module

    with last_of_each_ignored():
        theirs = recorded(SMALL[name], BATCH, LENGTH, options.get("dtype", "bfloat16"), changed=changed, **rest)
    assert_equal(mine, theirs)
    if SMALL[name]["model_type"] == "llama":
        assert_saved_alike(mine, theirs)
    assert saved_for_loss(mine) == saved_for_loss(theirs)


def saved_for_loss(trace: Trace) -> list[tuple[object, ...]]:
    """What the loss and the function that computes it save, and the numbers of the kernels after which it is freed."""
    number = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
    return sorted(
        (row.bytes, row.shape, row.dtype, number[row.freed_after or ""])
        for row in trace.saved
        if row.shape and (row.layer or "loss").endswith(("loss", "ForCausalLM", "LMHeadModel"))
    )


@pytest.mark.slow
def test_a_compiled_chunk_saves_what_the_partitioner_of_pytorch_saves() -> None:
    rows = BATCH * (LENGTH - 1)
    sizes = [rows // CHUNKS + (place < rows % CHUNKS) for place in range(CHUNKS)]
    vocabulary, width = SMALL["llama"]["vocab_size"], SMALL["llama"]["hidden_size"]
    trace = built(SMALL["llama"], loss="chunked-compiled").trace
    mine = [(row.shape, row.dtype) for row in trace.saved if row.layer == "loss" and row.dtype != "int64"]
    theirs = [each for size in sizes for each in saved_by_partitioner(size, vocabulary, width)]
    assert sorted(mine) == sorted(theirs)
