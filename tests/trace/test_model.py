"""Trace tables as pandas frames: one row per kernel and block, integers stay integers, missing values stay missing."""

import pandas as pd

from simgpu import load_trace
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, Phase


def test_kernel_frame_has_all_fields_in_execution_order():
    trace = load_trace("resnet20-cifar-cpu")
    frame = trace.kernel_frame()
    assert list(frame.index) == [kernel.id for kernel in trace.kernels]
    assert frame["duration_ns"].sum() == trace.compute_ns
    assert frame["duration_ns"].dtype == "Int64"
    backward = frame[frame["phase"] == "backward"]
    assert len(backward) == sum(kernel.phase is Phase.BACKWARD for kernel in trace.kernels)
    assert frame.loc[trace.kernels[0].id, "reads"] == trace.kernels[0].reads


def test_blocks_have_their_bytes_and_kinds():
    trace = load_trace("resnet20-cifar-cpu")
    frame = trace.block_frame()
    by_kind = frame.groupby("kind")["bytes"].sum()
    assert by_kind["weight"] == sum(block.bytes for block in trace.blocks if block.kind is BlockKind.WEIGHT)
    assert frame["bytes"].dtype == "Int64"
    assert not frame["persistent"].isna().any()


def test_values_not_recorded_are_missing():
    trace = chain([5, 7], [10, 14], [100, 200])
    assert trace.kernel_frame()["start_ns"].isna().all()
    assert trace.block_frame()["release"].isna().all()


def test_sparsity_has_a_row_per_epoch():
    trace = load_trace("digits-cnn-cpu")
    frame = trace.sparsity_frame()
    assert list(frame.index) == list(range(31))
    sample = trace.sparsity[-1]
    assert frame.loc[sample.epoch, sample.block] == sample.sparsity
    assert list(frame.columns) == list(dict.fromkeys(each.block for each in trace.sparsity))


def test_a_trace_without_sparsity_has_an_empty_table():
    frame = chain([5, 7], [10, 14], [100, 200]).sparsity_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.empty
