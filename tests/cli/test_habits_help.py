"""Help of every command: 80 columns, every option described, examples that run, and --quiet."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import click
import pytest

from simgpu.cli import main
from tests.cli.cli_helpers import simgpu

#: Examples that are done within about a second. What takes longer is run in the test of its command.
QUICK = frozenset(
    (
        "memory-bound quickstart --json",
        "memory-bound zoo:resnet34 --batch 256 --node k40 --framework fused --budget 5GB",
        "compression codecs",
        "compare quickstart",
        'compare quickstart --set "policies=[none, vdnn: {mode: conv}]"',
        "list nodes",
        "list nodes v100",
        "list policies",
        "list policies vdnn",
        "list scenarios",
        "list schema scenario",
        "zoo solvers",
        "trace check vgg11-cifar-cpu",
        "trace show vgg11-cifar-cpu",
        "trace stats vgg11-cifar-cpu",
        "zoo build vgg16 --batch 64 --gpu v100 --input cifar10",
        "zoo list",
    )
)


def commands(
    group: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group by its words, groups first."""
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group, info_name="simgpu")
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None, name
            yield from commands(command, (*path, name))


COMMANDS = dict(commands())


@cache
def help_of(path: tuple[str, ...]) -> str:
    done = simgpu(*path, "--help")
    assert done.exit_code == 0, done.output
    return done.stdout


def examples_of(text: str) -> list[str]:
    """The command lines in a help text, each in one line and without its explanation."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^ +(simgpu [^\n]+?)(?: {3,}[^\n]*)?$", joined, re.MULTILINE)
    return [re.sub(r"\s*[>|].*", "", line) for line in lines]


EXAMPLES = [
    pytest.param(path, example, id=example)
    for path in COMMANDS
    for example in dict.fromkeys(examples_of(help_of(path)))
]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_80_columns(path: tuple[str, ...]) -> None:
    assert [line for line in help_of(path).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_and_argument_is_explained(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.help, path
    silent = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.help]
    assert not silent
    for argument in (each for each in command.params if isinstance(each, click.Argument)):
        if not isinstance(argument.type, click.Choice):  # whose values the usage line has
            assert argument.make_metavar(click.Context(command)).strip("[].") in command.help


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_the_command_itself(path: tuple[str, ...]) -> None:
    assert any(example.startswith(" ".join(("simgpu", *path))) for example in examples_of(help_of(path)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_commands_with_progress_accept_quiet(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.callback is not None
    home = sys.modules[getattr(command.callback, "__wrapped__", command.callback).__module__]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    shows = hasattr(home, "progress") and not isinstance(command, click.Group)
    assert ({"-q", "--quiet"} <= flags) == shows


@pytest.mark.parametrize(("path", "example"), EXAMPLES)
def test_examples_in_help_are_parsed(path: tuple[str, ...], example: str) -> None:
    words = shlex.split(example.replace(" COMMAND", " run"))[1:]
    command: click.Command = main
    with ExitStack() as contexts:
        parent: click.Context | None = None
        while isinstance(command, click.Group) and words and "--help" not in words:
            parent = contexts.enter_context(command.make_context(command.name, [], parent, resilient_parsing=True))
            name, result, words = command.resolve_command(parent, words)
            assert result is not None, name
            command = result
        if "--help" not in words and not isinstance(command, click.Group):
            contexts.enter_context(command.make_context(command.name, words, parent))


def test_the_listed_quick_examples_appear_in_help() -> None:
    shown = {parameter.values[1].removeprefix("simgpu ") for parameter in EXAMPLES}
    assert shown >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted(QUICK))
def test_quick_examples_of_help_work(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = simgpu(*shlex.split(example))
    assert done.exit_code == 0, done.output
    assert done.stdout


def test_help_and_readme_list_exit_codes() -> None:
    message = " ".join(help_of(()).split())
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    codes = readme[readme.index("Exit codes:") :].split("\n\n")[0]
    for code in (0, 1, 2, 3, 130):
        assert re.search(rf"\b{code} ", message), code
        assert re.search(rf"\b{code}\b", codes), code
