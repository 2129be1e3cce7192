"""Runs notebooks and stores their outputs: ``python -m tests.notebooks.run notebooks/*.ipynb``.

Stored are text, tables and pictures; not how long cells took, nor what depends on the machine alone. A cell tagged
``varies`` has numbers that differ from run to run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

#: Any Python that has simgpu: Jupyter calls the kernel of the environment that it runs in python3.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TIMEOUT_S = 300


def executed(path: Path, checks: dict[str, str] | None = None) -> dict[str, Any]:
    """The notebook with fresh outputs.

    checks: code by the cell after which it runs, in the same kernel; `CellExecutionError` where a cell or check fails.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if checks and cell["id"] in checks:
            cells.append(nbformat.v4.new_code_cell(checks[cell["id"]], id=f"check-{cell['id']}"))
    notebook.cells = cells
    environment = {**os.environ, "PYTHONWARNINGS": "error:::__main__"}
    environment.pop("MPLBACKEND", None)
    NotebookClient(notebook, timeout=TIMEOUT_S).execute(env=environment, cwd=str(path.parent))
    cells = [cell for cell in json.loads(nbformat.writes(notebook))["cells"] if not cell["id"].startswith("check-")]
    return stored({**json.loads(nbformat.writes(notebook)), "cells": cells})


def stored(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook as it is stored: cells with numbered outputs, without an editor's metadata."""
    code = 0
    cells = []
    for cell in notebook["cells"]:
        result: dict[str, Any] = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {}}
        if cell["metadata"].get("tags"):
            result["metadata"] = {"tags": cell["metadata"]["tags"]}
        if cell["cell_type"] == "code":
            code += 1
            result |= {"execution_count": code, "outputs": [_output(each, code) for each in cell["outputs"]]}
        cells.append(result | {"source": "".join(cell["source"]).rstrip().splitlines(keepends=True)})
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def _output(output: dict[str, Any], count: int) -> dict[str, Any]:
    result = {key: value for key, value in output.items() if key not in ("metadata", "execution_count")}
    if output["output_type"] in ("display_data", "execute_result"):
        result["metadata"] = {}
    if output["output_type"] == "execute_result":
        result["execution_count"] = count
    return result


def main(paths: list[str]) -> None:
    """Executes each notebook and stores it with its outputs."""
    for path in map(Path, paths):
        path.write_text(json.dumps(executed(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
