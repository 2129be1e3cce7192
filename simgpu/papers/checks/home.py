"""Checks of HOME's claims: the swarm, the evaluator, and what experiments change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.papers.checks.home_assumptions import depthwise, holes, holes_home, workspaces
from simgpu.papers.checks.home_evaluator import prediction
from simgpu.papers.checks.home_swarm import convergence, seconds

CHECKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "convergence": convergence,
    "seconds": seconds,
    "prediction": prediction,
    "holes": holes,
    "holes_home": holes_home,
    "workspaces": workspaces,
    "depthwise": depthwise,
}
