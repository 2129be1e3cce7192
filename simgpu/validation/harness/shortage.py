"""Too little memory, told apart from whatever else may go wrong."""

from __future__ import annotations

import re

#: What PyTorch says on a GPU, on a host, of pinned memory and through the libraries of CUDA.
_SHORTAGE = re.compile(r"out of memory|can't allocate memory|tried to allocate|_ALLOC_FAILED", re.IGNORECASE)


def shortage(error: BaseException) -> str:
    """In one line what memory was missing; empty where the exception, and what it was raised from, is something else.

    >>> shortage(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 3 GiB\\nsee the notes"))
    'CUDA out of memory. Tried to allocate 2.00 GiB'
    >>> shortage(RuntimeError("the sizes of a and b do not match"))
    ''
    """
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        if isinstance(cause, MemoryError):
            return text or "out of memory on the host"
        if isinstance(cause, RuntimeError) and _SHORTAGE.search(text):
            sentences = text.partition("\n")[0].split(". ")
            told = next((at for at, sentence in enumerate(sentences) if "allocate" in sentence.lower()), 0)
            return ". ".join(sentences[: told + 1]).rstrip(".")
        cause = cause.__cause__
    return ""
