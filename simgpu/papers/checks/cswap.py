"""Checks of CSWAP's claims (Chen et al., CLUSTER 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.papers.checks import cswap_launches, cswap_layers, cswap_networks

CHECKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    **cswap_launches.CHECKS,
    **cswap_layers.CHECKS,
    **cswap_networks.CHECKS,
}
