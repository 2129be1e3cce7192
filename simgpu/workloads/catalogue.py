"""The model zoo: networks by name, with their inputs and variants. `build` builds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.workloads.network import Network
from simgpu.workloads.networks.alexnet import alexnet, nin, overfeat
from simgpu.workloads.networks.densenet import densenet
from simgpu.workloads.networks.inception import googlenet, inception_v2, inception_v3
from simgpu.workloads.networks.layer_groups import CIFAR10, IMAGENET
from simgpu.workloads.networks.lstm import biglstm
from simgpu.workloads.networks.mobile import mobilenet, squeezenet
from simgpu.workloads.networks.resnet import resnet, small_resnet
from simgpu.workloads.networks.segmentation import ISBI, VOC, fcn, unet
from simgpu.workloads.networks.transformer import POSITIONS, TEXT, bert, transformer, vit
from simgpu.workloads.networks.vgg import vgg

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Variant:
    """An option of a network.

    default: the default value.
    meaning: one line of help.
    words: allowed values of a text option; empty if any.
    input: the only input that the option applies to; None if any.
    most: largest allowed value of a numeric option.
    """

    default: Value
    meaning: str
    words: tuple[str, ...] = ()
    input: str | None = None
    most: int = 2**16

    def objection(self, value: object) -> str | None:
        """Why a value is not allowed; None if it is. Numbers must be above zero and at most `most`."""
        if isinstance(self.default, bool | str):
            fits = type(value) is type(self.default) and (not self.words or value in self.words)
        else:
            kinds = int | float if isinstance(self.default, float) else int
            fits = isinstance(value, kinds) and not isinstance(value, bool) and 0 < value <= self.most
        return None if fits else f"{value!r} is not {self._wanted()}"

    def _wanted(self) -> str:
        if self.words:
            return f"one of {', '.join(self.words)}"
        if isinstance(self.default, bool | str):
            return "true or false" if isinstance(self.default, bool) else "a word"
        number = "number" if isinstance(self.default, float) else "whole number"
        return f"a {number} above zero and at most {self.most}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One network of the zoo: a description, its inputs (the default first) and its variants by name."""

    name: str
    description: str
    factory: Callable[..., Network]
    inputs: tuple[str, ...]
    variants: Mapping[str, Variant] = field(default_factory=lambda: MappingProxyType({}))


_IMAGES = (IMAGENET, CIFAR10)
_SMALL_FIRST = (CIFAR10, IMAGENET)
#: Limits far above anything published: larger values are typing errors and would take minutes to build.
_WIDTH = Variant(1.0, "multiplies the channels", most=64)
_VOCABULARY = 10_000_000

_GROUPED = Variant(
    True, "the 2012 form with two groups and normalization; else the single column of 2014", input=IMAGENET
)
_EARLY = (
    Entry(
        "alexnet",
        "AlexNet (Krizhevsky et al. 2012): five convolutions, three linear layers",
        alexnet,
        _IMAGES,
        {
            "grouped": _GROUPED,
            "conv4_channels": Variant(
                256, "channels of the single column's conv4; 384 in TensorFlow's benchmarks", input=IMAGENET
            ),
        },
    ),
    Entry("overfeat", "OverFeat, fast model (Sermanet et al. 2014)", overfeat, (IMAGENET,)),
    Entry("nin", "Network in Network (Lin et al. 2014)", nin, _IMAGES),
    *(
        Entry(
            f"vgg{depth}",
            f"VGG-{depth} (Simonyan and Zisserman 2015{', lengthened' if depth == 101 else ''})",
            partial(vgg, depth),
            _IMAGES,
            {"batch_norm": Variant(False, "normalization after each convolution")},
        )
        for depth in (11, 13, 16, 19, 101)
    ),
)

_BRANCHED = (
    Entry(
        "googlenet",
        "GoogLeNet, without auxiliary classifiers (Szegedy et al. 2015)",
        googlenet,
        _IMAGES,
        {
            "batch_norm": Variant(False, "as in torchvision: batch normalization, 3 x 3 instead of 5 x 5"),
            "local_response_norm": Variant(True, "after the first and third convolution", input=IMAGENET),
        },
    ),
    Entry("inception-v2", "Inception v2, that is BN-Inception (Ioffe and Szegedy 2015)", inception_v2, _IMAGES),
    Entry(
        "inception-v3",
        "Inception v3, without auxiliary classifier (Szegedy et al. 2016)",
        inception_v3,
        _IMAGES,
        {"side": Variant(299, "pixels along each side of the images", input=IMAGENET, most=4096)},
    ),
    Entry(
        "squeezenet",
        "SqueezeNet 1.0 (Iandola et al. 2016)",
        partial(squeezenet, "1.0"),
        _IMAGES,
        {"batch_norm": Variant(False, "normalization after each convolution, and bypasses", input=CIFAR10)},
    ),
    Entry("squeezenet1.1", "SqueezeNet 1.1 (Iandola et al. 2016)", partial(squeezenet, "1.1"), _IMAGES),
    Entry("mobilenet", "MobileNet v1 (Howard et al. 2017)", mobilenet, _IMAGES, {"width": _WIDTH}),
    Entry("densenet121", "DenseNet-121 (Huang et al. 2017)", partial(densenet, 121), _IMAGES),
)

_STRIDE = {"stride_in_3x3": Variant(False, "bottlenecks downsample in their 3 x 3, as in torchvision")}
_RESIDUAL = (
    *(
        Entry(
            f"resnet{depth}",
            f"ResNet-{depth} (He et al. 2016, table 1)",
            partial(resnet, depth),
            _IMAGES,
            _STRIDE if depth > 34 else {},
        )
        for depth in (18, 34, 50, 101, 152)
    ),
    *(
        Entry(
            f"resnet{depth}",
            f"ResNet-{depth} for small images (He et al. 2016, section 4.2)",
            partial(small_resnet, depth),
            _SMALL_FIRST,
            {"width": _WIDTH},
        )
        for depth in (20, 32, 56)
    ),
    Entry(
        "plain20",
        "Plain20: ResNet-20 without shortcuts (He et al. 2016, section 4.2)",
        partial(small_resnet, 20, shortcuts=False),
        _SMALL_FIRST,
        {"width": _WIDTH},
    ),
)

_SEGMENTATION = (
    *(
        Entry(
            f"fcn{stride}s",
            f"FCN-{stride}s on VGG-16 (Long et al. 2015)",
            partial(fcn, stride),
            (VOC, IMAGENET),
        )
        for stride in (32, 16, 8)
    ),
    Entry("unet", "U-Net (Ronneberger et al. 2015)", unet, (ISBI,)),
)

_SEQUENCES = (
    Entry(
        "biglstm",
        "BIG LSTM, two layers of 8192 units projected to 1024 (Jozefowicz et al. 2016)",
        biglstm,
        (TEXT,),
        {
            "steps": Variant(20, "time steps (words) to unroll", most=1000),
            "vocabulary": Variant(793471, "words in the vocabulary", most=_VOCABULARY),
            "sampled": Variant(8192, "words that the loss samples", most=_VOCABULARY),
        },
    ),
    *(
        Entry(
            f"bert-{size}",
            f"BERT {size} (Devlin et al. 2019)",
            partial(bert, size),
            (TEXT,),
            {
                "sequence": Variant(128, "tokens in a sample, at most the 512 positions it has", most=POSITIONS),
                "head": Variant("mlm", "output head after the encoder", ("mlm", "classifier")),
            },
        )
        for size in ("base", "large")
    ),
    Entry(
        "transformer",
        "encoder of the base Transformer (Vaswani et al. 2017)",
        transformer,
        (TEXT,),
        {
            "sequence": Variant(128, "tokens in a sample"),
            "vocabulary": Variant(37000, "tokens in the vocabulary", most=_VOCABULARY),
        },
    ),
    *(
        Entry(f"vit-{size}", f"ViT {size}, 16 x 16 patches (Dosovitskiy et al. 2021)", partial(vit, size), (IMAGENET,))
        for size in ("base", "large")
    ),
)

_ENTRIES = (*_EARLY, *_BRANCHED, *_RESIDUAL, *_SEGMENTATION, *_SEQUENCES)

#: Every network by its name.
NETWORKS: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def build(name: str, input: str | None = None, /, **variant: Value) -> Network:
    """Builds a network of the zoo; `NETWORKS` lists the names, inputs and variants.

    input: its default input if None. Raises `InputError` for unknown names and invalid values, all in one error.

    >>> build("vgg16", "cifar10").layers[-2].shape
    (10,)
    """
    if name not in NETWORKS:
        raise InputError.single("", "network", f"{name!r} is not in the zoo", did_you_mean(name, NETWORKS))
    entry = NETWORKS[name]
    chosen = input or entry.inputs[0]
    problems = []
    if chosen not in entry.inputs:
        remedy = did_you_mean(chosen, entry.inputs)
        problems.append(Problem("", f"network {name}, input", f"{chosen!r} is not one of its inputs", remedy))
    problems += [problem for key, value in variant.items() for problem in _wrong(entry, chosen, key, value)]
    if problems:
        raise InputError(problems)
    try:
        return entry.factory(chosen, **variant)
    except ValueError as error:  # each value is valid, but the combination is not
        defaults = ", ".join(f"{key}={entry.variants[key].default}" for key in variant)
        remedy = f"choose values closer to the defaults {defaults}" if defaults else ""
        raise InputError.single("", f"network {name}", str(error), remedy) from None


def _wrong(entry: Entry, input: str, key: str, value: Value) -> list[Problem]:
    place = f"network {entry.name}, variant {key}"
    if key not in entry.variants:
        return [Problem("", place, "is not one of its variants", did_you_mean(key, entry.variants))]
    known = entry.variants[key]
    if known.input not in (None, input):
        return [Problem("", place, f"applies only to {known.input}, not to {input!r}", "leave it out")]
    objection = known.objection(value)
    return [Problem("", place, objection, f"its default is {known.default!r}")] if objection else []
