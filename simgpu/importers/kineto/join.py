"""Which node of an execution trace each operator of a profile is.

Both recordings number the calls of operators. Newer profiles hold that number (Record function id), which is the
node's rf_id; in some the External id is the same. Where neither fits, operators are paired by order: both recordings
list what each thread ran, so the names on a thread must be the same one after another. A join counts only if every
operator that launched a kernel has a node of its name; else the two are not of one run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from simgpu.errors import InputError
from simgpu.importers.execution_trace import ExecutionTrace, Node
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.profile import Op

#: The node of each operator of an iteration, by position; operators that the execution trace left out have none.
Nodes = dict[int, Node]


def join(attribution: Attribution, recorded: ExecutionTrace) -> Nodes:
    """The nodes of an iteration's operators. Raises `InputError` where the recordings are not of one run."""
    launchers = {launched.op for launched in attribution.launched if launched.op >= 0}
    if not launchers:
        what = "does not say which operators launched the kernels, so nothing can be joined"
        remedy = "record the profile with ProfilerActivity.CPU as well"
        raise InputError.single(attribution.profile.path, "", what, remedy)
    ways: tuple[Callable[[], Nodes], ...] = (
        lambda: _by_number(attribution.ops, recorded, lambda op: op.function),
        lambda: _by_number(attribution.ops, recorded, lambda op: op.external),
        lambda: _by_order(attribution.ops, recorded),
    )
    most = 0
    for way in ways:
        nodes = way()
        joined = sum(op in nodes for op in launchers)
        if joined == len(launchers):
            return nodes
        most = max(most, joined)
    what = (
        f"does not join {attribution.profile.path.name}: of {len(launchers)} operators that launched kernels, "
        f"{most} are in it"
    )
    remedy = "give the execution trace of the same run and the same iteration"
    raise InputError.single(recorded.path, "", what, remedy)


def _by_number(ops: Sequence[Op], recorded: ExecutionTrace, number: Callable[[Op], int]) -> Nodes:
    by_function = {node.function: node for node in recorded.nodes}
    found = {}
    for position, op in enumerate(ops):
        node = by_function.get(number(op))
        if node is not None and node.name == op.name:
            found[position] = node
    return found


def _by_order(ops: Sequence[Op], recorded: ExecutionTrace) -> Nodes:
    """Nodes of a thread beside operators of a thread with the same names in the same order."""
    threads: dict[object, list[int]] = defaultdict(list)
    for position, op in enumerate(ops):
        threads[op.thread].append(position)
    for positions in threads.values():
        positions.sort(key=lambda position: (ops[position].external, ops[position].start, -ops[position].end))
    rows: dict[int, list[Node]] = defaultdict(list)
    for node in recorded.nodes:
        rows[node.thread].append(node)
    found: Nodes = {}
    for row in rows.values():
        names = [node.name for node in row]
        for positions in threads.values():
            if positions[0] not in found and names == [ops[position].name for position in positions]:
                found.update(zip(positions, row, strict=True))
                break
    return found
