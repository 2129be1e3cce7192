"""Column numbers of the arrays of `Tables` and `Scratch`.

All values are integers: positions, nanoseconds, bytes. One two-dimensional array replaces many columns as separate
arrays, since a compiled function takes each array as an argument. A list column contains the begin of the row's list in
`Tables.lists`; the list ends where that of the next row begins.
"""

from __future__ import annotations

# --- kernels: one row each, and one more for the ends of the last lists ---
# Duration; bytes acquired before it and released after it under every decision; layer step; lists of feature maps: last
# used by it in forward, in the order of offloading; whose offload may be issued with it; used by it after forward;
# lists of blocks: read and written when it is relaunched.
DURATION, ACQUIRES, RELEASES, STEP, LAST_USED, ISSUE, WATCH, INPUTS, OUTPUTS = range(9)

# --- blocks: one row each, and one more ---
# Bytes; the kernel after which it is released; its feature map, -1 for none; the list of kernels that write it.
BYTES, DEATH, MAP, WRITERS = range(4)

# --- maps: one row per feature map ---
# Its block; the block's bytes; last use in forward; next use; its rank among fetches needed by the same kernel.
BLOCK, SIZE, AFTER, BEFORE, RANK = range(5)

# --- options: of each feature map (first dimension) ---
# The action; whether the copied form is encoded, and its device bytes; times to copy out and in, to encode and decode;
# layer steps between fetch and use; whether its offload is issued with its last reader.
ACTION, ENCODED, DEVICE_BYTES, OUT_NS, IN_NS, ENCODE_NS, DECODE_NS, AHEAD, EARLY = range(9)

# --- states: one row per feature map during one evaluation ---
# The chosen action; where it is; the kernel that first needs it; the relaunch that needs it, -1 for the kernel itself;
# when its offload could begin, when its offload ended, when its fetch ended; time that it adds to the iteration;
# whether its fetch waited for all copies; the next map fetched with the same kernel; two columns for sorting; the
# feature maps that relaunches fetch, in order.
CHOSEN, STATE, NEED, NEEDED_BY, OFFLOAD_AT, OFFLOADED_AT, FETCHED_AT, OVERHEAD, DRAINED = range(9)
NEXT, UNSORTED, SORTED, FETCH = range(9, 13)

# --- pending: per kernel, the first and last feature map that it fetches (-1 for none), and its first relaunch ---
FIRST, LAST, RELAUNCH = range(3)

# --- relaunches: in order ---
# The kernel; bytes acquired before it and released after it; the feature map that it is charged to.
KERNEL, ACQUIRED, RELEASED, CHARGED = range(4)

# --- recomputing: per block during recomputation ---
# The stamp at which it was recomputed (resident if it equals the current stamp); the relaunch that uses it last; blocks
# recomputed only as sources of others; and a stack of blocks being recomputed, their current writers, and the writers'
# next inputs.
RECOMPUTED, LAST_USE, PASSING, STACK_BLOCK, STACK_WRITER, STACK_INPUT = range(6)

# --- line: the queue of offloads in progress, in order ---
# When it frees memory; the bytes; the feature map.
FREE_AT, FREED, OF = range(3)

# --- now: the clocks and counters ---
# Clocks of the compute stream, offloads and fetches; bytes in use, peak, largest shortage; total waiting time, time of
# relaunches; begin and end of the line; numbers of relaunches, of fetches for them, of source blocks; the stamp.
COMPUTE, OUT, IN, USED, PEAK, SHORT, WAITED, RELAUNCHED, LINE, LINE_END, RELAUNCHES, FETCHES, PASSINGS, STAMP = range(
    14
)

# --- results: the columns of `now` that an evaluation returns ---
RESULTS = (COMPUTE, PEAK, SHORT, WAITED, RELAUNCHED)
