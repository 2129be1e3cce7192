"""Large recordings as streams, plain or gzip: JSON items one by one, and a limit on the memory they may take."""

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

#: What is looked at to recognise a file: more than any recording writes before its first event.
_HEAD_BYTES = 1 << 16

#: So many digits in a row are no number of a recording.
_DIGITS = 1000

#: Bytes of the longest item, and of all that stands before the first one: the parser holds them at once.
_ITEM_LIMIT = 256 * 2**20

#: Lists and objects within each other: more than any recording has, and less than what Python can show.
_DEPTH = 100
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
#: By how much a byte outside of texts changes the depth.
_STEPS = np.zeros(256, dtype=np.int64)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def read_unzipped(path: Path, factor: int) -> bytes:
    """All bytes of a file, read through gzip.

    factor: bytes of memory that the reader takes for each. Raises `InputError` for a damaged file, and for one that
    unpacks to more than `TABLE_LIMIT` or the free memory allows, of which the file's own size says nothing.
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
    """The bytes of a JSON file as the parser reads them: without a byte order mark, and within what it can hold.

    The parser ends the whole program at an integer that Python does not convert (4300 digits), so a row of digits
    half as long is refused here. It holds an item until it is complete, and ends the program at one of 100,000 levels:
    an item that is too long or too deep is refused too.
    """

    def __init__(self, path: Path, stream: Stream) -> None:
        self._path, self._stream, self._begun = path, stream, False
        self._since_item = 0
        self._nesting = _Nesting()

    def next_item(self) -> None:
        """An item has been taken; what is read from now on belongs to the ones behind it."""
        self._since_item = 0

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        if not self._begun and size:
            piece, self._begun = piece.removeprefix(BOM_UTF8), True
            if b"\0" in piece:
                raise self._refused("is a binary file", f"give {_WHAT} in JSON")
        # Any row of digits twice as long as a part fills one part, or lies at the border of two pieces.
        if any(piece[at : at + _DIGITS].isdigit() for at in range(0, len(piece) - _DIGITS + 1, _DIGITS)):
            raise self._refused(f"holds a number of more than {_DIGITS} digits", _DAMAGED)
        self._since_item += len(piece)
        if self._since_item > _ITEM_LIMIT:
            raise self._refused(f"holds a value of more than {format_bytes(_ITEM_LIMIT)}", _DAMAGED)
        if self._nesting.deepest(piece) > _DEPTH:
            raise self._refused("is nested too deeply", _DAMAGED)
        return piece

    def _refused(self, what: str, remedy: str) -> InputError:
        return InputError.single(self._path, "", what, remedy)


class _Nesting:
    """How many lists and objects are open in a JSON text that comes in pieces."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._escape = 0, False, b""

    def deepest(self, piece: bytes) -> int:
        """The most that are open anywhere in the next piece; brackets within texts do not count."""
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
    """The first bytes, as far as they can be read; nothing for what is no file."""
    start = b""
    if not path.is_file():
        return start
    try:
        with open_unzipped(path, _WHAT) as stream:
            # What a cut-off gzip file still holds comes out piece by piece, before the error does.
            while len(start) < _HEAD_BYTES and (piece := stream.read1(_HEAD_BYTES)):
                start += piece
    except (EOFError, gzip.BadGzipFile, zlib.error):
        pass  # reported when the file is read
    except OSError as error:
        raise unreadable(path, error) from None
    return start[:_HEAD_BYTES].removeprefix(BOM_UTF8)


def members_before(path: Path, array: str) -> dict[str, Any]:
    r"""Top-level members of an object that stand before the named one; numbers with a fraction are `Decimal`.

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
    r"""The items of a top-level array with their numbers from 1, one at a time.

    Raises `InputError` naming the item at which the file is cut off or is no JSON.

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
    r"""The values of a file that holds several, one after another, with their numbers from 1.

    Raises `InputError` naming the value at which the file is cut off or is no JSON.

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
    """Turns what can go wrong with the file itself into messages for the user."""
    import ijson

    try:
        with read_errors(path, place=place):
            yield
    except ijson.JSONError as error:
        detail = error.args[0] if error.args else ""
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        if "premature EOF" in text or "Incomplete" in text:
            raise InputError.single(path, place(), "the JSON ends too early: the file is cut off", AGAIN) from None
        remedy = "JSON knows no NaN and no Infinity and is UTF-8; put it right or record it again"
        shown = text.partition("\n")[0].strip()
        raise InputError.single(path, place(), f"is not JSON ({shown})", remedy) from None
    except UnicodeDecodeError as error:
        raise InputError.single(path, place(), f"holds a text that is not UTF-8 ({error.reason})", AGAIN) from None
    except ArithmeticError:
        raise InputError.single(path, place(), "holds a number with an exponent beyond any use", AGAIN) from None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a recording. plural: its name in messages. bytes: memory per piece, with all objects derived from it.
    shorter: how to get a recording with fewer pieces.
    """

    plural: str
    bytes: int
    shorter: str


_LOOK_EVERY = 4096


class MemoryBudget:
    """Counts the retained pieces and raises `InputError` before it outgrows the memory that was free at the start.

    available: bytes that may be used; left out, what the machine has free now.

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
        """Release `count` retained pieces."""
        self.count -= count

    def take(self) -> None:
        """Retain one more piece."""
        self.count += 1
        takes = self.count * self.piece.bytes
        if self.count % _LOOK_EVERY == 0 and self.available is not None and takes > self.available:
            what = (
                f"is larger than this machine's memory: {self.count} {self.piece.plural} needed so far, about "
                f"{format_bytes(takes)}, with {format_bytes(self.available)} free"
            )
            raise InputError.single(self.path, "", what, f"{self.piece.shorter}, or use more memory")
