"""The page for policy authors: its code runs, its sessions print as shown, and its two policies fulfil the contract."""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import simgpu.policies
from simgpu.policies import registry
from tests.policies.contract import PolicyContract

README = Path(simgpu.policies.__file__).with_name("README.md")
EXAMPLES = {"offload_largest": "OffloadLargest", "checkpoint_sqrt": "CheckpointSqrt"}


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture(scope="module", autouse=True)
def page() -> Iterator[ModuleType]:
    """The page's code as a module, with its policies registered."""
    module = ModuleType("policies_readme")
    sys.modules[module.__name__] = module
    exec(compile(blocks("python"), str(README), "exec", dont_inherit=True), vars(module))
    with pytest.MonkeyPatch.context() as patch:
        for name, attribute in EXAMPLES.items():
            patch.setitem(registry._BUILT_IN, name, f"{module.__name__}:{attribute}")
        yield module
    del sys.modules[module.__name__]


def test_sessions_on_the_page_print_what_they_show(page: ModuleType) -> None:
    session = doctest.DocTestParser().get_doctest(blocks("pycon"), vars(page), "README.md", str(README), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(session).failed == 0
    assert runner.summarize(verbose=False).attempted >= 6


class TestOffloadLargest(PolicyContract):
    policy = "offload_largest"
    parameter_sets = ({}, {"k": 1})


class TestCheckpointSqrt(PolicyContract):
    policy = "checkpoint_sqrt"
