"""Only a few low-level modules open and parse files; they enforce the limits for all others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "simgpu"

#: They hold the limits: what a file may be, how large, how deep.
READERS = {f"io/{kind}_files.py" for kind in ("input", "yaml", "array", "pickle")}
#: Modules that may read by themselves, what they may call, and why.
EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "io/free_memory.py": ({"read_text"}, "the system's tables of memory"),
    "recorder/environment.py": ({"read_text"}, "the system's table of processors"),
    "recorder/machine/entry.py": ({"read_text"}, "the system's table of processors"),
    "validation/devices/cuda.py": ({"read_text"}, "the system's tables"),
    "cli/group.py": ({"os.open"}, "the null device, to write to"),
    "report/template.py": ({"read_text"}, "a part of the package"),
    "io/codestate.py": ({"read_bytes", "read_text"}, "code of this process, and what is installed"),
    "papers/cache.py": ({"json.loads"}, "what was just written as JSON"),
    "papers/recordings_tasks.py": ({"read_bytes"}, "the package's own code"),
    "papers/tasks.py": ({"read_bytes", "json.loads"}, "the package's own code; arguments of its own"),
    "migration.py": ({"yaml.compose"}, "text that was just read through simgpu.io"),
    "report/recorded.py": ({"json.loads"}, "a document that was just written as JSON"),
    "experiments/sweep/fingerprint.py": ({"json.loads"}, "parameters that were just written as JSON"),
    "experiments/sweep/folder.py": ({"json.loads"}, "a document that was just written as JSON"),
    "experiments/regression/timings.py": ({"json.loads"}, "values that were just written as JSON"),
    "importers/dtr.py": ({"json.loads"}, "one line of a log, reported with its row"),
    "experiments/sweep/cluster.py": ({"pickle.loads"}, "on a worker, what this process pickled for it"),
    "experiments/sweep/store.py": ({"sqlite3.connect"}, "a database, behind require_regular"),
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if str(path.relative_to(PACKAGE)) not in READERS)

#: By their last name, whatever they are called on; and by module and name.
METHODS = {"read_text", "read_bytes"}
FUNCTIONS = {
    *("io.open", "os.open", "os.fdopen", "gzip.open", "gzip.GzipFile", "gzip.decompress", "zlib.decompress"),
    *("zipfile.ZipFile", "tarfile.open", "sqlite3.connect", "json.load", "json.loads", "pickle.load", "pickle.loads"),
    *("yaml.load", "yaml.safe_load", "yaml.full_load", "yaml.SafeLoader", "yaml.compose", "yaml.parse"),
    *("np.load", "np.fromfile", "np.memmap", "np.loadtxt", "np.genfromtxt", "np.lib.format.open_memmap"),
    *("pd.read_csv", "pd.read_parquet", "pyarrow.parquet.read_table"),
}


def reading_calls(tree: ast.AST) -> set[str]:
    """Calls of a module that read a file, or parse its content, without a limit."""
    result = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name in FUNCTIONS:
            result.add(name)
        elif isinstance(node.func, ast.Attribute) and last in METHODS:
            result.add(last)
        elif last == "open" and isinstance(node.func, ast.Name | ast.Attribute) and not _writes(node):
            result.add("open")
    return result - {"gzip.GzipFile", "zipfile.ZipFile"} if _only_packs(tree) else result


def _writes(call: ast.Call) -> bool:
    """Whether a call of `open` has a write-only mode."""
    texts = [
        each.value for each in (*call.args, *(word.value for word in call.keywords)) if isinstance(each, ast.Constant)
    ]
    return any(text in ("w", "wb", "x", "xb", "a", "ab") for text in texts)


def _only_packs(tree: ast.AST) -> bool:
    """Whether every archive that a module opens is opened for writing."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return all(_writes(call) for call in calls if ast.unparse(call.func) in ("gzip.GzipFile", "zipfile.ZipFile"))


@pytest.mark.slow
def test_only_the_modules_with_input_limits_read_files() -> None:
    others = {}
    for path in MODULES:
        module = str(path.relative_to(PACKAGE))
        calls = reading_calls(ast.parse(path.read_text(encoding="utf-8")))
        others[module] = calls - EXCEPTIONS.get(module, (set(), ""))[0]
    assert {module: calls for module, calls in others.items() if calls} == {}, "read through the modules of simgpu.io"


@pytest.mark.parametrize("module", EXCEPTIONS)
def test_every_listed_exception_is_used(module: str) -> None:
    assert reading_calls(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))) == EXCEPTIONS[module][0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('rows.csv')", {"open"}),
        ("path.open('rb')", {"open"}),
        ("path.open('w', encoding='utf-8')", set()),
        ("path.read_text()", {"read_text"}),
        ("read_text(path)", set()),
        ("np.load(path, allow_pickle=False)", {"np.load"}),
        ("zipfile.ZipFile(path)", {"zipfile.ZipFile"}),
        ("zipfile.ZipFile(path, 'w').open('a', 'w')", set()),
    ],
)
def test_reading_calls_are_detected(code: str, expected: set[str]) -> None:
    assert reading_calls(ast.parse(code)) == expected
