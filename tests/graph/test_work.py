"""Operations and traffic of kernels, codecs and copies, compared with hand calculations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.graph.encodings import Encoding
from simgpu.graph.split import split
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import with_encodings
from simgpu.graph.work import KernelWork, missing_work, work_of
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import task_graph
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, Kernel, Origin, SparsitySample, Trace
from tests.semantics.hand_made import block, held, kernel, trace


def counted(built: Kernel) -> KernelWork:
    blocks = [held("x", 100), held("table", 10_000), block("y", 30), block("ws", 7, kind=BlockKind.WORKSPACE)]
    touched = [each for each in blocks if each.id in built.reads + built.writes]
    return work_of(TaskGraph.of(trace([built], touched))).kernels[built.id]


def test_a_kernel_has_its_recorded_operations_and_traffic() -> None:
    recorded = replace(kernel("a", reads="x", writes="y"), flops=5, dram_bytes=999)
    assert counted(recorded) == KernelWork(5, 999)


def test_without_a_record_a_kernel_touches_every_block_once_and_has_no_operations() -> None:
    assert counted(kernel("a", reads="x", writes="y ws")) == KernelWork(0, 130)
    assert counted(kernel("a", reads="x", writes="x")) == KernelWork(0, 200), "in place it is both"


def test_a_gather_kernel_reads_as_many_bytes_as_it_writes() -> None:
    assert counted(kernel("a", reads="table", writes="y", op="aten::embedding")) == KernelWork(0, 60)


def test_a_codec_reads_one_form_and_writes_the_other() -> None:
    sparse = replace(chain([5, 7], [10, 14], [4096, 8192]), sparsity=(SparsitySample("x1", 0, 0.5),))
    graph = with_encodings(task_graph(sparse, load_node("v100")), [Encoding(0, "zvc", grid=128, threads=128)])
    work = work_of(graph)
    assert work.codecs == {"x1:zvc": KernelWork(0, 4096 + 2176)}
    assert (work.copies["x1"], work.copies["x1:zvc"]) == (4096, 2176)


def test_work_counts_uncompressed_bytes_of_copies() -> None:
    sparse = replace(chain([5], [10], [4096]), sparsity=(SparsitySample("x1", 0, 0.5),))
    graph = task_graph(sparse, load_node("titan-x-maxwell-cdma"))
    assert graph.copy_sizes[0] < 4096
    assert work_of(graph).copies["x1"] == 4096


def test_each_round_of_a_split_batch_has_its_own_work() -> None:
    full = chain([50, 70], [100, 140], [100, 200])
    full = replace(full, info=replace(full.info, batch=5))
    kernels = work_of(split(TaskGraph.of(full), 2)).kernels
    assert kernels["F1"] == KernelWork(0, 300 * 2 // 5)
    assert kernels["F1@1"] == KernelWork(0, 300 // 5)


# --- missing work -----------------------------------------------------------------------------------------


def with_operations(op: str, flops: int | None) -> Trace:
    built = chain([5, 7], [10, 14], [100, 200], op=op)
    return replace(built, kernels=tuple(replace(each, flops=flops) for each in built.kernels))


@pytest.mark.parametrize("op", ["conv2d", "aten::addmm", "cudnn_convolution"])
def test_matrix_products_need_operation_counts(op: str) -> None:
    assert (
        missing_work(with_operations(op, None))
        == "operation counts are missing for 4 of 4 convolutions and matrix products"
    )
    assert missing_work(with_operations(op, 1000)) == ""


def test_other_kernels_do_not_need_operation_counts() -> None:
    assert missing_work(with_operations("relu", None)) == ""


def test_traffic_must_be_recorded_if_blocks_are_not() -> None:
    without = replace(with_operations("relu", None), blocks=())
    bare = replace(without, kernels=tuple(replace(each, reads=(), writes=()) for each in without.kernels))
    assert missing_work(bare) == "the recording has neither the blocks that its kernels read nor their memory traffic"
    assert missing_work(replace(bare, kernels=tuple(replace(each, dram_bytes=1) for each in bare.kernels))) == ""
    imported = replace(with_operations("relu", None), info=replace(bare.info, origin=Origin.IMPORTED))
    no_reads = replace(imported, kernels=tuple(replace(each, reads=()) for each in imported.kernels))
    assert missing_work(imported) == ""
    assert missing_work(no_reads) != ""
