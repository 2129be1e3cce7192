"""Checks of cDMA's claims (Rhu et al., HPCA 2018)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.papers.checks.cdma_ratios import layouts, ratios
from simgpu.papers.checks.cdma_sparsity import density, zeros
from simgpu.papers.checks.cdma_speed import links, performance, reading

CHECKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "zeros": zeros,
    "density": density,
    "ratios": ratios,
    "layouts": layouts,
    "performance": performance,
    "reading": reading,
    "links": links,
}
