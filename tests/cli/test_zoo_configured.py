"""``simgpu zoo build`` of a Hugging Face ``config.json``: the trace, its description, and refused input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpu.trace.folder import read_trace
from simgpu.trace.model import Origin
from tests.cli.cli_helpers import simgpu

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
USUAL = ("--batch", 2, "--length", 32, "--gpu", "h100")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_build_of_a_folder_and_of_its_file_write_the_same_trace(model: Path, tmp_path: Path) -> None:
    for source, out in ((model, "a"), (model / "config.json", "b")):
        done = simgpu("zoo", "build", source, *USUAL, "-o", tmp_path / out)
        assert done.exit_code == 0, done.stderr
        text = " ".join(done.stdout.split())
        assert "parameters 95,040 (95.04 k)" in text and "saved for backward" in text
        assert "to simulate that the GPU waits for the host, add --set node.host.launch=" in text
    traces = [read_trace(tmp_path / out) for out in ("a", "b")]
    assert (traces[0].kernels, traces[0].blocks, traces[0].saved) == (
        traces[1].kernels,
        traces[1].blocks,
        traces[1].saved,
    )
    info = traces[0].info
    assert (info.model, info.batch, info.dtype, info.origin) == ("tiny-llama", 2, "bfloat16", Origin.MODELLED)


def test_default_folder_names_model_batch_length_and_gpu(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = simgpu("zoo", "build", model, *USUAL, "--dtype", "float32", "--optimizer", "adamw-fused")
    assert done.exit_code == 0, done.stderr
    assert read_trace(tmp_path / "tiny-llama-b2-t32-h100").info.dtype == "float32"


def test_one_of_several_gpus_has_its_part(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    usual = ("zoo", "build", model, "--batch", 2, "--length", 32, "--tensor-parallel", 2)
    done = simgpu(*usual, "--gpu", "h100-x8")
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "parameters 47,680 (47.68 k) of this GPU, 95,040 of all" in text
    assert "of it, in 38 collectives (NCCL's cost model)" in text
    assert "one of 2 GPUs" in read_trace(tmp_path / "tiny-llama-b2-t32-dtensor2-h100-x8").info.notes
    done = simgpu(*usual, "--gpu", "h100", "--lora", 4)
    assert done.exit_code == 2
    assert "--tensor-parallel: needs 2 GPUs of a node, and h100 has 1; give a node such as h100-x8" in done.stderr
    assert "--lora: LoRA next to tensor parallelism is not modelled; leave out one of them" in done.stderr


def test_file_of_another_name_names_the_model(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (model / "config.json").rename(tmp_path / "llama1b.json")
    done = simgpu("zoo", "build", "llama1b.json", *USUAL)
    assert done.exit_code == 0, done.stderr
    assert read_trace(tmp_path / "llama1b-b2-t32-h100").info.model == "llama1b"


def test_t5_is_built_with_eager_attention_and_refuses_another(tmp_path: Path) -> None:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **sizes}))
    done = simgpu("zoo", "build", tmp_path / "config.json", *USUAL, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert "32 tokens a sample and as many labels, eager attention" in read_trace(tmp_path / "out").info.notes
    done = simgpu("zoo", "build", tmp_path / "config.json", *USUAL, "--attention", "sdpa", "-o", tmp_path / "out")
    assert done.exit_code != 0 and "T5 has no sdpa attention" in done.stderr


def test_dit_is_built_without_a_length_and_refuses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tiny-dit"
    folder.mkdir()
    sizes = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16}
    (folder / "config.json").write_text(json.dumps({"_class_name": "DiTTransformer2DModel", **sizes}))
    done = simgpu("zoo", "build", folder, "--batch", 2, "--gpu", "h100")
    assert done.exit_code == 0, done.stderr
    assert "latent images of 4 x 16 x 16" in read_trace(tmp_path / "tiny-dit-b2-h100").info.notes
    done = simgpu("zoo", "build", folder, *USUAL)
    message = " ".join(done.stderr.split())
    assert done.exit_code == 2 and "--length: does not apply to a diffusion transformer" in message


@pytest.mark.slow
def test_unet_is_built_at_another_size_and_runs_in_a_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tiny-unet"
    folder.mkdir()
    sizes = {"block_out_channels": [32, 64], "norm_num_groups": 8, "cross_attention_dim": 48, "attention_head_dim": 4}
    kinds = {"down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"]}
    kinds["up_block_types"] = ["UpBlock2D", "CrossAttnUpBlock2D"]
    (folder / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel", **sizes, **kinds}))
    done = simgpu("zoo", "build", folder, "--batch", 2, "--gpu", "h100", "--sample-size", 16)
    assert done.exit_code == 0, done.stderr
    built = read_trace(tmp_path / "tiny-unet-b2-s16-h100")
    assert "latent images of 4 x 16 x 16, and texts of 77 tokens" in built.info.notes
    done = simgpu("zoo", "build", folder, "--batch", 2, "--gpu", "h100", "--target-length", 16)
    assert done.exit_code == 2 and "--target-length: applies to T5 only" in " ".join(done.stderr.split())
    trace = {"model": "tiny-unet", "batch": 2, "sample_size": 16, "autocast": "bfloat16", "micro_batches": 2}
    scenario = {"schema": "simgpu.scenario/2", "trace": trace, "node": "h100", "policies": ["none"]}
    (tmp_path / "scenario.yaml").write_text(json.dumps(scenario))
    done = simgpu("run", tmp_path / "scenario.yaml", "--json")
    assert done.exit_code == 0, done.stderr


def test_t5_is_built_with_labels_of_another_length(tmp_path: Path) -> None:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **sizes}))
    arguments = ("--target-length", 8, "-o", tmp_path / "out")
    done = simgpu("zoo", "build", tmp_path / "config.json", *USUAL, *arguments)
    assert done.exit_code == 0, done.stderr
    assert "32 tokens a sample and 8 labels" in read_trace(tmp_path / "out").info.notes


def test_written_trace_runs(model: Path, tmp_path: Path) -> None:
    simgpu("zoo", "build", model, *USUAL, "-o", tmp_path / "out")
    done = simgpu("run", "--trace", tmp_path / "out", "--node", "h100", "--policy", "checkpoint", "--json")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", 2, "--gpu", "h100"), "--length: is missing; give the number of tokens per sample"),
        ((*USUAL, "--variant", "width=2"), "--variant: applies to networks of the zoo, not to a configuration"),
        ((*USUAL, "--epochs", 3, "--compressibility"), "--epochs: applies to networks of the zoo"),
        ((*USUAL, "--framework", "cudnn"), "--framework: applies to networks of the zoo"),
    ],
)
def test_options_that_do_not_fit_are_refused(model: Path, arguments: tuple[object, ...], message: str) -> None:
    done = simgpu("zoo", "build", model, *arguments)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())


def test_options_of_a_configuration_are_refused_for_a_network_of_the_zoo() -> None:
    done = simgpu("zoo", "build", "vgg16", "--batch", 2, "--gpu", "v100", "--length", 32, "--dtype", "float32")
    message = " ".join(done.stderr.split())
    assert done.exit_code == 2
    assert "--length: applies to the configuration of a transformer" in message and "--dtype: applies" in message


def test_missing_configuration_is_refused_with_its_path(tmp_path: Path) -> None:
    done = simgpu("zoo", "build", tmp_path / "nowhere" / "config.json", *USUAL)
    assert done.exit_code == 2 and "no such file" in done.stderr
