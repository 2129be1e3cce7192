"""The numbers that stand for instructions where a program is held as arrays."""

from __future__ import annotations

#: The order of the first eight is that within an instant, the last of them together.
PASS, AWAIT, END, RELEASE, SIGNAL, ACQUIRE, LAUNCH, COPY, RELAUNCH, COPY_AS, ENCODE, DECODE, INITIALIZE = range(13)
