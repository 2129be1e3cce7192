"""`CompileForm`: what of a model ``torch.compile`` compiles."""

from enum import StrEnum


class CompileForm(StrEnum):
    """What is compiled, each as one graph."""

    LAYERS = "layers"  # each layer of the model; embedding, last normalization, logits and loss run eagerly
    MODEL = "model"  # the model with the loss that it computes
