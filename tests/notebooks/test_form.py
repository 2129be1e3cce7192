"""The form of notebooks: valid files, named cells, shipped traces, existing links.

`test_notebooks` runs them.
"""

import ast
import json
import re
from pathlib import Path

import pytest

from simgpu.io.shipped import shipped_names

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: Folders of a machine, which no reader has.
MACHINE = re.compile(r"(?<![\w.~])/(?:home|root|tmp|work|Users|usr|mnt|opt|var)/|[A-Z]:\\\\|file://")

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path, kind):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def test_every_notebook_is_valid(path):
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))


def test_notebook_code_is_plain_python_that_compiles(path):
    for cell in cells_of(path, "code"):
        ast.parse(source(cell), filename=f"{path.name}, cell {cell['id']}")


def test_cells_have_descriptive_names(path):
    """A cell that keeps its name keeps its history; Jupyter's own names are random."""
    names = [cell["id"] for kind in ("markdown", "code") for cell in cells_of(path, kind)]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch("[a-z]+(-[a-z]+)*", name)] == []


def test_no_cell_contains_a_machine_specific_path(path):
    message = [source(cell) for kind in ("markdown", "code") for cell in cells_of(path, kind)]
    assert [text for text in message if MACHINE.search(text)] == []


def test_notebooks_use_only_shipped_traces(path):
    """An installed wheel has no project folder, so notebooks refer to traces by name."""
    named = re.findall(r"load_trace\(\"([^\"]+)\"", "\n".join(source(cell) for cell in cells_of(path, "code")))
    assert set(named) <= set(shipped_names("traces"))


def test_a_notebook_starts_with_its_number_and_its_links_exist(path):
    texts = [source(cell) for cell in cells_of(path, "markdown")]
    assert texts[0].startswith(f"# {path.stem.partition('-')[0]}. ")
    linked = re.findall(r"\]\(([^)#:]+)\)", "\n".join(texts))
    assert [name for name in linked if not (FOLDER / name).exists()] == []


def test_the_readme_lists_every_notebook(path):
    assert f"| [{path.name}]({path.name}) |" in (FOLDER / "README.md").read_text(encoding="utf-8")
