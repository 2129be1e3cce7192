"""Contexts that cannot be inside each other, because both would change what PyTorch does with a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from simgpu.errors import InputError


class _Thread(threading.local):
    """The kinds of contexts that a thread is in."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()


_HERE = _Thread()


@contextmanager
def alone(kind: str, refusal: InputError) -> Iterator[None]:
    """A context of a kind; raises `refusal` inside another of that kind.

    >>> with alone("example", InputError.single("example", "context", "there is one already", "end it first")):
    ...     with alone("other", InputError.single("other", "context", "there is one already", "end it first")):
    ...         print(sorted(_HERE.kinds))
    ['example', 'other']
    """
    if kind in _HERE.kinds:
        raise refusal
    _HERE.kinds.add(kind)
    try:
        yield
    finally:
        _HERE.kinds.discard(kind)
