"""Which modules of configured models `checkpoint` takes by default: the blocks that transformers and diffusers have."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu.graph.sections import default_sections
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.workloads.configured.config import model_of
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of
from tests.workloads.configured.test_dit import PUBLISHED as DITS
from tests.workloads.configured.test_t5 import SMALL as T5
from tests.workloads.configured.test_unet import SMALL as UNET


def sections(values: dict[str, Any], length: int | None = None, autocast: str | None = None) -> list[str]:
    model = model_of(values)
    gpu, options = load_node("h100").gpu, options_of(model, {"autocast": autocast})
    trace = model_iteration(model, SampleSizes(length=length), batch=1, gpu=gpu, options=options).trace
    return list(dict.fromkeys(default_sections(TaskGraph.of(trace)).of_layer.values()))


def test_sections_of_t5_are_the_blocks_of_both_stacks() -> None:
    assert sections(T5, 16) == ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]


def test_sections_of_a_dit_are_its_embedding_and_its_blocks() -> None:
    blocks = [f"transformer_blocks.{n}" for n in range(12)]
    assert sections(DITS["DiT-S/2"][0]) == ["pos_embed", *blocks]


@pytest.mark.slow
def test_sections_do_not_depend_on_autocast_that_keeps_copies_of_weights_for_later_uses() -> None:
    dit = DITS["DiT-S/2"][0]
    assert sections(dit, autocast="float16") == sections(dit)
    assert sections(UNET, autocast="bfloat16") == sections(UNET)


def test_sections_of_a_unet_are_residual_blocks_and_attentions() -> None:
    names = {name.split(".")[-2 if name[-1].isdecimal() else -1] for name in sections({**UNET, "layers_per_block": 2})}
    assert names == {"time_embedding", "resnets", "attentions", "downsamplers", "upsamplers"}
