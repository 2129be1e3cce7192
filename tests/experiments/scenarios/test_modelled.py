"""A trace modelled in the scenario: the same as ``simgpu zoo build`` writes, with the same error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from simgpu.cli.schema import json_schema
from simgpu.errors import InputError
from simgpu.experiments.compare import compare
from simgpu.experiments.scenarios.load import load_scenario, make_scenario
from simgpu.experiments.scenarios.model import Scenario
from simgpu.experiments.scenarios.modelled import ModelledTrace
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Origin, Trace
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.optimizer import Optimizer
from tests.cli.cli_helpers import simgpu

FILE = """\
schema: simgpu.scenario/2
trace:
  zoo: alexnet
  batch: 64
  epochs: 5
node: 2080ti
policies: vdnn
"""


def written(folder: Path, text: str = FILE) -> Path:
    path = folder / "try.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def scenario(**trace: object) -> Scenario:
    return make_scenario({"trace": trace, "node": "v100", "policies": ["oracle"]}, "here")


def problems_of(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [str(problem).replace(str(path.parent) + "/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ([], {}),
        (["--epochs", "4"], {"epochs": 4}),
        (["--compressibility"], {"compressibility": True}),
        (["--compressibility", "--epochs", "2"], {"compressibility": True, "epochs": 2}),
        ([], {"compressibility": False}),
        (["--input", "cifar10", "--framework", "cudnn"], {"input": "cifar10", "framework": "cudnn"}),
        (["--optimizer", "adam", "--workspace-limit", "0 B"], {"optimizer": "adam", "workspace_limit": "0 B"}),
        (["--variant", "grouped=false"], {"variant": {"grouped": False}}),
    ],
)
def test_a_modelled_trace_equals_the_one_that_zoo_build_writes(
    options: list[str], keys: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert simgpu("zoo", "build", "alexnet", "--batch", 32, "--gpu", "v100", *options).exit_code == 0
    (folder,) = tmp_path.iterdir()
    outcome, built = scenario(zoo="alexnet", batch=32, **keys).trace, load_trace(folder)
    assert outcome == built
    assert outcome.name == built.name


def test_a_modelled_trace_names_its_origin_and_gpu(tmp_path: Path) -> None:
    loaded = load_scenario(written(tmp_path))
    assert loaded.trace.info.origin is Origin.MODELLED
    assert loaded.trace.info.device == "GeForce RTX 2080 Ti"
    assert "alexnet-b64-2080ti: alexnet, batch 64" in repr(loaded)
    shown = simgpu("run", written(tmp_path)).stdout
    assert "modelled, not recorded, for GeForce RTX 2080 Ti" in shown


def test_a_trace_may_be_modelled_for_another_gpu_than_the_node(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("schema: simgpu.node/1\nname: mine\nbase: titan-xp\n", encoding="utf-8")
    loaded = load_scenario(written(tmp_path, FILE.replace("epochs: 5", "gpu: mine.yaml")))
    assert loaded.trace.info.device == load_node("titan-xp").gpu.name
    assert loaded.trace.name == "alexnet-b64-mine"
    assert loaded.node.name == "2080ti"


def test_any_modelling_value_can_be_overridden(tmp_path: Path) -> None:
    changed = load_scenario(written(tmp_path), {"trace.batch": 16, "node": "v100"})
    assert changed.trace.name == "alexnet-b16-v100"
    assert load_scenario(written(tmp_path), {"trace": "vgg11-cifar-cpu"}).trace.info.origin is Origin.RECORDED


def test_the_schema_lists_every_modelling_key() -> None:
    fields = ModelledTrace.model_fields
    assert get_args(fields["framework"].annotation) == tuple(Framework)
    assert get_args(fields["optimizer"].annotation) == tuple(Optimizer)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("zoo: alexnet", "zoo: alexnett", "line 3, trace.zoo: 'alexnett' is not in the zoo; did you mean 'alexnet'?"),
        ("zoo: alexnet", "name: alexnet", "line 2, trace.zoo: is missing; add it"),
        ("batch: 64", "batch: 0", "line 4, trace.batch: 0 is too small; write at least 1"),
        ("batch: 64", f"batch: {10**15}", "line 4, trace.batch: 1000000000000000 samples need more bytes"),
        ("batch: 64", "batch: '64'", "line 4, trace.batch: '64' is not a whole number"),
        ("epochs: 5", "epochs: 99999", "line 5, trace.epochs: 99999 is too large; write at most 10000"),
        ("epochs: 5", "epoch: 5", "line 5, trace.epoch: unknown key; did you mean 'epochs'?"),
        (
            "epochs: 5",
            "input: mnist",
            "line 5, trace.input: 'mnist' is not one of its inputs; known: cifar10, imagenet",
        ),
        (
            "epochs: 5",
            "framework: caffe",
            "line 5, trace.framework: 'caffe' is not one of the choices; known: cudnn, cudnn-joined, fused, pytorch",
        ),
        ("epochs: 5", "workspace_limit: 8", "line 5, trace.workspace_limit: 8 has no unit"),
        ("epochs: 5", "gpu: v10", "line 5, trace.gpu: no shipped node is called 'v10'; did you mean 'v100'?"),
        ("epochs: 5", "variant: {grouped: 3}", "line 5, trace.variant.grouped: 3 is not true or false"),
        ("epochs: 5", "variant: {name: x}", "line 5, trace.variant.name: is not one of its variants"),
        ("epochs: 5", "variant: [1]", "line 5, trace.variant: [1] is not a mapping"),
        (
            "epochs: 5",
            "compressibility: traind",
            "line 5, trace.compressibility: unknown profile 'traind'; did you mean 'trained'?",
        ),
        (
            "epochs: 5",
            "compressibility: 3",
            "line 5, trace.compressibility: 3 is neither true nor false, nor a profile's name: write true",
        ),
        ("zoo: alexnet", "zoo: bert-base", "line 5, trace.epochs: the forward pass has no ReLU"),
    ],
)
def test_a_mistake_is_reported_at_its_key(old: str, new: str, expected: str, tmp_path: Path) -> None:
    message = problems_of(written(tmp_path, FILE.replace(old, new)))
    assert [line for line in message if line.startswith(f"try.yaml: {expected}")], message


def test_mistakes_in_the_trace_are_reported_with_all_others(tmp_path: Path) -> None:
    text = FILE.replace("batch: 64", "batch: -1").replace("vdnn", "vdn").replace("2080ti", "2080")
    message = problems_of(written(tmp_path, text), {"trace.optimizer": "sdg"})
    places = [line.split(": ")[1] for line in message]
    assert places == ["line 6, node", "trace.optimizer", "line 4, trace.batch", "line 7, policies"]


def test_a_gpu_unknown_to_the_time_model_is_reported(tmp_path: Path) -> None:
    (message,) = problems_of(written(tmp_path, FILE.replace("2080ti", "laptop-2gb")))[:1]
    assert "gpu.architecture: is not stated" in message


@pytest.mark.parametrize("value", [5, [], None, "", True])
def test_a_trace_is_a_name_or_a_mapping(value: object, tmp_path: Path) -> None:
    (message,) = problems_of(written(tmp_path), {"trace": value})
    assert "write a trace's name or folder, or '{zoo: vgg16, batch: 128}'" in message


def test_the_json_schema_accepts_a_name_and_two_mappings() -> None:
    name, modelled, configured = json_schema("scenario")["properties"]["trace"]["anyOf"]
    assert name["type"] == "string"
    assert modelled["required"] == ["zoo", "batch"]
    assert configured["required"] == ["model"]  # images have no length
    assert modelled["additionalProperties"] is False
    assert modelled["properties"]["framework"]["enum"] == ["pytorch", "pytorch-1.5", "cudnn", "cudnn-joined", "fused"]


def result_of(trace: Trace, epoch: int) -> dict[str, Any]:
    return simulate(trace, load_node("v100"), "oracle", epoch=epoch).to_dict()


def test_a_run_uses_the_epoch_of_the_scenario(tmp_path: Path) -> None:
    text = FILE.replace("vdnn", "oracle").replace("2080ti", "v100")
    path = written(tmp_path, text + "epoch: 4\n")
    loaded = load_scenario(path)
    first, last = (result_of(loaded.trace, epoch) for epoch in (0, 4))
    assert first["metrics"]["d2h_bytes"] != last["metrics"]["d2h_bytes"]
    (run,) = compare(loaded)
    assert run.result is not None
    assert run.result.to_dict() == last
    (other,) = compare(loaded, epoch=0)
    assert other.result is not None
    assert other.result.to_dict() == first
    assert "seed 0; epoch 4" in " ".join(simgpu("run", path).stdout.split())
    assert problems_of(path, {"epoch": -1}) == ["override: epoch: -1 is too small; write at least 0"]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (
            ["--lora", "4", "--lora-targets", "q_proj,up_proj", "--lora-dtype", "bfloat16", "--lora-dropout", "0.05"],
            {"lora": 4, "lora_targets": ["q_proj", "up_proj"], "lora_dtype": "bfloat16", "lora_dropout": 0.05},
        ),
        (
            ["--lora", "4", "--lora-targets", "q_proj,up_proj", "--lora-dtype", "bfloat16", "--four-bit", "nf4"],
            {"lora": 4, "lora_targets": ["q_proj", "up_proj"], "lora_dtype": "bfloat16", "four_bit": "nf4"},
        ),
        (
            ["--optimizer", "adamw-fused", "--optimizer-in-backward", "--loss", "chunked-compiled"],
            {"optimizer": "adamw-fused", "optimizer_in_backward": True, "loss": "chunked-compiled"},
        ),
        (["--dtype", "float32", "--tf32"], {"dtype": "float32", "tf32": True}),
        (["--compile", "layers"], {"compile": "layers"}),
        (["--tensor-parallel", "2"], {"tensor_parallel": 2}),
    ],
)
def test_keys_of_a_configuration_are_those_of_zoo_build(
    options: list[str], keys: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    Path("small.json").write_text(json.dumps({"model_type": "llama", **sizes, "vocab_size": 100}), encoding="utf-8")
    node = "a100-x8" if "tensor_parallel" in keys else "a100"
    build = ("zoo", "build", "small.json", "--batch", 1, "--length", 16, "--gpu", node, "-o", "built")
    done = simgpu(*build, *options)
    assert done.exit_code == 0, done.output
    trace = {"model": "small.json", "length": 16, **keys}
    Path("try.yaml").write_text(
        json.dumps({"schema": "simgpu.scenario/2", "trace": trace, "node": node, "policies": "none"}),
        encoding="utf-8",
    )
    outcome, built = load_scenario(Path("try.yaml")).trace, load_trace(Path("built"))
    assert outcome.kernels == built.kernels
    assert outcome.blocks == built.blocks


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"megatron": 4}, "megatron: 4 is not a text; write a text, in quotes if it looks like a number"),
        ({"megatron": "tp0"}, "megatron: 'tp0' is not a number of GPUs from 1 to 999,999"),
        ({"megatron": "tp2", "stage": "a"}, "stage: 'a' is not a whole number; write digits only, without quotes"),
        ({"tensor_parallel": "2"}, "tensor_parallel: '2' is not a whole number; write digits only, without quotes"),
        ({"lora_targets": "q_proj"}, "lora_targets: 'q_proj' is not a list; write [a, b], or '- ' before each entry"),
        ({"model": {"model_type": "llama", "vocab_size": None}}, "model.vocab_size: is null; give a number"),
    ],
)
def test_wrong_values_of_a_configuration_name_their_key_in_the_file(
    keys: dict[str, object], message: str, tmp_path: Path
) -> None:
    trace = {"model": {"model_type": "llama", "num_hidden_layers": 1}, "length": 16, **keys}
    scenario = {"schema": "simgpu.scenario/2", "trace": trace, "node": "a100-x8", "policies": "none"}
    (tmp_path / "try.yaml").write_text(json.dumps(scenario), encoding="utf-8")
    [problem] = problems_of(tmp_path / "try.yaml")
    assert problem.startswith(f"try.yaml: line 1, trace.{message}")
