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

#: Says in words what a folder holds that may not be replaced, empty when there is no such thing.
Foreign = Callable[[Path], str]


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A sibling path to write to, which takes the place of `path` when the block ends well and else vanishes.

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
    part = _beside(target)
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        with _undisturbed(), suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path, foreign: Foreign) -> Iterator[Path]:
    """An empty sibling folder to fill, which takes the place of `path` when the block ends well and else vanishes.

    What stood there before goes only once the new folder stands, and comes back if that fails. Missing parents are
    made, and vanish too where nothing comes of it. Ctrl-C waits while folders change places. A link to a folder stays a
    link. `InputError` names the path when the system refuses, and what `refuse_foreign` raises.

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
    part = _beside(target)
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        part.mkdir(parents=True)
        yield part
        with _undisturbed():
            _swap_in(part, target)
    except OSError as error:
        raise unwritable(given, error) from error
    except InputError as error:  # it may name a file within `part`, which nobody else has heard of
        raise InputError(
            replace(problem, file=str(given)) if Path(problem.file).is_relative_to(part) else problem
            for problem in error.problems
        ) from error
    finally:
        with _undisturbed(), suppress(OSError):
            shutil.rmtree(part, ignore_errors=True)
            for folder in missing:  # those that stay empty; the first that does not ends it
                folder.rmdir()


def refuse_foreign(folder: Path, foreign: Foreign) -> None:
    """`InputError` unless nothing stands at the path, or a folder that is empty or holds nothing foreign."""
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
        raise InputError.single(folder, "", f"holds {held}", "choose a new folder, or empty this one yourself")


def unwritable(path: Path, error: OSError) -> InputError:
    """What to tell the user when the system refuses to write there."""
    reason = error.strerror or type(error).__name__
    remedy = "choose a place that exists and that you may write to, with space left"
    return InputError.single(path, "", f"cannot be written: {reason}", remedy)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C, and what else Python was told to handle, waits until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # it gets no signals
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _beside(target: Path) -> Path:
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
