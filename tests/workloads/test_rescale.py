"""A trace at another batch: which sizes and durations grow, which stay, and the notes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from random import Random

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace
from simgpu.trace.chain import chain
from simgpu.trace.check import check_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel, Origin, Phase, SavedTensor, Trace, TraceInfo
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from simgpu.workloads.rescale.kernels import Rescaler
from simgpu.workloads.rescale.samples import sample_sides
from simgpu.workloads.timemodel.model import WORKSPACE_LIMIT

SHIPPED = ("vgg11-cifar-cpu", "resnet20-cifar-cpu")


@pytest.mark.parametrize("name", SHIPPED)
def test_rescaling_to_the_recorded_batch_returns_the_recording(name: str) -> None:
    trace = simgpu.load_trace(name)
    assert at_batch(trace, trace.info.batch) is trace


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("batch", [1, 7, 64, 512])
def test_weights_keep_their_size_and_activations_grow(name: str, batch: int) -> None:
    trace = simgpu.load_trace(name)
    other = at_batch(trace, batch)
    assert check_trace(other) == []
    assert (other.info.batch, other.info.origin) == (batch, Origin.MODELLED)
    assert "Rescaled from batch 32 (recorded)" in other.info.notes
    for was, now in zip(trace.blocks, other.blocks, strict=True):
        if was.kind in (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE):
            assert now == was
        elif was.shape and was.shape[0] == 32 and was.kind in (BlockKind.INPUT, BlockKind.ACTIVATION):
            assert now.bytes * 32 == was.bytes * batch
            assert now.shape == (batch, *was.shape[1:])


def networks() -> list[Trace]:
    """Shipped and modelled traces, and each with some sizes, operations, durations and lists of blocks changed."""
    traces = [simgpu.load_trace(name) for name in SHIPPED]
    gpu = simgpu.load_node("v100").gpu
    traces += [build_trace(name, batch=8, gpu=gpu) for name in ("resnet18", "vgg11", "densenet121")]
    rng = Random(0)
    for trace in traces[:]:
        blocks = [replace(b, bytes=b.bytes * rng.choice((1, 1, 1, 2)), shape=None) for b in trace.blocks]
        kernels = [
            replace(
                kernel,
                flops=rng.choice((kernel.flops, kernel.flops, None)),
                dram_bytes=rng.choice((kernel.dram_bytes, None)),
                duration_ns=rng.choice((kernel.duration_ns, 1000)),
                reads=kernel.reads if rng.random() < 0.9 else (*kernel.reads, *kernel.writes[:1]),
            )
            for kernel in trace.kernels
        ]
        traces.append(replace(trace, blocks=tuple(blocks), kernels=tuple(kernels)))
    return traces


@pytest.mark.slow
def test_rescaling_equal_kernels_once_equals_rescaling_each(monkeypatch: pytest.MonkeyPatch) -> None:
    once = [at_batch(trace, batch) for trace in networks() for batch in (1, 5, 64)]
    monkeypatch.setattr(Rescaler, "kernel", Rescaler._rescaled)
    each = [at_batch(trace, batch) for trace in networks() for batch in (1, 5, 64)]
    assert once == each


def test_the_samples_of_a_trace_are_those_of_that_trace_and_cannot_be_changed() -> None:
    one, other = chain([5], [7], [100]), chain([5, 6], [7, 8], [100, 200])
    sides = [sample_sides(trace) for trace in (one, other, one, one)]
    assert sides[0] == sides[2] != sides[1]
    assert sides[3] is sides[2]
    with pytest.raises(TypeError):
        sides[0]["x1"] = None  # type: ignore[index]


@pytest.mark.parametrize("name", SHIPPED)
def test_doubling_and_halving_the_batch_restores_the_trace(name: str) -> None:
    trace = simgpu.load_trace(name)
    back = at_batch(at_batch(trace, 2 * trace.info.batch), trace.info.batch)
    assert [block.bytes for block in back.blocks] == [block.bytes for block in trace.blocks]
    for was, now in zip(trace.kernels, back.kernels, strict=True):
        assert abs(was.duration_ns - now.duration_ns) <= 1


def test_a_saved_tensor_grows_with_its_block() -> None:
    saved = (
        SavedTensor("x1", 100, "F1", "B2", "F2"),
        SavedTensor("x1", 25, "F1", None, "F2"),
        SavedTensor("x2", 600, "F2", "B2"),
    )
    trace = replace(chain([5, 7], [10, 14], [100, 200]), saved=saved)
    other = at_batch(trace, 3 * trace.info.batch)
    assert other.saved == tuple(replace(tensor, bytes=3 * tensor.bytes) for tensor in saved)
    assert check_trace(other) == []
    # A weight stays, and so does what is saved of it.
    shipped = simgpu.load_trace("resnet20-cifar-cpu")
    weight = next(block for block in shipped.blocks if block.kind is BlockKind.WEIGHT)
    of_weight = SavedTensor(weight.id, weight.bytes, None, shipped.kernels[-1].id)
    assert at_batch(replace(shipped, saved=(of_weight,)), 64).saved == (of_weight,)


V100 = "v100"
#: Networks with a pair of batches: of images and text, larger and smaller, with all kinds of layers.
ZOO = (
    ("resnet50", 64, 16),
    ("vgg16", 32, 128),
    ("densenet121", 32, 64),
    ("mobilenet", 32, 64),
    ("bert-base", 8, 32),
    ("vit-base", 16, 32),
    ("biglstm", 128, 256),
    ("unet", 1, 4),
)


#: The same for other habits with memory: gradients are rewritten and added to, results of convolutions too.
IN_PLACE = (
    ("vgg16", 256, 64),
    ("resnet34", 256, 96),
    ("resnet152", 64, 16),
    ("fcn32s", 8, 2),
    ("googlenet", 96, 7),
    ("unet", 1, 4),
    ("mobilenet", 32, 64),
    ("bert-base", 8, 32),
)


@cache
def from_zoo(name: str, batch: int, framework: str = "pytorch") -> Trace:
    optimizer = "plain-sgd" if framework == "fused" else "sgd"
    return build_trace(name, batch=batch, gpu=simgpu.load_node(V100).gpu, framework=framework, optimizer=optimizer)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "batch", "other", "framework"),
    [(*row, "pytorch") for row in ZOO]
    + [(*row, framework) for row in IN_PLACE for framework in ("pytorch-1.5", "cudnn", "fused")],
)
def test_a_rescaled_modelled_trace_equals_a_trace_modelled_at_that_batch(
    name: str, batch: int, other: int, framework: str
) -> None:
    """Both come from the same model, so sizes, workspaces, durations, algorithms and operations are equal."""
    rescaled, built = at_batch(from_zoo(name, batch, framework), other), from_zoo(name, other, framework)
    assert check_trace(rescaled) == []
    assert rescaled.compute_ns == built.compute_ns
    assert rescaled.blocks == built.blocks
    assert rescaled.kernels == built.kernels
    assert rescaled.algorithms == built.algorithms
    assert "unknown shape" not in rescaled.info.notes


@pytest.mark.parametrize("other", [64, 128])
def test_a_raised_workspace_limit_is_preserved_at_another_batch(other: int) -> None:
    """At 256 samples the fastest convolutions need more than the default limit; at 64 they do not."""

    def high(batch: int) -> Trace:
        gpu = simgpu.load_node("k40").gpu
        return build_trace("vgg16", batch=batch, gpu=gpu, framework="fused", workspace_limit=16 * 2**30)

    rescaled, built = at_batch(high(256), other), high(other)
    assert max(choice.workspace_bytes for choice in high(256).algorithms) > WORKSPACE_LIMIT
    assert rescaled.kernels == built.kernels
    assert rescaled.algorithms == built.algorithms


def test_a_lowered_workspace_limit_is_preserved_at_another_batch(tmp_path: Path) -> None:
    """A trace records its workspace limit, also on disk."""
    rescaled, _ = rescaled_with(tmp_path, workspace_limit=2**20)
    assert max(choice.workspace_bytes for choice in rescaled.algorithms) <= 2**20


def test_the_limit_of_a_task_is_preserved_at_another_batch(tmp_path: Path) -> None:
    """Of inputs, result and workspace together, which is on disk as `task_limit`."""
    rescaled, small = rescaled_with(tmp_path, task_limit=2**30)
    assert len(rescaled.algorithms) < len(small.algorithms)
    sizes = {block.id: block.bytes for block in rescaled.blocks if block.kind is not BlockKind.WORKSPACE}
    operands = {kernel.id: {*kernel.reads, *kernel.writes} for kernel in rescaled.kernels}
    for choice in rescaled.algorithms:
        data = sum(sizes.get(b, 0) for b in operands[choice.kernel])
        assert not choice.workspace_bytes or choice.workspace_bytes + data <= 1.01 * 2**30


def rescaled_with(folder: Path, **limit: int) -> tuple[Trace, Trace]:
    """VGG-16 modelled under a limit for 8 samples, rescaled to 64, from memory and from disk; and before."""

    def limited(batch: int) -> Trace:
        return build_trace("vgg16", batch=batch, gpu=simgpu.load_node(V100).gpu, **limit)

    write_trace(limited(8), folder / "limited")
    for small in (limited(8), simgpu.load_trace(folder / "limited")):
        rescaled = at_batch(small, 64)
        assert rescaled.algorithms == limited(64).algorithms
    return rescaled, small


@pytest.mark.parametrize("name", ["vgg16", "resnet34"])
def test_at_batch_1_only_the_flops_of_the_loss_differ(name: str) -> None:
    """The loss writes two numbers, more than the one sample; its duration depends on its bytes only."""
    rescaled, built = at_batch(from_zoo(name, 256, "fused"), 1), from_zoo(name, 1, "fused")
    assert (rescaled.blocks, rescaled.algorithms) == (built.blocks, built.algorithms)
    differ = [(was, now) for was, now in zip(built.kernels, rescaled.kernels, strict=True) if was != now]
    assert [(was.op, replace(now, flops=was.flops)) for was, now in differ] == [("nll_loss_forward", differ[0][0])]


def test_a_workspace_added_at_another_batch_has_the_position_of_the_model() -> None:
    gpu = simgpu.load_node("a100").gpu
    many, few = (build_trace("googlenet", batch=batch, gpu=gpu) for batch in (96, 7))
    new = few.block_by_id.keys() - many.block_by_id.keys()
    assert new
    assert all(few.block_by_id[name].kind is BlockKind.WORKSPACE for name in new)
    assert at_batch(many, 7).blocks == few.blocks
    assert at_batch(few, 96).blocks == many.blocks


def test_a_gathered_table_grows_with_the_batch_and_a_sampled_one_does_not() -> None:
    """The first dimension of both is a multiple of the batch; only one has a row for each token."""
    before, after = (from_zoo("biglstm", 128).block_by_id, at_batch(from_zoo("biglstm", 128), 256).block_by_id)
    for name, growth in (("embedding.weight.grad", 2), ("softmax.sampled_weight", 1), ("softmax.weight.grad", 1)):
        assert after[name].bytes == growth * before[name].bytes


def test_transformed_filters_do_not_grow_with_the_batch() -> None:
    trace = from_zoo("vgg16", 32)
    before, after = (
        {(row.kernel, row.algorithm): row.workspace_bytes for row in each.algorithms}
        for each in (trace, at_batch(trace, 128))
    )
    winograd = {key for key in before if key[1] == "winograd"}
    assert winograd and {key for key in after if key[1] == "winograd"} == winograd
    assert all(after[key] == before[key] for key in winograd)


def test_a_convolution_keeps_its_recorded_algorithm_even_if_it_is_not_the_fastest() -> None:
    trace = from_zoo("vgg16", 32)
    kernel = trace.kernels[0]
    slowest = [row for row in trace.algorithms if row.kernel == kernel.id][-1]
    assert slowest.algorithm not in ("implicit_precomp_gemm", "winograd")
    workspace = trace.block_by_id[f"workspace:{kernel.id}"]
    changed = replace(
        trace,
        kernels=(replace(kernel, duration_ns=slowest.duration_ns), *trace.kernels[1:]),
        blocks=tuple(
            replace(block, bytes=slowest.workspace_bytes) if block is workspace else block for block in trace.blocks
        ),
    )
    rescaled = at_batch(changed, 64)
    (row,) = [r for r in rescaled.algorithms if (r.kernel, r.algorithm) == (kernel.id, slowest.algorithm)]
    assert rescaled.kernels[0].duration_ns == row.duration_ns
    assert rescaled.block_by_id[workspace.id].bytes == row.workspace_bytes


def test_a_workspace_follows_its_algorithm_if_its_kernel_is_timed_separately() -> None:
    """The workspace is as large as Winograd's transformed filters, which do not grow."""
    trace = from_zoo("vgg16", 32)
    row = next(row for row in trace.algorithms if row.algorithm == "winograd")
    name = f"workspace:{row.kernel}"
    apart = replace(
        trace,
        kernels=tuple(replace(kernel, duration_ns=kernel.duration_ns + 1) for kernel in trace.kernels),
        blocks=tuple(
            replace(block, bytes=row.workspace_bytes) if block.id == name else block for block in trace.blocks
        ),
    )
    assert at_batch(apart, 128).block_by_id[name].bytes == row.workspace_bytes


def test_recorded_durations_are_scaled_by_the_ratio_of_modelled_ones() -> None:
    """A recorded duration of twice the model's stays twice the model's at the other batch."""
    trace = from_zoo("resnet50", 64)
    slow = replace(
        trace,
        kernels=tuple(replace(kernel, duration_ns=2 * kernel.duration_ns) for kernel in trace.kernels),
        algorithms=tuple(replace(row, duration_ns=2 * row.duration_ns) for row in trace.algorithms),
    )
    built = from_zoo("resnet50", 16)
    rescaled = at_batch(slow, 16)
    assert [k.duration_ns for k in rescaled.kernels] == [2 * k.duration_ns for k in built.kernels]


def test_products_of_unknown_shape_are_counted_in_the_notes() -> None:
    trace = from_zoo("vgg16", 32)
    bare = replace(trace, blocks=tuple(replace(block, shape=None) for block in trace.blocks))
    products = sum("bias" not in k.op and ("conv2d" in k.op or "linear" in k.op) for k in trace.kernels)
    assert f"rescaled by operations and bytes: {products}." in at_batch(bare, 64).info.notes


DATA = Path(__file__).parents[3] / "shared" / "data"
IMPORTED = (
    "h100-triosim/vgg13",
    "titanv-dtr/resnet32-b56.log",
    "titanv-dtr/densenet121-b84.log",
    "titanv-dtr/transformer-b10.log",
    "titanv-dtr/unet-b6.log",
    "h100-kineto/profiler_vgg13-iter41.json",
    "a100-g10/bert-256",
    "a100-g10/vit-256",
)


@cache
def imported(name: str) -> Trace:
    if not (DATA / name).exists():
        pytest.skip(f"the recording is not next to the repository (../shared/data/{name})")
    graph = DATA / "h100-kineto" / "graph_vgg13-iter41.json"
    return import_trace(DATA / name, ImportOptions(execution_trace=graph) if "kineto" in name else None)[0]


@pytest.mark.slow
@pytest.mark.parametrize("node", [None, V100])
@pytest.mark.parametrize("name", IMPORTED)
def test_in_imported_recordings_blocks_with_samples_grow(name: str, node: str | None) -> None:
    trace, gpu = imported(name), simgpu.load_node(node).gpu if node else None
    doubled = at_batch(trace, 2 * trace.info.batch, gpu)
    assert check_trace(doubled) == []
    for kind, growth in (
        (BlockKind.INPUT, 2),
        (BlockKind.LABEL, 2),
        (BlockKind.WEIGHT, 1),
        (BlockKind.WEIGHT_GRADIENT, 1),
    ):
        assert total(doubled, kind) == growth * total(trace, kind), kind
    # Channel statistics do not scale; nor, in logs without shapes, do gradients of blocks not marked as weights.
    for kind in (BlockKind.ACTIVATION, BlockKind.GRADIENT):
        assert 1.99 * total(trace, kind) <= total(doubled, kind) <= 2 * total(trace, kind), kind
    assert doubled.compute_ns > 1.9 * trace.compute_ns
    back = at_batch(doubled, trace.info.batch, gpu)
    assert [block.bytes for block in back.blocks] == [block.bytes for block in trace.blocks]
    assert all(abs(a.duration_ns - b.duration_ns) <= 1 for a, b in zip(back.kernels, trace.kernels, strict=True))


def total(trace: Trace, kind: BlockKind) -> int:
    return sum(block.bytes for block in trace.blocks if block.kind is kind)


def test_a_recording_without_blocks_scales_proportionally_with_a_note() -> None:
    info = TraceInfo("bare", 4, "nothing known", "float32", Origin.IMPORTED, "a test")
    kernels = (Kernel("a", "relu", Phase.FORWARD, 10), Kernel("b", "add", Phase.OPTIMIZER, 10))
    doubled = at_batch(Trace(info, kernels, ()), 8)
    assert [kernel.duration_ns for kernel in doubled.kernels] == [20, 10]
    assert "whose blocks are not recorded, rescaled in proportion to the batch: 1." in doubled.info.notes


def test_the_batch_dimension_is_followed_through_transpositions() -> None:
    """Tokens first, samples second, then both in one dimension, as in PyTorch's attention."""
    shapes = {"x": (8, 64, 128), "turned": (64, 8, 128), "rows": (512, 384), "parted": (64, 8, 384)}
    blocks = tuple(
        Block(name, 4 * prod(shape), BlockKind.ACTIVATION, shape=shape, dtype="float32")
        for name, shape in shapes.items()
    )
    blocks = (replace(blocks[0], kind=BlockKind.INPUT, persistent=True), *blocks[1:])
    names = list(shapes)
    kernels = tuple(
        Kernel(created, "clone", Phase.FORWARD, 10, (read,), (created,)) for read, created in pairwise(names)
    )
    info = TraceInfo("turns", 8, "nothing known", "float32", Origin.RECORDED, "a test")
    tripled = at_batch(Trace(info, kernels, blocks), 24).block_by_id
    assert [tripled[name].shape for name in names] == [(24, 64, 128), (64, 24, 128), (1536, 384), (64, 24, 384)]


def test_dropout_masks_grow_with_the_batch_and_channel_statistics_do_not() -> None:
    """The batch has as many samples as channels, so both dimensions have the same size."""
    blocks = (
        Block("x", 64, BlockKind.INPUT, persistent=True, shape=(4, 4), dtype="float32"),
        Block("mean", 16, BlockKind.OTHER, shape=(4,), dtype="float32"),
        Block("y", 64, BlockKind.ACTIVATION, shape=(4, 4), dtype="float32"),
        Block("mask", 64, BlockKind.OTHER, shape=(4, 4), dtype="float32"),
        Block("z", 64, BlockKind.ACTIVATION, shape=(4, 4), dtype="float32"),
    )
    kernels = (
        Kernel("norm", "native_batch_norm", Phase.FORWARD, 10, ("x",), ("y", "mean")),
        Kernel("draw", "bernoulli_", Phase.FORWARD, 10, (), ("mask",)),
        Kernel("drop", "mul", Phase.FORWARD, 10, ("y", "mask"), ("z",)),
    )
    info = TraceInfo("masked", 4, "nothing known", "float32", Origin.RECORDED, "a test")
    doubled = at_batch(Trace(info, kernels, blocks), 8)
    assert [block.bytes for block in doubled.blocks] == [128, 16, 128, 128, 128]


@pytest.mark.slow
def test_without_a_time_model_durations_scale_with_the_work_with_a_note() -> None:
    trace = simgpu.load_trace("resnet20-cifar-cpu")
    doubled = at_batch(trace, 64)
    assert f"no time model for {trace.info.device}" in doubled.info.notes
    optimizer = [k for k, kernel in enumerate(trace.kernels) if kernel.phase is Phase.OPTIMIZER]
    assert all(doubled.kernels[k].duration_ns == trace.kernels[k].duration_ns for k in optimizer)
    convolutions = [k for k, kernel in enumerate(trace.kernels) if "convolution" in kernel.op]
    assert convolutions
    assert all(doubled.kernels[k].duration_ns == 2 * trace.kernels[k].duration_ns for k in convolutions)


def test_durations_follow_the_time_model_of_the_gpu() -> None:
    """Launch overhead does not grow with the batch, so doubling it less than doubles a short kernel."""
    gpu = simgpu.load_node("v100").gpu
    trace = _recorded_on(gpu.name, duration_ns=10_000)
    doubled = at_batch(trace, 8)
    assert doubled == at_batch(trace, 8, gpu)
    assert f"by the time model of {gpu.name}" in doubled.info.notes
    assert 10_000 <= doubled.kernels[0].duration_ns < 20_000


def test_workspaces_and_algorithms_grow_with_their_kernel() -> None:
    doubled = at_batch(_recorded_on("nothing known", duration_ns=10_000), 8)
    assert doubled.block_by_id["w"].bytes == 600
    assert doubled.algorithms == (AlgorithmChoice("k", "fft", 14_000, 1000),)


def test_measurements_at_the_recorded_batch_are_dropped() -> None:
    trace = chain([5], [7], [100])
    kernels = tuple(replace(kernel, start_ns=k, iqr_ns=1) for k, kernel in enumerate(trace.kernels))
    recorded = replace(trace, kernels=kernels, info=replace(trace.info, framework_peak_bytes=5))
    doubled = at_batch(recorded, 2)
    assert doubled.info.framework_peak_bytes is None
    assert {(kernel.start_ns, kernel.iqr_ns) for kernel in doubled.kernels} == {(None, None)}


@pytest.mark.parametrize("batch", [0, -1, 2.0, True])
def test_a_batch_is_a_positive_integer(batch: object) -> None:
    with pytest.raises(InputError, match="is not a batch size"):
        at_batch(chain([5], [7], [100]), batch)  # type: ignore[arg-type]


def _recorded_on(device: str, duration_ns: int) -> Trace:
    blocks = (
        Block("x", 4096, BlockKind.INPUT, persistent=True, shape=(4, 256), dtype="float32"),
        Block("y", 4096, BlockKind.ACTIVATION, shape=(4, 256), dtype="float32"),
        Block("w", 300, BlockKind.WORKSPACE),
    )
    kernel = Kernel("k", "relu", Phase.FORWARD, duration_ns, ("x",), ("y", "w"))
    info = TraceInfo("tiny", 4, device, "float32", Origin.RECORDED, "a test")
    return Trace(info, (kernel,), blocks, (AlgorithmChoice("k", "fft", 7_000, 500),))


def test_a_recording_without_reads_is_refused() -> None:
    trace = chain([5, 7], [10, 14], [100, 200])
    kernels = tuple(replace(kernel, reads=()) for kernel in trace.kernels)
    alone = replace(trace, kernels=kernels, info=replace(trace.info, origin=Origin.IMPORTED))
    with pytest.raises(InputError, match="samples cannot be followed"):
        at_batch(alone, 2)


def test_a_gpu_is_found_by_its_driver_name() -> None:
    trace = chain([5_000, 7_000], [10_000, 14_000], [100, 200])
    recorded = replace(trace, info=replace(trace.info, device="NVIDIA H100 80GB HBM3"))
    assert "by the time model of H100 SXM" in at_batch(recorded, 2).info.notes
