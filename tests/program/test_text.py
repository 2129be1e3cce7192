"""Programs as JSON: what a program can carry is written and read."""

from __future__ import annotations

from importlib import import_module
from inspect import getmembers, isclass
from pathlib import Path

import simgpu.graph
from simgpu.program.text import TRANSFORMS


def test_every_transform_of_a_graph_can_be_read_again():
    modules = [import_module(f"simgpu.graph.{path.stem}") for path in Path(simgpu.graph.__path__[0]).glob("*.py")]
    transforms = {
        kind
        for module in modules
        for _, kind in getmembers(module, isclass)
        if kind.__module__ == module.__name__ and hasattr(kind, "apply") and kind.__name__ != "Transform"
    }
    assert transforms == set(TRANSFORMS)
