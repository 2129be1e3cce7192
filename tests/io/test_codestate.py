"""The code state covers every file of a policy's code and the libraries that it computes with."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from simgpu.io import codestate
from simgpu.io.codestate import COMMON, PACKAGE, code_behind
from simgpu.policies.registry import _BUILT_IN, policy_class

#: What libraries are called where they are imported.
LIBRARIES = {"sklearn": "scikit-learn", "bayes_opt": "bayesian-optimization", "numba": "numba", "scipy": "scipy"}
PATHS = {".".join(("simgpu", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in PACKAGE.rglob("*.py")}


@cache
def imported(module: str) -> frozenset[str]:
    """Modules that a module of simgpu names, in imports (also within functions) and in strings."""
    path = PATHS.get(module, PATHS.get(f"{module}.__init__"))
    if path is None:
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            result.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.Constant) and str(node.value).partition(".")[0] in LIBRARIES:
            result.add(str(node.value))
    return frozenset(result)


def reached(module: str) -> set[str]:
    """Everything that a module imports, directly and through modules of simgpu."""
    result: set[str] = set()
    pending = [module]
    while pending:
        new = imported(pending.pop()) - result
        result |= new
        pending += [name for name in new if name.startswith("simgpu.") and name != "simgpu.policies.registry"]
    return result


@pytest.mark.parametrize("name", _BUILT_IN)
def test_a_policy_lists_the_libraries_of_its_own_modules(name: str) -> None:
    """Own modules are those that a policy without decisions does not import."""
    module = _BUILT_IN[name].partition(":")[0]
    own = reached(module) - reached("simgpu.policies.none")
    own |= {each for other in own if other.startswith("simgpu.") for each in imported(other)}
    libraries = {LIBRARIES[each.partition(".")[0]] for each in own if each.partition(".")[0] in LIBRARIES}
    assert libraries <= {*COMMON, *policy_class(name).libraries}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with a policy's package, a checkout and an installed distribution."""
    files = {
        "codestate_own/__init__.py": "from codestate_own.inside import VALUE\nclass Own: ...\n",
        "codestate_own/inside.py": "VALUE = 1\ndef late():\n    import codestate_far, codestate_near\n",
        "codestate_own/table.csv": "1,2\n",
        "codestate_near.py": "import numpy\nNEAR = 1\n",
        "codestate_far.py": "",
        "codestate_unrelated.py": "",
        "far-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: far\nVersion: 1.0\nRequires-Dist: simpy\n",
        "far-1.0.dist-info/RECORD": "codestate_far.py,,\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    codestate._installed.cache_clear()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("codestate_")]:
        del sys.modules[name]
    codestate._installed.cache_clear()


def test_the_code_digest_of_a_class_covers_its_package_and_imports(site: Path) -> None:
    cls = import_module("codestate_own").Own
    before = code_behind(cls)
    assert set(before.libraries) == {"numpy", "far", "simpy"}, "what it imports, and what that requires"
    assert before.libraries["far"] == "1.0"
    for name in (
        "codestate_own/__init__.py",
        "codestate_own/inside.py",
        "codestate_own/table.csv",
        "codestate_near.py",
    ):
        known = (site / name).read_text()
        (site / name).write_text(known + "\n")
        assert code_behind(cls).digest != before.digest, name
        (site / name).write_text(known)
    (site / "codestate_own" / "new.py").write_text("")
    assert code_behind(cls).digest != before.digest
    (site / "codestate_own" / "new.py").unlink()
    for name in ("codestate_unrelated.py", "codestate_far.py"):
        (site / name).write_text("1\n")
    assert code_behind(cls).digest == before.digest, "an installed distribution counts by its version"
    (site / "far-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: far\nVersion: 2.0\n")
    assert code_behind(cls).libraries["far"] == "2.0"


def test_the_digest_of_an_editable_checkout_covers_its_files(site: Path) -> None:
    cls = import_module("codestate_own").Own
    (site / "far-1.0.dist-info" / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:///x"}')
    codestate._editable.cache_clear()
    invalidate_caches()
    before = code_behind(cls)
    assert "far" not in before.libraries
    (site / "codestate_far.py").write_text("1\n")
    assert code_behind(cls).digest != before.digest
    codestate._editable.cache_clear()
