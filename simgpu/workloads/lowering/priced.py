"""`trace_of_tape` gives the kernels of a tape their durations and workspaces, and makes a trace of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simgpu.trace.model import RELEASED_AT_END, AlgorithmChoice, Block, BlockKind, Kernel, Trace, TraceInfo
from simgpu.workloads.lowering.tape import Tape, TapeKernel
from simgpu.workloads.timemodel.operation import Operation
from simgpu.workloads.timemodel.prices import Priced, Prices


def trace_of_tape(tape: Tape, prices: Prices, info: TraceInfo, name: str) -> Trace:
    """The trace of a tape's kernels.

    prices: the time model. A convolution runs its fastest algorithm; the trace lists all of them. A kernel of several
    operations takes as long as all of them.
    """
    durations: dict[Operation, int] = {}
    choices: dict[Operation, Sequence[Priced]] = {}
    kernels, workspaces, algorithms = [], [], []
    for taped in tape.kernels:
        for operation in taped.operations:
            if operation not in durations:
                choices[operation] = prices.algorithms(operation) if operation.convolution is not None else ()
                fastest = choices[operation][:1]
                durations[operation] = fastest[0].duration_ns if fastest else prices.duration_ns(operation)
        priced = choices[taped.operations[0]]
        workspace = _workspace(taped, priced[0].workspace_bytes if priced else 0)
        workspaces += workspace
        algorithms += [AlgorithmChoice(taped.id, each.name, each.duration_ns, each.workspace_bytes) for each in priced]
        kernels.append(_kernel(taped, sum(durations[operation] for operation in taped.operations), workspace))
    return Trace(info, tuple(kernels), (*_blocks(tape), *workspaces), tuple(algorithms), name=name)


def _workspace(taped: TapeKernel, size: int) -> list[Block]:
    if not size:
        return []
    return [Block(f"workspace:{taped.id}", size, BlockKind.WORKSPACE, release=taped.id, layer=taped.layer)]


def _kernel(taped: TapeKernel, duration_ns: int, workspace: list[Block]) -> Kernel:
    return Kernel(
        taped.id,
        taped.op,
        taped.phase,
        duration_ns,
        tuple(block.id for block in taped.reads),
        (*(block.id for block in taped.writes), *(block.id for block in workspace)),
        taped.layer,
        pure=taped.pure,
        flops=sum(operation.flops for operation in taped.operations),
        dram_bytes=sum(operation.bytes for operation in taped.operations),
    )


def _blocks(tape: Tape) -> Iterator[Block]:
    """Persistent blocks, then those allocated during the iteration, each in the order of creation."""
    for taped in sorted(tape.blocks, key=lambda taped: not taped.persistent):
        release = RELEASED_AT_END if taped.release is None else tape.kernels[taped.release].id
        yield Block(
            taped.id,
            taped.bytes,
            taped.kind,
            taped.persistent,
            release=release,
            layer=taped.layer,
            shape=taped.shape,
            dtype=taped.dtype,
        )
