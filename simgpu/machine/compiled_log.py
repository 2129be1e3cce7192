"""The log of the compiled simulator as columns. Imports numba.

`simgpu.machine.compiled` writes an entry for each work and each wait; `write_columns` names what they are about.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simgpu.compiling import compiled
from simgpu.program import opcodes
from simgpu.program.opcodes import ACQUIRE, COPY, LAUNCH

_log = partial(compiled, depends_on=(opcodes,), _nrt=False)

# Columns of the log's entries: stream, row, iteration, the row that ended a wait. Of their spans: begin, end.
BY_STREAM, ROW, IN_ITERATION, CAUSE = range(4)
SINCE_NS, TO_NS = range(2)
# Columns of what the log says of a code: the kind of its work, where the names begin to which its operand refers, the
# kind of a wait, and that of a wait for its launch.
KIND, NAMES, WAIT, WAIT_FOR_LAUNCH = range(4)
# In place of the row that ended a wait: nobody, that the entry is no wait, but work, and that the host ended it.
NOBODY, WORK, BY_HOST = -1, -2, -3


@_log
def find_work(rows: Any, begins: Any, before: Any) -> None:
    """Write for each row the last row of work before it in its part, -1 for none. begins: of the parts."""
    last, part = -1, 0
    for row in range(len(rows)):
        if part < len(begins) and begins[part] == row:
            last, part = -1, part + 1
        before[row] = last
        if rows[row, 0] >= LAUNCH:
            last = row


@_log
def _stream_of(first: Any, row: Any) -> Any:
    """The stream of a row."""
    s = 0
    while s + 1 < len(first) and first[s + 1, 0] <= row:
        s += 1
    return s


@_log
def write_columns(
    entries: Any, order: Any, rows: Any, first: Any, numbers: Any, before: Any, labels: Any,
    memories: Any, sizes: Any, resources: Any, columns: Any,
) -> None:  # fmt: skip
    """Write the entries of a log in an order as the columns of `simgpu.machine.log.Entry`, but for their times.

    rows, first: of the program's columns. numbers: of copies, their positions in sizes and resources. before[row]: the
    row of the work before it, -1 for none. labels, memories: what the log says of codes and memories. sizes, resources:
    bytes and engines of copies.
    """
    for n in range(columns.shape[1]):
        e = order[n]
        row, cause = entries[e, ROW], entries[e, CAUSE]
        code = rows[row, 0]
        columns[0, n], columns[7, n] = entries[e, BY_STREAM], entries[e, IN_ITERATION]
        columns[5, n], columns[6, n], columns[8, n] = 0, -1, -1
        if cause == WORK:
            columns[1, n], columns[2, n] = labels[code, KIND], labels[code, NAMES] + rows[row, 1]
            if code >= COPY:
                columns[5, n], columns[8, n] = sizes[numbers[row]], resources[numbers[row]]
            continue
        columns[1, n], columns[2, n] = labels[code, WAIT], -1
        if cause == BY_HOST:
            columns[1, n] = labels[code, WAIT_FOR_LAUNCH]
            continue
        if code == ACQUIRE:
            columns[8, n] = memories[rows[row, 1]]
        if cause != NOBODY:
            columns[6, n], reason = _stream_of(first, cause), before[cause]
            if reason >= 0:
                columns[2, n] = labels[rows[reason, 0], NAMES] + rows[reason, 1]
