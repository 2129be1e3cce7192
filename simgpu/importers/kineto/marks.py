"""The steps that a profile marks, found by their name in its text: without reading the whole file as JSON.

That takes a fiftieth of the time, and nearly always finds what reading finds; but JSON can write a name in other ways,
so whoever reads the file must compare.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.kineto.event import STEP, Event
from simgpu.importers.kineto.profile import Span
from simgpu.io.input_files import open_unzipped

_PIECE = 1 << 16
#: No mark is longer than this, bytes.
_REACH = 1 << 12
#: A mark's name stands in the event itself, behind its arguments at worst.
_TRIES = 4

_DECODER = json.JSONDecoder(parse_float=Decimal)


def marked_steps(path: Path) -> list[Span]:
    r"""The steps of a profile in the order of the file; of a damaged one, those that can be made out.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "profile.json"
    >>> mark = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 1, "tid": 1, "ts": 5, "dur": 2}'
    >>> _ = file.write_text('{"schemaVersion": 1, "traceEvents": [' + mark + "]}")
    >>> marked_steps(file)
    [Span(thread=(1, 1), start=5000, end=7000, name='ProfilerStep#4')]
    """
    found = []
    # What is wrong with the file, or with an event, is told when it is read.
    with suppress(EOFError, OSError, zlib.error):
        for raw in _objects_with(path, STEP.encode()):
            with suppress(InputError):
                event = Event(path, 0, raw)
                if event.is_op and (step := event.step()) is not None:
                    found.append(step)
    return found


def _objects_with(path: Path, word: bytes) -> Iterator[dict[str, Any]]:
    """The innermost objects of a JSON file in whose text a word stands."""
    text, place, is_last = b"", 0, False
    with open_unzipped(path) as file:
        while not is_last:
            piece = file.read(_PIECE)
            text, is_last = text + piece, not piece
            end = len(text) if is_last else len(text) - _REACH
            while 0 <= (place := text.find(word, place)) < end:
                raw, place = _object_around(text, place)
                if raw is not None:
                    yield raw
            cut = max(end - _REACH, 0)
            text, place = text[cut:], max(end - cut, 0)


def _object_around(text: bytes, place: int) -> tuple[dict[str, Any] | None, int]:
    """The innermost object around a place, and the place behind it; None where there is none near."""
    begin = place
    for _ in range(_TRIES):
        begin = text.rfind(b"{", max(place - _REACH, 0), begin)
        if begin < 0:
            break
        part = text[begin : place + _REACH].decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            raw, length = _DECODER.raw_decode(part)
            behind = begin + len(part[:length].encode())
            if behind > place:
                return raw, behind
    return None, place + 1
