"""The numbers that stand for instructions where a program is held as arrays."""

from __future__ import annotations

#: In the order within an instant; those from LAUNCH on come last, together. They are work, from COPY on of an engine.
INITIALIZE, AWAIT, END, RELEASE, SIGNAL, ACQUIRE, LAUNCH, RELAUNCH, ENCODE, DECODE, COPY, COPY_AS = range(12)
