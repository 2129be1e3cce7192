"""Notebooks run, their statements are true, and their stored outputs equal those of a fresh run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.notebooks.run import executed, stored
from tests.notebooks.statements import STATEMENTS

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
REMEDY = "run: python -m tests.notebooks.run notebooks/*.ipynb"
#: The largest notebook that is stored, and lines of a cell.
LARGEST_BYTES, MOST_LINES = 800_000, 25


def outputs(notebook: dict[str, Any]) -> dict[str, list[Any]]:
    """Outputs by cell name: texts, tables and the presence of images; without cells tagged `varies`."""
    return {
        cell["id"]: [_shown(output) for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and "varies" not in cell["metadata"].get("tags", ())
    }


def _shown(output: dict[str, Any]) -> Any:
    if "data" not in output:
        return _without_dates("".join(output.get("text", ())))
    # Pictures differ by fonts and versions of matplotlib; what they draw is tested where they are drawn.
    return {
        kind: kind if kind.startswith("image/") else _without_dates("".join(data))
        for kind, data in output["data"].items()
    }


def _without_dates(text: str) -> str:
    """A notebook that records a step shows the day on which it ran."""
    return re.sub(r"\b20\d\d-[01]\d-[0-3]\d\b", "DATE", text)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_statements_are_true_and_stored_outputs_equal_a_fresh_run(path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if path.stem.startswith("5"):
        pytest.importorskip("torch")
    fresh = executed(path, {cell: dedent(code) for cell, code in STATEMENTS[path.stem].items()})
    assert outputs(json.loads(path.read_text(encoding="utf-8"))) == outputs(fresh), REMEDY


def test_statements_refer_to_existing_cells() -> None:
    assert list(STATEMENTS) == [path.stem for path in NOTEBOOKS]
    for path in NOTEBOOKS:
        cells = [cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
        assert set(STATEMENTS[path.stem]) <= set(cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_without_an_editors_metadata(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert json.dumps(stored(notebook), indent=1, ensure_ascii=False) + "\n" == text, REMEDY
    assert len(text) < LARGEST_BYTES
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])
    assert all(len(cell["source"]) <= MOST_LINES for cell in code)
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert not any(line.lstrip().startswith("assert") for cell in code for line in cell["source"])
