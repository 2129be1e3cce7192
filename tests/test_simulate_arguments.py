"""What `simulate` refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain

TRACE = chain([5, 7], [10, 14], [100, 200])
NODE = NodeSpec("bench", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"iterations": 2.5}, "argument iterations"),
        ({"iterations": "3"}, "argument iterations"),
        ({"iterations": 0}, "argument iterations"),
        ({"budget": True}, "argument budget"),
        ({"budget": 1.5}, "argument budget"),
        ({"budget": "8"}, "argument budget"),
        ({"budget": -1}, "argument budget"),
        ({"alignment": 0}, "argument alignment"),
        ({"alignment": "half"}, "argument alignment"),
        ({"seed": -1}, "argument seed"),
        ({"seed": "a"}, "argument seed"),
        ({"pool": "swimming"}, "argument pool"),
        ({"policy": {"vdnn": {"mode": "conv"}}}, "argument policy"),
        ({"trace": "vgg13"}, "argument trace"),
        ({"node": "h100"}, "argument node"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_with_a_remedy(arguments: dict[str, Any], place: str) -> None:
    values: dict[str, Any] = {"trace": TRACE, "node": NODE, **arguments}
    with pytest.raises(InputError) as caught:
        simulate(values.pop("trace"), values.pop("node"), **values)
    assert [problem.place for problem in caught.value.problems] == [place]


def test_several_wrong_arguments_are_told_together() -> None:
    with pytest.raises(InputError) as caught:
        simulate(TRACE, NODE, iterations=0, seed=-1, pool="x")
    assert len(caught.value.problems) == 3


def test_sizes_may_be_texts_with_units() -> None:
    assert simulate(TRACE, NODE, "none", budget="1 kB", alignment="64 B").budget == 1000


def test_a_run_longer_than_the_clock_is_refused() -> None:
    slow = NodeSpec("slow", GpuSpec("gpu", 1000), LinkSpec("pcie", 1, 1, latency_ns=2**62))
    three = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    with pytest.raises(InputError, match="18 years"):
        simulate(three, slow, "vdnn")


def test_the_function_keeps_its_name_whatever_was_imported_before() -> None:
    assert simgpu.simulate is simulate
