"""The profile of VGG-13 on an H100, alone and joined, against published facts and walks of the raw events."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

import simgpu
from simgpu.importers import ImportOptions, import_trace
from simgpu.trace.check import check_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "h100-kineto"
PROFILE, GRAPH = FOLDER / "profiler_vgg13-iter41.json", FOLDER / "graph_vgg13-iter41.json"

pytestmark = pytest.mark.skipif(
    not PROFILE.exists(), reason="the recording is not next to the repository (../shared/data/h100-kineto)"
)

#: VGG-13 as published: channels of its convolutions, "M" where their maps are halved; parameters in all.
LAYERS = (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")
PARAMETERS = 133_047_848
BATCH = 512


@pytest.fixture(scope="module")
def events():
    return json.loads(PROFILE.read_text())["traceEvents"]


@pytest.fixture(scope="module")
def alone() -> Trace:
    return import_trace(PROFILE)[0]


@pytest.fixture(scope="module")
def joined() -> Trace:
    return import_trace(PROFILE, ImportOptions(execution_trace=GRAPH))[0]


def total(trace: Trace, kind: BlockKind) -> int:
    return sum(block.bytes for block in trace.blocks if block.kind is kind)


@pytest.mark.parametrize("name", ["alone", "joined"])
def test_kernels_and_times_match_the_recordings_facts(name, request):
    trace: Trace = request.getfixturevalue(name)
    assert len(trace.kernels) == 292
    assert trace.compute_ns == 346_344_000
    assert (trace.info.batch, trace.info.device, trace.info.date) == (BATCH, "NVIDIA H100 80GB HBM3", "2025-02-13")
    assert check_trace(trace) == []
    assert "left out: 33, 26 us in all" in trace.info.notes


def test_kernels_have_their_recorded_start_and_duration(alone, events):
    ran = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    first = ran[0]["ts"]
    recorded = [((event["ts"] - first) * 1000, event["dur"] * 1000) for event in ran]
    assert [(kernel.start_ns, kernel.duration_ns) for kernel in alone.kernels] == recorded


def test_phases_follow_the_threads(alone, events):
    """Autograd runs on a thread of its own here; the optimizer's kernels come after it."""
    thread = {e["args"]["correlation"]: e["tid"] for e in events if e.get("cat") == "cuda_runtime"}
    engine = next(e["tid"] for e in events if e["name"].startswith("autograd::engine"))
    ran = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    is_backward = [thread[event["args"]["correlation"]] == engine for event in ran]
    assert [kernel.phase is Phase.BACKWARD for kernel in alone.kernels] == is_backward
    order = list(dict.fromkeys(kernel.phase for kernel in alone.kernels))
    assert order == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert all(kernel.op.startswith("aten::_foreach") for kernel in alone.kernels if kernel.phase is Phase.OPTIMIZER)


def test_layers_are_modules_forward_and_backward(alone):
    """Backward goes through the layers that forward went through, the other way round."""

    def passed(phase):
        return list(dict.fromkeys(k.layer for k in alone.kernels if k.phase is phase and k.layer is not None))

    expected, convolution, pooling = [], 0, 0
    for layer in LAYERS:
        if layer == "M":
            expected.append(f"MaxPool2d_{pooling}")
            pooling += 1
        else:
            expected += [f"Conv2d_{convolution}", f"ReLU_{convolution}"]
            convolution += 1
    expected += ["AdaptiveAvgPool2d_0", "Linear_0", "ReLU_10", "Dropout_0", "Linear_1", "ReLU_11", "Dropout_1"]
    expected += ["Linear_2", "CrossEntropyLoss_0"]
    assert passed(Phase.FORWARD) == expected
    assert passed(Phase.BACKWARD) == expected[::-1]


def test_alone_the_peak_is_the_framework_s_to_the_byte(alone, events):
    totals = [
        event["args"]["Total Allocated"]
        for event in events
        if event["name"] == "[memory]" and event["args"]["Device Type"] == 1
    ]
    peak = trace_stats(alone).peak_recorded
    assert peak is not None
    assert peak.bytes == max(totals) == alone.info.framework_peak_bytes == 39_343_881_216


def test_joined_peak_differs_by_allocator_rounding_only(joined, alone):
    peak, rounded = trace_stats(joined).peak_recorded, alone.info.framework_peak_bytes
    assert peak is not None and rounded is not None
    assert 0 < rounded - peak.bytes < 1 << 20


def test_weights_gradients_and_optimizer_states_have_their_kinds(joined):
    assert total(joined, BlockKind.WEIGHT) == PARAMETERS * 4
    assert total(joined, BlockKind.WEIGHT_GRADIENT) == PARAMETERS * 4
    assert total(joined, BlockKind.OPTIMIZER_STATE) == 2 * PARAMETERS * 4  # Adam's two moments
    assert sum(block.kind is BlockKind.WEIGHT for block in joined.blocks) == 2 * 13


def test_batch_and_labels_are_read_from_the_recording(joined):
    given = {block.kind: (block.shape, block.dtype) for block in joined.blocks if block.persistent}
    assert given[BlockKind.INPUT] == ((BATCH, 3, 224, 224), "float32")
    assert given[BlockKind.LABEL] == ((BATCH,), "int64")


def test_saved_activations_of_the_recording(joined):
    """One a convolution, which ReLU changes in place; two a pooling: what it gives and where the largest were."""
    expected: Counter[tuple[tuple[int, ...], str | None]] = Counter()
    side, channels = 224, 3
    for layer in LAYERS:
        if layer == "M":
            side //= 2
            expected[(BATCH, channels, side, side), "int64"] += 1
        else:
            channels = int(layer)
        expected[(BATCH, channels, side, side), "float32"] += 1
    expected[(BATCH, 512, 7, 7), "float32"] += 1  # average pooling, to the same size
    counter = Counter(
        (b.shape, b.dtype) for b in joined.blocks if b.kind is BlockKind.ACTIVATION and len(b.shape or ()) == 4
    )
    assert counter == expected
    of_first = next(b for b in joined.blocks if b.shape == (BATCH, 64, 224, 224))
    writers = [kernel.op for kernel in joined.kernels if of_first.id in kernel.writes]
    assert writers == ["aten::cudnn_convolution"] + ["aten::add_"] * 4 + ["aten::clamp_min_"] * 4


def test_lifetimes_follow_the_recorded_allocations(joined):
    """Feature maps go when the layer that reads them last is through; weights' gradients are still held at the end."""
    layer = {kernel.id: kernel.layer for kernel in joined.kernels}
    last_use = {name: kernel.id for kernel in joined.kernels for name in (*kernel.reads, *kernel.writes)}
    maps = [b for b in joined.blocks if b.kind is BlockKind.ACTIVATION and len(b.shape or ()) == 4]
    assert maps
    assert [layer[block.release] for block in maps] == [layer[last_use[block.id]] for block in maps]
    assert {block.release for block in joined.blocks if block.kind is BlockKind.WEIGHT_GRADIENT} == {"end"}


def test_blocks_are_the_same_with_and_without_memory_events(joined, events, tmp_path):
    """Storage ids come back; that is found out with memory events and without."""
    document = json.loads(PROFILE.read_text())
    document["traceEvents"] = [event for event in events if event["name"] != "[memory]"]
    (tmp_path / "profile.json").write_text(json.dumps(document))
    trace, _ = import_trace(tmp_path / "profile.json", ImportOptions(execution_trace=GRAPH))
    kinds = set(BlockKind) - {BlockKind.OTHER, BlockKind.WORKSPACE}
    assert {kind: total(trace, kind) for kind in kinds} == {kind: total(joined, kind) for kind in kinds}
    touched = [[block.bytes for block in t.blocks if block.kind in kinds] for t in (trace, joined)]
    assert sorted(touched[0]) == sorted(touched[1])


def test_policies_run_on_it(joined):
    node = simgpu.load_node("h100")
    plain = simgpu.simulate(joined, node, "none")
    swapped = simgpu.simulate(joined, node, "vdnn")
    peak = trace_stats(joined).peak_recorded
    assert peak is not None
    assert plain.metrics.device_peak_bytes == peak.bytes
    assert plain.metrics.iteration_ns == joined.compute_ns
    assert swapped.metrics.device_peak_bytes < plain.metrics.device_peak_bytes
    assert swapped.metrics.iteration_ns > plain.metrics.iteration_ns


@pytest.mark.slow
def test_folder_and_gzip_give_the_same_bytes(joined, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    for file in (PROFILE, GRAPH):
        (packed / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    write_trace(joined, tmp_path / "first")
    for number, source in enumerate((FOLDER, packed)):
        trace, recognised = import_trace(source)
        assert recognised == "PyTorch profile joined with an execution trace"
        write_trace(trace, tmp_path / str(number))
        for file in ("trace.yaml", "kernels.csv", "blocks.csv"):
            assert (tmp_path / str(number) / file).read_bytes() == (tmp_path / "first" / file).read_bytes()
