"""Reading large JSON recordings piece by piece, plain or gzip, without holding the file.

Lives here: opening, the first bytes by which a format is recognised, and the items of one array as they come. Does
not live here: any format.
"""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.trace import free_memory

_GZIP = b"\x1f\x8b"

#: What is looked at to recognise a file: more than any recording writes before its first event.
_HEAD_BYTES = 1 << 16

_PIECE = 1 << 20

#: So many digits in a row are no number of a recording.
_DIGITS = 1000


def open_plain(path: Path) -> gzip.GzipFile | BufferedReader:
    """The file's bytes; gzip is told by its first two bytes and read through."""
    file = path.open("rb")
    if file.peek(2)[:2] != _GZIP:
        return file
    file.close()
    return gzip.open(path, "rb")


def read_unzipped(path: Path, factor: int) -> bytes:
    """All bytes of a file, read through gzip.

    factor: bytes of memory that the reader takes for each. Raises `InputError` for a damaged file, and for one that
    unpacks to more than the free memory allows, of which the file's own size says nothing.
    """
    free = free_memory.available_memory()
    pieces, size = list[bytes](), 0
    with _reading(path, lambda: ""), open_plain(path) as file:
        if not isinstance(file, gzip.GzipFile):
            return file.read()
        while piece := file.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if free is not None and size * factor > free:
                raise free_memory.too_large(path, size, factor, free)
    return b"".join(pieces)


class _Text:
    """The bytes of a JSON file as the parser reads them: without a byte order mark, and with numbers of sane length.

    The parser ends the whole program at an integer that Python does not convert (4300 digits), so a row of digits
    half as long is refused here.
    """

    def __init__(self, path: Path, file: gzip.GzipFile | BufferedReader) -> None:
        self._path, self._file, self._begun = path, file, False

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        if not self._begun and size:
            piece, self._begun = piece.removeprefix(BOM_UTF8), True
        # Any row of digits twice as long as a part fills one part, or lies at the border of two pieces.
        if any(piece[at : at + _DIGITS].isdigit() for at in range(0, len(piece) - _DIGITS + 1, _DIGITS)):
            what = f"holds a number of more than {_DIGITS} digits"
            raise InputError.single(self._path, "", what, "it is damaged: record it again, or copy it again")
        return piece


@contextmanager
def _open_json(path: Path) -> Iterator[_Text]:
    with open_plain(path) as file:
        yield _Text(path, file)


def head(path: Path) -> bytes:
    """The first bytes, as far as they can be read; nothing for what is no file."""
    start = b""
    if not path.is_file():
        return start
    try:
        with open_plain(path) as file:
            # What a cut-off gzip file still holds comes out piece by piece, before the error does.
            while len(start) < _HEAD_BYTES and (piece := file.read1(_HEAD_BYTES)):
                start += piece
    except (EOFError, gzip.BadGzipFile, zlib.error):
        pass  # told when the file is read
    except OSError as error:
        raise unreadable(path, error) from None
    return start[:_HEAD_BYTES].removeprefix(BOM_UTF8)


def unreadable(path: Path, error: OSError) -> InputError:
    """The message for a file that the system does not let be read."""
    reason = error.strerror or type(error).__name__
    return InputError.single(path, "", f"cannot be read: {reason}", "check the path and its rights")


def members_before(path: Path, array: str) -> dict[str, Any]:
    r"""Top-level members of an object that stand before the named one; numbers with a fraction are `Decimal`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "profile.json"
    >>> _ = file.write_text('{"schemaVersion": 1, "cards": [{"id": 0}], "events": [1, 2], "name": "x"}')
    >>> members_before(file, "events")
    {'schemaVersion': 1, 'cards': [{'id': 0}]}
    """
    import ijson

    found: dict[str, Any] = {}
    with _reading(path, lambda: "before its first item"), _open_json(path) as file:
        builder, key = None, ""
        for prefix, event, value in ijson.parse(file):
            if not prefix and event == "map_key":
                if value == array:
                    break
                builder, key = ijson.ObjectBuilder(), value
            elif builder is not None and prefix:
                builder.event(event, value)
                found[key] = builder.value
    return found


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
            yield number, value


@contextmanager
def _reading(path: Path, place: Callable[[], str]) -> Iterator[None]:
    """Turns what can go wrong with the file itself into messages for the user."""
    import ijson

    again = "record it again, or copy it again from where it came"
    try:
        yield
    except EOFError:
        raise InputError.single(path, place(), "the gzip file is cut off", again) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError.single(path, place(), f"the gzip file is damaged ({error})", again) from None
    except ijson.JSONError as error:
        detail = error.args[0] if error.args else ""
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        if "premature EOF" in text or "Incomplete" in text:
            raise InputError.single(path, place(), "the JSON ends too early: the file is cut off", again) from None
        remedy = "JSON knows no NaN and no Infinity and is UTF-8; put it right or record it again"
        shown = text.partition("\n")[0].strip()
        raise InputError.single(path, place(), f"is not JSON ({shown})", remedy) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except ArithmeticError:
        raise InputError.single(path, place(), "holds a number with an exponent beyond any use", again) from None
