"""Frozen layers of four bits next to LoRA's adapters: bytes by closed form, and kernels compared with PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import BlockKind, Trace
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
#: Values of the linear layers but that of the logits.
LINEAR = 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)


def built(**options: Any) -> Trace:
    model = model_of(SMALL)
    given = options_of(model, {"lora": 8, **options})
    return model_iteration(model, SampleSizes(length=64), batch=2, gpu=load_node("h100").gpu, options=given).trace


def frozen_bytes(**options: Any) -> int:
    return sum(block.bytes for block in built(**options).blocks if block.kind is BlockKind.WEIGHT)


def test_four_bits_take_half_a_byte_a_value_and_their_scales() -> None:
    without = frozen_bytes() - 2 * LINEAR
    assert frozen_bytes(four_bit="nf4") - without == LINEAR // 2 + LINEAR // 64 * 4
    # each layer's last block of 256 scales may be short
    outer = 4 * 2 * sum(-(-values // (64 * 256)) for values in (*[256 * 256] * 2, *[256 * 128] * 2, *[256 * 512] * 3))
    assert frozen_bytes(four_bit="nf4-double") - without == LINEAR // 2 + LINEAR // 64 + outer


def test_next_to_four_bits_autocast_keeps_all_else_in_float32() -> None:
    """peft's ``prepare_model_for_kbit_training`` converts embedding, norms and logits, and not what is packed."""
    half, wide = frozen_bytes(four_bit="nf4"), frozen_bytes(four_bit="nf4", autocast="bfloat16")
    norms, tables = 5 * 256, 2 * 1000 * 256
    assert wide - half == 2 * (norms + tables)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"four_bit": "nf4", "lora": None}, "four_bit: stores frozen layers next to LoRA's adapters"),
        (
            {"four_bit": "nf4", "dtype": "float32"},
            "in half precision for each product; give the rank of LoRA, and dtype bfloat16 or autocast",
        ),
        ({"four_bit": "fp4"}, "four_bit: unknown value 'fp4'"),
    ],
)
def test_four_bits_that_are_not_modelled_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(**options)


def test_four_bits_of_other_models_are_refused() -> None:
    model = model_of({"model_type": "t5"})
    options = options_of(model, {"lora": 8, "four_bit": "nf4"})
    with pytest.raises(InputError, match="weights in four bits is modelled for decoders only, not for t5"):
        model_iteration(model, SampleSizes(length=8), batch=1, gpu=load_node("h100").gpu, options=options)
