"""Fixtures and options for all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from simgpu.compiling import is_cached
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain

# Several tests run at the same time, and PyTorch's threads spin while they wait for a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The time of an example means nothing on a shared machine.
settings.register_profile("shared machine", deadline=None, max_examples=40)
settings.load_profile("shared machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that extend the tests or select some of them."""
    claims = "run all claims of papers, not only the quick ones; finished work is stored in this folder"
    parser.addoption("--every-claim", metavar="DIR", help=claims)
    examples = "random tests try this multiple of their full number of examples (default: 0.15)"
    parser.addoption("--examples", type=float, default=0.15, metavar="FACTOR", help=examples)
    sample = "run one in N of the selected tests, or of those with a mark, as in slow=12,exhaustive=32"
    parser.addoption("--sample", type=shares_by_mark, default={}, metavar="N", help=sample)
    turn = "of the N parts that --sample divides tests into, run number K, counted around; of exhaustive ones the first"
    parser.addoption("--turn", type=int, default=0, metavar="K", help=turn)


def shares_by_mark(text: str) -> dict[str, int]:
    """How many parts the tests with each mark have, those without a mark under the empty text.

    >>> shares_by_mark("slow=12,exhaustive=32"), shares_by_mark("12")
    ({'slow': 12, 'exhaustive': 32}, {'slow': 12, 'exhaustive': 12, '': 12})
    """
    if "=" not in text:
        return dict.fromkeys(("slow", "exhaustive", ""), int(text))
    return {mark: int(share) for mark, share in (part.split("=") for part in text.split(","))}


class WithoutExamples:
    """A plugin, since hooks of this file apply to tests alone: modules without an example are not imported."""

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        own = collection_path.suffix == ".py" and collection_path.is_relative_to(config.rootpath / "simgpu")
        return True if own and ">>> " not in collection_path.read_text(encoding="utf-8") else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(WithoutExamples())


def pytest_sessionstart(session: pytest.Session) -> None:
    """All tests on a fresh clone: the second process compiles the machine, then tests from the last to the first.

    Meanwhile the first process, which collects, compiles the tests from the first to the last.
    """
    whole = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw1" or not whole or is_cached("simgpu.machine.compiled", "execute"):
        return
    node = NodeSpec("example", GpuSpec("gpu", 100), LinkSpec("pcie", 1, 1))
    simulate(chain([1], [1], [1]), node, "none", engine="compiled")
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("test_*.py"), reverse=True):
        names = path.relative_to(folder.parent).with_suffix("").parts
        if {*names}.isdisjoint(session.config.getini("norecursedirs")):
            with suppress(pytest.skip.Exception):
                import_module(".".join(names))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks that each test is in at most one set, scales random tests, draws a sample, puts compiling tests first."""
    both = [item.nodeid for item in items if {"slow", "exhaustive"} <= {mark.name for mark in item.iter_markers()}]
    if both:
        raise pytest.UsageError(f"marked both slow and exhaustive: {', '.join(both)}; remove one of the marks")
    scale_examples(items, config.getoption("--examples"))
    drawn = [item for item in items if is_drawn(item, config.getoption("--sample"), config.getoption("--turn"))]
    items[:] = sorted(drawn, key=lambda item: item.get_closest_marker("compiles") is None)


def is_drawn(item: pytest.Item, shares: dict[str, int], turn: int) -> bool:
    """Whether a test is in the sample."""
    mark = next((mark for mark in ("slow", "exhaustive") if item.get_closest_marker(mark)), "")
    return (crc32(item.nodeid.encode()) - (0 if mark == "exhaustive" else turn)) % shares.get(mark, 1) == 0


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A part of a few tests may have none of them."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--sample"):
        session.exitstatus = pytest.ExitCode.OK


def pytest_collection_finish() -> None:
    """Excludes the tests themselves from later garbage collections: recording collects twice per trace."""
    gc.collect()
    gc.freeze()


def scale_examples(items: list[pytest.Item], factor: float) -> None:
    """Changes how many examples random tests try, to `factor` times what each states; five at least."""
    for test in {item.function for item in items if isinstance(item, pytest.Function)}:
        # Hypothesis has no other place for the settings of a test that is already decorated.
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is None and getattr(test, "is_hypothesis_test", False):
            own = settings()
        if own is not None:
            fewest = min(5, own.max_examples)
            test._hypothesis_internal_use_settings = settings(
                own, max_examples=max(fewest, round(factor * own.max_examples))
            )


@pytest.fixture(autouse=True, scope="session")
def _terminal() -> Iterator[None]:
    """80 columns without colour, independent of the terminal in which the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "dumb")
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
            patch.delenv(name, raising=False)
        yield
