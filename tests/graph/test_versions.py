"""Versions and uses in bulk are those of a walk over the kernels."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simgpu.graph.versions import Versions
from simgpu.trace.accesses import AccessColumns

BLOCKS = 5
lists = st.lists(st.lists(st.integers(0, BLOCKS - 1), unique=True, max_size=4), max_size=8)


@given(st.data(), lists)
def test_versions_and_uses_are_those_of_a_walk(data: st.DataObject, reads: list[list[int]]) -> None:
    writes = [data.draw(st.lists(st.integers(0, BLOCKS - 1), unique=True, max_size=4)) for _ in reads]
    version, uses = [0] * BLOCKS, [[] for _ in range(BLOCKS)]
    read, written = [], []
    for k, (own_reads, own_writes) in enumerate(zip(reads, writes, strict=True)):
        read.append(tuple(version[b] for b in own_reads))
        for b in own_writes:
            version[b] += 1
        written.append(tuple(version[b] for b in own_writes))
        for b in {*own_reads, *own_writes}:
            uses[b].append(k)
    flat = [
        number
        for lists in (reads, writes)
        for number in (np.array([*chain(*lists)], int), np.array([*map(len, lists)], int))
    ]
    made = Versions.of(AccessColumns(*flat), BLOCKS)
    assert made == (tuple(read), tuple(written), tuple(map(tuple, uses)), tuple(version))
    assert all(type(number) is int for group in (*made.read, *made.written, *made.uses, made.last) for number in group)
