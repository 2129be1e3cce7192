"""Imports the operator log of the DTR prototype: one JSON object per line, with the key INSTRUCTION.

How names become blocks:
- A result with ALIAS -1 is a new block. A result whose ALIAS is an argument's index is another name for that
  argument's block: it has no bytes of its own, and its kernel reads the block without writing it. COPY and COPY_FROM
  also only add a name.
- MUTATE is a kernel that reads its arguments and writes the mutated ones.
- A block is released with its last name. Its `release` is the kernel before that line; if no kernel ran since the block
  appeared, it is the next kernel. Blocks that still have a name at the end of the log get `end`; constants stay blank.
- A CONSTANT before the first operator is persistent. A later one is created at the next kernel.
- Lines before ANNOTATE START are set-up and are dropped. After ANNOTATE BACKWARD the phase is backward.

Operators keep their logged names. One name is misleading: `max_pool2d_backward` is max pooling in forward. It occurs
before ANNOTATE BACKWARD with one argument and two results (values and indices), and the log reads these results in
`max_pool2d_with_indices_backward`: the prototype's wrapper of `max_pool2d_with_indices` passes the wrong name. Both
pooling and its backward are pure, so `purity` may use the logged name.

Block kinds follow from the operators:
- A constant: by its position among the arguments of the first operator listed in `_ARGUMENTS`; views are ignored.
- A forward result: activation (feature map), or `other` if its kernel read only constants of unknown kind.
- A backward result: gradient, or weight gradient if it still has a name at the end of the log.
- Everything else: `other`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, did_you_mean
from simgpu.importers.drafts import kernel_ids
from simgpu.importers.json_stream import head, read_unzipped
from simgpu.importers.options import ImportOptions
from simgpu.importers.quantities import integer, shown
from simgpu.io.input_files import text_of
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, Trace
from simgpu.trace.operators import purity

_TOOL = "DTR prototype log"

#: Peak bytes of memory per byte of a log; measured (see `Importer.memory_factor`).
MEMORY_FACTOR = 14
_FIRST_LINE = 4096

_INSTRUCTIONS = ("CONSTANT", "MEMORY", "ALIAS", "CALL", "MUTATE", "COPY", "COPY_FROM", "RELEASE", "ANNOTATE")

#: The kind of a constant, by operator and argument position.
_ARGUMENTS: dict[str, dict[int, BlockKind]] = {
    "cudnn_convolution": {0: BlockKind.INPUT, 1: BlockKind.WEIGHT},
    "cudnn_batch_norm": {1: BlockKind.WEIGHT, 2: BlockKind.WEIGHT, 3: BlockKind.OTHER, 4: BlockKind.OTHER},
    "native_layer_norm": {1: BlockKind.WEIGHT, 2: BlockKind.WEIGHT},
    "mm": {0: BlockKind.INPUT, 1: BlockKind.WEIGHT},
    "addmm": {0: BlockKind.WEIGHT, 1: BlockKind.INPUT, 2: BlockKind.WEIGHT},
    "nll_loss_forward": {1: BlockKind.LABEL},
    "nll_loss2d_forward": {1: BlockKind.LABEL},
    "binary_cross_entropy_with_logits": {1: BlockKind.LABEL},
}


def recognises(path: Path) -> bool:
    """Whether the first line of the file, plain or gzip, is a JSON object with an INSTRUCTION."""
    if not path.is_file():
        return False
    first, _, _ = head(path).partition(b"\n")
    try:
        line = json.loads(first[:_FIRST_LINE])
    except (ValueError, RecursionError):
        return False
    return isinstance(line, dict) and "INSTRUCTION" in line


def load(path: Path, options: ImportOptions) -> Trace:
    """Returns the log as a trace. Raises `InputError` for the first invalid line."""
    walk = _Walk(path)
    for number, instruction in _instructions(path):
        walk.line = number
        walk.follow(instruction)
    walk.require_finished()
    if not walk.operators:
        raise InputError.single(path, "", "contains no operator after ANNOTATE START", "record an iteration")
    name = Path(path.name.removesuffix(".gz")).stem
    named = re.fullmatch(r"(.*?)-b?(\d+)", name)
    model, batch = (named[1], int(named[2])) if named else (name, None)
    notes = "One iteration after START."
    if options.batch is None:
        notes += f" The batch of {batch} is a guess from the file's name: the log does not tell it."
    info = options.info(path, _TOOL, model, batch, notes)
    return Trace(info, _kernels(walk.operators), _blocks(walk.storages, walk.operators))


def _kernels(operators: list[_Operator]) -> tuple[Kernel, ...]:
    return tuple(
        Kernel(
            id=number,
            op=operator.op,
            phase=operator.phase,
            duration_ns=operator.duration_ns,
            reads=tuple(storage.id for storage in operator.reads),
            writes=tuple(storage.id for storage in operator.writes),
            pure=purity(operator.op),
        )
        for number, operator in zip(kernel_ids(len(operators)), operators, strict=True)
    )


def _blocks(storages: list[_Storage], operators: list[_Operator]) -> tuple[Block, ...]:
    ids = kernel_ids(len(operators))
    blocks = []
    for storage in storages:
        persistent = storage.constant and storage.born == 0
        # A constant after the last operator has no next kernel: assign it to the last one.
        born = ids[min(storage.born, len(ids) - 1)]
        release = None if persistent else RELEASED_AT_END
        if storage.died is not None:
            release = ids[min(storage.died, len(ids) - 1)]
        blocks.append(
            Block(
                storage.id,
                storage.bytes,
                _kind(storage, operators),
                persistent=persistent,
                host_write=born if storage.constant and not persistent else None,
                release=release,
            )
        )
    return tuple(blocks)


def _kind(storage: _Storage, operators: list[_Operator]) -> BlockKind:
    if storage.constant:
        return storage.kind or BlockKind.OTHER
    maker = operators[storage.born]
    if maker.phase is Phase.BACKWARD:
        return BlockKind.WEIGHT_GRADIENT if storage.died is None else BlockKind.GRADIENT
    if maker.reads and all(source.constant and source.kind is None for source in maker.reads):
        return BlockKind.OTHER
    return BlockKind.ACTIVATION


def _instructions(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The instructions after ANNOTATE START, with their line numbers."""
    records: list[tuple[int, dict[str, Any]]] = []
    started = False
    text = text_of(read_unzipped(path, MEMORY_FACTOR), path, if_empty="record it again")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            instruction = json.loads(line)
        except (ValueError, RecursionError):
            cut = number == len(lines)
            what = "not a line of JSON: the log seems cut off" if cut else f"not a line of JSON: {line[:40]!r}"
            raise InputError.single(path, f"row {number}", what, "record it again") from None
        if not isinstance(instruction, dict) or "INSTRUCTION" not in instruction:
            what = f"has no INSTRUCTION: {line[:40]!r}"
            raise InputError.single(path, f"row {number}", what, "pass a DTR log")
        if started:
            records.append((number, instruction))
        started = started or instruction.get("ANNOTATION") == "START"
    if not started:
        raise InputError.single(path, "", "has no ANNOTATE START line", "pass the log of a complete iteration")
    return records


@dataclass(slots=True, eq=False)
class _Storage:
    """A block while the log is read.

    born: position of the first kernel that wrote it; for a constant, of the next kernel after its line.
    names: how many names refer to it.
    died: position of its last kernel; None while it has a name.
    kind: for a constant, its kind once known from an operator; else None.
    """

    id: str
    bytes: int
    born: int
    constant: bool
    names: int = 1
    died: int | None = None
    kind: BlockKind | None = None


@dataclass(slots=True)
class _Operator:
    """A kernel while the log is read."""

    op: str
    phase: Phase
    duration_ns: int
    reads: list[_Storage]
    writes: list[_Storage]


@dataclass(slots=True)
class _Walk:
    """The state of the recorded program after each line of the log."""

    path: Path
    line: int = 0
    phase: Phase = Phase.FORWARD
    operators: list[_Operator] = field(default_factory=list)
    storages: list[_Storage] = field(default_factory=list)
    by_name: dict[str, _Storage] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    constant: str | None = None
    arguments: list[_Storage] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def follow(self, instruction: dict[str, Any]) -> None:
        word = instruction["INSTRUCTION"]
        if word not in ("MEMORY", "ALIAS"):
            self.require_finished()
        match word:
            case "CONSTANT":
                self.constant = self._text(instruction, "NAME")
            case "MEMORY":
                self._memory(self._text(instruction, "NAME"), self._count(instruction, "MEMORY"))
            case "ALIAS":
                self._alias(self._text(instruction, "NAME"), instruction)
            case "CALL":
                self._call(instruction)
            case "MUTATE":
                self._mutate(instruction)
            case "COPY" | "COPY_FROM":
                self._copy(self._text(instruction, "DST"), self._text(instruction, "SRC"))
            case "RELEASE":
                self._drop(self._text(instruction, "NAME"))
            case "ANNOTATE":
                self._annotate(self._text(instruction, "ANNOTATION"))
            case _:
                raise self._wrong(f"unknown instruction {word!r}", did_you_mean(str(word), _INSTRUCTIONS))

    def _wrong(self, what: str, remedy: str = "record it again") -> InputError:
        return InputError.single(self.path, f"row {self.line}", what, remedy)

    def _field(self, instruction: dict[str, Any], key: str) -> Any:
        if key not in instruction:
            raise self._wrong(f"{instruction['INSTRUCTION']} without {key}")
        return instruction[key]

    def _text(self, instruction: dict[str, Any], key: str) -> str:
        value = self._field(instruction, key)
        if not isinstance(value, str):
            raise self._wrong(f"{key} is {shown(value)}, not a string")
        return value

    def _count(self, instruction: dict[str, Any], key: str) -> int:
        text = self._text(instruction, key)
        try:
            return integer(text)
        except ValueError:
            raise self._wrong(f"{key} is {shown(text)}, not a whole number >= 0") from None

    def _list(self, instruction: dict[str, Any], key: str, item: type) -> list[Any]:
        values = self._field(instruction, key)
        if not isinstance(values, list) or not all(type(value) is item for value in values):
            raise self._wrong(f"{key} is {shown(values)}, not a list of {item.__name__}")
        return values

    def _storage(self, name: str) -> _Storage:
        if name not in self.by_name:
            raise self._wrong(f"{name!r} is not a tensor that exists here")
        return self.by_name[name]

    def require_finished(self) -> None:
        """Raise `InputError` if a constant still lacks its MEMORY line, or a result its MEMORY or ALIAS line."""
        missing = self.constant or (self.results[0] if self.results else None)
        if missing is not None:
            raise self._wrong(f"the size or alias of {missing!r} is missing: the log seems cut off")

    def _name(self, name: str, storage: _Storage) -> None:
        if name in self.by_name:
            raise self._wrong(f"{name!r} is already defined")
        self.by_name[name] = storage

    def _new(self, name: str, size: int, born: int, constant: bool) -> _Storage:
        storage = _Storage(name, size, born, constant)
        self._name(name, storage)
        self.storages.append(storage)
        return storage

    def _memory(self, name: str, size: int) -> None:
        if name == self.constant:
            self._new(name, size, len(self.operators), constant=True)
            self.constant = None
        elif name in self.results:
            self.sizes[name] = size
        else:
            raise self._wrong(f"MEMORY of {name!r} does not directly follow a CONSTANT or CALL of {name!r}")

    def _alias(self, name: str, instruction: dict[str, Any]) -> None:
        if name not in self.sizes:
            raise self._wrong(f"ALIAS of {name!r}, without a MEMORY line just before")
        text = self._text(instruction, "ALIAS")
        size = self.sizes.pop(name)
        self.results.remove(name)
        if text == "-1":
            storage = self._new(name, size, len(self.operators) - 1, constant=False)
            self.operators[-1].writes.append(storage)
        elif text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(self.arguments):
            storage = self.arguments[int(text)]
            storage.names += 1
            self._name(name, storage)
        else:
            raise self._wrong(f"ALIAS is {shown(text)}, neither -1 nor the index of an argument")

    def _call(self, instruction: dict[str, Any]) -> None:
        self._kernel(instruction, [])
        self.results = list(self._list(instruction, "RESULT", str))

    def _mutate(self, instruction: dict[str, Any]) -> None:
        changed = self._list(instruction, "MUTATE", int)
        count = len(self._list(instruction, "ARGS", str))
        if not all(0 <= place < count for place in changed):
            raise self._wrong(f"MUTATE is {shown(changed)}, with {count} arguments")
        self._kernel(instruction, changed)

    def _kernel(self, instruction: dict[str, Any], changed: list[int]) -> None:
        op = self._text(instruction, "NAME")
        self.arguments = [self._storage(name) for name in self._list(instruction, "ARGS", str)]
        kinds = _ARGUMENTS.get(op, {})
        for place, storage in enumerate(self.arguments):
            if storage.constant and storage.kind is None:
                storage.kind = kinds.get(place)
        self.operators.append(
            _Operator(
                op,
                self.phase,
                self._count(instruction, "TIME"),
                list(dict.fromkeys(self.arguments)),
                list(dict.fromkeys(self.arguments[place] for place in changed)),
            )
        )

    def _copy(self, new: str, source: str) -> None:
        storage = self._storage(source)
        storage.names += 1
        if new in self.by_name:
            self._drop(new)
        self._name(new, storage)

    def _drop(self, name: str) -> None:
        storage = self._storage(name)
        del self.by_name[name]
        storage.names -= 1
        if not storage.names:
            storage.died = max(len(self.operators) - 1, storage.born)

    def _annotate(self, annotation: str) -> None:
        if annotation != "BACKWARD":
            raise self._wrong(f"unknown annotation {annotation!r}", "supported: START and BACKWARD")
        self.phase = Phase.BACKWARD
