"""The page for policy authors: its code and sessions run, its two policies pass the contract, its messages exist."""

from __future__ import annotations

import ast
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

ROOT = Path(simgpu.policies.__file__).parents[1]
README = ROOT / "policies/README.md"
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


def messages() -> Iterator[str]:
    """The messages in `simgpu.program`, as regular expressions; inserted values match anything."""
    for path in (ROOT / "program").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                constants = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                if sum(len(str(part)) for part in constants if part is not None) > 15:
                    yield "".join(".*" if part is None else re.escape(str(part)) for part in constants)


def test_the_table_quotes_messages_of_the_checks() -> None:
    section = README.read_text(encoding="utf-8").partition("## 6. ")[2].partition("## 7. ")[0]
    quoted, known = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE), list(messages())
    assert len(quoted) > 5
    unknown = [text for text in quoted if not any(re.search(f"{each}$", f"swap of x: {text}") for each in known)]
    assert not unknown


class TestOffloadLargest(PolicyContract):
    policy = "offload_largest"
    parameter_sets = ({}, {"k": 1})


class TestCheckpointSqrt(PolicyContract):
    policy = "checkpoint_sqrt"
