"""Parameters and multiply-accumulates without an exact published figure, counted here layer by layer.

The counts are written from the sizes that the papers give, without the zoo's own builder; published figures, rounded as
they are, stand next to them.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from simgpu.workloads.catalogue import build


def convolution(before: int, after: int, kernel: int = 3) -> int:
    """Parameters of a square convolution with a bias."""
    return after * (before * kernel**2 + 1)


def linear(before: int, after: int) -> int:
    """Parameters of a linear layer with a bias."""
    return after * (before + 1)


# Jozefowicz et al. 2016, text and table 1 (2-layer LSTM-8192-1024): a vocabulary of 793471 words, word vectors of 1024,
# two LSTM layers of 8192 units, each projected to 1024, unrolled for 20 steps; a loss over 8192 samples.
WORDS, UNITS, PROJECTED, SAMPLED, STEPS = 793471, 8192, 1024, 8192, 20


def test_parameters_of_biglstm_match_a_count_by_hand() -> None:
    gates = 4 * UNITS * (PROJECTED + PROJECTED) + 4 * UNITS
    layer = gates + UNITS * PROJECTED
    assert build("biglstm").parameters == WORDS * PROJECTED + 2 * layer + linear(PROJECTED, WORDS) == 1_776_882_559


def test_macs_of_biglstm_match_a_count_by_hand() -> None:
    layer = 4 * UNITS * (PROJECTED + PROJECTED) + UNITS * PROJECTED
    assert build("biglstm").macs == STEPS * (2 * layer + SAMPLED * PROJECTED)


@pytest.mark.parametrize("sequence", [128, 512])
def test_macs_of_bert_base_match_a_count_by_hand(sequence: int) -> None:
    """Devlin et al. 2019, section 3: 12 layers of width 768, inner width 3072, 30522 word pieces."""
    width = 768
    projections = 4 * sequence * width**2
    products = 2 * sequence**2 * width
    inner = 2 * sequence * width * 3072
    encoder = 12 * (projections + products + inner)
    assert build("bert-base", sequence=sequence).macs == encoder + sequence * width * (width + 30522)
    assert build("bert-base", sequence=sequence, head="classifier").macs == encoder + width * (width + 2)


def test_bert_base_has_the_published_number_of_operations() -> None:
    """Jiao et al., TinyBERT, EMNLP Findings 2020, table 1: 22.5 billion on 128 tokens, two for each product."""
    assert 2 * build("bert-base", head="classifier").macs / 1e9 == pytest.approx(22.5, rel=0.01)


#: Of each block of NIN for ImageNet: side of its maps, channels in and out, first kernel.
NIN = ((54, 3, 96, 11), (27, 96, 256, 5), (13, 256, 384, 3))


def test_network_in_network_for_imagenet_matches_a_count_by_hand() -> None:
    """The authors' Caffe model: three blocks of equal channels and one of 1024, 1024 and 1000 on 6 x 6."""
    parameters = macs = 0
    for side, before, after, kernel in NIN:
        parameters += convolution(before, after, kernel) + 2 * convolution(after, after, 1)
        macs += side**2 * after * (before * kernel**2 + 2 * after)
    parameters += convolution(384, 1024) + convolution(1024, 1024, 1) + convolution(1024, 1000, 1)
    macs += 6**2 * (1024 * 384 * 9 + 1024 * 1024 + 1000 * 1024)
    network = build("nin", "imagenet")
    assert (network.parameters, network.macs) == (parameters, macs)
    assert parameters == 7_595_176


def test_parameters_and_macs_of_unet_match_a_count_by_hand() -> None:
    """Ronneberger et al. 2015, figure 1; implementations publish 31.03 M parameters."""
    widths = (64, 128, 256, 512, 1024)
    parameters, macs, side = convolution(1, 64) + convolution(64, 64), 0, 572
    macs += 570**2 * 64 * 9 + 568**2 * 64 * 64 * 9
    side = 568
    for before, after in pairwise(widths):
        side //= 2
        parameters += convolution(before, after) + convolution(after, after)
        macs += 9 * after * (before * (side - 2) ** 2 + after * (side - 4) ** 2)
        side -= 4
    assert side == 28
    for before, after in pairwise(reversed(widths)):
        parameters += convolution(before, after, 2) + convolution(before, after) + convolution(after, after)
        macs += side**2 * before * after * 4
        side *= 2
        macs += 9 * after * (before * (side - 2) ** 2 + after * (side - 4) ** 2)
        side -= 4
    parameters += convolution(64, 2, 1)
    macs += side**2 * 64 * 2
    network = build("unet")
    assert (network.parameters, network.macs, side) == (parameters, macs, 388)
    assert round(network.parameters / 1e6, 2) == 31.03


VGG16 = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


def test_parameters_of_fcn_32s_match_a_count_by_hand() -> None:
    """Long et al. 2015, section 4: VGG-16's convolutions, its linear layers as convolutions, 21 classes enlarged."""
    trunk = sum(convolution(before, after) for before, after in pairwise(VGG16))
    head = convolution(512, 4096, 7) + convolution(4096, 4096, 1) + convolution(4096, 21, 1)
    enlarging = 21 * 21 * 64**2
    assert build("fcn32s").parameters == trunk + head + enlarging
    assert round((trunk + head) / 1e6) == 134, "the figure of the paper's table 1"


def test_parameters_and_macs_of_vgg_101_match_a_count_by_hand() -> None:
    """VGG-19's second and third stage lengthened to 22 and 66 convolutions, all else as it is."""
    stages = ((224, 3, 64, 2), (112, 64, 128, 22), (56, 128, 256, 66), (28, 256, 512, 4), (14, 512, 512, 4))
    parameters = linear(7 * 7 * 512, 4096) + linear(4096, 4096) + linear(4096, 1000)
    macs = 7 * 7 * 512 * 4096 + 4096 * 4096 + 4096 * 1000
    for side, before, width, count in stages:
        parameters += convolution(before, width) + (count - 1) * convolution(width, width)
        macs += side**2 * 9 * width * (before + (count - 1) * width)
    network = build("vgg101")
    assert (network.parameters, network.macs) == (parameters, macs)
    assert sum(count for *_, count in stages) + 3 == 101
