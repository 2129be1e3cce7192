"""Settings of other frameworks: which layers they recompute, and that none is better than the plan."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

import torch
from torch import nn

from simgpu.hardware.nodes import load_node
from simgpu.plans import projections
from simgpu.plans.candidate import Candidate
from simgpu.plans.choices import Choices
from simgpu.plans.entry import other_settings, plan, why_no_settings
from simgpu.plans.regions import Steps
from simgpu.plans.repeats import equal_layers
from simgpu.plans.search import smallest
from simgpu.recorder import record
from simgpu.trace.model import Trace
from tests.plans.models import MODELS, Gpt

NODE = load_node("v100")


def deep() -> Trace:
    def factory(batch: int) -> tuple[object, ...]:
        return Gpt(layers=6), torch.randint(50, (batch, 12)), torch.randint(50, (batch * 12,)), nn.CrossEntropyLoss()

    return record(factory, batch=256, gpu="v100")


def layers_of(candidate: Candidate) -> list[str]:
    return [each.region.module.removeprefix("blocks.") for each in candidate.regions]


def test_settings_recompute_the_layers_that_their_frameworks_recompute() -> None:
    steps = Steps(deep())
    layers = equal_layers(steps)
    assert [layer.module for layer in layers] == [f"blocks.{n}" for n in range(6)]
    of = {each.text: layers_of(each.candidate) for each in projections._transformers(steps, layers)}
    assert of['{"every_n_layers": 2}'] == ["0", "2", "4"]
    of = {each.text: layers_of(each.candidate) for each in projections._torchtitan(steps, layers)}
    assert of['mode = "selective", selective_ac_option = "2"'] == ["1", "3", "5"]
    full = "--recompute-granularity full --recompute-method"
    megatron = dict(projections.full(steps, layers))
    assert layers_of(megatron[f"{full} block --recompute-num-layers 2"]) == ["0", "1"]
    groups = [each.region for each in megatron[f"{full} uniform --recompute-num-layers 3"].regions]
    assert [(each.first, each.stop) for each in groups] == [
        (layers[0].first, layers[2].stop), (layers[3].first, layers[5].stop),
    ]  # fmt: skip


@pytest.mark.slow
def test_no_setting_of_another_framework_is_faster_than_the_plan() -> None:
    trace = deep()
    plain = Candidate(Steps(trace)).trail(NODE).peak
    least = smallest(Choices(Steps(trace), offload=False), NODE).peak
    for part in (0.3, 0.7):
        budget = least + int((plain - least) * part)
        best = plan(trace, NODE, budget, offload=False).predicted.step_ns
        without_offload = [each for each in other_settings(trace, NODE, budget) if "'input'" not in each.setting]
        assert {each.framework for each in without_offload} >= {"Transformers", "torchtitan", "Megatron-LM"}
        assert all(each.time_ns is None or each.time_ns >= best for each in without_offload)


class Changing(nn.Module):
    """Equal layers that change their input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(4)))
        self.first = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.first(x))


def changing(batch: int) -> tuple[object, ...]:
    return Changing(), torch.randn(batch, 8), torch.randint(8, (batch,)), nn.CrossEntropyLoss()


def test_a_model_without_equal_layers_has_no_settings_and_a_reason() -> None:
    why = "no setting applies: these frameworks choose among equal layers, and "
    trace = record(MODELS["convnet"], batch=2, gpu="v100")
    assert other_settings(trace, NODE) == []
    assert why_no_settings(trace) == f"{why}the model has no list of 4 or more equal layers"
    trace = record(changing, batch=2, gpu="v100")
    assert other_settings(trace, NODE) == []
    first = "layers.0 changes "
    assert why_no_settings(trace).startswith(f"{why}the equal layers of layers cannot all run again: {first}")
