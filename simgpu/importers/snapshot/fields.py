"""Values of a snapshot by key, with messages that name the place of a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.drafts import printable
from simgpu.importers.quantities import integer, shown

#: 256 TiB: all addresses of a process.
_MOST_BYTES = 2**48
#: Characters of a note that are read.
_LONGEST_NOTE = 1000
_REMEDY = "give a snapshot as torch.cuda.memory._dump_snapshot writes it"


class Record:
    """One dictionary of a snapshot. place: where it is, for messages."""

    __slots__ = ("_values", "path", "place")

    def __init__(self, values: object, path: Path, place: str) -> None:
        if not isinstance(values, dict):
            raise InputError.single(path, place, f"{shown(values)} is not a dictionary", _REMEDY)
        self._values: dict[Any, Any] = values
        self.path = path
        self.place = place

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Any:
        """The value, None if there is none."""
        return self._values.get(key)

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0; default: where the key is missing, None if it may not be."""
        value = self._values.get(key, default)
        try:
            return integer(value)
        except ValueError as error:
            problem = f"{key}: {error}" if key in self._values else f"has no {key}"
            raise self.wrong(problem) from None

    def bytes(self, key: str, default: int | None = None) -> int:
        """A number of bytes, as `number`, that a device can have."""
        value = self.number(key, default)
        if value > _MOST_BYTES:
            raise self.wrong(f"{key}: {value} is more than any device has")
        return value

    def text(self, key: str) -> str:
        """A text, empty where the key is missing."""
        value = self._values.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(f"{key}: {shown(value)} is not text")
        return value

    def line(self, key: str) -> str:
        """A text without line breaks and other control characters, empty where the key is missing."""
        text = self.text(key)
        return printable(text) if text.strip() else ""

    def note(self, key: str) -> str:
        """What a program noted, a text or any other value, as one line; empty where the key is missing."""
        value = self._values.get(key)
        if value is None or value == "":
            return ""
        text = value if isinstance(value, str) else shown(value)
        return printable(text[:_LONGEST_NOTE]) if text.strip() else ""

    def items(self, key: str) -> Sequence[Any]:
        """A list, empty where the key is missing."""
        value = self._values.get(key, ())
        if not isinstance(value, list | tuple):
            raise self.wrong(f"{key}: {shown(value)} is not a list")
        return value

    def wrong(self, problem: str) -> InputError:
        """The error for a problem of this dictionary."""
        return InputError.single(self.path, self.place, problem, _REMEDY)
