"""Recurrent language models: BigLSTM."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network

_HIDDEN = 8192
_PROJECTED = 1024
_LAYERS = 2
_DROPOUT = 0.1


def biglstm(input: str, *, steps: int = 20, vocabulary: int = 793471, sampled: int = 8192) -> Network:
    """BIG LSTM: Jozefowicz et al., "Exploring the limits of language modeling", arXiv:1602.02410, table 1.

    Two layers of 8192 units, each projected to 1024, unrolled over `steps` words. Input and output words are rows of
    two (vocabulary, 1024) tables with sparse gradients. The loss is computed over `sampled` words (section 3.1) instead
    of all; the score of the correct word, one more per step, is left out. With the paper's vocabulary it has 1.8
    billion parameters; the also quoted 1.04 billion are those of the model that reads characters.

    >>> round(biglstm("text").parameters / 1e9, 1)
    1.8
    """
    if sampled > vocabulary:
        problem = f"the loss cannot sample {sampled} words of a vocabulary of {vocabulary}"
        raise InputError.single("", "network biglstm, variant sampled", problem, "choose a larger vocabulary too")
    net = NetworkBuilder("biglstm", "Jozefowicz et al., arXiv:1602.02410, table 1")
    words = net.input("words", (steps,), "int64")
    state = [
        (net.input(f"h{layer}", (_PROJECTED,)), net.input(f"c{layer}", (_HIDDEN,))) for layer in range(1, _LAYERS + 1)
    ]
    x = net.embedding("embedding", words, vocabulary, _PROJECTED, sparse_gradient=True)
    x = net.dropout("drop0", x, _DROPOUT)
    outputs = []
    for step in range(steps):
        y = net.view(f"word{step}", x, (_PROJECTED,))
        for layer in range(1, _LAYERS + 1):
            y, cell = _step(net, y, state[layer - 1], layer, step)
            state[layer - 1] = (y, cell)
            y = net.dropout(f"lstm{layer}.step{step}.drop", y, _DROPOUT)
        outputs.append(net.view(f"output{step}", y, (1, _PROJECTED)))
    x = net.concatenate("outputs", outputs)
    return net.finish(net.sampled_linear("softmax", x, vocabulary, sampled))


def _step(
    net: NetworkBuilder, x: LayerOutput, state: tuple[LayerOutput, LayerOutput], layer: int, step: int
) -> tuple[LayerOutput, LayerOutput]:
    """Projected output and cell state of one layer at one word; all words use the weights of the first."""
    first = f"lstm{layer}.step0" if step else None
    with net.scope(f"lstm{layer}.step{step}"):
        y, cell = net.lstm_cell("cell", x, *state, shares=f"{first}.cell" if first else None)
        y = net.linear("projection", y, _PROJECTED, bias=False, shares=f"{first}.projection" if first else None)
    return y, cell
