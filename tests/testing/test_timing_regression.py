"""The fixture `timing_regression` in a user's tests, run by separate pytest processes in temporary folders."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import simgpu.testing
from simgpu.experiments.regression.store import read_timings
from simgpu.simulation.run import simulate
from tests.experiments.regression.examples import CHAIN, node

pytest_plugins = ["pytester"]

MODULE = """
    from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    from simgpu.simulation.run import simulate
    from simgpu.trace.chain import chain

    LINK = LinkSpec("PCIe", 10**10, 10**10)
    TRACE = chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], [100_000, 200_000, 300_000])

    def test_of_mine(timing_regression):
        result = simulate(TRACE, NodeSpec("bench", GpuSpec("a GPU", 2**30), LINK), "vdnn")
        timing_regression.check(result)
"""
STORED = Path("test_mine") / "test_of_mine"


@pytest.fixture
def mine(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with one test and its stored timings."""
    pytester.makepyfile(test_mine=MODULE)
    run(pytester).assert_outcomes(failed=1)
    return pytester


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", *options)


def change(pytester: pytest.Pytester, old: str, new: str) -> None:
    path = pytester.path / "test_mine.py"
    path.write_text(path.read_text().replace(old, new))


def test_the_first_run_fails_and_stores_and_the_next_one_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=MODULE)
    first = run(pytester)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["*File not found in data directory, created:*", f"*{STORED}/timings.json*"])
    assert {path.name for path in (pytester.path / STORED).iterdir()} == {"timings.json", "vdnn.csv.gz"}
    stored = read_timings(pytester.path / STORED)["vdnn"]
    assert stored.events == tuple(simulate(CHAIN, node(), "vdnn").timeline)
    run(pytester).assert_outcomes(passed=1)


def test_a_difference_is_explained_in_the_assertion(mine: pytest.Pytester) -> None:
    change(mine, "9_000]", "9_001]")
    before = {path: path.read_bytes() for path in (mine.path / STORED).iterdir()}
    result = run(mine)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * AssertionError: timings of chain differ",
            "E * vdnn",
            "E * iteration_ns *",
            "E * timelines diverge at 39 us, on compute: compute F3 ends 1 ns later",
            "E * > end *",
            f"E * stored: *{STORED}",
            "E * now: *",
            "E * --force-regen stores them anew",
        ]
    )
    (line,) = (line for line in result.outlines if line.startswith("E ") and "now: " in line)
    assert read_timings(Path(line.split("now: ")[1])) != read_timings(mine.path / STORED)
    assert {path: path.read_bytes() for path in (mine.path / STORED).iterdir()} == before
    assert not any("timing_regression.py" in line for line in result.outlines)


@pytest.mark.slow
def test_force_regen_stores_what_differs(mine: pytest.Pytester) -> None:
    change(mine, "9_000]", "9_001]")
    run(mine, "--force-regen").assert_outcomes(failed=1)
    run(mine).assert_outcomes(passed=1)
    change(mine, "9_001]", "9_002]")
    run(mine, "--regen-all").assert_outcomes(passed=1)
    run(mine).assert_outcomes(passed=1)
    before = {path: path.stat().st_mtime_ns for path in (mine.path / STORED).iterdir()}
    run(mine, "--regen-all").assert_outcomes(passed=1)
    assert {path: path.stat().st_mtime_ns for path in (mine.path / STORED).iterdir()} == before


def test_damaged_files_fail_the_test_and_force_regen_replaces_them(mine: pytest.Pytester) -> None:
    (mine.path / STORED / "vdnn.csv.gz").write_bytes(b"")
    result = run(mine)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * AssertionError: *vdnn.csv.gz: *"])
    run(mine, "--regen-all").assert_outcomes(passed=1)
    run(mine).assert_outcomes(passed=1)


@pytest.mark.slow
def test_tolerances_of_the_test_and_of_its_folder_apply(mine: pytest.Pytester) -> None:
    change(mine, "9_000]", "9_001]")
    change(mine, "check(result)", 'check(result, tolerances={"*": "1%"})')
    run(mine).assert_outcomes(passed=1)
    change(mine, '"1%"', "0")
    run(mine).assert_outcomes(failed=1)
    change(mine, ', tolerances={"*": 0}', "")
    (mine.path / "test_mine" / "tolerances.yaml").write_text("schema: simgpu.tolerances/2\ntolerances: {'*': 1%}\n")
    run(mine).assert_outcomes(passed=1)
    change(mine, "check(result)", 'check(result, tolerances={"iterations_ns": "1%"})')
    result = run(mine)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*did you mean 'iteration_ns'?*"])


@pytest.mark.slow
def test_several_checks_in_one_test_and_in_classes_are_stored_separately(pytester: pytest.Pytester) -> None:
    again = """
    class TestMine:
        def test_two(self, timing_regression):
            for policy in ("none", "vdnn"):
                result = simulate(TRACE, NodeSpec("bench", GpuSpec("a GPU", 2**30), LINK), policy)
                timing_regression.check(result, basename=f"under_{policy}")
    """
    pytester.makepyfile(test_mine=textwrap.dedent(MODULE) + textwrap.dedent(again))
    run(pytester, "--regen-all").assert_outcomes(passed=2)
    assert {path.name for path in (pytester.path / "test_mine").iterdir()} == {
        *("test_of_mine", "under_none", "under_vdnn"),
    }
    run(pytester).assert_outcomes(passed=2)
    run(pytester, "--with-test-class-names").assert_outcomes(passed=2)


@pytest.mark.parametrize("option", ["--regen-all", "--force-regen"])
def test_two_checks_with_the_same_name_are_refused(mine: pytest.Pytester, option: str) -> None:
    before = {path: path.read_bytes() for path in (mine.path / STORED).iterdir()}
    change(mine, "check(result)", "check(result); timing_regression.check(simulate(TRACE, result.node, 'none'))")
    done = run(mine, option)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*two checks of one test are called by the test's name; give each a name of its own*"])
    assert {path: path.read_bytes() for path in (mine.path / STORED).iterdir()} == before


@pytest.mark.slow
def test_the_example_in_the_documentation_runs(pytester: pytest.Pytester) -> None:
    text = inspect.getdoc(simgpu.testing)
    assert text is not None
    block = text.split("A test module::\n")[1].split("\nThe first run")[0]
    pytester.makepyfile(test_example=textwrap.dedent(block))
    run(pytester).assert_outcomes(failed=2)
    run(pytester).assert_outcomes(passed=2)
    stored = pytester.path / "test_example" / "test_a_study_of_ours_may_get_a_little_slower"
    labels = [policy["label"] for policy in json.loads((stored / "timings.json").read_text())["policies"]]
    assert labels == ["ideal", "none", "vdnn(mode=conv)", "vdnn"]


@pytest.mark.exhaustive
def test_the_fixture_works_with_pytest_xdist(mine: pytest.Pytester) -> None:
    mine.makepyfile(test_other=MODULE)
    result = mine.runpytest_subprocess("-n", "2", "-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    mine.runpytest_subprocess("-n", "2", "-W", "error", "-p", "no:cacheprovider").assert_outcomes(passed=2)


@pytest.mark.slow
def test_without_pytest_regressions_only_tests_with_the_fixture_fail(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=MODULE, test_other="def test_other(): pass")
    pytester.makeconftest("import sys\nsys.modules['pytest_regressions'] = None\n")
    result = pytester.runpytest_subprocess("-p", "no:regressions", "-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["the fixture timing_regression needs pytest-regressions, which is not installed; *extra 'testing'"]
    )
    assert not (pytester.path / "test_mine").exists()


def test_a_switched_off_plugin_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=MODULE)
    result = run(pytester, "-p", "no:regressions")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the fixture timing_regression needs the plugin regressions, which is switched off"])


def test_the_plugin_imports_almost_nothing() -> None:
    """Every pytest run imports it if simgpu is installed, whether its tests use it or not."""
    code = """
        import sys, pytest
        before = set(sys.modules)
        import simgpu.testing.plugin
        print(*sorted(set(sys.modules) - before))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=Path(simgpu.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = done.stdout.split()
    own = {name for name in loaded if name.startswith("simgpu")}
    assert own == {
        "simgpu",
        "simgpu.errors",
        "simgpu.testing",
        "simgpu.testing.plugin",
        "simgpu.version",
    }
    assert not {name.partition(".")[0] for name in loaded} & {
        "numpy",
        "pandas",
        "pydantic",
        "yaml",
        "click",
    }
