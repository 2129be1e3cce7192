"""Search modules are generic: they import only numpy and errors and know nothing of memory policies."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import simgpu.planning.search

ROOM = Path(simgpu.planning.search.__file__).parent
MODULES = sorted(ROOM.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_search_modules_import_only_numpy_and_errors(path: Path) -> None:
    imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    imported |= {
        name.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    allowed = re.compile(r"numpy(\..*)?|simgpu\.errors|simgpu\.planning\.search\..*")
    assert not [
        name
        for name in imported
        if name and not allowed.fullmatch(name) and name.split(".")[0] not in sys.stdlib_module_names
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_search_modules_use_no_words_of_memory_policies(path: Path) -> None:
    words = re.compile(
        r"\b(gpus?|tensors?|kernels?|memory|swap\w*|recompute\w*|layers?|bytes|blocks?)\b", re.IGNORECASE
    )
    assert not [line for line in path.read_text().splitlines() if words.search(line.replace("to the byte", ""))]
