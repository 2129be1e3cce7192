"""Words that are similar to a misspelt one, for the remedies of `simgpu.errors.did_you_mean`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

#: Words that are all listed, and those that are listed of more.
_MOST_LISTED, _NEAR = 32, 8
#: Letters that look like digits.
_LOOKS_LIKE = str.maketrans("oil", "011")


def listed(name: str, words: Sequence[str], close: str | None) -> str:
    """All words, or of many those that are most similar to a name. close: the closest of them, if any is close.

    >>> listed("none", ["ideal", "none"], "none")
    'ideal, none'
    """
    if len(words) <= _MOST_LISTED:
        return ", ".join(words)
    similar = difflib.get_close_matches(name.casefold(), words, n=_NEAR, cutoff=0)
    near = similar if close is None or close in similar else [close, *similar[:-1]]
    return f"{', '.join(sorted(near))} and {len(words) - len(near)} others"


def closest(name: str, words: Iterable[str]) -> str | None:
    """The word most similar to a name; one with the same characters in another order comes first. None: none is close.

    >>> closest("vgg61", ["vgg11", "vgg16"])
    'vgg16'
    """
    wanted = name.casefold().translate(_LOOKS_LIKE)
    by_look = {word.casefold().translate(_LOOKS_LIKE): word for word in words}
    transposed = [look for look in by_look if sorted(look) == sorted(wanted)]
    close = difflib.get_close_matches(wanted, transposed or list(by_look), n=1, cutoff=0.6)
    return by_look[close[0]] if close else None
