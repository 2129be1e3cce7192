"""moDNN's numbers that no study reports."""

from __future__ import annotations

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.modnn import BATCHES, CHECKS, accumulation_ns, network
from simgpu.papers.claims import load_papers
from simgpu.policies.common.sub_batches import select_sub_batch

(PAPER,) = (paper for paper in load_papers() if paper.key == "modnn")


@pytest.mark.slow
def test_with_updates_offloaded_weights_save_less() -> None:
    ratios = [CHECKS["weights_offloaded"](updates=updates)["ratio"] for updates in ("none", "layer", "all")]
    assert ratios == sorted(ratios, reverse=True)
    assert CHECKS["weights_offloaded"](without="ResNet-152")["ratio"] < ratios[0]


@pytest.mark.slow
def test_more_cores_add_up_sooner() -> None:
    assert accumulation_ns("ResNet-34", 1) > accumulation_ns("ResNet-34", 2) > accumulation_ns("ResNet-34", 20)


@pytest.mark.slow
def test_the_experiment_has_the_sub_batches_of_equation_8_as_printed() -> None:
    """`printed_window` and `whole_traffic` name them; in a K40's memory the other networks keep theirs."""
    (changed,) = (step.study["runs.moDNN.per_trace"] for step in PAPER.assumptions["printed_window"].steps.values())
    gpu = load_node("k40").gpu
    for name in BATCHES:
        graph = network(name)
        live, touched = (select_sub_batch(graph, gpu, gpu.memory, counted=c).size for c in ("live", "touched"))
        said = changed.get(name, {"policy": {"modnn": {"sub_batch": live}}})["policy"]["modnn"]["sub_batch"]
        assert said == touched
