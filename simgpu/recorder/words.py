"""Real text to train on: the chapters of Python's reference that come with Python, word by word."""

from __future__ import annotations

import re
from collections import Counter

import torch

from simgpu.errors import InputError

#: Words that are told apart; all others are one more.
VOCABULARY = 4000
_WORD = re.compile(r"[A-Za-z]+|[^\sA-Za-z]")


def sentences(batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words (n, steps) by number, and for each the word that follows it; at least `batch` rows.

    The text is that of ``help()`` (`pydoc_data.topics`), its topics in alphabetical order, some 100 000 words and
    marks; it differs a little between versions of Python. Words are numbered by how frequent they are, from 1 to
    `VOCABULARY`; 0 is any other. A row begins where the one before ends.

    Raises `InputError` where the batch is larger than the text.
    """
    from pydoc_data.topics import topics

    words = [word for topic in sorted(topics) for word in _WORD.findall(topics[topic])]
    frequent = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))[:VOCABULARY]
    number = {word: place for place, (word, _) in enumerate(frequent, start=1)}
    text = torch.tensor([number.get(word, 0) for word in words])
    rows = (len(text) - 1) // steps
    if batch > rows:
        what = f"{batch} is more than the {rows} rows of {steps} words that the text has"
        raise InputError.single("record", "batch", what, f"give at most {rows}")
    return text[: rows * steps].reshape(rows, steps), text[1 : rows * steps + 1].reshape(rows, steps)
