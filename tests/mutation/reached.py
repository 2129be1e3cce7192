"""Which test files reach which lines of the program, and how long they take: measured with coverage and saved.

The measuring run loads this module as a pytest plugin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutation.mutants import ROOT, Mutant

PYTEST = ("-q", "-p", "no:cacheprovider", "-m", "not exhaustive", "--hypothesis-seed=0", "--benchmark-disable")

#: Files with tests or doctests of the suite.
_HAS_TESTS = re.compile(r"^simgpu/|^tests/(?!benchmarks/|example_policy/)(.*/)?test_\w+\.py$")


#: Modules whose functions run compiled, where coverage sees no line of them.
_COMPILED = frozenset({"simgpu/planning/clocks.py", "simgpu/planning/columns.py", "simgpu/planning/relaunches.py"})


class Reached(NamedTuple):
    """One test file. digest: of its text. failed: its tests that fail on the unchanged tree. lines: of each module that
    it reaches the digest of the module's text, and the lines."""

    digest: str
    seconds: float
    failed: list[str]
    lines: dict[str, tuple[str, list[int]]]


# --- as a pytest plugin -------------------------------------------------------------------------------------------

_seconds: Counter[str] = Counter()
_failed: list[str] = []


def pytest_runtest_logstart(nodeid: str, location: tuple[str, int | None, str]) -> None:
    """A test begins: what follows is reached by its file."""
    import coverage

    current = coverage.Coverage.current()
    assert current is not None, "the measuring run runs under coverage"
    current.switch_context(nodeid.partition("::")[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's setup, call or teardown has ended."""
    _seconds[report.nodeid.partition("::")[0]] += report.duration
    if report.failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    """Leave what was found to the process that measures."""
    Path("measured.json").write_text(json.dumps({"seconds": _seconds, "failed": _failed}), encoding="utf-8")


# --- measuring ----------------------------------------------------------------------------------------------------


def measured(tests: Sequence[str], saved: Path) -> dict[str, Reached]:
    """Each test file below `tests`. Those that `saved` does not have as they are now are run, and saved."""
    known: dict[str, Reached] = {}
    if saved.exists():
        known = {file: Reached(*each) for file, each in json.loads(saved.read_text(encoding="utf-8")).items()}
    paths = (ROOT / name for name in tests)
    files = sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
    digests = {name: digest(file) for file in files if _HAS_TESTS.search(name := file.relative_to(ROOT).as_posix())}
    missing = [file for file, now in digests.items() if file not in known or known[file].digest != now]
    if missing:
        print(f"measuring {len(missing)} test files", flush=True)
        known.update(_measured_now(missing))
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps(known), encoding="utf-8")
    return {file: known[file] for file in digests}


def _measured_now(files: Sequence[str]) -> dict[str, Reached]:
    import coverage

    with tempfile.TemporaryDirectory() as folder:
        tree, stored = copied(Path(folder) / "tree"), f"{folder}/coverage"
        under = ("-m", "coverage", "run", "--source=simgpu", f"--data-file={stored}", "-m")
        command = [sys.executable, *under, "pytest", "-p", "tests.mutation.reached", *PYTEST, *files]
        done = subprocess.run(command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise RuntimeError(f"the tests could not be measured:\n{done.stdout[-2000:]}")
        outcome = json.loads((tree / "measured.json").read_text(encoding="utf-8"))
        data = coverage.CoverageData(stored)
        data.read()
        modules = {Path(file).relative_to(tree).as_posix(): file for file in data.measured_files()}
        digests = {module: digest(tree / module) for module in modules}
        result = {}
        for file in files:
            data.set_query_context(file)
            lines = {module: sorted(data.lines(path) or ()) for module, path in modules.items()}
            result[file] = Reached(
                digest(tree / file),
                outcome["seconds"].get(file, 0.0),
                [test for test in outcome["failed"] if test.startswith(f"{file}::")],
                {module: (digests[module], reached) for module, reached in lines.items() if reached},
            )
        return result


def selected(mutant: Mutant, reached: Mapping[str, Reached], seconds: float) -> tuple[list[str], float, int]:
    """The test files on which to try a mutant, how long they take (s), and how many there are that reach it."""
    module, now = Path(mutant.path), digest(ROOT / mutant.path)
    of_module = {file: each.lines[mutant.path] for file, each in reached.items() if mutant.path in each.lines}
    files = [file for file, (then, lines) in of_module.items() if then != now or mutant.line in lines]
    if not files or mutant.path in _COMPILED:
        package = mutant.path.rpartition("/")[0] + "/"
        files = [file for file, each in reached.items() if any(path.startswith(package) for path in each.lines)]

    def distance(file: str) -> tuple[bool, bool, float]:
        own = file == mutant.path or module.stem in Path(file).stem
        return not own, module.parts[1] not in Path(file).parts, reached[file].seconds

    chosen, total = [], 0.0
    for file in sorted(files, key=distance):
        if not chosen or total + reached[file].seconds <= seconds:
            chosen.append(file)
            total += reached[file].seconds
    return chosen, total, len(files)


def digest(file: Path) -> str:
    """A digest of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def copied(tree: Path) -> Path:
    """A copy of the repository's files, those that are not committed yet among them."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
    return tree


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process that runs the copy."""
    paths = filter(None, (str(tree), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
