"""Opening the files that a user names: regular files only, and no larger than the limit for their kind.

All reading goes through here, or through a module that builds on this one: `simgpu.io.text_files`,
`simgpu.io.yaml_files`, `simgpu.io.json_files`, `simgpu.io.array_files`. Nothing here waits: a pipe or a device is
refused before it is opened.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from simgpu.errors import InputError
from simgpu.units import format_bytes

#: Largest YAML file that is read, bytes: people write these. The largest that ships has 24 kB.
YAML_LIMIT = 4 * 2**20
#: Largest JSON file that is read at once, bytes: reports, programs and stored timings, some 200 B a kernel.
JSON_LIMIT = 256 * 2**20
#: Largest table or log that is read at once, bytes, also of what a gzip file unpacks to: some 20 million kernels.
TABLE_LIMIT = 2 * 2**30

#: Bytes of a file as they lie, or as gzip unpacks them.
Stream = gzip.GzipFile | BufferedReader

_GZIP = b"\x1f\x8b"
_PIECE = 2**20
#: What to do about a damaged recording.
AGAIN = "record it again, or copy it again from where it came"

#: What a path can be that is neither a regular file nor a folder.
_KINDS = (
    (stat.S_ISFIFO, "is a named pipe, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)


def open_input(path: str | Path, what: str = "a file", limit: int | None = None) -> BufferedReader:
    """A regular file, open at its first byte; links are followed.

    what: the kind of file, for messages, such as "a CSV text file". limit: bytes it may have, None for any number.
    Raises `InputError` for a missing file, a folder, a pipe, a device, a file above the limit, and when the system
    refuses; it never waits.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "node.yaml"
    >>> _ = file.write_bytes(b"name: tiny")
    >>> with open_input(file) as stream:
    ...     stream.read()
    b'name: tiny'
    >>> open_input(file, "a YAML text file", limit=4)
    Traceback (most recent call last):
    simgpu.errors.InputError: ...node.yaml: has 10 B, and the limit for a YAML text file is 4 B; ...
    """
    try:
        _require_regular(path, what, Path(path).stat())
        # Without O_NONBLOCK a pipe that took the file's place since would be waited for; regular files ignore it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        stream = os.fdopen(os.open(path, flags), "rb")
    except FileNotFoundError:
        raise InputError.single(path, "", "no such file", "check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise unreadable(path, error) from None
    try:
        status = os.fstat(stream.fileno())
        _require_regular(path, what, status)
        if limit is not None and status.st_size > limit:
            raise too_large(path, what, status.st_size, limit)
    except InputError:
        stream.close()
        raise
    return stream


def require_regular(path: str | Path, what: str = "a file") -> None:
    """Raises `InputError` unless a path is a regular file that may be read: for libraries that open it themselves."""
    open_input(path, what).close()


def first_bytes(path: str | Path, count: int, what: str = "a file") -> bytes:
    """The first `count` bytes of a file, or as many as it has; raises as `open_input`."""
    with open_input(path, what) as stream:
        return stream.read(count)


@contextmanager
def open_unzipped(path: str | Path, what: str = "a file", limit: int | None = None) -> Iterator[Stream]:
    """As `open_input`, read through gzip where its first two bytes say so. limit: of the file itself, as it lies.

    What is damaged raises where it is read; `read_errors` turns that into messages.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "log.gz"
    >>> _ = file.write_bytes(gzip.compress(b"a line"))
    >>> with open_unzipped(file) as stream:
    ...     stream.read()
    b'a line'
    """
    with open_input(path, what, limit) as stream:
        if stream.peek(2)[:2] != _GZIP:
            yield stream
            return
        with gzip.GzipFile(fileobj=stream, mode="rb") as unzipped:
            yield unzipped


@contextmanager
def read_errors(path: str | Path, remedy: str = AGAIN, place: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns what reading a damaged gzip file or disk raises into `InputError`; place: where in the file it happened."""
    try:
        yield
    except EOFError:
        raise InputError.single(path, place(), "the gzip file is cut off", remedy) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError.single(path, place(), f"the gzip file is damaged ({error})", remedy) from None
    except OSError as error:
        raise unreadable(path, error) from None


def pieces(stream: Stream, path: str | Path, what: str = "a file", limit: int | None = None) -> Iterator[bytes]:
    """What a stream holds, at most 1 MiB at a time; `InputError` once it is more than `limit` bytes.

    The size of its file is not relied on: a gzip file unpacks to more, and a file may grow.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "log"
    >>> _ = file.write_bytes(bytes(1500000))
    >>> with open_input(file) as stream:
    ...     [len(piece) for piece in pieces(stream, file)]
    [1048576, 451424]
    """
    size = 0
    # No larger than the file needs: reading takes that much at once, whatever comes.
    at_once = min(max(os.fstat(stream.fileno()).st_size + 1, 4096), _PIECE)
    while piece := stream.read(at_once):
        size += len(piece)
        if limit is not None and size > limit:
            raise too_large(path, what, None, limit)
        yield piece


def unreadable(path: str | Path, error: OSError | ValueError) -> InputError:
    """The message for a file that the system does not let be read."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return InputError.single(path, "", f"cannot be read: {reason}", "check the path and its rights")


def too_large(path: str | Path, what: str, size: int | None, limit: int) -> InputError:
    """The message for a file above the limit for its kind. size: bytes, None where only the limit was read."""
    above = f"holds more than {format_bytes(limit)}, the limit for {what}"
    told = above if size is None else f"has {format_bytes(size)}, and the limit for {what} is {format_bytes(limit)}"
    return InputError.single(path, "", told, "check that it is the file you mean, or give a smaller one")


def _require_regular(path: str | Path, what: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise InputError.single(path, "", "is a folder", f"give {what}")
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "is not a regular file")
    raise InputError.single(path, "", kind, "save its content to a file, and give that")
