"""Check the contents of a program: known instructions with plain fields that name kernels and blocks of its graph.

`simgpu.program.verify` and the machine both begin with `check_program`, so that they accept the same programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any

from simgpu.errors import ProgramError
from simgpu.garbage import no_collection
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec, is_memory
from simgpu.program.code import Code
from simgpu.program.columns import Columns, ColumnWriter
from simgpu.program.faults import a_type, bool_fault, int_fault, number_fault, raised, several, shown
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    INSTRUCTIONS,
    Acquire,
    Await,
    Copy,
    Decode,
    Encode,
    InitialContents,
    Initialize,
    Launch,
    Program,
    Release,
    Section,
    Segment,
    Signal,
)
from simgpu.program.paging import Paged, Remote
from simgpu.program.placement import Placement
from simgpu.program.text import Place, excerpt, located
from simgpu.timeline.streams import ROLES, StreamId, is_role

#: Roles of the streams that run kernels, the GPU first.
LAUNCHING = ("compute", "host", "collectives")
#: The most instructions of one iteration, repetitions counted: each takes some microseconds and hundreds of bytes.
_EXECUTED = 10**8


@dataclass(frozen=True)
class CheckedProgram:
    """graph: with the program's transforms applied. memories: those that it uses, device and host first. columns: the
    program as arrays, None if its numbers need more than 32 bits."""

    program: Program
    graph: TaskGraph
    memories: tuple[str, ...]
    columns: Columns | None

    @cached_property
    def signalled(self) -> dict[int, int]:
        """By event, the segment that signals it."""
        if self.columns is not None:
            return self.columns.signalled
        return {
            instruction.event: index
            for index, segment in enumerate(self.program.segments)
            for code in segment.streams.values()
            for instruction in code
            if isinstance(instruction, Signal)
        }

    @property
    def launched(self) -> list[set[int]]:
        """For each segment the kernels that it launches, recomputations not counted."""
        if self.columns is not None:
            return self.columns.launched
        return [
            {i.kernel for code in segment.streams.values() for i in code if isinstance(i, Launch) and not i.recompute}
            for segment in self.program.segments
        ]


@no_collection()
def check_program(program: Program, graph: TaskGraph, node: NodeSpec | None = None) -> CheckedProgram:
    """Check the contents of a program. graph: the one it was planned for, without the program's transforms. node: the
    one it is to run on; without one, any memory but those of every node is accepted, and any link.

    Raises `ProgramError` with all mistakes (the first 20 in full): an object that is not an instruction, a subclass of
    one, a field of another type (a NumPy integer or a bool for an int), a kernel or block that is not in the graph, a
    memory or a link that the node lacks, a stream with an unknown role, a kernel on a copy stream, an event that is
    signalled twice or never, more instructions than a run can execute.

    >>> from simgpu.program.instructions import COMPUTE
    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5], [7], [100]))
    >>> check_program(Program((Segment({COMPUTE: (Launch(0), Launch(2), None)}),)), graph)
    Traceback (most recent call last):
    simgpu.errors.ProgramError: the program has 2 mistakes:
    compute[1], Launch(kernel=2, recompute=False, makes=()): kernel 2 is out of range: the graph has 2 kernels, from 0
    compute[2], None: a NoneType is not an instruction
    around compute[1]:
          launch F1
      --> Launch(kernel=2, recompute=False, makes=())
          None
    """
    if fault := not_a_program(program):
        raise ProgramError(fault)
    try:
        if faults := [*_faults_of_frame(program), *_faults_of_segments(program)] or [*_faults_of_size(program)]:
            raise ProgramError(several("program", faults))
        return _Checking(program, _transformed(program, graph), node).checked()
    except ProgramError:
        raise
    except Exception as error:  # an object in it may lack its fields, or fail when it is looked at or printed
        raise ProgramError(f"its contents cannot be read: {raised(error)}") from error


def not_a_program(value: object) -> str:
    """Why a value is not a program, with a remedy; empty for a program.

    >>> not_a_program(None)
    'None is not a Program: a plan must return one'
    """
    if type(value) is Program:
        return ""
    if isinstance(value, Placement):
        return "a Placement is not a Program: return simgpu.program.lowering.lower(context.graph, placement)"
    what = "None" if value is None else a_type(value)
    return f"{what} is not a Program: a plan must return one"


def _transformed(program: Program, graph: TaskGraph) -> TaskGraph:
    what = f"its transforms {shown(program.transforms)} cannot be applied"
    try:
        changed = transformed(graph, program.transforms)
    except ProgramError:
        raise
    except (Exception, SystemExit) as error:  # an outside transform may fail in any way
        raise ProgramError(f"{what}: {raised(error)}") from error
    if type(changed) is not TaskGraph:
        raise ProgramError(f"{what}: they give {a_type(changed)}, not a TaskGraph")
    counted = (("durations", len(changed.kernels)), ("sizes", len(changed.blocks)), ("copy_sizes", len(changed.blocks)))
    for name, count in counted if program.transforms else ():
        values = getattr(changed, name)
        if len(values) != count:
            raise ProgramError(f"{what}: they give {len(values)} {name}, where there are {count}")
        if fault := next((fault for value in values if (fault := number_fault(name, value, None))), ""):
            raise ProgramError(f"{what}: {fault}")
    return changed


def _faults_of_frame(program: Program) -> Iterator[str]:
    """Mistakes of a program other than in its segments, blocks and instructions."""
    for name in ("segments", "resident", "transforms", "notes", "other_contents", "sections"):
        if type(getattr(program, name)) is not tuple:
            yield f"{name} is {a_type(getattr(program, name))}, not a tuple"
    if fault := bool_fault("unlimited_memory", program.unlimited_memory):
        yield fault
    if type(program.pool) not in (type(None), str) or program.pool not in (None, "counting", "addressed"):
        yield f"pool {shown(program.pool)} is not known: give counting, addressed or None"
    yield from _faults_of_residency(program.residency)
    yield from (
        f"notes[{index}]: {shown(note)} is {a_type(note)}, not a str"
        for index, note in enumerate(program.notes if type(program.notes) is tuple else ())
        if type(note) is not str
    )
    for index, section in enumerate(program.sections if type(program.sections) is tuple else ()):
        if fault := _section_fault(section):
            yield f"sections[{index}]: {fault}"


def _faults_of_residency(residency: object) -> Iterator[str]:
    if type(residency) is not Paged:
        if type(residency) not in (type(None), Remote):
            yield f"residency {shown(residency)} is not known: give Paged, Remote or None"
        return
    for field in fields(residency):
        value = getattr(residency, field.name)
        check = bool_fault if field.name in ("first_touch", "write_back_clean") else int_fault
        if not (field.name == "bandwidth" and value is None) and (fault := check(field.name, value)):
            yield f"residency: {fault}"


def _section_fault(section: object) -> str:
    if type(section) is not Section:
        return f"{shown(section)} is {a_type(section)}, not a Section"
    if type(section.name) is not str:
        return f"name {shown(section.name)} is {a_type(section.name)}, not a str"
    if type(section.layers) is not tuple or any(type(layer) is not str for layer in section.layers):
        return f"layers {shown(section.layers)} is not a tuple of str"
    return number_fault("held_bytes", section.held_bytes, None) or number_fault("rerun_ns", section.rerun_ns, None)


def _faults_of_segments(program: Program) -> Iterator[str]:
    """Mistakes of segments that prevent a check of their instructions."""
    for index, segment in enumerate(program.segments if type(program.segments) is tuple else ()):
        if type(segment) is not Segment:
            yield f"segment {index} is {a_type(segment)}, not a Segment"
            continue
        repeat = segment.repeat
        if fault := int_fault("repeat", repeat) or ("" if repeat > 0 else f"repeat {repeat} is not 1 or more"):
            yield f"segment {index}: {fault}"
        streams: object = segment.streams
        # Another mapping may answer the machine otherwise than it answers this check.
        if type(streams) is not dict and type(streams) is not MappingProxyType:
            yield f"segment {index}: streams is {a_type(streams)}, not a dict"
            continue
        for stream, code in streams.items():
            if fault := _stream_fault(stream):
                yield f"segment {index}: {fault}"
            elif type(code) is not tuple and type(code) is not Code:
                yield f"segment {index}, {stream}: its instructions are {a_type(code)}, not a tuple or a Code"


def _stream_fault(stream: object) -> str:
    if type(stream) is not StreamId:
        return f"stream {shown(stream)} is {a_type(stream)}, not a StreamId"
    if type(stream.role) is not str:
        return f"stream {shown(stream)}: role is {a_type(stream.role)}, not a str"
    if not is_role(stream.role):
        known = f"give {', '.join(ROLES)}, or an engine such as host2ssd"
        return f"stream {shown(tuple(stream))}: role {shown(stream.role)} is not known: {known}"
    fault = number_fault("gpu", stream.gpu, None) or number_fault("number", stream.number, None)
    return f"stream {shown(tuple(stream))}: {fault}" if fault else ""


def _faults_of_size(program: Program) -> Iterator[str]:
    """Mistakes of size: programs that would take too much memory or time."""
    used = {stream.gpu for segment in program.segments for stream in segment.streams}
    missing = next(gpu for gpu in range(len(used) + 1) if gpu not in used)
    if missing < len(used):
        yield f"GPU {missing} has no stream, and GPU {max(used)} has: GPUs are numbered from 0"
    # Every stream passes through every repetition, even without instructions.
    streams = len(program.streams)
    executed = sum(each.repeat * (streams + sum(map(len, each.streams.values()))) for each in program.segments)
    if executed > _EXECUTED:
        yield f"an iteration executes more than {_EXECUTED} instructions: write fewer, or repeat segments less often"


class _Checking:
    """Checks the instructions of one program, and the initial contents of its memories."""

    def __init__(self, program: Program, graph: TaskGraph, node: NodeSpec | None) -> None:
        self.program, self.graph, self.node = program, graph, node
        self.memories: dict[str, None] = dict.fromkeys((DEVICE, HOST))
        self.kernels, self.blocks = len(graph.kernels), len(graph.blocks)
        self.signalled: dict[int, int] = {}
        self.awaited: set[int] = set()
        self.launches = self.computes = False
        self.mistakes: list[tuple[Place, str]] = []
        self.unreadable: set[Place] = set()
        self._check: dict[type, Callable[[Any], str]] = {
            Launch: self._launch,
            Copy: self._copy,
            Acquire: self._acquire,
            Release: self._blocks_in_memory,
            Initialize: self._blocks_in_memory,
            Encode: self._encode,
            Decode: self._decode,
            Signal: lambda signal: int_fault("event", signal.event),
            Await: lambda wait: int_fault("event", wait.event) or number_fault("lag", wait.lag, None),
        }

    def checked(self) -> CheckedProgram:
        """What is known of the program. Raises `ProgramError` for all mistakes together."""
        columns = self._columns()
        if columns is None:
            for index, segment in enumerate(self.program.segments):
                for stream, code in segment.streams.items():
                    self._stream(index, stream, code)
        for event in self.awaited.difference(self.signalled):
            self.mistakes.append((self._first_await(event), f"event {event} is never signalled"))
        self.mistakes.sort(key=lambda mistake: mistake[0])
        at_start = list(self._faults_at_start())
        if self.launches and not self.computes:
            at_start.append("no kernel runs on a compute stream, and the time of an iteration is measured there")
        if at_start or self.mistakes:
            raise ProgramError(self._message(at_start))
        # Memories that only the program names are known by now.
        return CheckedProgram(self.program, self.graph, tuple(self.memories), columns or self._columns())

    def _columns(self) -> Columns | None:
        """The columns of a program whose instructions are certainly right, else None."""
        of_its_own = self.program.residency is None
        known = [memory.name for memory in self.node.memories] if self.node is not None and of_its_own else []

        def can_copy(src: str, dst: str) -> bool:
            return self.node is None or self.node.link_between(src, dst) is not None

        writer = ColumnWriter(self.graph, self.memories, known, can_copy if of_its_own else None)
        try:
            columns = writer.columns(self.program)
        except Exception:  # it is doubtful, or an object in it lacks its fields, or fails when it is looked at
            return None
        self.memories = dict.fromkeys(writer.memories)
        return columns

    def _stream(self, index: int, stream: StreamId, code: Sequence[Any]) -> None:
        checks = self._check
        for position, instruction in enumerate(code):
            kind = type(instruction)
            check = checks.get(kind)
            fault = _not_an_instruction(instruction) if check is None else check(instruction)
            if kind is Launch and not fault:
                fault = self._launching(stream)
            if fault:
                place = Place(index, stream, position)
                self.unreadable.add(place)
                self.mistakes.append((place, fault))
            elif kind is Signal:
                event = instruction.event
                if event in self.signalled:
                    place = Place(index, stream, position)
                    self.mistakes.append((place, f"event {event} is signalled at a second place"))
                self.signalled[event] = index
            elif kind is Await:
                self.awaited.add(instruction.event)

    def _first_await(self, event: int) -> Place:
        return next(
            Place(index, stream, position)
            for index, segment in enumerate(self.program.segments)
            for stream, code in segment.streams.items()
            for position, instruction in enumerate(code)
            if type(instruction) is Await and instruction.event == event
        )

    def _faults_at_start(self) -> Iterator[str]:
        """Mistakes of the initial contents of memories."""
        for holding in self.program.other_contents:
            if type(holding) is not InitialContents:
                yield f"other_contents has {shown(holding)}, {a_type(holding)}, not an InitialContents"
            elif fault := self._memory(holding.memory) or number_fault("gpu", holding.gpu, None):
                yield f"other_contents: {fault}"
            elif holding.gpu >= self.program.gpus:
                yield f"blocks are resident on GPU {holding.gpu}, which the program does not use"
            elif holding.gpu and holding.memory != DEVICE:
                yield f"other_contents: GPUs share {holding.memory} memory: give gpu 0, not {holding.gpu}"
            elif fault := self._blocks(holding.blocks):
                yield f"other_contents: {fault}"
        if fault := self._blocks(self.program.resident):
            yield f"resident: {fault}"

    def _message(self, at_start: list[str]) -> str:
        program, graph = self.program, self.graph
        bad = self.unreadable
        lines = [located(program, graph, place, fault, bad) for place, fault in self.mistakes]
        text = several("program", [*at_start, *lines])
        if not self.mistakes:
            return text
        first = self.mistakes[0][0]
        around = [] if len(lines) + len(at_start) == 1 else [f"around {first.written(program)}:"]
        return "\n".join((text, *around, *excerpt(program, graph, first, bad)))

    # --- instructions: the mistake of one, empty if there is none -----------------------------------------------

    def _launch(self, launch: Launch) -> str:
        k = launch.kernel
        if type(k) is not int or not 0 <= k < self.kernels:
            return number_fault("kernel", k, self.kernels, "kernels")
        fault = bool_fault("recompute", launch.recompute) or self._blocks(launch.makes, "makes")
        if not fault and launch.makes and not launch.recompute:
            return "makes names blocks, and only a recompute has any"
        return fault

    def _launching(self, stream: StreamId) -> str:
        self.launches = True
        self.computes |= stream.role == "compute"
        if stream.role in LAUNCHING:
            return ""
        *others, last = LAUNCHING
        return f"kernels do not run on a {stream.role} stream: launch them on {', '.join(others)} or {last}"

    def _copy(self, copy: Copy) -> str:
        if fault := self._form_fault(copy.block, copy.into, copy.src) or self._memory(copy.dst):
            return fault
        if copy.src == copy.dst:
            return f"it copies from {copy.src} memory to itself"
        node = self.node
        if node is None or node.link_between(copy.src, copy.dst) is not None:
            return ""
        if not {copy.src, copy.dst} <= {memory.name for memory in node.memories}:
            return ""  # reported where the memory was first named
        links = ", ".join(" and ".join(link.ends) for link in node.links)
        return f"node {node.name} has no link between {copy.src} and {copy.dst}: it links {links}"

    def _encode(self, codec: Encode) -> str:
        return self._form_fault(codec.block, codec.into, codec.memory) or self._form(codec.block, codec.into)

    def _decode(self, codec: Decode) -> str:
        return self._form_fault(codec.block, codec.source, codec.memory) or self._form(codec.block, codec.source)

    def _form_fault(self, block: int, form: int | None, memory: str) -> str:
        """The mistake of an instruction that copies, encodes or decodes a block."""
        if isinstance(self.program.residency, Remote):
            return "the program's blocks are not its own to move"
        if self.program.residency is not None and form is not None:
            return "the program's blocks are pages on demand, and these have no encoded forms"
        fault = number_fault("block", block, self.blocks, "blocks") or self._memory(memory)
        return fault if fault or form is None else self._form(block, form)

    def _form(self, block: int, form: int) -> str:
        if fault := number_fault("form", form, self.blocks, "blocks"):
            return fault
        encoded, names = self.graph.encoded, self.graph.blocks
        known = form in encoded and encoded[form].block == block
        return "" if known else f"block {names[form].id} is not an encoded form of block {names[block].id}"

    def _acquire(self, acquire: Acquire) -> str:
        if (fault := self._blocks_in_memory(acquire)) or (offsets := acquire.offsets) is None:
            return fault
        if type(offsets) is not tuple or len(offsets) != len(acquire.blocks):
            return f"offsets {shown(offsets)} are not one for each of its {len(acquire.blocks)} blocks, as a tuple"
        return next((fault for each in offsets if (fault := number_fault("offset", each, None))), "")

    def _blocks_in_memory(self, request: Acquire | Release | Initialize) -> str:
        return self._blocks(request.blocks) or self._memory(request.memory)

    def _memory(self, memory: str) -> str:
        """The mistake in the name of a memory, which is one of the program's from now on."""
        if type(memory) is str and memory in self.memories:
            return ""
        if type(memory) is not str:
            return f"memory {shown(memory)} is {a_type(memory)}, not the name of a memory, such as {DEVICE} or {HOST}"
        if not is_memory(memory):
            return f"memory {shown(memory)} is not the name of a memory: names have two or more small letters"
        if self.program.residency is not None:
            return f"memory {memory}: a program whose blocks are not its own to move has only device and host memory"
        # Each memory is reported once, not at every instruction that names it.
        self.memories[memory] = None
        if self.node is not None and memory not in (known := [each.name for each in self.node.memories]):
            return f"node {self.node.name} has no memory {memory}: it has {', '.join(known)}"
        return ""

    def _blocks(self, blocks: tuple[int, ...], name: str = "blocks") -> str:
        if type(blocks) is not tuple:
            return f"{name} is {a_type(blocks)}, not a tuple"
        count = self.blocks
        for b in blocks:
            if type(b) is not int or not 0 <= b < count:
                return number_fault("block", b, count, "blocks")
        return ""


def _not_an_instruction(value: object) -> str:
    what = f"{a_type(value)} is not an instruction"
    known = next((kind.__name__ for kind in INSTRUCTIONS if isinstance(value, kind)), "")
    return f"{what}: use {known} itself, its subclasses are refused" if known else what
