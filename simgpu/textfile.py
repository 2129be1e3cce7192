"""Reading a text file that must be there, be text and hold something.

Lives here: that one check, for every format. Does not live here: any format.
"""

from __future__ import annotations

from pathlib import Path

from simgpu.errors import InputError


def read_text(path: str | Path, what: str = "a text file", if_empty: str = "write it again") -> str:
    r"""The text of a UTF-8 file, without a byte order mark.

    what: the kind of file, for remedies, such as "a CSV text file". if_empty: what to do about an empty one.
    Raises `InputError` for a missing, empty or binary file, and when the system refuses.

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
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError.single(path, "", "no such file", "check the path") from None
    except IsADirectoryError:
        raise InputError.single(path, "", "is a folder", f"give {what}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError.single(path, "", f"cannot be read: {reason}", "check the path and its rights") from None
    return text_of(raw, path, what, if_empty)


def text_of(raw: bytes, path: str | Path, what: str = "a text file", if_empty: str = "write it again") -> str:
    """The text of a file's bytes, however they were read; see `read_text`."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + len(raw) - len(error.object)  # counts a byte order mark, which the error does not
        found = f"is not text: byte {at} ({raw[at]:#04x}) is not UTF-8"
        raise InputError.single(path, _line(raw, at), found, f"give {what}, saved as UTF-8") from None
    if "\0" in text:
        raise InputError.single(path, _line(raw, raw.index(b"\0")), "is a binary file", f"give {what}")
    if not text.strip():
        raise InputError.single(path, "", "is empty", if_empty)
    return text


def _line(raw: bytes, at: int) -> str:
    number = raw.count(b"\n", 0, at) + 1
    return f"line {number}"
