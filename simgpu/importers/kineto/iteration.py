"""Selects the iteration of a profile to import, from the steps it marks and those that an execution trace may cover.

A profile without marked steps is one iteration.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.execution_trace import ExecutionTrace
from simgpu.importers.json_stream import items
from simgpu.importers.kineto.profile import STEP, Event, GpuWork, Profile, Span, Thread, read_profile
from simgpu.io.input_files import open_unzipped

#: Selects from steps, ordered from last to first, those that should be read.
Choice = Callable[[Sequence[Span]], Sequence[Span]]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration.

    number: of its step; None if the recording marks no steps.
    begin, end: when it ran, ns; end is excluded.
    kernels: the kernels launched in it, in the order they ran.
    marks: number of iterations that the recording marks.
    """

    number: int | None
    begin: int
    end: int
    kernels: tuple[GpuWork, ...]
    marks: int = 0

    def contains(self, at: int) -> bool:
        return self.begin <= at < self.end


def launched_at(kernel: GpuWork, profile: Profile) -> int:
    """When the CPU launched a kernel, ns; the kernel's start if its launch was not recorded."""
    launch = profile.launches.get(kernel.correlation)
    return kernel.start if launch is None else launch[1]


def iterations(path: Path, wanted: int | None, choose: Choice) -> Iterator[tuple[Profile, Iteration]]:
    """Yields the iterations with kernels, last one first, each with its part of the profile.

    Each iteration reads the file again, because only one is held in memory.
    wanted: number of the only iteration to yield; None for all.
    choose: selects the steps to read after the first.
    Raises `InputError` if the recording has no kernels, several devices, no iteration `wanted`, or an invalid event.
    """
    profile = _read_last(path, wanted)
    _require_one_device(profile)
    steps = _latest_first(profile.steps, wanted)
    if not profile.steps:
        yield profile, _unmarked(profile, wanted)
    elif not steps:
        numbers = sorted(_number(step.name) for step in profile.steps)
        what = f"has no iteration {wanted}"
        raise InputError.single(path, "", what, f"it has {', '.join(map(str, numbers))}")
    for step, part in _read_each(profile, steps, choose):
        iteration = _iteration(part, step)
        if iteration.kernels:
            yield part, iteration
        elif wanted is not None:
            raise InputError.single(path, step.name, "launches no kernels", "choose another iteration")


def _read_each(profile: Profile, steps: Sequence[Span], choose: Choice) -> Iterator[tuple[Span, Profile]]:
    """Yields each step with its part of the profile, except steps that cannot have launched any kernel.

    profile: part of the first step. A step has no kernels if it began after the last launch that precedes a later step.
    """
    if not steps:
        return
    read, *others = steps
    yield read, profile
    for step in choose(others) if others else ():
        if step.end <= read.start and (profile.before is None or profile.before < step.start):
            continue
        read, profile = step, read_profile(profile.path, step)
        yield step, profile


def _read_last(path: Path, wanted: int | None) -> Profile:
    """Reads the last iteration, or the one with number `wanted`; the complete recording if it marks no steps."""
    steps = marked_steps(path)
    while True:
        profile = read_profile(path, next(iter(_latest_first(steps, wanted) or steps), None))
        if profile.steps == steps:
            return profile
        steps = profile.steps


def _latest_first(steps: Sequence[Span], wanted: int | None) -> list[Span]:
    result = [step for step in steps if wanted is None or _number(step.name) == wanted]
    return sorted(result, key=lambda step: step.start, reverse=True)


def _unmarked(profile: Profile, wanted: int | None) -> Iteration:
    """The complete recording as one iteration."""
    if wanted is not None:
        what = f"marks no iterations, so there is no iteration {wanted}"
        raise InputError.single(profile.path, "", what, "leave the number out: the recording is one iteration")
    first = min(kernel.start for kernel in profile.kernels)
    launches = [launched_at(kernel, profile) for kernel in profile.kernels]
    begin = min([first, *launches, *(op.start for op in profile.ops)])
    end = max([*launches, *(op.end for op in profile.ops)]) + 1
    return Iteration(None, begin, end, _in_order(profile.kernels))


def _iteration(profile: Profile, step: Span) -> Iteration:
    inside = [kernel for kernel in profile.kernels if step.start <= launched_at(kernel, profile) < step.end]
    return Iteration(_number(step.name), step.start, step.end, _in_order(inside), len(profile.steps))


def _in_order(kernels: Iterable[GpuWork]) -> tuple[GpuWork, ...]:
    """Kernels in the order they ran."""
    return tuple(sorted(kernels, key=lambda kernel: (kernel.start, kernel.number)))


def _number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdecimal() else -1


def _require_one_device(profile: Profile) -> None:
    if not profile.gpus:
        remedy = "record with ProfilerActivity.CUDA on a machine with a GPU, and let the window cover an iteration"
        raise InputError.single(profile.path, "", "has no GPU kernels", remedy)
    if len(profile.gpus) > 1:
        what = f"has kernels of several GPUs ({', '.join(map(str, sorted(profile.gpus)))})"
        remedy = "a trace has one GPU: record each rank separately and import one of them"
        raise InputError.single(profile.path, "", what, remedy)


_PIECE = 1 << 16
#: Maximum bytes of a step's event.
_REACH = 1 << 12
#: Enclosing "{" to try: the name of a step is in the event itself, but may follow nested arguments.
_TRIES = 4

_DECODER = json.JSONDecoder(parse_float=Decimal)


def marked_steps(path: Path) -> list[Span]:
    r"""The steps of a profile in file order; for a damaged file, those that can be read.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "profile.json"
    >>> mark = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 1, "tid": 1, "ts": 5, "dur": 2}'
    >>> _ = file.write_text('{"schemaVersion": 1, "traceEvents": [' + mark + "]}")
    >>> marked_steps(file)
    [Span(thread=(1, 1), start=5000, end=7000, name='ProfilerStep#4')]
    """
    result = []
    # Errors in the file or in an event are reported when the profile is read.
    with suppress(EOFError, OSError, zlib.error):
        for raw in _objects_with(path, STEP.encode()):
            with suppress(InputError):
                event = Event(path, 0, raw)
                if event.is_op and (step := event.step()) is not None:
                    result.append(step)
    return result


def _objects_with(path: Path, word: bytes) -> Iterator[dict[str, Any]]:
    """Yields the innermost objects of a JSON file whose text contains a word."""
    text, place, is_last = b"", 0, False
    with open_unzipped(path) as file:
        while not is_last:
            piece = file.read(_PIECE)
            text, is_last = text + piece, not piece
            end = len(text) if is_last else len(text) - _REACH
            while 0 <= (place := text.find(word, place)) < end:
                raw, place = _object_around(text, place)
                if raw is not None:
                    yield raw
            cut = max(end - _REACH, 0)
            text, place = text[cut:], max(end - cut, 0)


def _object_around(text: bytes, place: int) -> tuple[dict[str, Any] | None, int]:
    """The innermost object around a position, and the position after it; None if there is none nearby."""
    begin = place
    for _ in range(_TRIES):
        begin = text.rfind(b"{", max(place - _REACH, 0), begin)
        if begin < 0:
            break
        part = text[begin : place + _REACH].decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            raw, length = _DECODER.raw_decode(part)
            behind = begin + len(part[:length].encode())
            if behind > place:
                return raw, behind
    return None, place + 1


def may_cover(path: Path, steps: Sequence[Span], recorded: ExecutionTrace) -> list[Span]:
    """Returns the steps that might be joined with an execution trace, in the given order; `join` refuses all others.

    A step qualifies if one of its operators has the name of a node and the same Record function id or External id, or
    if one of its threads ran as many operators as a thread of the execution trace.
    """
    names = {node.function: node.name for node in recorded.nodes}
    lengths = set(Counter(node.thread for node in recorded.nodes).values())
    result: set[Span] = set()
    counts: Counter[tuple[Span, Thread]] = Counter()
    by_start = sorted(steps, key=lambda step: step.start)
    starts = [step.start for step in by_start]
    longest = max((step.end - step.start for step in steps), default=0)
    for number, raw in items(path, "traceEvents"):
        event = Event(path, number, raw) if isinstance(raw, dict) else None
        if event is None or not event.is_op:
            continue
        op = event.op()
        is_named = op.name in (names.get(op.function), names.get(op.external))
        around = by_start[bisect_right(starts, op.start - longest) : bisect_right(starts, op.start)]
        for step in around:
            if op.start < step.end:
                counts[step, op.thread] += 1
                if is_named:
                    result.add(step)
    result |= {step for (step, _), count in counts.items() if count in lengths}
    return [step for step in steps if step in result]
