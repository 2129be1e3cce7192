"""The budget of a plan: bytes, a size, or a part of the peak without offloading."""

from __future__ import annotations

import pytest

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.plans.making import node_and_budget
from simgpu.trace.chain import chain

TRACE = chain([5, 7], [10, 14], [101, 200])
NODE = NodeSpec("bench", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))


def test_a_budget_in_percent_is_a_part_of_the_traces_peak_and_noted() -> None:
    note = "the budget is 50% of the peak without offloading, 301 B"
    assert node_and_budget(NODE, "50%", TRACE) == (NODE, 150, (note,))
    assert node_and_budget(NODE, "1 kB", TRACE) == (NODE, 1000, ())
    with pytest.raises(InputError, match="'0%' is not a percentage above 0%"):
        node_and_budget(NODE, "0%", TRACE)
