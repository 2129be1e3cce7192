"""The tables of the compiled engine, and the numbers of their columns.

`arrays` makes those of a program, `compiled_engine` those of a run's state; `compiled` works on them. Times are
nanoseconds, and -1 stands for none. Streams, memories, copies and so on are the numbers of their rows.

Of a program, which stay as they are:

- ops[row]: the code, then up to four operands. LAUNCH: duration. COPY: copy. ACQUIRE, RELEASE: memory, request. SIGNAL:
  event. AWAIT: event, a number d, a number r, and the row that signals the event; the count to wait for is NUMBER + d
  where r is 0, else (ITERATION + 1) * r + d. PASS, END: none.
- first[stream, segment]: the row where that part begins; repeats[segment]. own[stream]: the GPU's memory, for a GPU's
  first stream.
- copies, requests, labels: below. pieces[p]: block, bytes with padding and offset of what a request takes from a memory
  with addresses.

Of the state:

- streams, memory, flows: a row for each stream, memory and stream; counts: a single row; entries: the log. All below.
- engines[e]: whether it is busy, how many streams wait, and which. queues[m]: how many streams wait, and which.
- links[:, link]: capacity; what is left of it, and how many flows have no rate yet, while rates are computed.
- events[e]: how often it has happened.
- log[:, n]: time, bytes in use without and with padding. Each memory has a part of it.
- holes[m, h]: address and size, by address. addresses[m, block].
- uses[m, parity]: bytes in use without and with padding at the end of the last even or odd iteration; layouts[m,
  parity, block]: addresses then.
"""

from __future__ import annotations

# STATUS: what a stream does: it can go on; runs until a time; waits for an event, memory or an engine; its copy waits
# for the link's latency until a time; its bytes flow; they have arrived; it has finished.
READY, RUNNING, ON_EVENT, ON_MEMORY, ON_ENGINE, LATENCY, FLOWING, ARRIVED, FINISHED = range(9)
# OUTCOME: how a run ended: all streams finished; nothing can happen any more; a block without memory was released; the
# log must grow before it can go on.
COMPLETE, STOPPED, INCONSISTENT, FULL = range(4)

# `streams`. PC: the row it has reached. NUMBER: of this repetition, counted through all iterations. TARGET, EVENT: the
# count of an event that it waits for. SINCE: when it began to wait; BEGAN, UNTIL: its work.
STREAM_COLUMNS = 11
STATUS, PC, SEGMENT, REPETITION, NUMBER, ITERATION, TARGET, SINCE, UNTIL, EVENT, BEGAN = range(STREAM_COLUMNS)
# `engines` and `queues`: columns before the waiting streams.
BEFORE_ENGINE_QUEUE, BEFORE_QUEUE = 2, 1
# `copies`: the engine; the time without a network, else -1; latency; billionths of a byte; the copy's own limit, and up
# to three links of its path.
HOPS = 3
ENGINE, ALONE, DELAY, BYTES, CAP, PATH = range(6)
COPY_COLUMNS = PATH + HOPS
# `flows`; the last two while rates are computed: whether it has no rate yet, and its limit.
FLOW_COLUMNS = 6
ACTIVE, REMAINING, RATE, EXPIRES, OPEN, LIMITED = range(FLOW_COLUMNS)
# `memory`: limit, bytes in use without and with padding, the most with padding, whether it has addresses, the number of
# holes, the place of the next entry in the log, bytes of buddy memory that its blocks own, the most.
MEMORY_COLUMNS = 9
LIMIT, LIVE, USED, HIGH, ADDRESSED, HOLES, LOGGED, CARVED, BUDDY_PEAK = range(MEMORY_COLUMNS)
# `requests`: bytes without and with padding, where its pieces begin and end, bytes of buddy memory that they own.
REQUESTED_LIVE, REQUESTED_USED, FIRST_PIECE, END_OF_PIECES, REQUESTED_CARVED = range(5)
# `counts`: now, entries of the log, whether memory that somebody waits for was released, and by which row; when the
# flows last progressed; how the run ended.
COUNTS = 6
NOW, ENTRIES, FREED, BY, LAST, OUTCOME = range(COUNTS)
# `entries`: stream, row, begin, end, iteration, the row that ended a wait.
ENTRY_COLUMNS = 6
BY_STREAM, ROW, SINCE_NS, TO_NS, IN_ITERATION, CAUSE = range(ENTRY_COLUMNS)
# In place of the row that ended a wait: nobody, and that the entry is no wait, but work.
NOBODY, WORK = -1, -2
# `labels`: what the log says of rows. Of work: kind, position in the timeline's names, copy, resource. Of a wait: kind,
# resource. Of a row that ends a wait: its stream, and the name of the work before it.
LABEL_COLUMNS = 8
KIND, NAME, COPIED, RESOURCE, WAIT, WAITED, STREAM, REASON = range(LABEL_COLUMNS)
