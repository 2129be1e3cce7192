"""Small sweeps and misbehaving points for tests. Other processes import this module."""

from __future__ import annotations

import os
import time
from pathlib import Path

from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.experiments.scenarios.sweep import Points, Sweep
from simgpu.experiments.sweep.point import PointRows, run_point

#: Files that are the same bytes whoever ran the sweep.
RESULTS = ("results.csv", "results.parquet", "sweep.json")


def small_sweep(points: int = 6, **settings: object) -> Sweep:
    """Points that differ only in their seeds, of a trace recorded on a CPU."""
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "iterations": 1, **settings}
    return make_sweep({**values, "sweep": {"grid": {"seed": list(range(points))}}}, "a test")


def results(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RESULTS}


def dies_at_3(points: Points, point: int) -> PointRows:
    if point == 3:
        os._exit(9)
    return run_point(points, point)


def dies_at_0(points: Points, point: int) -> PointRows:
    if point == 0:
        os._exit(9)
    return run_point(points, point)


def sleeps(points: Points, point: int) -> PointRows:
    time.sleep(60)
    return run_point(points, point)
