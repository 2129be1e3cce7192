"""Streams large recordings, plain or gzip: JSON items one at a time, and a memory limit for the retained ones."""

from __future__ import annotations

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simgpu.errors import InputError
from simgpu.io import free_memory
from simgpu.io.input_files import AGAIN, TABLE_LIMIT, Stream, open_unzipped, pieces, read_errors, unreadable
from simgpu.units import format_bytes

_WHAT = "a recording"
_DAMAGED = "it is damaged: record it again, or copy it again"

#: Bytes read to recognise a file: more than any recording writes before its first event.
_HEAD_BYTES = 1 << 16

#: Numbers with more digits than this are refused: no recording contains one.
_DIGITS = 1000

#: Maximum bytes of one item, and of everything before the first item: the parser holds them in memory.
_ITEM_LIMIT = 256 * 2**20

#: Maximum nesting depth: deeper than any recording, and within Python's recursion limit.
_DEPTH = 100
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
#: Change of the nesting depth for each byte value outside strings.
_STEPS = np.zeros(256, dtype=np.int64)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def read_unzipped(path: Path, factor: int) -> bytes:
    """Returns all bytes of a file, decompressed if it is gzip.

    factor: bytes of memory that the caller needs per byte. Raises `InputError` for a damaged file, or if the
    decompressed size exceeds `TABLE_LIMIT` or the free memory.
    """
    free = free_memory.available_memory()
    result = bytearray()
    with open_unzipped(path, _WHAT, TABLE_LIMIT) as stream, read_errors(path):
        for piece in pieces(stream, path, _WHAT, TABLE_LIMIT):
            result += piece
            if free is not None and len(result) * factor > free:
                raise free_memory.too_large(path, len(result), factor, free)
    return bytes(result)


class _Text:
    """The bytes of a JSON file for the parser: without a byte order mark, and limited to what the parser can handle.

    The parser aborts the program at an integer too long for Python (4300 digits) and at 100,000 nesting levels, and
    holds each item in memory. So numbers that are too long, and items that are too long or too deep, are refused here.
    """

    def __init__(self, path: Path, stream: Stream) -> None:
        self._path, self._stream, self._begun = path, stream, False
        self._since_item = 0
        self._nesting = _Nesting()

    def next_item(self) -> None:
        """Start counting the bytes of the next item."""
        self._since_item = 0

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        if not self._begun and size:
            piece, self._begun = piece.removeprefix(BOM_UTF8), True
            if b"\0" in piece:
                raise self._refused("is a binary file", f"give {_WHAT} in JSON")
        # A run of 2 * _DIGITS digits within the piece fills at least one of its aligned parts.
        if any(piece[at : at + _DIGITS].isdigit() for at in range(0, len(piece) - _DIGITS + 1, _DIGITS)):
            raise self._refused(f"contains a number of more than {_DIGITS} digits", _DAMAGED)
        self._since_item += len(piece)
        if self._since_item > _ITEM_LIMIT:
            raise self._refused(f"contains a value of more than {format_bytes(_ITEM_LIMIT)}", _DAMAGED)
        if self._nesting.deepest(piece) > _DEPTH:
            raise self._refused("is nested too deeply", _DAMAGED)
        return piece

    def _refused(self, what: str, remedy: str) -> InputError:
        return InputError.single(self._path, "", what, remedy)


class _Nesting:
    """Counts the open lists and objects of a JSON text that is read in pieces."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._escape = 0, False, b""

    def deepest(self, piece: bytes) -> int:
        """Returns the largest depth within the next piece; brackets inside strings do not count."""
        plain = _ESCAPED.sub(b"", self._escape + piece)
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        parts = plain.split(b'"')
        outside = b"".join(parts[self._in_text :: 2])
        self._in_text ^= len(parts) % 2 == 0
        depths = self._depth + np.cumsum(_STEPS[np.frombuffer(outside, dtype=np.uint8)])
        if not depths.size:
            return self._depth
        self._depth = int(depths[-1])
        return int(depths.max())


@contextmanager
def _open_json(path: Path) -> Iterator[_Text]:
    with open_unzipped(path, _WHAT) as stream:
        yield _Text(path, stream)


def head(path: Path) -> bytes:
    """Returns the first bytes of a file, as far as they can be read; empty if it is not a file."""
    start = b""
    if not path.is_file():
        return start
    try:
        with open_unzipped(path, _WHAT) as stream:
            # Reading in pieces returns the readable part of a truncated gzip file before the error.
            while len(start) < _HEAD_BYTES and (piece := stream.read1(_HEAD_BYTES)):
                start += piece
    except (EOFError, gzip.BadGzipFile, zlib.error):
        pass  # reported when the file is read
    except OSError as error:
        raise unreadable(path, error) from None
    return start[:_HEAD_BYTES].removeprefix(BOM_UTF8)


def members_before(path: Path, array: str) -> dict[str, Any]:
    r"""Returns the top-level members of an object before the named one; fractional numbers are `Decimal`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "profile.json"
    >>> _ = file.write_text('{"schemaVersion": 1, "cards": [{"id": 0}], "events": [1, 2], "name": "x"}')
    >>> members_before(file, "events")
    {'schemaVersion': 1, 'cards': [{'id': 0}]}
    """
    import ijson

    result: dict[str, Any] = {}
    with _reading(path, lambda: "before its first item"), _open_json(path) as file:
        builder, key = None, ""
        for prefix, event, value in ijson.parse(file):
            if not prefix and event == "map_key":
                if value == array:
                    break
                builder, key = ijson.ObjectBuilder(), value
            elif builder is not None and prefix:
                builder.event(event, value)
                result[key] = builder.value
    return result


def items(path: Path, array: str) -> Iterator[tuple[int, Any]]:
    r"""Yields the items of a top-level array with their numbers, counted from 1.

    Raises `InputError` with the number of the item where the file is truncated or is not JSON.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "profile.json"
    >>> _ = file.write_bytes(gzip.compress(b'{"events": [{"dur": 0.25}, {"dur": 3}]}'))
    >>> list(items(file, "events"))
    [(1, {'dur': Decimal('0.25')}), (2, {'dur': 3})]
    """
    import ijson

    number = 0
    with _reading(path, lambda: f"item {number + 1} of {array}"), _open_json(path) as file:
        for number, item in enumerate(ijson.items(file, f"{array}.item"), start=1):
            file.next_item()
            yield number, item


def values(path: Path) -> Iterator[tuple[int, Any]]:
    r"""Yields the values of a file of concatenated JSON values with their numbers, counted from 1.

    Raises `InputError` with the number of the value where the file is truncated or is not JSON.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "nodes.json"
    >>> _ = file.write_text('{"version": "1"}{"id": 4}\n{"id": 5}')
    >>> list(values(file))
    [(1, {'version': '1'}), (2, {'id': 4}), (3, {'id': 5})]
    """
    import ijson

    number = 0
    with _reading(path, lambda: f"value {number + 1}"), _open_json(path) as file:
        for value in ijson.items(file, "", multiple_values=True):
            number += 1
            file.next_item()
            yield number, value


@contextmanager
def _reading(path: Path, place: Callable[[], str]) -> Iterator[None]:
    """Converts parser and file errors to `InputError`."""
    import ijson

    try:
        with read_errors(path, place=place):
            yield
    except ijson.JSONError as error:
        detail = error.args[0] if error.args else ""
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        if "premature EOF" in text or "Incomplete" in text:
            raise InputError.single(path, place(), "the JSON ends too early: the file is cut off", AGAIN) from None
        remedy = "JSON must be UTF-8, without NaN or Infinity; correct the file or record it again"
        shown = text.partition("\n")[0].strip()
        raise InputError.single(path, place(), f"is not JSON ({shown})", remedy) from None
    except UnicodeDecodeError as error:
        raise InputError.single(path, place(), f"contains text that is not UTF-8 ({error.reason})", AGAIN) from None
    except ArithmeticError:
        raise InputError.single(path, place(), "contains a number whose exponent is out of range", AGAIN) from None


@dataclass(frozen=True, slots=True)
class Piece:
    """One kind of item in a recording.

    plural: its name in messages.
    bytes: memory per item, including all objects derived from it.
    shorter: advice on how to get a recording with fewer items.
    """

    plural: str
    bytes: int
    shorter: str


_LOOK_EVERY = 4096


class MemoryBudget:
    """Counts retained items and raises `InputError` before they exceed the memory that was free at the start.

    available: bytes that may be used; by default, the machine's free memory.

    >>> budget = MemoryBudget(Path("profile.json"), Piece("events", 600, "record one iteration"), available=1_000_000)
    >>> for _ in range(5000):
    ...     budget.take()
    Traceback (most recent call last):
    simgpu.errors.InputError: profile.json: is larger than this machine's memory: 4096 events needed so far, ...
    """

    def __init__(self, path: Path, piece: Piece, available: int | None = None) -> None:
        self.path = path
        self.piece = piece
        self.available = free_memory.available_memory() if available is None else available
        self.count = 0

    def release(self, count: int) -> None:
        """Report that `count` of the items counted by `take` are no longer in memory."""
        self.count -= count

    def take(self) -> None:
        """Retain one more item."""
        self.count += 1
        needed = self.count * self.piece.bytes
        if self.count % _LOOK_EVERY == 0 and self.available is not None and needed > self.available:
            what = (
                f"is larger than this machine's memory: {self.count} {self.piece.plural} needed so far, about "
                f"{format_bytes(needed)}, with {format_bytes(self.available)} free"
            )
            raise InputError.single(self.path, "", what, f"{self.piece.shorter}, or use more memory")
