"""Layers derived from blocks, for all kernels at once, where backward follows forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simgpu.trace.accesses import AccessColumns, Ints, accesses_of, distinct, first_of
from simgpu.trace.model import Phase, Trace
from simgpu.trace.operators import OpClass, op_class

Flags = NDArray[np.bool_]


def derived_layers(trace: Trace) -> tuple[Ints, Ints] | None:
    """The kernels with which forward layers begin, and for each kernel the number of its layer.

    Forward kernels belong to the latest layer, backward kernels to the one whose saved blocks they read, -1 for none.
    None where forward kernels follow others. The rules are those of `simgpu.graph.layers`.

    >>> from simgpu.trace.chain import chain
    >>> begins, layers = derived_layers(chain([5, 7], [10, 14], [100, 200]))
    >>> begins.tolist(), layers.tolist()
    ([0, 1], [0, 1, 1, 0])
    """
    phases = [kernel.phase for kernel in trace.kernels]
    forward = phases.count(Phase.FORWARD)
    if any(phase is not Phase.FORWARD for phase in phases[:forward]):
        return None
    accesses = accesses_of(trace)
    begins = _begins(trace, accesses, forward)
    layers = np.full(len(phases), -1, dtype=np.int64)
    layers[:forward] = np.cumsum(begins) - 1
    backward = np.array([phase is Phase.BACKWARD for phase in phases], dtype=np.bool_)
    _find_saved(layers, forward, backward, accesses, _classes([kernel.op for kernel in trace.kernels]))
    return np.flatnonzero(begins), layers


def _begins(trace: Trace, accesses: AccessColumns, forward: int) -> Flags:
    """Whether a layer begins with each forward kernel: it is the first, or writes a new block that is used later."""
    writes, writers, count = accesses.writes, accesses.writers, len(trace.blocks)
    persistent = np.array([bool(block.persistent) for block in trace.blocks], dtype=np.bool_)
    last = np.full(count, -1, dtype=np.int64)
    last[accesses.reads] = accesses.readers
    last[writes] = np.maximum(last[writes], writers)
    new = (first_of(writes, writers, count, -1)[writes] == writers) & ~persistent[writes] & (last[writes] > writers)
    begins = np.zeros(forward, dtype=np.bool_)
    begins[writers[new & (writers < forward)]] = True
    begins[:1] = True
    return begins


def _classes(ops: Sequence[str]) -> Ints:
    """Numbers of the operators' classes, 0 for other operators."""
    number = {kind: index for index, kind in enumerate([OpClass.OTHER, *(k for k in OpClass if k != OpClass.OTHER)])}
    of = {op: number[op_class(op)] for op in set(ops)}
    return np.fromiter(map(of.__getitem__, ops), dtype=np.int64, count=len(ops))


def _find_saved(layers: Ints, forward: int, backward: Flags, accesses: AccessColumns, classes: Ints) -> None:
    """Write the layers of backward kernels: those that share most blocks, layers with their own class of operator
    first, and of equals the latest."""
    kinds, count = int(classes.max(initial=0)) + 1, int(layers.max(initial=0)) + 1
    blocks = np.concatenate([accesses.reads, accesses.writes])
    kernels = np.concatenate([accesses.readers, accesses.writers])
    # Each layer and class that touched a block in forward, once.
    early = kernels < forward
    touched = distinct((blocks[early] * count + layers[kernels[early]]) * kinds + classes[kernels[early]])
    touched_blocks = touched // (count * kinds)
    saved = backward[accesses.readers]
    reads, readers = accesses.reads[saved], accesses.readers[saved]
    starts, stops = (np.searchsorted(touched_blocks, reads, side) for side in ("left", "right"))
    lengths = stops - starts
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths - starts, lengths)
    shared, of = touched[places], np.repeat(readers, lengths)
    layer, kind = shared // kinds % count, shared % kinds
    alike = (kind == classes[of]) & (kind > 0)
    order = np.argsort(of * count + layer, kind="stable")
    keys = (of * count + layer)[order]
    if not len(keys):
        return
    groups = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    sizes = np.diff(np.append(groups, len(keys)))
    score = np.maximum.reduceat(alike[order].astype(np.int64), groups) * len(keys) * 2 + sizes
    score = score * count + keys[groups] % count
    of_group = keys[groups] // count
    firsts = np.flatnonzero(np.append(True, of_group[1:] != of_group[:-1]))
    layers[of_group[firsts]] = np.maximum.reduceat(score, firsts) % count
