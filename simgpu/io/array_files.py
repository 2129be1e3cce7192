"""Reading NumPy's files: ``.npy`` mapped into memory, ``.npz`` array by array; nothing is ever unpickled.

The size of an array is read from its header and checked against the file before its data are read.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from simgpu.errors import InputError, Problem
from simgpu.io.input_files import open_input
from simgpu.units import format_bytes

ARRAY_MAGIC = b"\x93NUMPY"
ARCHIVE_MAGIC = b"PK"
_ARRAY_REMEDY = "give one array as numpy.save writes it"
_ARCHIVE_REMEDY = "give arrays of numbers as numpy.savez writes them"
#: Longest header that NumPy itself reads, bytes.
_HEADER = 10_000
#: What reading a damaged or hostile file raises, in its headers or its data.
_DAMAGE = (
    ValueError,
    EOFError,
    LookupError,
    SyntaxError,
    TypeError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    TokenError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an array is by its header alone. bytes: of its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Of the data, without the header."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_array(path: str | Path) -> NDArray[Any]:
    """The array of a ``.npy`` file, of any dtype but Python objects, its data left in the file until they are used.

    Raises `InputError` for a file that is missing, is not of this kind, was cut off or holds Python objects.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "ones.npy"
    >>> np.save(file, np.ones((2, 3), np.complex128))
    >>> open_array(file).dtype
    dtype('complex128')
    """
    with open_input(path, "a .npy file") as stream:
        begin = stream.peek(len(ARRAY_MAGIC))[: len(ARRAY_MAGIC)]
        if begin != ARRAY_MAGIC:
            raise InputError.single(path, "", _instead(begin), _ARRAY_REMEDY)
        with _damage(path, "", _ARRAY_REMEDY):
            _header(stream)
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


class ArrayArchive:
    """An open ``.npz`` file. headers: of its arrays by name, in their order.

    The headers are checked against the sizes of the archive's members, so they state the memory that reading takes.
    """

    def __init__(self, path: str | Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self._members: dict[str, str] = {}
        self.headers: dict[str, ArrayHeader] = {}
        problems: list[Problem] = []
        for member in archive.infolist():
            try:
                self._add(member)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)

    def _add(self, member: zipfile.ZipInfo) -> None:
        name = member.filename.removesuffix(".npy")
        if name in self.headers:
            raise InputError.single(self._path, name, "is there twice", _ARCHIVE_REMEDY)
        with _damage(self._path, name, _ARCHIVE_REMEDY), self._archive.open(member) as stream:
            if stream.read(len(ARRAY_MAGIC)) != ARRAY_MAGIC:
                raise InputError.single(self._path, name, "is no array", "leave it out")
            stream.seek(0)
            header = _header(stream)
            if stream.tell() + header.bytes != member.file_size:
                raise ValueError(f"its header states {header.bytes} B of data, its file has {member.file_size} B")
        self._members[name], self.headers[name] = member.filename, header

    def read(self, name: str, limit: int | None = None) -> NDArray[Any]:
        """One array. limit: bytes that its data may have; `InputError` above that, and where it is damaged."""
        size = self.headers[name].bytes
        if limit is not None and size > limit:
            what = f"unpacks to {format_bytes(size)}, with {format_bytes(limit)} of memory free"
            raise InputError.single(self._path, name, what, "give a smaller array, or use more memory")
        with _damage(self._path, name, _ARCHIVE_REMEDY), self._archive.open(self._members[name]) as stream:
            array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return array


@contextmanager
def open_archive(path: str | Path) -> Iterator[ArrayArchive]:
    """The arrays of a ``.npz`` file, to be read one by one.

    Raises `InputError` for a file that is missing or no archive, and for arrays of Python objects, of a shape that
    their data do not have, or that are damaged.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "two.npz"
    >>> np.savez(file, a=np.ones(3), b=np.zeros((2, 2), np.uint8))
    >>> with open_archive(file) as archive:
    ...     print({name: header.bytes for name, header in archive.headers.items()}, archive.read("a"))
    {'a': 24, 'b': 4} [1. 1. 1.]
    """
    with open_input(path, "an .npz file") as stream:
        with _damage(path, "", _ARCHIVE_REMEDY):
            archive = zipfile.ZipFile(stream)
        with archive:
            yield ArrayArchive(path, archive)


def member_names(path: str | Path) -> tuple[str, ...]:
    """The names in an archive, sound or not; `InputError` where it is none."""
    with open_input(path, "an .npz file") as stream, _damage(path, "", _ARCHIVE_REMEDY):
        return tuple(zipfile.ZipFile(stream).namelist())


def _header(stream: IO[bytes]) -> ArrayHeader:
    version = npy.read_magic(stream)
    read: Callable[..., tuple[Any, bool, Any]] = npy.read_array_header_1_0
    if version != (1, 0):  # 3.0 differs from 2.0 in the letters that names of fields may have
        read = npy.read_array_header_2_0
    shape, _, dtype = read(stream, max_header_size=_HEADER)
    if dtype.hasobject:
        raise ValueError("holds Python objects")
    if any(side < 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    return ArrayHeader(tuple(int(side) for side in shape), dtype)


@contextmanager
def _damage(path: str | Path, place: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = str(error).partition("\n")[0][:200]
        what = "holds Python objects" if "Python objects" in reason else f"is damaged or was cut off: {reason}"
        raise InputError.single(path, place, what, remedy) from None


def _instead(begin: bytes) -> str:
    if not begin:
        return "is empty"
    return "is an archive of arrays (.npz)" if begin.startswith(ARCHIVE_MAGIC) else "is not a .npy file"
