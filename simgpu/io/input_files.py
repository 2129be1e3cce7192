"""Reading files that a user names, as bytes, text or JSON: regular files only, within the size limit for their kind.

All file reading uses this module, directly or through `yaml_files` and `array_files`. It never waits: a pipe or a
device is refused before it is opened.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from math import isfinite
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.units import format_bytes


def read_json(path: str | Path, what: str = "a JSON text file", remedy: str = "write it again") -> Any:
    """The value in a JSON file; what: the kind of file, remedy: what to do about one that is damaged, for messages.

    Raises `InputError` for a file that `simgpu.io.input_files.read_text` refuses, and as `parse_json`.
    """
    return parse_json(read_text(path, what, remedy, JSON_LIMIT), path, remedy)


def parse_json(text: str, source: str | Path, remedy: str = "write it again", place: str = "") -> Any:
    """The value of a JSON text. source, place: where it comes from, for messages.

    Raises `InputError` for wrong syntax, NaN and infinity, numbers that Python does not convert (4300 digits) and
    nesting that it does not follow (some 1000 levels).

    >>> parse_json('{"seed": 1}', "report.json")
    {'seed': 1}
    >>> parse_json("[" * 100000, "report.json")
    Traceback (most recent call last):
    simgpu.errors.InputError: report.json: is nested too deeply; write it again
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        at = place or f"line {error.lineno}"
        raise InputError.single(source, at, f"is not JSON: {error.msg}; is it cut off?", remedy) from None
    except RecursionError:
        raise InputError.single(source, place, "is nested too deeply", remedy) from None
    except ValueError as error:
        # Python's own words for a number of too many digits name a setting of Python.
        what = "contains a number of too many digits" if "digits" in str(error) else f"is not JSON: {error}"
        raise InputError.single(source, place, what, remedy) from None


def _finite(text: str) -> float:
    """What JSON cannot hold is not taken from it either: Python would read NaN, and infinity for 1e999."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


#: Largest YAML file that is read, bytes: people write these. The largest that ships has 24 kB.
YAML_LIMIT = 4 * 2**20
#: Largest JSON file that is read at once, bytes: reports, programs and stored timings, some 200 B a kernel.
JSON_LIMIT = 256 * 2**20
#: Largest table or log that is read at once, bytes, also of what a gzip file unpacks to: some 20 million kernels.
TABLE_LIMIT = 2 * 2**30

#: Bytes of a file, raw or unpacked by gzip.
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
    """As `open_input`, read through gzip where its first two bytes say so. limit: of the file itself, packed.

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
    # No larger than the file: a read allocates this much, however little it returns.
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
    above = f"contains more than {format_bytes(limit)}, the limit for {what}"
    what = above if size is None else f"has {format_bytes(size)}, and the limit for {what} is {format_bytes(limit)}"
    return InputError.single(path, "", what, "check that it is the file you mean, or give a smaller one")


def _require_regular(path: str | Path, what: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise InputError.single(path, "", "is a folder", f"give {what}")
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "is not a regular file")
    raise InputError.single(path, "", kind, "save its content to a file, and give that")


def read_text(
    path: str | Path, what: str = "a text file", if_empty: str = "write it again", limit: int = TABLE_LIMIT
) -> str:
    r"""The text of a UTF-8 file, without a byte order mark.

    what: the kind of file, for remedies, such as "a CSV text file". if_empty: what to do about an empty one.
    limit: bytes that it may have. Raises `InputError` for a file that is missing, empty, binary, above the limit or no
    regular file, and when the system refuses.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = file.write_bytes("id,bytes\n".encode("utf-8-sig"))
    >>> read_text(file)
    'id,bytes\n'
    >>> _ = file.write_bytes(b"")
    >>> read_text(file)
    Traceback (most recent call last):
    simgpu.errors.InputError: ...rows.csv: is empty; write it again
    """
    with open_input(path, what, limit) as stream, read_errors(path, if_empty):
        return text_of(_bytes_of_text(stream, path, what, if_empty, limit), path, what, if_empty)


def read_gzip_text(
    path: str | Path, what: str = "a gzip text file", if_empty: str = "write it again", limit: int = TABLE_LIMIT
) -> str:
    """The text of a gzip file; limit: bytes that it may unpack to. Otherwise as `read_text`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "rows.csv.gz"
    >>> _ = file.write_bytes(gzip.compress(b"id"))
    >>> read_gzip_text(file)
    'id'
    """
    with (
        open_input(path, what, limit) as stream,
        read_errors(path, if_empty),
        gzip.GzipFile(fileobj=stream, mode="rb") as unzipped,
    ):
        return text_of(_bytes_of_text(unzipped, path, what, if_empty, limit), path, what, if_empty)


def text_of(
    raw: bytes | bytearray, path: str | Path, what: str = "a text file", if_empty: str = "write it again"
) -> str:
    """The text of a file's bytes, however they were read; see `read_text`."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + len(raw) - len(error.object)  # counts a byte order mark, which the error does not
        result = f"is not text: byte {at} ({raw[at]:#04x}) is not UTF-8"
        raise InputError.single(path, _line(raw, at), result, f"give {what}, saved as UTF-8") from None
    if "\0" in text:
        raise InputError.single(path, _line(raw, raw.index(b"\0")), "is a binary file", f"give {what}")
    if not text.strip():
        raise InputError.single(path, "", "is empty", if_empty)
    return text


def _bytes_of_text(stream: Stream, path: str | Path, what: str, if_empty: str, limit: int) -> bytearray:
    """All bytes of a stream of text; a null byte ends the reading, and `text_of` then says what the file is."""
    raw = bytearray()
    for piece in pieces(stream, path, what, limit):
        raw += piece
        if (at := raw.find(b"\0", len(raw) - len(piece))) >= 0:
            text_of(raw[: at + 1], path, what, if_empty)
    return raw


def _line(raw: bytes | bytearray, at: int) -> str:
    number = raw.count(b"\n", 0, at) + 1
    return f"line {number}"
