"""Names for the columns of the arrays that evaluation works on.

Everything is a whole number: positions, nanoseconds, bytes.

Arrays of two dimensions with columns, in place of one array for each, since a compiled function is given each array by
itself. A column that begins a list holds where it begins in `Tables.lists`; it ends where that of the next row begins.
"""

from __future__ import annotations

# --- kernels: one row each, and one more for where the last lists end ---
# Its time; bytes that come to life with it, and that end with it, whatever is decided; its layer step; lists of feature
# maps: those it is the last to use in forward, in the order in which they leave; those whose copy out may be issued
# with it; those it uses after forward; lists of blocks: what it reads, and makes, when it runs again.
DURATION, TAKES, GIVES, STEP, LEAVE, ISSUE, WATCH, INPUTS, OUTPUTS = range(9)

# --- blocks: one row each, and one more ---
# Its bytes; the kernel with which it ends; its feature map, -1 for none; a list of the kernels that make it.
BYTES, DEATH, MAP, WRITERS = range(4)

# --- maps: the feature maps ---
# Its block; that block's bytes; last use in forward; next use; its place among fetches that are needed at once.
BLOCK, SIZE, AFTER, BEFORE, RANK = range(5)

# --- options: of each feature map (first dimension) ---
# The action; whether what travels is encoded, and the device bytes of that; times to copy out and in, to encode and
# decode; how many layer steps ahead it is fetched; whether its copy out is issued with its last reader.
ACTION, ENCODED, MOVED, OUT_NS, IN_NS, ENCODE_NS, DECODE_NS, AHEAD, EARLY = range(9)

# --- fates: what has become of each feature map during one evaluation ---
# The chosen action; where it is; the kernel that first needs it; the relaunch that does, -1 for the kernel itself; when
# its copy out could begin, had ended, its copy in had ended; what it adds to the iteration; whether its fetch waited
# for all copies; the next that is fetched with the same kernel; two columns to sort in; the feature maps that
# relaunches fetch, in order.
CHOSEN, STATE, NEED, NEEDED_BY, BEGUN, AWAY_AT, BACK_AT, OVERHEAD, DRAINED = range(9)
NEXT, UNSORTED, SORTED, FETCH = range(9, 13)

# --- pending: per kernel, the first and last feature map that it fetches (-1 for none), and its first relaunch ---
FIRST, LAST, RELAUNCH = range(3)

# --- again: the relaunches, in order ---
# The kernel; bytes that it takes before, and gives back after; the feature map that it is charged to.
KERNEL, TAKEN, GIVEN, CHARGED = range(4)

# --- making: per block while something is made again ---
# Whether it is there for that (if it says the stamp of now); the relaunch that uses it last; blocks that are made only
# for others; and a stack of blocks that are being made, their writers at hand, and those writers' next inputs.
MADE, LAST_USE, PASSING, STACK_BLOCK, STACK_WRITER, STACK_INPUT = range(6)

# --- line: copies out under way, in order ---
# When it frees memory; how much; of which feature map.
FREE_AT, FREED, OF = range(3)

# --- now: the clocks and counters ---
# Clocks of the compute stream, copies out and copies in; bytes held now, at most, and short at worst; time waited in
# all, and spent on relaunches; ends of the line; how many relaunches, fetches for them, passing blocks; the stamp.
COMPUTE, OUT, IN, HELD, PEAK, SHORT, WAITED, RELAUNCHED, LINE, LINE_END, RELAUNCHES, FETCHES, PASSINGS, STAMP = range(
    14
)

# --- found: what an evaluation tells ---
RESULT = (COMPUTE, PEAK, SHORT, WAITED, RELAUNCHED)
