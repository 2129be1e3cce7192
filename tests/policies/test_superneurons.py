"""SuperNeurons as HOME reimplemented it: a fixed rule for each type of layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from simgpu.graph.recompute import unrecomputable
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.importers import import_trace
from simgpu.planning.options import Action, Decisions
from simgpu.policies.base import PlanContext
from simgpu.policies.superneurons import SuperNeurons
from simgpu.simulation.run import simulate
from simgpu.trace.model import Phase, Trace
from simgpu.trace.operators import purity
from tests.policies.contract import PLENTY, node_of
from tests.policies.networks import in_place, straight


def with_purity(trace: Trace) -> Trace:
    """The trace, with purity of forward operators by their names."""
    kernels = (replace(k, pure=purity(k.op)) if k.phase is Phase.FORWARD else k for k in trace.kernels)
    return replace(trace, kernels=tuple(kernels))


def actions(trace: Trace, tensors: Literal["inputs", "outputs"]) -> dict[str, str]:
    """The action for each feature map, by block id."""
    graph = TaskGraph.of(trace)
    context = PlanContext(graph, node_of(PLENTY), PLENTY, None, np.random.default_rng(0))  # type: ignore[arg-type]
    decisions = Decisions.of(graph)
    chosen = zip(decisions.maps, decisions.options, SuperNeurons(tensors).place(context, decisions), strict=True)
    return {graph.blocks[each.block].id: Action(options[o].action).name for each, options, o in chosen}


OPS = ["conv2d", "max_pool2d", "conv2d", "relu", "local_response_norm", "linear", "tanh", "linear", "linear"]


def test_convolution_inputs_are_swapped_and_inputs_of_cheap_layers_recomputed():
    """y1 is read by the pooling, y2 by a convolution, y3 by the ReLU, y4 by the normalization, y6 by the tanh."""
    assert actions(with_purity(straight(OPS, [100] * len(OPS))), "inputs") == {
        "y1": "RECOMPUTE",
        "y2": "SWAP",
        "y3": "RECOMPUTE",
        "y4": "RECOMPUTE",
        "y5": "KEEP",
        "y6": "RECOMPUTE",
        "y7": "KEEP",
    }


def test_with_outputs_convolution_outputs_are_swapped_and_cheap_outputs_recomputed():
    assert actions(with_purity(straight(OPS, [100] * len(OPS))), "outputs") == {
        "y1": "SWAP",
        "y2": "RECOMPUTE",
        "y3": "SWAP",
        "y4": "RECOMPUTE",
        "y5": "RECOMPUTE",
        "y6": "KEEP",
        "y7": "RECOMPUTE",
    }


def test_a_block_that_cannot_be_recomputed_is_kept():
    trace = straight(OPS, [100] * len(OPS))
    assert all(set(actions(trace, which).values()) == {"SWAP", "KEEP"} for which in ("inputs", "outputs"))


def test_an_in_place_activation_belongs_to_the_convolution_that_wrote_the_block():
    """The last of two readers decides: the block, changed by the ReLU, is the second convolution's input."""
    assert actions(with_purity(in_place()), "outputs") == {"a": "SWAP", "b": "SWAP"}
    assert actions(with_purity(in_place()), "inputs") == {"a": "SWAP", "b": "KEEP"}


def test_superneurons_plans_the_same_program_for_every_budget():
    trace = with_purity(straight(OPS, [100] * len(OPS)))
    ample, tight = (simulate(trace, node_of(PLENTY), "superneurons", budget=budget) for budget in (PLENTY, 600))
    assert ample.program == tight.program
    assert ample.timeline.memory("device").used.max() <= 600


def test_the_note_lists_unrecomputable_bytes_by_operator():
    """y1 to y8 take 100 B each; the pooling writes y2, and later blocks are recomputed from y2 while it stays."""
    trace = with_purity(straight(OPS, [100] * len(OPS)))
    unknown = replace(trace, kernels=tuple(replace(k, pure=None if "pool" in k.op else k.pure) for k in trace.kernels))
    known, notes = (simulate(each, node_of(PLENTY), "superneurons").notes for each in (trace, unknown))
    assert "cannot be recomputed: 100 B of 800 B of saved activations: max_pool2d (purity unknown) 100 B" in notes
    assert not any("cannot be recomputed" in note for note in known)


DENSENET = Path(__file__).parents[3] / "shared" / "data" / "titanv-dtr" / "densenet121-b84.log"


@pytest.mark.slow
@pytest.mark.skipif(not DENSENET.exists(), reason="the recorded logs are not next to the repository (../shared/data)")
def test_the_peak_of_densenet_consists_of_blocks_waiting_for_the_link():
    """Forward writes swapped blocks faster than the link copies them, so the peak is where the queue is longest, at
    kernel 494: 107 of 120 offloads have not ended. The rest is constants, blocks that forward still reads, and the
    statistics of the batch norms, which their recompute needs.
    """
    trace, _ = import_trace(DENSENET)
    result = simulate(trace, load_node("titan-v"), "superneurons", iterations=2)
    waiting, constants, in_use, statistics = 3_168_990_720, 82_828_192, 27_402_752, 276_480
    assert result.metrics.device_peak_bytes == waiting + constants + in_use + statistics
    assert [row[:2] for row in unrecomputable(result.graph).by_operator] == [
        ("cudnn_batch_norm", "reruns with it"),
        ("", ""),
    ]
