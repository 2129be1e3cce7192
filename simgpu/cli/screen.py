"""Output of commands: text and tables at most 80 columns wide, and progress on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event, Thread, Timer
from time import monotonic
from typing import Any, TextIO

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simgpu.analysis.tables import table_grid
from simgpu.cli.group import wants_colour
from simgpu.cli.signals import insist

WIDTH = 80
_PATIENCE_S = 1.0
_PLAIN_PAUSE_S = 10.0
_SHORTEST_PAUSE_S = 0.01
_BAR = re.compile("[━─]")


def console(file: TextIO) -> Console:
    """A rich console without markup; plain text if the file is not a terminal or NO_COLOR is set."""
    look: dict[str, Any] = {} if wants_colour(file) else {"color_system": None}
    result = Console(file=file, markup=False, highlight=False, emoji=False, **look)
    result.width = min(result.width, WIDTH)
    return result


class Screen:
    """Prints to stdout or stderr, at most 80 columns wide, without trailing blanks."""

    def __init__(self, error: bool = False) -> None:
        self._error = error
        self._console = console(sys.stderr if error else sys.stdout)

    @property
    def width(self) -> int:
        """Width in columns."""
        return self._console.width

    def print(self, content: RenderableType = "", *, wrap: bool = True) -> None:
        """Prints text or a table. wrap: break lines that are wider than the screen."""
        with self._console.capture() as captured:
            self._console.print(content, soft_wrap=not wrap)
        for line in captured.get().splitlines():
            click.echo(
                line.rstrip(), color=True, err=self._error
            )  # rich has already removed colours if they are disabled


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names on the left and wrapped texts on the right."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(Text(name, style="dim"), Text(text))
    return grid


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,), unbroken: Collection[int] = ()
) -> Table:
    """A table without rules, with bold headings; columns are right-aligned except those in `left`.

    unbroken: columns whose cells are never wrapped.
    """
    grid = table_grid(headings, rows, left, unbroken)
    grid.header_style = "bold"
    return grid


def indented(content: Table | Text) -> Padding:
    """Indents the content by two columns."""
    return Padding(content, (0, 0, 0, 2))


#: The ``--quiet`` option, for each command that may take over a second.
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current step on stderr, once it takes over a second.

    A terminal shows a spinner. Other streams get a plain line for each new step, at most one per second, and a
    repeated line every few seconds. Descriptions that differ only after a progress bar (`━───`) are the same step.
    """
    with _shown(quiet) as show:

        def say(what: str) -> None:
            insist()
            show(what)

        yield say
    insist()


def _shown(quiet: bool) -> AbstractContextManager[Callable[[str], None]]:
    if quiet:
        return nullcontext(lambda what: None)
    screen = console(sys.stderr)
    moving = sys.stderr.isatty() and not screen.is_dumb_terminal
    return _moving(screen) if moving else _plain(sys.stderr)


@contextmanager
def _moving(screen: Console) -> Iterator[Callable[[str], None]]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    display = Progress(*columns, console=screen, transient=True)
    task = display.add_task("")
    timer = Timer(_PATIENCE_S, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda what: display.update(task, description=what)
    finally:
        timer.cancel()
        timer.join()
        display.stop()


@contextmanager
def _plain(stream: TextIO) -> Iterator[Callable[[str], None]]:
    started, current, done = monotonic(), "", Event()
    shown_at, step = started, ""

    def show() -> None:
        nonlocal shown_at, step
        if current:
            shown_at, step = monotonic(), _BAR.split(current)[0]
            print(f"{current} ({shown_at - started:.0f} s)", file=stream, flush=True)

    def say(what: str) -> None:
        nonlocal current
        current = what
        if monotonic() - shown_at > _PATIENCE_S and _BAR.split(what)[0] != step:
            show()

    def watch() -> None:
        pause = _PATIENCE_S
        while not done.wait(pause):
            if monotonic() - shown_at >= pause:
                show()
                pause = _PLAIN_PAUSE_S
            else:  # a new step was shown in the meantime
                pause = max(shown_at + _PLAIN_PAUSE_S - monotonic(), _SHORTEST_PAUSE_S)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield say
    finally:
        done.set()
        watcher.join()
