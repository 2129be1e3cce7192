"""A recording that PyTorch found no memory for, told as that."""

from __future__ import annotations

import re

from simgpu.errors import InputError
from simgpu.units import format_bytes

#: What PyTorch's allocators say on a host and on a GPU, with how much they were asked for.
_ASKED = re.compile(r"tried to allocate ([0-9.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
#: What PyTorch says of sizes that its numbers do not hold.
_BEYOND = re.compile(r"Overflow when unpacking|calculation overflowed", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def as_shortage(error: Exception, batch: int) -> InputError | None:
    """The message for a batch that memory does not hold; None where the exception has another reason.

    error: PyTorch's exception, or the `InputError` that was made of it.

    >>> print(as_shortage(RuntimeError("can't allocate memory: you tried to allocate 8589934592 bytes."), 4096))
    record: batch: 4096 samples need more memory than there is: PyTorch asked for another 8 GiB; give a smaller batch
    >>> as_shortage(RuntimeError("the sizes of a and b do not match"), 4096) is None
    True
    """
    cause = error.__cause__ if isinstance(error, InputError) else error
    why = _why(cause)
    if not why:
        return None
    what = f"{batch} samples need more memory than there is: PyTorch {why}"
    return InputError.single("record", "batch", what, "give a smaller batch")


def _why(cause: BaseException | None) -> str:
    if isinstance(cause, MemoryError):
        return "got none"
    if not isinstance(cause, RuntimeError | TypeError):
        return ""
    asked = _ASKED.search(str(cause))
    if asked:
        number, unit = asked.groups()
        return f"asked for another {format_bytes(int(float(number) * _UNITS[unit.lower()]))}"
    return "has no number for the sizes" if _BEYOND.search(str(cause)) else ""
