"""Atomic writes: a file or folder appears completely or not at all."""

from __future__ import annotations

import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from simgpu.errors import InputError

#: Describes the content of a folder that must not be replaced; empty if there is none.
Foreign = Callable[[Path], str]


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A sibling path to write to, which replaces `path` when the block succeeds and is deleted otherwise.

    Readers see the old file or the complete new one, never a part. `InputError` names the path when the
    system refuses (folder missing, not writable, disk full).

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "result.txt"
    >>> with atomic_file(target) as part:
    ...     _ = part.write_text("done")
    >>> target.read_text(), [entry.name for entry in target.parent.iterdir()]
    ('done', ['result.txt'])
    """
    target = Path(path)
    part = _part_of(target)
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with _signals_deferred(), suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path, foreign: Foreign) -> Iterator[Path]:
    """An empty sibling folder to fill, which replaces `path` when the block succeeds and is deleted otherwise.

    The previous folder is deleted only after the new one is in place, and restored if that fails. Missing parents are
    created, and deleted again on failure. Ctrl-C waits during the exchange. A link to a folder stays a link.
    Raises `InputError` as `refuse_foreign`, and with the path when the system refuses.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "results"
    >>> with atomic_folder(target, foreign=lambda folder: "") as part:
    ...     _ = (part / "a.txt").write_text("done")
    >>> [entry.name for entry in target.iterdir()], [entry.name for entry in target.parent.iterdir()]
    (['a.txt'], ['results'])
    """
    given = Path(path)
    refuse_foreign(given, foreign)
    target = given.resolve()
    part = _part_of(target)
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        part.mkdir(parents=True)
        yield part
        with _signals_deferred():
            _swap_in(part, target)
    except OSError as error:
        raise unwritable(given, error) from error
    except InputError as error:  # it may name a file within `part`, a path unknown to the user
        raise InputError(
            replace(problem, file=str(given)) if Path(problem.file).is_relative_to(part) else problem
            for problem in error.problems
        ) from error
    finally:
        with _signals_deferred(), suppress(OSError):
            shutil.rmtree(part, ignore_errors=True)
            for folder in missing:  # only empty ones; the first other one ends the loop
                folder.rmdir()


def refuse_foreign(folder: Path, foreign: Foreign) -> None:
    """`InputError` unless the path is free, or a folder that is empty or has nothing foreign in it."""
    try:
        real = folder.resolve()  # "new/.." is the folder around "new" even while there is no "new"
        if real.is_dir():
            held = foreign(real) if any(real.iterdir()) else ""
        elif real.exists() or folder.is_symlink():
            raise InputError.single(folder, "", "is not a folder", "choose another output folder")
        else:
            return
    except OSError as error:
        raise unwritable(folder, error) from error
    if held:
        raise InputError.single(folder, "", f"contains {held}", "choose a new folder, or empty this one")


def unwritable(path: Path, error: OSError) -> InputError:
    """The error for a path that the system does not let be written."""
    reason = error.strerror or type(error).__name__
    remedy = "choose a place that exists and that you may write to, with space left"
    return InputError.single(path, "", f"cannot be written: {reason}", remedy)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defers Ctrl-C and SIGTERM, where Python handles them, until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def _swap_in(part: Path, target: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    old = part.with_suffix(".old")
    target.rename(old)
    try:
        part.rename(target)
    except OSError:
        with suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
