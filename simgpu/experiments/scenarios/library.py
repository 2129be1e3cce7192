"""Traces and nodes that were loaded, kept for who asks for the same again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

Loaded = TypeVar("Loaded")


class Library:
    """The things last asked for, by keys that say all that they depend on. Threads may share one.

    What could not be loaded is not kept. A file that changes while it is kept is not read again.

    >>> library = Library(size=2)
    >>> [library.get(key, lambda: key.upper()) for key in ("a", "b", "a", "c")], library.get("a", lambda: "again")
    (['A', 'B', 'A', 'C'], 'A')
    """

    def __init__(self, size: int = 32) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """What is kept under a key, else what `load` gives."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = load()
                if len(self._kept) > self._size:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            found: Loaded = self._kept[key]
            return found
