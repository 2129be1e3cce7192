"""Checks of home's claims. Does not live here: what studies tell (``scenarios/``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CHECKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {}
