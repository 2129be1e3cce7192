"""`trace_of_tape` gives the kernels of a tape their durations and workspaces, and makes a trace of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simgpu.trace.model import RELEASED_AT_END, AlgorithmChoice, Block, BlockKind, Kernel, Trace, TraceInfo
from simgpu.workloads.lowering.tape import Tape, TapeKernel
from simgpu.workloads.timemodel.operation import Operation
from simgpu.workloads.timemodel.prices import AlgorithmCost, Prices, algorithm_costs


def trace_of_tape(tape: Tape, prices: Prices, info: TraceInfo, name: str) -> Trace:
    """The trace of a tape's kernels.

    prices: the time model. A kernel of several operations takes as long as all of them. Convolutions run their fastest
    algorithms; the trace lists all of them.
    """
    durations: dict[tuple[Operation, ...], int] = {}
    choices: dict[tuple[Operation, ...], Sequence[AlgorithmCost]] = {}
    kernels, workspaces, algorithms = [], [], []
    for taped in tape.kernels:
        work = taped.operations
        if work not in durations:
            ways = choices[work] = algorithm_costs(prices, work)
            durations[work] = ways[0].duration_ns if ways else sum(map(prices.duration_ns, work))
        workspace = _workspace(taped, choices[work][0].workspace_bytes if choices[work] else 0)
        workspaces += workspace
        algorithms += [AlgorithmChoice(taped.id, *way) for way in choices[work]]
        kernels.append(_kernel(taped, durations[work], workspace))
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
