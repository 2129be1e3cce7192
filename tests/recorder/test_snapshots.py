"""Snapshots of all live blocks that a recording takes along an iteration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.contents import file_names, spread_over
from simgpu.trace.folder import read_trace
from simgpu.trace.model import RELEASED_AT_END, Trace
from tests.cli.cli_helpers import simgpu
from tests.recorder.test_entries import residual, still


def _live(trace: Trace, after: int) -> set[str]:
    """Ids of the blocks that are held between a kernel and the next one."""
    position = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
    created = {name: place for place, kernel in reversed(list(enumerate(trace.kernels))) for name in kernel.writes}
    ends = {
        block.id: len(position) if block.release in (None, RELEASED_AT_END) else position[block.release]
        for block in trace.blocks
    }
    return {
        block.id
        for block in trace.blocks
        if (block.persistent or created.get(block.id, len(position)) <= after) and ends[block.id] > after
    }


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, list[Path]]:
    folder = tmp_path_factory.mktemp("memory") / "dump"
    trace = record(residual, batch=8, repetitions=1, optimizer=still, dump_memory=folder, snapshots=7)
    return trace, sorted(folder.iterdir())


def _after(trace: Trace, folder: Path) -> int:
    result = re.fullmatch(r"\d+-after-(.+)", folder.name)
    assert result is not None
    return [kernel.id for kernel in trace.kernels].index(result[1])


def test_a_snapshot_holds_the_blocks_that_live_then_and_no_other(dumped: tuple[Trace, list[Path]]) -> None:
    trace, folders = dumped
    names = dict(zip((block.id for block in trace.blocks), file_names([b.id for b in trace.blocks]), strict=True))
    assert len(folders) == 7
    places = [_after(trace, folder) for folder in folders]
    assert places == sorted(set(places)) == spread_over([kernel.duration_ns for kernel in trace.kernels], 7)
    for folder, place in zip(folders, places, strict=True):
        held = {file.name for file in folder.iterdir()}
        live = {names[block] for block in _live(trace, place)}
        # An operator that only makes a view is no kernel; what goes during it went after the kernel before it.
        going = {names[block.id] for block in trace.blocks if block.release == trace.kernels[place].id}
        assert live <= held <= live | going
        for block in _live(trace, place):
            row = np.load(folder / names[block])
            assert (row.ndim, row.nbytes) == (1, trace.block_by_id[block].bytes)


def test_a_snapshot_holds_values_as_they_are_then(dumped: tuple[Trace, list[Path]]) -> None:
    module, x, *_ = residual()
    _, folders = dumped
    for folder in folders:
        assert np.load(folder / "input.npy").tolist() == x.flatten().tolist()
        assert np.load(folder / "second.weight.npy").tolist() == module.second.weight.flatten().tolist()
    first = next(folder for folder in folders if (folder / "first_addmm.npy").exists())
    assert np.load(first / "first_addmm.npy").tolist() == module.first(x).flatten().tolist()


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.data())
def test_moments_are_spread_over_the_time_and_no_kernel_is_taken_twice(times: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(times)))
    chosen = spread_over(times, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert chosen[0] >= 0 and chosen[-1] < len(times)


def test_formats_unknown_to_numpy_are_stored_bit_for_bit(tmp_path: Path) -> None:
    def factory() -> Any:
        module = nn.Linear(4, 4, bias=False).bfloat16()
        nn.init.constant_(module.weight, 1.0)
        return module, torch.ones(2, 4, dtype=torch.bfloat16), (), lambda y: y.sum()

    record(factory, batch=2, repetitions=1, optimizer=still, dump_memory=tmp_path / "dump", snapshots=1)
    (folder,) = (tmp_path / "dump").iterdir()
    assert np.load(folder / "weight.npy").tolist() == [0x3F80] * 16


def test_options_of_the_command(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    options = ("record", "mlp", "--batch", "2", "--repetitions", "1", "-o", tmp_path / "mlp")
    done = simgpu(*options, "--dump-memory", dump)
    assert done.exit_code == 0, done.stderr
    assert f"memory snapshots written to {dump}" in done.stdout.replace("\n", "")
    folders = sorted(folder.name for folder in dump.iterdir())
    assert [name[:9] for name in folders] == [f"{number:02d}-after-" for number in range(1, 11)]
    trace = read_trace(tmp_path / "mlp")
    assert {name[9:] for name in folders} <= {kernel.id for kernel in trace.kernels}
    fewer = simgpu(*options, "--force", "--dump-memory", tmp_path / "fewer", "--snapshots", 2)
    assert fewer.exit_code == 0 and len(list((tmp_path / "fewer").iterdir())) == 2


def test_bad_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"snapshots: no folder is given .*add dump_memory \(--dump-memory\)"):
        record("mlp", batch=2, snapshots=3)
    with pytest.raises(InputError, match="snapshots: 0 is not a number of snapshots"):
        record("mlp", batch=2, dump_memory=tmp_path / "dump", snapshots=0)
    with pytest.raises(InputError, match=r"snapshots: 999 exceeds the \d+ kernels of the iteration"):
        record("mlp", batch=2, repetitions=1, dump_memory=tmp_path / "dump", snapshots=999)
    with pytest.raises(InputError, match="dump_memory: it has no effect"):
        record("mlp", batch=2, gpu="v100", dump_memory=tmp_path / "dump")
    assert list(tmp_path.iterdir()) == [], "nothing appears where a recording fails"
