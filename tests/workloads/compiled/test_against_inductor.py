"""Which values of a compiled layer have memory, next to the code that TorchInductor generates for the CPU."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("transformers", reason="transformers, whose modules are compared, is not installed")

from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Phase, Trace
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.workloads.compiled.inductor_buffers import buffers
from tests.workloads.compiled.test_against_partitioner import CONFIGURATIONS

_BATCH, _LENGTH = 2, 32
#: Smaller ones are results of reductions, which a kernel on the CPU keeps in memory, and one on a GPU in registers.
_LEAST = 2048


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_values_with_memory_are_those_of_generated_code(family: str) -> None:
    values = {"model_type": family, **CONFIGURATIONS[family]}
    options, gpu = TrainingOptions(compile="layers"), load_node("h100").gpu
    trace = decoder_iteration(decoder_of(values), batch=_BATCH, length=_LENGTH, gpu=gpu, options=options).trace
    forward, backward = buffers(values, _BATCH, _LENGTH)
    assert _written(trace, Phase.FORWARD) == _large(forward)
    mine, generated = _written(trace, Phase.BACKWARD), _large(backward)
    # Inductor writes up to two intermediate values of backward to memory, not the same ones in each run.
    assert not mine - generated and (generated - mine).total() <= 2


def _large(sizes: list[int]) -> Counter[int]:
    return Counter(size for size in sizes if size >= _LEAST)


def _written(trace: Trace, phase: Phase) -> Counter[int]:
    """The bytes of what kernels of the first layer write, but for those of attention."""
    blocks = trace.block_by_id
    of_layer = (k for k in trace.kernels if k.phase is phase and (k.layer or "").startswith("model.layers.0"))
    written = (name for kernel in of_layer if "attention" not in kernel.op for name in kernel.writes)
    return _large([blocks[name].bytes for name in written])
