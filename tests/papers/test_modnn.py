"""moDNN's numbers that no study reports."""

from __future__ import annotations

import pytest

from simgpu.papers.checks.modnn import CHECKS, accumulation_ns


@pytest.mark.slow
def test_with_updates_offloaded_weights_save_less() -> None:
    ratios = [CHECKS["weights_offloaded"](updates=updates)["ratio"] for updates in ("none", "layer", "all")]
    assert ratios == sorted(ratios, reverse=True)
    assert CHECKS["weights_offloaded"](without="ResNet-152")["ratio"] < ratios[0]


@pytest.mark.slow
def test_more_cores_add_up_sooner() -> None:
    assert accumulation_ns("ResNet-34", 1) > accumulation_ns("ResNet-34", 2) > accumulation_ns("ResNet-34", 20)
