"""A Hugging Face ``config.json`` as the model of a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("transformers", reason="transformers, whose modules are followed, is not installed")

from simgpu.errors import InputError, MissingExtraError
from simgpu.hardware.nodes import load_node
from simgpu.recorder import record
from simgpu.recorder.configured import configured_model
from simgpu.trace.folder import read_trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import read_decoder, read_model
from simgpu.workloads.configured.entry import SampleSizes, model_iteration
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from simgpu.workloads.lowering.optimizer import Optimizer
from tests.cli.cli_helpers import simgpu

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
_MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 4,
}
_T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "vocab_size": 512,
}
#: A DiT and a U-Net with SDXL's additions.
_DIT = {"_class_name": "DiTTransformer2DModel", "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8}
_UNET = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [32, 64],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 1,
    "attention_head_dim": [2, 4],
    "cross_attention_dim": 48,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 32,
    "projection_class_embeddings_input_dim": 1280 + 6 * 32,
}


def _file(folder: Path, **values: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(_SIZES | values))
    return file


@pytest.mark.parametrize("values", [_LLAMA, _MIXTRAL, _DEEPSEEK], ids=lambda values: values["model_type"])
def test_recording_of_a_configuration_is_the_iteration_that_is_modelled_without_pytorch(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    file = _file(tmp_path, **values)
    factory = configured_model(file, length=31, dtype="bfloat16")
    followed = record(factory, batch=2, gpu="h100", optimizer="adamw")
    modelled = decoder_iteration(read_decoder(file), batch=2, length=31, gpu=load_node("h100").gpu).trace
    assert [kernel.op.removeprefix("aten::") for kernel in followed.kernels] == [
        kernel.op for kernel in modelled.kernels
    ]
    peaks = [trace_stats(trace).peak_needed for trace in (followed, modelled)]
    assert peaks[0] and peaks[1] and peaks[0].bytes == peaks[1].bytes
    assert followed.info.model == tmp_path.name
    assert ("balanced routing" in followed.info.notes) == (values is not _LLAMA)


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


def test_attention_that_a_model_has_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_T5))
    with pytest.raises(InputError, match=r"no sdpa .*; give attention eager"):
        configured_model(file, length=16, attention="sdpa")(1)


@pytest.mark.parametrize("values", [_SIZES | _LLAMA, _T5], ids=lambda values: values["model_type"])
def test_commands_that_take_a_configuration_have_the_same_defaults(
    tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values))
    usual = ["config.json", "--batch", 2, "--length", 31, "--gpu", "h100"]
    traces = []
    for command in (["record"], ["zoo", "build"]):
        done = simgpu(*command, *usual, "-o", command[0])
        assert done.exit_code == 0, done.stderr
        traces.append(read_trace(tmp_path / command[0]))
    followed, modelled = traces
    assert followed.info.dtype == modelled.info.dtype == "bfloat16"
    ran, built = ([kernel.op.removeprefix("aten::") for kernel in trace.kernels] for trace in traces)
    assert ran == built
    peaks = [trace_stats(trace).peak_needed for trace in traces]
    assert peaks[0] and peaks[1] and peaks[0].bytes == peaks[1].bytes


@pytest.mark.slow  # importing diffusers' models takes seconds
@pytest.mark.parametrize(
    ("values", "sizes"),
    [(_DIT, {}), (_UNET, {"sample_size": 24, "length": 11}), (_UNET, {})],
    ids=["dit", "unet", "own"],
)
def test_recording_of_a_model_of_diffusers_is_the_iteration_that_is_modelled_without_it(
    tmp_path: Path, values: dict[str, Any], sizes: dict[str, int]
) -> None:
    pytest.importorskip("diffusers", reason="diffusers, whose module is followed, is not installed")
    from tests.workloads.configured.diffusers_models import compare

    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    factory = configured_model(file, dtype="bfloat16", **sizes)
    followed = record(factory, batch=2, gpu="h100", optimizer="adamw")
    model, options = read_model(file), TrainingOptions(optimizer=Optimizer.ADAMW)
    gpu = load_node("h100").gpu
    modelled = model_iteration(model, SampleSizes(**sizes), batch=2, gpu=gpu, options=options).trace
    compare(modelled, followed)
    assert followed.info.model == tmp_path.name


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (
            _DIT,
            {"length": 8, "sample_size": 8},
            "length: does not apply to a diffusion.*\\n.*sample_size: applies to U-N",
        ),
        (_UNET, {"attention": "eager"}, "attention: diffusers' models use sdpa; leave it out"),
        (
            _UNET | {"_class_name": "UNet2DModel"},
            {},
            r"config.json: _class_name: 'UNet2DModel' is not a class of known",
        ),
        (_UNET | {"sample_size": [64, 48]}, {}, r"sample_size: \[64, 48\] is not the side of square latent images"),
        ({"model_type": "llama"}, {}, "length: is missing; give the number of tokens per sample"),
        ({"model_type": "llama"}, {"length": 8, "sample_size": 8}, "sample_size: applies to U-Nets only"),
    ],
)
def test_options_that_a_model_cannot_have_are_refused(
    tmp_path: Path, values: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    with pytest.raises(InputError, match=message):
        configured_model(file, **options)


def test_missing_diffusers_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_DIT))
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None)
    with pytest.raises(
        MissingExtraError, match=r"a model of diffusers needs diffusers.*simgpu with its extra 'predict'"
    ):
        configured_model(file)(1)
