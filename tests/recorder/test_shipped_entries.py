"""The shipped recordings of memory-entries: complete, of networks that learnt, and as described in the README."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest

from simgpu.trace.check import check_trace
from simgpu.trace.entries import entries_of, histograms, mean_ratio
from simgpu.trace.epochs import epochs_of
from simgpu.trace.folder import read_trace
from simgpu.trace.model import BlockKind, Origin, Trace

TRACES = Path(__file__).parents[2] / "traces"
#: Name, epochs of training, first and last loss at most, correct labels at least, and the ratio in the README.
RECORDINGS = (
    ("photos-vgg-cpu", 4, 1.6, 1.1, 0.50, 1.84),
    ("photos-resnet-cpu", 4, 0.9, 0.5, 0.79, 1.26),
    ("photos-squeezenet-cpu", 3, 1.4, 1.0, 0.67, 1.49),
    ("words-lstm-cpu", 3, 4.4, 3.1, 0.45, 1.22),
    ("digits-cnn-adam-cpu", 4, 2.6, 0.5, 0.96, 1.18),
)
_COLUMNS = (
    BlockKind.ACTIVATION,
    BlockKind.GRADIENT,
    BlockKind.WEIGHT,
    BlockKind.WEIGHT_GRADIENT,
    BlockKind.OPTIMIZER_STATE,
)
Recording = tuple[Trace, int, float, float, float, float]


@pytest.fixture(params=RECORDINGS, ids=lambda row: row[0])
def recording(request: pytest.FixtureRequest) -> Recording:
    name, *description = request.param
    return (read_trace(TRACES / name), *description)


def test_they_are_valid_recordings_and_small(recording: Recording) -> None:
    trace, *_ = recording
    assert check_trace(trace) == []
    assert trace.info.origin is Origin.RECORDED and trace.info.modelled == ""
    assert "Recorded on a CPU" in trace.info.notes and "1 thread" in trace.info.notes
    assert sum(file.stat().st_size for file in (TRACES / trace.name).iterdir()) < 150_000


def test_every_block_is_measured_at_every_epoch(recording: Recording) -> None:
    trace, epochs, *_ = recording
    assert epochs_of(trace) == tuple(range(epochs + 1))
    counted = {key: sum(result.values()) for key, result in histograms(trace.compressibility).items()}
    expected = {(block.id, epoch): entries_of(block) for block in trace.blocks for epoch in range(epochs + 1)}
    assert counted == expected


def test_the_networks_learnt(recording: Recording) -> None:
    trace, epochs, first, last, right, _ = recording
    description = re.search(
        r"Trained for (\d) epochs of \d+ steps; the mean loss was (\S+) in the first and (\S+) in the last\. "
        r"It then finds (\S+)% of the labels",
        trace.info.notes,
    )
    assert description is not None
    assert int(description[1]) == epochs
    assert last / 2 < float(description[3]) <= last < float(description[2]) <= first
    assert right <= float(description[4]) / 100 < right + 0.01


def test_compression_ratios_match_the_readme(recording: Recording) -> None:
    trace, *_, ratio = recording
    kinds = {block.id: block.kind for block in trace.blocks}
    ratios = [mean_ratio(trace.compressibility)]
    ratios += [mean_ratio([row for row in trace.compressibility if kinds[row.block] is kind]) for kind in _COLUMNS]
    assert round(ratios[0], 2) == ratio
    row = f"| `{trace.name}` | {' | '.join(f'{each:.2f}' for each in ratios)} |"
    assert row in (TRACES / "README.md").read_text(encoding="utf-8")


def test_weights_and_their_momentum_hardly_compress_while_maps_do(recording: Recording) -> None:
    trace, epochs, *_ = recording
    last = [row for row in trace.compressibility if row.epoch == epochs]
    kinds = {block.id: block.kind for block in trace.blocks}
    by_kind = {
        kind: mean_ratio([row for row in last if kinds[row.block] is kind])
        for kind in (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.ACTIVATION)
    }
    assert by_kind[BlockKind.WEIGHT] < 1.01 and by_kind[BlockKind.OPTIMIZER_STATE] < 1.05
    assert by_kind[BlockKind.ACTIVATION] > by_kind[BlockKind.WEIGHT]


def test_at_epoch_0_biases_are_zeros_and_later_they_are_not() -> None:
    trace = read_trace(TRACES / "photos-vgg-cpu")
    result = histograms(trace.compressibility)
    assert result["conv2_1.bias", 0] == {0: 1}
    assert 0 not in result["conv2_1.bias", 4]
    shape = trace.block_by_id["conv2_1.bias"].shape
    assert shape is not None and prod(shape) * 4 == 128
