"""A result states the source of its kernel times if they are not from the node's GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.simulation.notes import kernel_times
from simgpu.simulation.run import simulate
from simgpu.trace.model import NOT_RECORDED, Origin, TraceInfo
from simgpu.workloads.modelled import build_trace

RECORDED = TraceInfo("net", 8, "Tesla V100 PCIe", "float32", Origin.RECORDED, "torch")
OTHERS = "of Tesla V100 PCIe, not of the node's Tesla K40, which gives memory and links"
FITTED = "The time model's hopper was fitted to H100, not to H200 SXM."


@pytest.mark.parametrize(
    ("info", "node", "expected"),
    [
        (RECORDED, "v100", ""),
        (RECORDED, "k40", OTHERS),
        (replace(RECORDED, device=NOT_RECORDED), "k40", ""),
        (replace(RECORDED, origin=Origin.MODELLED), "v100", ""),
        (replace(RECORDED, device="H200 SXM"), "h200", ""),
        (replace(RECORDED, device="H200 SXM", origin=Origin.MODELLED), "h200", FITTED),
        (
            replace(RECORDED, device="H200 SXM", origin=Origin.MODELLED),
            "k40",
            f"of H200 SXM, not of the node's Tesla K40, which gives memory and links. {FITTED}",
        ),
    ],
)
def test_kernel_times_of_another_gpu_are_named(info: TraceInfo, node: str, expected: str) -> None:
    assert kernel_times(info, load_node(node).gpu) == expected


def test_a_result_names_the_gpu_of_the_time_model_fit() -> None:
    node = load_node("h200")
    trace = build_trace("alexnet", batch=2, gpu=node.gpu)
    result = simulate(trace, node, "ideal")
    assert result.kernel_times == result.to_dict()["kernel_times"] == FITTED
    assert FITTED in trace.info.notes
    assert "fitted to H100" in repr(result)
