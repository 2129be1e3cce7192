"""Lazily imported commands, and the conversion of errors to messages and exit codes.

Imports only click, so that ``simgpu --help`` starts fast.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from simgpu.cli.signals import ENDED_BY_SIGNAL, unwinding
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, ProgramError, did_you_mean
from simgpu.garbage import no_collection

BAD_INPUT = 2
OUT_OF_MEMORY = 3
INTERRUPTED = 130
#: The program that reads the output, such as ``head``, has ended (SIGPIPE).
READER_GONE = ENDED_BY_SIGNAL + 13

#: System errors that only a different path resolves.
_UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)

_HOST_OUT_OF_MEMORY = (
    "simgpu ran out of memory on this machine; "
    "use shorter traces or fewer parallel runs, raise the memory limit, or use a machine with more memory"
)


class LazyGroup(click.Group):
    """A group of lazily imported commands. Ends the program with simgpu's exit codes.

    sections: by heading of the help and by command name, ("module:attribute", one-line description).
    renamed: current names of commands of earlier versions, for the error message.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, tuple[str, str]]],
        renamed: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.sections = sections
        self.lazy = {name: command for section in sections.values() for name, command in section.items()}
        self.renamed = renamed or {}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _handled_broken_pipe():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _handled_broken_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        with no_collection():  # modules stay
            command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        unknown = args and not args[0].startswith("-") and args[0] not in self.lazy
        if unknown and not ctx.resilient_parsing:  # shell completion must not fail
            if now := self.renamed.get(args[0]):
                now = now if "=" in now else f"simgpu {now}"
                ctx.fail(f"no such command {args[0]!r}; it is now `{now}`")
            ctx.fail(f"no such command {args[0]!r}; {did_you_mean(args[0], self.lazy)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, or the group's own options. Imports no command."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        lines = self.lazy.items()
        return [CompletionItem(name, help=line) for name, (_, line) in lines if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.lazy))
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), line) for name, (_, line) in commands.items()])

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        """Runs the command line and ends the program; an unexpected exception keeps its traceback."""
        with unwinding():
            try:
                self._run(*args, **settings)
            except MemoryError:
                pass  # leaving this block frees the objects in the traceback, so that the message can be printed
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
            fail([_HOST_OUT_OF_MEMORY], BAD_INPUT)

    def _run(self, *args: Any, **settings: Any) -> NoReturn:
        try:
            code = super().main(*args, **{**settings, "standalone_mode": False})
        except InputError as error:
            fail(error.lines(), BAD_INPUT)
        except MissingExtraError as error:
            fail([str(error)], BAD_INPUT)
        except ProgramError as error:
            fail([str(error)], BAD_INPUT)
        except OutOfMemoryError as error:
            fail([wrapped(str(error))], OUT_OF_MEMORY)
        except OSError as error:
            if error.errno == errno.ENOENT and error.filename is None:
                fail(["the current folder no longer exists; change to an existing folder"], BAD_INPUT)
            if error.errno == errno.ENOSPC and error.filename is None:
                fail([f"the output cannot be written: {error.strerror}; free space on its disk"], BAD_INPUT)
            if error.errno not in _UNUSABLE_PATH:
                raise
            fail([f"{error.filename}: {error.strerror}; check the path"], BAD_INPUT)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except click.ClickException as error:
            error.show()
            sys.exit(BAD_INPUT)
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _handled_broken_pipe() -> Iterator[None]:
    """Ends the program without a message when the output pipe is closed."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # replaced streams may have no file descriptor
                os.dup2(nowhere, stream.fileno())  # Python flushes its buffers to the null device
        sys.exit(READER_GONE)


def fail(messages: list[str], code: int) -> NoReturn:
    """Ends the program with the messages on stderr, one per line."""
    for message in messages:
        show_error(message)
    sys.exit(code)


_WIDTH = 80
_AMOUNT = re.compile(r"(?<=\d) (?=[a-zA-Z]{1,3}\b)")
_NO_BREAK_SPACE = "\xa0"


def wrapped(message: str, before: int = len("Error: ")) -> str:
    """Wraps a message at the terminal's width, at most 80 columns; indents all lines but the first.

    before: columns to leave free in the first line. A number and its unit stay on one line.
    """
    width = min(shutil.get_terminal_size().columns, _WIDTH)
    lines = textwrap.wrap(
        _AMOUNT.sub(_NO_BREAK_SPACE, message),
        width,
        initial_indent=" " * before,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_NO_BREAK_SPACE, " ")[before:]


def show_error(message: str) -> None:
    """Prints an error message on stderr."""
    click.secho("Error: ", fg="red", bold=True, err=True, nl=False, color=wants_colour(sys.stderr))
    click.echo(message, err=True)


def wants_colour(stream: TextIO | None) -> bool:
    """Whether to colour text: never with NO_COLOR, always with FORCE_COLOR, otherwise on terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
