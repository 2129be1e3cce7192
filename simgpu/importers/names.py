"""What kernels and blocks are called in a trace: ids where a recording has none of its own, and names fit for it."""

from __future__ import annotations


class StorageNames:
    """Gives each new block of a storage its name: ids of storages come back once their memory is free.

    >>> names = StorageNames()
    >>> names.next(7), names.next(7), names.next(8)
    ('s7', 's7.2', 's8')
    """

    def __init__(self) -> None:
        self._given: dict[int, int] = {}

    def next(self, storage: int) -> str:
        """The name of the next block in a storage."""
        count = self._given[storage] = self._given.get(storage, 0) + 1
        return f"s{storage}" if count == 1 else f"s{storage}.{count}"


def kernel_ids(count: int) -> list[str]:
    """Numbers from 1, padded with zeros so that they sort as text.

    >>> kernel_ids(10)[0], kernel_ids(10)[9]
    ('01', '10')
    """
    return [str(position + 1).zfill(len(str(count))) for position in range(count)]


def printable(name: str) -> str:
    r"""A name as the trace format has it: printable, without spaces around it.

    >>> printable(" a\nkernel "), printable("")
    ('a kernel', 'unnamed')
    """
    return "".join(letter if letter.isprintable() else " " for letter in name).strip() or "unnamed"
