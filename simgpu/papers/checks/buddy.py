"""Checks of buddy's claims, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.papers.checks import buddy_programs

CHECKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    check.__name__: check
    for check in (
        buddy_programs.optimistic,
        buddy_programs.one_target,
        buddy_programs.footprints,
        buddy_programs.transition,
        buddy_programs.signs,
        buddy_programs.unified,
        buddy_programs.overflow,
        buddy_programs.metadata_hit_rate,
    )
}
