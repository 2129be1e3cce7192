"""Saved tensors as separate blocks: their readers, their versions, and refused requests."""

from __future__ import annotations

import pytest

from simgpu.errors import ProgramError
from simgpu.graph.encodings import EncodedForm
from simgpu.graph.tasks_file import tasks_from_json, tasks_to_json
from simgpu.graph.transforms import Unpacked, WithUnpacked, with_unpacked
from tests.graph.test_saved import B1, B2, B3, BLOCKS, F3, TASKS, W, X, Y


def test_readers_read_unpacked_copies_in_place_of_the_block():
    more = with_unpacked(TASKS, [Unpacked(Y, 4, (B3,)), Unpacked(Y, 7, (B3, B2)), Unpacked(W, 2, (B1,))])
    assert [block.id for block in more.blocks[len(BLOCKS) :]] == ["y:saved", "y:saved2", "w:saved"]
    assert more.sizes[len(BLOCKS) :] == more.copy_sizes[len(BLOCKS) :] == (4, 7, 2)
    assert more.kernels[B3].reads == ("z", "y:saved", "y:saved2")
    assert more.read_versions[B3] == (1, 2, 2)
    assert more.kernels[B2].reads == ("y:saved2", "gz") and more.kernels[B1].reads == ("x", "w:saved", "gy")
    assert more.encoded[len(BLOCKS) + 2] == EncodedForm(W, 0, 0)


def test_unpacking_does_not_change_other_kernels_and_blocks():
    more = WithUnpacked((Unpacked(Y, 4, (B3,)), Unpacked(X, 1, ()))).apply(TASKS)
    assert more.durations == TASKS.durations and more.sizes[: len(BLOCKS)] == TASKS.sizes
    assert [k for k in range(6) if more.kernels[k] != TASKS.kernels[k]] == [B3]
    assert more.read_versions[F3] == TASKS.read_versions[F3] and more.last_version[: len(BLOCKS)] == TASKS.last_version
    assert TASKS.kernels[B3].reads == ("z", "y")


@pytest.mark.parametrize("reader", [1, 5])
def test_a_kernel_that_writes_or_ignores_the_block_cannot_read_unpacked_copies(reader: int) -> None:
    """f2 changes y in place, b1 does not use it."""
    with pytest.raises(ProgramError, match="does not just read block y"):
        with_unpacked(TASKS, [Unpacked(Y, 4, (reader,))])


def test_the_task_tables_contain_the_versions_read():
    more = with_unpacked(TASKS, [Unpacked(Y, 4, (B3, B2)), Unpacked(W, 2, (B1,))])
    again = tasks_from_json(tasks_to_json(more), more.trace)
    assert again.read_versions == more.read_versions and again.encoded == more.encoded
