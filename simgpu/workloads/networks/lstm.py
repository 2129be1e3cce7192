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

    Two layers of 8192 units, each projected to 1024, unrolled over `steps` words; words come in and go out as rows of
    two (vocabulary, 1024) tables, whose gradients are sparse. The loss is taken over `sampled` words (section 3.1)
    rather than all; the right word's own score, one more a step, is left out. With the paper's vocabulary it has 1.8
    billion parameters; the 1.04 billion that are also quoted belong to the model that reads characters.

    >>> round(biglstm("text").parameters / 1e9, 1)
    1.8
    """
    if sampled > vocabulary:
        what = f"the loss cannot be taken over {sampled} words where {vocabulary} are known"
        raise InputError.single("", "network biglstm, variant sampled", what, "choose a larger vocabulary with it")
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
    """Output, projected, and cell state of one layer at one word; all words use the weights of the first."""
    first = f"lstm{layer}.step0" if step else None
    with net.scope(f"lstm{layer}.step{step}"):
        y, cell = net.lstm_cell("cell", x, *state, shares=f"{first}.cell" if first else None)
        y = net.linear("projection", y, _PROJECTED, bias=False, shares=f"{first}.projection" if first else None)
    return y, cell
