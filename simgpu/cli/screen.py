"""What commands print with: a terminal at most 80 columns wide, tables on it, and progress on stderr."""

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
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from simgpu.analysis.tables import table_grid
from simgpu.cli.group import wants_colour
from simgpu.cli.signals import insist

WIDTH = 80
_PATIENCE_S = 1.0
_PLAIN_PAUSE_S = 10.0
_BAR = re.compile("[━─]")


def console(file: TextIO) -> Console:
    """A terminal, or plain text where there is none or NO_COLOR is set. Prints texts as they are."""
    look: dict[str, Any] = {} if wants_colour(file) else {"color_system": None}
    result = Console(file=file, markup=False, highlight=False, emoji=False, **look)
    result.width = min(result.width, WIDTH)
    return result


class Screen:
    """As wide as the terminal but at most 80 columns, without blanks at the ends of lines; standard output or error."""

    def __init__(self, error: bool = False) -> None:
        self._error = error
        self._console = console(sys.stderr if error else sys.stdout)

    @property
    def width(self) -> int:
        """In columns."""
        return self._console.width

    def print(self, content: RenderableType = "", *, wrap: bool = True) -> None:
        """Prints a text or a table. wrap: divide lines that are wider than the screen."""
        with self._console.capture() as captured:
            self._console.print(content, soft_wrap=not wrap)
        for line in captured.get().splitlines():
            click.echo(
                line.rstrip(), color=True, err=self._error
            )  # rich has already left out the colours where there are none


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names on the left, texts on the right that wrap within their column."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(Text(name, style="dim"), Text(text))
    return grid


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,), unbroken: Collection[int] = ()
) -> Table:
    """A table without lines: bold headings, numbers to the right but for the columns in `left`.

    unbroken: columns of which no text is broken, whatever becomes of the others.
    """
    grid = table_grid(headings, rows, left, unbroken)
    grid.header_style = "bold"
    return grid


def indented(content: Table | Text) -> Padding:
    """The same, two columns to the right."""
    return Padding(content, (0, 0, 0, 2))


#: For every command that may take over a second.
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function to say what is being done, shown on stderr once it takes over a second.

    A terminal gets a moving line, anything else a plain line for each new thing, though not several a second, and now
    and then in between. What differs only from its bar on (`━───`) is no new thing.
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
    shown_at, thing = started, ""

    def show() -> None:
        nonlocal shown_at, thing
        if current:
            shown_at, thing = monotonic(), _BAR.split(current)[0]
            print(f"{current} ({shown_at - started:.0f} s)", file=stream, flush=True)

    def say(what: str) -> None:
        nonlocal current
        current = what
        if monotonic() - shown_at > _PATIENCE_S and _BAR.split(what)[0] != thing:
            show()

    def watch() -> None:
        pause = _PATIENCE_S
        while not done.wait(pause):
            show()
            pause = _PLAIN_PAUSE_S

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield say
    finally:
        done.set()
        watcher.join()
