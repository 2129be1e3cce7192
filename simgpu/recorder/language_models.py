"""A built-in recurrent language model, trained on the text of Python's reference."""

from __future__ import annotations

import re
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simgpu.errors import InputError
from simgpu.recorder.workload import Workload

_WIDTH, _HIDDEN, _STEPS = 128, 512, 5


class _Memory(nn.Module):
    """LSTM with projected output (Sak et al. 2014); one matrix product computes the input part of all words."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(_WIDTH, 4 * _HIDDEN)
        self.recurrent = nn.Parameter(nn.init.xavier_uniform_(torch.empty(_WIDTH, 4 * _HIDDEN)))
        self.projection = nn.Parameter(nn.init.xavier_uniform_(torch.empty(_HIDDEN, _WIDTH)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Outputs (batch x words, width) of words (batch, words, width)."""
        batch, steps, _ = words.shape
        inputs = self.input(words.flatten(0, 1)).unflatten(0, (batch, steps))
        h, c = words.new_zeros(batch, _WIDTH), words.new_zeros(batch, _HIDDEN)
        outputs = []
        for step in range(steps):
            enter, forget, new, leave = torch.addmm(inputs[:, step], h, self.recurrent).unsafe_chunk(4, 1)
            c = (forget.sigmoid_() * c).add_(enter.sigmoid_() * new.tanh_())
            h = (leave.sigmoid_() * c.tanh()).mm(self.projection)
            outputs.append(h)
        return torch.stack(outputs, 1).flatten(0, 1)


class _LanguageModel(nn.Module):
    """Embedding, LSTM and softmax layer, as in the large models of Jozefowicz et al. (2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, _WIDTH)
        self.lstm = _Memory()
        self.softmax = nn.Linear(_WIDTH, VOCABULARY + 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.lstm(self.embedding(words))).unflatten(0, words.shape)


def words_lstm(batch: int) -> Workload:
    """`_LanguageModel` on Python's reference: predicts the next word after each word of a five-word row."""
    words, following = sentences(batch, _STEPS)

    def loss(scores: torch.Tensor, next_words: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), next_words.flatten())

    return Workload(
        _LanguageModel(),
        (words[:batch].clone(),),
        (following[:batch].clone(),),
        loss,
        DataLoader(TensorDataset(words, following), batch_size=batch, shuffle=True),
        f"the first {batch} of {len(words)} rows of {_STEPS} words of Python's reference",
    )


#: The most frequent words, each with its own number; all other words share number 0.
VOCABULARY = 4000
_WORD = re.compile(r"[A-Za-z]+|[^\sA-Za-z]")


def sentences(batch: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns word numbers (n, steps) and, for each word, the number of the next word; at least `batch` rows.

    The text is that of ``help()`` (`pydoc_data.topics`), with topics in alphabetical order: some 100 000 words and
    punctuation marks, slightly different between Python versions. Words are numbered by frequency, from 1 to
    `VOCABULARY`; 0 stands for any other word. Rows are consecutive.

    Raises `InputError` if the batch has more rows than the text.
    """
    from pydoc_data.topics import topics

    words = [word for topic in sorted(topics) for word in _WORD.findall(topics[topic])]
    frequent = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))[:VOCABULARY]
    number = {word: place for place, (word, _) in enumerate(frequent, start=1)}
    text = torch.tensor([number.get(word, 0) for word in words])
    rows = (len(text) - 1) // steps
    if batch > rows:
        what = f"{batch} exceeds the {rows} rows of {steps} words in the text"
        raise InputError.single("record", "batch", what, f"give at most {rows}")
    return text[: rows * steps].reshape(rows, steps), text[1 : rows * steps + 1].reshape(rows, steps)
