"""Transformer encoders: the original Transformer, BERT and ViT."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simgpu.workloads.builder import LayerOutput, NetworkBuilder
from simgpu.workloads.network import Network

TEXT = "text"


class _Size(NamedTuple):
    """Layers, width, heads, and inner width of the feed-forward part."""

    layers: int
    width: int
    heads: int
    inner: int


def transformer(input: str, *, sequence: int = 128, vocabulary: int = 37000) -> Network:
    """The encoder of the base Transformer, predicting each token: Vaswani et al., NeurIPS 2017, table 3.

    Six layers of width 512, normalization after each sum, fixed positions. The output layer shares the embedding's
    table (section 3.4); the vocabulary is the English-German one of section 5.1.

    >>> round(transformer("text").parameters / 1e6, 1)
    37.9
    """
    size = _Size(6, 512, 8, 2048)
    net = NetworkBuilder("transformer", "Vaswani et al., NeurIPS 2017, section 3 and table 3")
    x = net.embedding("embedding", net.input("tokens", (sequence,), "int64"), vocabulary, size.width)
    x = net.scale("positions", net.scale("embedding.scale", x))
    x = net.dropout("drop", x, 0.1)
    for number in range(size.layers):
        with net.scope(f"layer{number}"):
            x = _post_norm_layer(net, x, size, net.relu, masked=False, attention_dropout=0.0)
    return net.finish(net.linear("output", x, vocabulary, bias=False, shares="embedding"))


#: Devlin et al. 2019, section 3.
_BERT = {"base": _Size(12, 768, 12, 3072), "large": _Size(24, 1024, 16, 4096)}
_WORD_PIECES = 30522
#: BERT's position embeddings: the longest sequence.
POSITIONS = 512


def bert(size: str, input: str, *, sequence: int = 128, head: str = "mlm") -> Network:
    """BERT: Devlin et al., NAACL 2019, section 3; uncased vocabulary of the authors' release.

    head: ``mlm`` predicts the word at every position with the embedding's table, like Hugging Face's BertForMaskedLM;
    ``classifier`` puts the pooled first position into one of two classes, like their BertForSequenceClassification.

    >>> bert("base", "text").parameters, bert("base", "text", head="classifier").parameters
    (109514298, 109483778)
    """
    shape = _BERT[size]
    net = NetworkBuilder(f"bert-{size}", "Devlin et al., NAACL 2019, section 3")
    words = net.input("tokens", (sequence,), "int64")
    kinds = net.input("token_types", (sequence,), "int64")
    with net.scope("embeddings"):
        x = net.embedding("word", words, _WORD_PIECES, shape.width)
        x = net.add("sum", x, net.embedding("type", kinds, 2, shape.width))
        x = net.layer_norm("norm", net.add_weight("position", x, POSITIONS))
        x = net.dropout("drop", x, 0.1)
    for number in range(shape.layers):
        with net.scope(f"layer{number}"):
            x = _post_norm_layer(net, x, shape, net.gelu, masked=True, attention_dropout=0.1)
    if head == "mlm":
        x = net.layer_norm("head.norm", net.gelu("head.gelu", net.linear("head.transform", x, shape.width)))
        return net.finish(net.linear("head.decoder", x, _WORD_PIECES, shares="embeddings.word"))
    x = net.tanh("pooler.tanh", net.linear("pooler", net.view("first", x, (shape.width,)), shape.width))
    return net.finish(net.linear("classifier", net.dropout("pooler.drop", x, 0.1), 2))


#: Dosovitskiy et al. 2021, table 1.
_VIT = {"base": _Size(12, 768, 12, 3072), "large": _Size(24, 1024, 16, 4096)}


def vit(size: str, input: str) -> Network:
    """ViT with patches of 16 x 16: Dosovitskiy et al., ICLR 2021, table 1; for ImageNet.

    No dropout and no hidden layer in the classifier, as in torchvision.

    >>> vit("base", "imagenet").parameters
    86567656
    """
    shape = _VIT[size]
    net = NetworkBuilder(f"vit-{size}", "Dosovitskiy et al., ICLR 2021, table 1")
    x = net.convolution("patches", net.input("image", (3, 224, 224)), shape.width, 16, stride=16)
    x = net.view("sequence", x, (x.shape[1] * x.shape[2], shape.width))
    x = net.add_weight("positions", net.prepend_weight("class_token", x))
    for number in range(shape.layers):
        with net.scope(f"layer{number}"):
            branch = _attention(net, net.layer_norm("norm1", x), shape, masked=False, dropout=0.0)
            x = net.add("add1", branch, x)
            branch = net.linear("inner", net.layer_norm("norm2", x), shape.inner)
            x = net.add("add2", x, net.linear("outer", net.gelu("gelu", branch), shape.width))
    x = net.view("first", net.layer_norm("norm", x), (shape.width,))
    return net.finish(net.linear("head", x, 1000))


def _post_norm_layer(
    net: NetworkBuilder,
    x: LayerOutput,
    size: _Size,
    activation: Callable[[str, LayerOutput], LayerOutput],
    *,
    masked: bool,
    attention_dropout: float,
) -> LayerOutput:
    """Attention and feed-forward part, each followed by dropout, the sum with its input, and normalization."""
    branch = net.dropout("attention.drop", _attention(net, x, size, masked=masked, dropout=attention_dropout), 0.1)
    x = net.layer_norm("attention.norm", net.add("attention.add", branch, x))
    branch = activation("activation", net.linear("inner", x, size.inner))
    branch = net.dropout("drop", net.linear("outer", branch, size.width), 0.1)
    return net.layer_norm("norm", net.add("add", branch, x))


def _attention(net: NetworkBuilder, x: LayerOutput, size: _Size, *, masked: bool, dropout: float) -> LayerOutput:
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""
    length = x.shape[0]
    heads = (size.heads, length, size.width // size.heads)
    with net.scope("attention"):
        query, key, value = (net.linear(name, x, size.width) for name in ("query", "key", "value"))
        with net.stage("scores"):
            query, key = net.permute("query.heads", query, heads), net.permute("key.heads", key, heads)
            scores = net.scale("scale", net.matmul("scores", query, key, transpose_second=True))
            scores = net.softmax("softmax", net.scale("mask", scores) if masked else scores)
            scores = net.dropout("softmax.drop", scores, dropout) if dropout else scores
            context = net.matmul("context", scores, net.permute("value.heads", value, heads))
            x = net.permute("join", context, (length, size.width))
        return net.linear("output", x, size.width)
