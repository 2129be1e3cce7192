"""Recordings beside what is simulated of them. To be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recordings:
    """What came of recordings."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {}
