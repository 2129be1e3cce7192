"""Reading a text file that must be there, be text and hold something: that one check, for every format."""

from __future__ import annotations

import gzip
from pathlib import Path

from simgpu.errors import InputError
from simgpu.io.input_files import TABLE_LIMIT, Stream, open_input, pieces, read_errors


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
