"""Digests of output files that stay equal when a word is renamed and change with every number.

Each word of a file (a key, a column, a label) is replaced by the number of its first appearance in that file, so two
files have one digest if they differ by a one-to-one renaming of words. Text with spaces is prose and is masked.
Numbers are kept, digit by digit, in the order of the file; so are words that are numbers.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: A whole word that is a number, with an exponent perhaps.
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


#: Members of JSON objects that are of the code and its libraries, not of what was computed.
OF_THE_CODE = {"decided_by"}


class Masked:
    """The words of one file, numbered as they first appear."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def word(self, text: str) -> str:
        """What stands for a text: itself for a number, ``~`` for prose, else the number of the word.

        >>> masked = Masked()
        >>> [masked.word(text) for text in ("vdnn", "12.5", "none", "vdnn", "out of memory", "")]
        ['#0', '12.5', '#1', '#0', '~', '']
        """
        if not text or NUMBER.fullmatch(text):
            return text
        if " " in text:
            return "~"
        return f"#{self.numbers.setdefault(text, len(self.numbers))}"

    def document(self, value: Any) -> Any:
        """A JSON document with its keys and texts masked, in its order."""
        if isinstance(value, dict):
            return [[self.word(key), self.document(each)] for key, each in value.items() if key not in OF_THE_CODE]
        if isinstance(value, list):
            return [self.document(each) for each in value]
        return self.word(value) if isinstance(value, str) else value


def masked_json(path: Path) -> Iterator[str]:
    """A JSON file as one masked line."""
    yield json.dumps(Masked().document(json.loads(path.read_text(encoding="utf-8"))), separators=(",", ":"))


def masked_csv(path: Path) -> Iterator[str]:
    """A CSV file, masked row by row."""
    masked = Masked()
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            yield "\t".join(masked.word(cell) for cell in row)


_BY_SUFFIX: dict[str, Callable[[Path], Iterator[str]]] = {".json": masked_json, ".csv": masked_csv}


def digest(path: Path) -> str | None:
    """The digest of a file as 16 hexadecimal digits; None for formats without numbers to compare (pictures)."""
    lines = _BY_SUFFIX.get(path.suffix)
    if lines is None:
        return None
    total = hashlib.sha256()
    for line in lines(path):
        total.update(line.encode() + b"\n")
    return total.hexdigest()[:16]
