"""Packages import in the order that `pyproject.toml` states, and only the machine uses SimPy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "simgpu"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: These commands report how far the time model can be trusted.
COMMANDS_OF_THE_FIT = {Path("cli/zoo_validate.py"), Path("cli/zoo_build.py")}


def test_imports_follow_the_order_of_packages(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert status == 0, capsys.readouterr().out


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            result.add(node.module)
    return result


@pytest.mark.slow
def test_simpy_is_imported_only_by_the_machine() -> None:
    users = {path for path in MODULES if "simpy" in {name.split(".")[0] for name in imports_of(path)}}
    assert users and all(path.is_relative_to(PACKAGE / "machine") for path in users)


@pytest.mark.slow
def test_only_zoo_commands_import_the_fit_of_the_time_model() -> None:
    for path in MODULES:
        module = path.relative_to(PACKAGE)
        knows = any(name.startswith("simgpu.workloads.calibration") for name in imports_of(path))
        assert not knows or module.is_relative_to("workloads/calibration") or module in COMMANDS_OF_THE_FIT, module
