"""A Hugging Face ``config.json`` as the model of a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("transformers", reason="transformers, whose modules are followed, is not installed")

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.recorder import record
from simgpu.recorder.configured import configured_model
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import read_decoder
from simgpu.workloads.configured.modelled import decoder_iteration

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


def _file(folder: Path, **values: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(_SIZES | values))
    return file


def test_recording_of_a_configuration_is_the_iteration_that_is_modelled_without_pytorch(tmp_path: Path) -> None:
    file = _file(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"])
    factory = configured_model(file, length=32, dtype="bfloat16")
    followed = record(factory, batch=2, gpu="h100", optimizer="adamw", hold_output=True)
    modelled = decoder_iteration(read_decoder(file), batch=2, length=32, gpu=load_node("h100").gpu).trace
    assert [kernel.op.removeprefix("aten::") for kernel in followed.kernels] == [
        kernel.op for kernel in modelled.kernels
    ]
    peaks = [trace_stats(trace).peak_needed for trace in (followed, modelled)]
    assert peaks[0] and peaks[1] and peaks[0].bytes == peaks[1].bytes
    assert followed.info.model == tmp_path.name


@pytest.mark.parametrize(
    ("model_type", "architecture", "labels"),
    [
        ("llama", None, (3, 16)),
        ("bert", "BertForMaskedLM", (3, 16)),
        ("bert", "BertForSequenceClassification", (3,)),
        ("bert", "BertForTokenClassification", (3, 16)),
    ],
)
def test_labels_have_the_shape_that_the_class_trains_on(
    tmp_path: Path, model_type: str, architecture: str | None, labels: tuple[int, ...]
) -> None:
    names = {} if architecture is None else {"architectures": [architecture]}
    module, inputs, *_ = configured_model(_file(tmp_path, model_type=model_type, **names), length=16)(3)
    assert inputs["input_ids"].shape == (3, 16)
    assert inputs["labels"].shape == labels
    module(**inputs).loss.backward()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "lama"}, "model_type: transformers .* does not know 'lama'"),
        (
            {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
            "not a class of known inputs",
        ),
        ({"model_type": "llama", "architectures": ["NoneForCausalLM"]}, "has no attribute NoneForCausalLM"),
        ({"model_type": "llama", "num_attention_heads": 0}, "does not build it"),
    ],
)
def test_configuration_that_transformers_cannot_build_is_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        configured_model(_file(tmp_path, **values), length=16)(1)
