"""Notes every allocation and free of a loop, in the order in which PyTorch requests them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from simgpu.recorder.notes import BlockNote
from simgpu.trace.allocations import Frame
from simgpu.trace.model import BlockKind
from simgpu.trace.requests import MemoryRequest, MemoryRequests


class Life(StrEnum):
    """When an operator frees memory that it allocated for itself: at once, when it ends, or never.

    What it frees at once is a workspace; if there is no memory for it, the operator uses less. The memory of a result
    is the result's own, which is larger than its values.
    """

    MOMENT = "moment"
    RESULT = "result"
    OPERATOR = "operator"
    LASTING = "lasting"


class Hidden(NamedTuple):
    """Memory that an operator allocates in addition to its results.

    after: number of results that it has allocated before. what: what it is for; lasting memory is allocated once for
    each name.
    """

    bytes: int
    after: int
    life: Life
    what: str


#: Returns the hidden memory of a call, in order: (operator, arguments, keyword arguments, result).
HiddenMemory = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Sequence[Hidden]]


class _Note(NamedTuple):
    """An allocation or a free of a block, or of hidden memory, which has negative numbers."""

    number: int
    is_free: bool


class AllocationLog:
    """Notes allocations and frees; the ledger calls `allocated` and `freed`, the structure pass the other methods."""

    def __init__(self, hidden: HiddenMemory | None = None) -> None:
        self._hidden = hidden
        self._notes: list[_Note] = []
        self._own: list[tuple[Hidden, tuple[Frame, ...]]] = []
        self._lasting: set[str] = set()
        self._lines: dict[int, Frame] = {}
        self._on_host: set[int] = set()
        self._larger: dict[int, int] = {}
        self._begin = 0

    @property
    def knows_workspaces(self) -> bool:
        """Whether it adds hidden memory itself; else the ledger reports the workspaces that were measured."""
        return self._hidden is not None

    def allocated(self, block: int) -> None:
        """A block was allocated."""
        self._notes.append(_Note(block, is_free=False))

    def freed(self, block: int) -> None:
        """A block was freed."""
        self._notes.append(_Note(block, is_free=True))

    def begin_operator(self) -> None:
        """The next allocations are results of an operator."""
        self._begin = len(self._notes)

    def end_operator(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        returned: Any,
        places: Mapping[int, int],
        line: Frame | None,
    ) -> None:
        """Adds the operator's hidden memory to its results.

        places: position in the returned value, by block. line: the line of code that runs, if known.
        """
        new = self._notes[self._begin :]
        if line is not None:
            self._lines.update(dict.fromkeys((note.number for note in new), line))
        hidden = self._hidden(func, args, kwargs, returned) if self._hidden is not None else ()
        if not hidden:
            return
        del self._notes[self._begin :]
        waiting, held = [each for each in hidden if each.life is not Life.RESULT], []
        larger = {each.after: each.bytes for each in hidden if each.life is Life.RESULT}
        for place, note in sorted(((places.get(note.number, 0), note) for note in new), key=lambda pair: pair[0]):
            if place in larger:
                self._larger[note.number] = larger[place]
            held += self._take([each for each in waiting if each.after <= place], func)
            waiting = [each for each in waiting if each.after > place]
            self._notes.append(note)
        held += self._take(waiting, func)
        self._notes += [_Note(number, is_free=True) for number in held]

    def _take(self, hidden: Sequence[Hidden], func: Any) -> list[int]:
        """Allocates hidden memory; returns what is freed when the operator ends."""
        operator, held = func._schema.name.rpartition("::")[2], []
        for each in hidden:
            if each.life is Life.LASTING and each.what in self._lasting:
                continue
            self._own.append((each, (Frame(f"workspace, {each.what}", operator, 0),)))
            number = -len(self._own)
            self._notes.append(_Note(number, is_free=False))
            if each.life is Life.MOMENT:
                self._notes.append(_Note(number, is_free=True))
            elif each.life is Life.OPERATOR:
                held.append(number)
            else:
                self._lasting.add(each.what)
        return held

    def on_host(self, block: int) -> None:
        """A block turned out to be on the host."""
        self._on_host.add(block)

    def add_requests(self, program: MemoryRequests, blocks: Sequence[BlockNote], in_place: Mapping[int, int]) -> None:
        """Adds the requests, in order.

        blocks: all blocks of the loop. in_place: by block, the block whose memory it took over, whose free and whose
        own allocation are therefore not requests.
        """
        numbers: dict[int, int] = {}
        taken_over = set(in_place.values())
        for number, is_free in self._notes:
            if number in self._on_host:
                continue
            if is_free and number not in taken_over:
                program.free(numbers.pop(number))
            elif not is_free and number in in_place:
                numbers[number] = numbers.pop(in_place[number])
            elif not is_free:
                numbers[number] = program.allocate(self._request(number, blocks))

    def _request(self, number: int, blocks: Sequence[BlockNote]) -> MemoryRequest:
        if number < 0:
            hidden, stack = self._own[-1 - number]
            return MemoryRequest(hidden.bytes, stack, str(BlockKind.WORKSPACE), hidden.life is Life.MOMENT)
        block = blocks[number]
        operator = "" if block.name else block.maker.rpartition("::")[2]
        kind = block.kind.replace("_", " ")
        what = f"{kind}, {operator}" if operator else kind
        place = block.name or block.layer or "no layer"
        line = self._lines.get(number)
        stack = (Frame(what, place, 0),) if line is None else (line, Frame(what, place, 0))
        return MemoryRequest(self._larger.get(number, block.bytes), stack, str(block.kind))
