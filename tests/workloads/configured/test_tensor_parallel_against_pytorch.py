"""One of several GPUs that share a decoder, compared with PyTorch's DTensor on transformers' modules and fake tensors.

The oracle is the program itself: `parallelize_module`, sharding propagation, redistribution and autograd of PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from simgpu.hardware.collectives import Collective
from simgpu.hardware.nodes import load_node
from simgpu.program.instructions import Launch
from simgpu.trace.model import Kernel, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.policies.framework_runs import peak, run
from tests.workloads.configured.comparison import assert_equal, assert_saved_alike
from tests.workloads.configured.published import PUBLISHED
from tests.workloads.configured.tensor_parallel_modules import recorded_part
from tests.workloads.configured.test_against_transformers import SMALL
from tests.workloads.configured.transformers_models import autocasting

COUNT, LENGTH = 4, 128
#: DTensor's names of collectives, and of a conversion that it calls below autograd.
_NAMES = {
    "_c10d_functional::all_gather_into_tensor": Collective.ALL_GATHER,
    "_c10d_functional::reduce_scatter_tensor": Collective.REDUCE_SCATTER,
    "_c10d_functional::all_reduce": Collective.ALL_REDUCE,
    "aten::to": "_to_copy",
}
_OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=1e-4, foreach=True),
    "adamw-fused": partial(torch.optim.AdamW, lr=1e-4, fused=True),
    "adam": partial(torch.optim.Adam, lr=1e-4, foreach=True),
    "plain-sgd": partial(torch.optim.SGD, lr=1e-4, foreach=True),
}
#: Kernels without a time in the recorder's time model, and fused AdamW, which is taken to change its gradients there.
_UNTIMED = {*Collective, "_to_copy", "_fused_adamw_"}


def _values(name: str, layers: int = 2) -> dict[str, Any]:
    return {**SMALL[name], "num_key_value_heads": 4, "num_hidden_layers": layers}


def _built(values: dict[str, Any], batch: int, **options: Any) -> Trace:
    node, chosen = load_node("h100-x8"), TrainingOptions.of({"tensor_parallel": COUNT, **options})
    decoder = decoder_of(values)
    return decoder_iteration(decoder, batch=batch, length=LENGTH, gpu=node.gpu, options=chosen, node=node).trace


def _comparable(trace: Trace) -> Trace:
    return replace(trace, kernels=tuple(map(_named, trace.kernels)))


def _named(kernel: Kernel) -> Kernel:
    name = _NAMES.get(kernel.op, kernel.op.rpartition("::")[2])
    writes = () if name == "_fused_adamw_" else kernel.writes
    return replace(kernel, op=name, writes=writes, duration_ns=1 if name in _UNTIMED else kernel.duration_ns)


def _compare(values: dict[str, Any], batch: int, dtype: str = "bfloat16", **options: Any) -> None:
    """Every kernel in order with its bytes and duration, the peak, and every saved tensor."""
    mine = _built(values, batch, dtype=dtype, **options)
    theirs = recorded_part(
        values,
        batch,
        LENGTH,
        COUNT,
        dtype=dtype,
        attention=options.get("attention", "sdpa"),
        micro_batches=options.get("micro_batches", 1),
        optimizer=_OPTIMIZERS[options.get("optimizer", "adamw")],
        **({"changed": autocasting(options["autocast"])} if "autocast" in options else {}),
    )
    assert_equal(_comparable(mine), _comparable(theirs))
    assert_saved_alike(mine, theirs)


def test_kernels_peaks_and_saved_tensors_equal_those_of_dtensor() -> None:
    _compare(_values("llama", layers=1), batch=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", "Qwen/Qwen3-8B"])
def test_two_layers_of_published_configurations_equal_dtensor(name: str) -> None:
    _compare({**PUBLISHED[name].values, "num_hidden_layers": 2}, batch=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_each_family_equals_dtensor(name: str, attention: str) -> None:
    _compare(_values(name), batch=1, attention=attention)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "options"),
    [
        (2, {"dtype": "float32"}),
        (2, {"dtype": "float32", "autocast": "bfloat16"}),
        (1, {"optimizer": "adamw-fused"}),
        (1, {"optimizer": "adam"}),
        (1, {"optimizer": "plain-sgd"}),
        (4, {"micro_batches": 2}),
    ],
    ids=str,
)
def test_each_option_equals_dtensor(batch: int, options: dict[str, Any]) -> None:
    _compare(_values("llama"), batch, **options)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_tied_embedding_equals_that_of_dtensor(micro_batches: int) -> None:
    values = {**_values("llama"), "tie_word_embeddings": True}
    _compare(values, 2 * micro_batches, micro_batches=micro_batches)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [(), ("torchtitan",)])
def test_checkpointed_layers_exchange_again_what_they_do_in_pytorch(keep: tuple[str, ...]) -> None:
    """The operators of backward in order: layers run again, collectives as well, up to what is saved last.

    The vocabulary is small, so that the peak is in a layer. The arguments of layers also hold the tokens' positions.
    """
    values = {**_values("llama"), "vocab_size": 64}

    def checkpointed(model: Any) -> Any:
        model.gradient_checkpointing_enable({"use_reentrant": False, **_selective(keep)})
        return model

    theirs = _comparable(recorded_part(values, 4, LENGTH, COUNT, changed=checkpointed))
    mine = _built(values, 4)
    result = run(mine, "checkpoint", keep=list(keep))
    launched = [
        mine.kernels[each.kernel].op.rstrip("_")
        for segment in result.program.segments
        for code in segment.streams.values()
        for each in code
        if isinstance(each, Launch) and (each.recompute or mine.kernels[each.kernel].phase is Phase.BACKWARD)
    ]
    assert launched == [each.op.rstrip("_") for each in theirs.kernels if each.phase is Phase.BACKWARD]
    expected = trace_stats(theirs).peak_recorded
    assert expected is not None and expected.bytes - peak(result) == 8 * LENGTH


def _selective(keep: tuple[str, ...]) -> dict[str, Any]:
    """torchtitan's rule for this model: its products but every second, attention, and the scattered sums."""
    if not keep:
        return {}
    kept = (
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    )

    def contexts() -> Any:
        products = {False: 0, True: 0}

        def policy(context: Any, func: Any, *_: Any, **__: Any) -> Any:
            is_product = func is torch.ops.aten.mm.default
            products[context.is_recompute] += is_product
            is_kept = func in kept or (is_product and products[context.is_recompute] % 2 == 1)
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return {"context_fn": contexts}
