"""What the papers state, as numbers, where that list is next to the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CLAIMS = Path(__file__).parents[3] / "shared" / "claims.yaml"


@pytest.fixture(scope="module")
def claims() -> dict[str, Any]:
    """By id, the figure that a paper states."""
    if not CLAIMS.exists():
        pytest.skip("the papers' claims are not next to the repository (../shared/claims.yaml)")
    document = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    rows = [row for rows in document.values() if isinstance(rows, list) for row in rows]
    return {row["id"]: row["value"] for row in rows if "value" in row}
