"""PyTorch profiler (Kineto) recordings, alone or joined with the execution trace of the same run.

Lives here, in the order in which it is asked: recognising and the whole way (`load`), which iteration is taken
(`iteration`, `marks`, `coverage`), what is kept of it (`reading`, `event`) as records (`profile`), which interval a
moment lies in (`nesting`), who launched a kernel, its phase and its layer (`attribution`), the order on streams
(`streams`), memory events (`allocations`), blocks while they are found out (`draft`): from memory events alone
(`lone_blocks`) or from an execution trace (`join`, `joined`, `joined_blocks`, `joined_kinds`), and what is said beside
the trace (`notes`).
"""
