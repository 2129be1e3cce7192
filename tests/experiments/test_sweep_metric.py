"""The metrics of a sweep that are known by name before it runs."""

from __future__ import annotations

from typing import Any

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.experiments.scenarios.sweep import Sweep
from simgpu.experiments.sweep.metric import check_metric


def sweep_of(grid: dict[str, list[object]], **others: object) -> Sweep:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": ["none"], "iterations": 2, **others}
    return make_sweep({**values, "sweep": {"grid": grid}}, "a test")


def slow(sweep: Sweep) -> Any:
    return pytest.param(sweep, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "sweep",
    [
        sweep_of({"pool": ["counting", "addressed", "caching"]}, policies=["none", "vdnn"]),
        sweep_of({"node": ["laptop-2gb", "a100-flash"], "budget": ["100%", "1 GiB"]}, policies=["none", "g10"]),
        slow(sweep_of({"data_parallel.gpus": [1, 2]}, node="k40-x4")),
        pytest.param(
            sweep_of({"epoch": [0]}, node="buddy-gpu", trace="hpc-cg", policies=["buddy"]), marks=pytest.mark.slow
        ),
        slow(sweep_of({"node.link.duplex": ["half", "full"]}, node="v100")),
    ],
    ids=["pools", "ssd", "gpus", "buddy", "duplex"],
)
def test_every_number_of_a_run_is_known_before_it(sweep: Sweep) -> None:
    frame = simgpu.run_sweep(sweep).frame()
    assert (frame["outcome"] == "ok").all(), list(frame["message"])
    numbers = [str(name) for name in frame if frame[name].dtype.kind in "iuf" and name != "point"]
    assert {"iteration_ns", "d2h_bytes", "retired_instructions"} <= set(numbers)
    for name in numbers:
        check_metric(sweep, name)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("iteration_s", "argument metric: 'iteration_s' is not a numeric column of .*; did you mean 'iteration_ns'"),
        ("ssd_peak_bytes", "'ssd_peak_bytes' is not a numeric column of this sweep"),
        ("policy", "'policy' is not a numeric column of this sweep"),
        ("budget", "'budget' is not a numeric column of this sweep"),
    ],
)
def test_what_no_run_has_is_refused(metric: str, message: str) -> None:
    sweep: Any = sweep_of({"budget": ["1 GiB", "2 GiB"]})
    with pytest.raises(InputError, match=message):
        check_metric(sweep, metric)
