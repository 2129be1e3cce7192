"""The blocks of a Chakra trace: the storages behind the tensors that its nodes name.

Nodes converted from PyTorch name their tensors, with storage and size; a kernel names those of the operator that
launched it. Other producers leave them out: then the trace has no blocks. Lifetimes are not recorded.

Which storage is which block follows the operators of the host in the order in which they began, which is that of ids:
- tensors with one storage share a block, but storages are reused: an output whose storage was neither an input of the
  operator nor belongs to the result of one around it is a new block. It begins with its operator, because parts of an
  operator may work on the result before it is returned;
- an input that no operator returned before is old: it was there when the iteration began;
- all kernels of an operator read its inputs, and write what it changed (by its schema) or created.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.chakra.kernels import Kernels
from simgpu.importers.chakra.nodes import ChakraNode, Operands
from simgpu.importers.drafts import BlockDraft, StorageNames, kind_of_new, kind_of_old
from simgpu.importers.execution_trace import Tensor, tensors_of
from simgpu.importers.pytorch_operators import samples as data_samples
from simgpu.importers.quantities import shown
from simgpu.trace.model import Block, BlockKind, Phase

#: Numbers that Python writes as words, which are no Python literals.
_WORDS = re.compile(r"(?<![\w'\"])-?(?:inf|nan)(?![\w'\"])")


@dataclass(slots=True, eq=False)
class ChakraBlock(BlockDraft):
    """A block of a Chakra trace. begun: id of the operator that created it, -1 for one from before the iteration.

    copied: whether a copy from the host filled it.
    """

    begun: int = -1
    arguments: set[str] = field(default_factory=set)
    views: set[int] = field(default_factory=set)
    copied: bool = False

    @property
    def is_old(self) -> bool:
        return self.begun < 0

    @property
    def is_filled_unseen(self) -> bool:
        """Whether it is new, and a kernel reads it before any wrote it: a copy or a fill did, which is left out."""
        return not self.is_old and self.first not in self.writers

    def see(self, tensor: Tensor) -> None:
        self.arguments.add(tensor.argument)
        if tensor.tensor not in self.views and (self.shape is None or tensor.bytes > self.bytes):
            self.bytes, self.shape, self.dtype = tensor.bytes, tensor.shape, tensor.dtype or None


def find_memory(kernels: Kernels) -> list[ChakraBlock]:
    """All blocks that kernels use, in the order in which operators name them."""
    walk = _Walk(kernels)
    for operator in walk.operators():
        walk.follow(operator)
    result = [memory for memory in walk.blocks if memory.is_used]
    for memory in result:
        if not memory.is_old:
            memory.drop_read_of_nothing()
    return result


class _Walk:
    """Keeps which block each storage holds, operator by operator."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.blocks: list[ChakraBlock] = []
        self._devices: set[str] = set()
        self._current: dict[int, ChakraBlock] = {}
        self._names = StorageNames()
        self._named = {node.id: named for node in kernels.document.nodes if any(named := self._tensors(node))}
        self._launched: dict[int, list[int]] = {}
        for position, node in enumerate(kernels.nodes):
            self._launched.setdefault(self._owner(node), []).append(position)
        self._copying = {self._owner(node) for node in kernels.transfers if "HtoD" in node.name}

    def _tensors(self, node: ChakraNode) -> tuple[list[Tensor], list[Tensor]]:
        op_schema = str(node.attributes.get("op_schema") or "")
        try:
            sides = [(_lists(node.inputs), op_schema), (_lists(node.outputs), "")]
            inputs, outputs = [list(tensors_of(node.name, listed, schema, self._devices)) for listed, schema in sides]
        except (ValueError, TypeError, LookupError, SyntaxError, AttributeError, MemoryError, RecursionError) as error:
            what = f"the tensors of node {node.label} cannot be read ({type(error).__name__}: {error})"
            path = self.kernels.document.path
            raise InputError.single(path, node.place, what, "convert it again") from None
        if len(self._devices) > 1:
            what = f"has tensors on several GPUs ({', '.join(sorted(self._devices))})"
            raise InputError.single(self.kernels.document.path, node.place, what, "import the trace of one GPU")
        return inputs, outputs

    def _owner(self, kernel: ChakraNode) -> int:
        """The innermost operator around a kernel that names tensors, or the kernel itself."""
        return next((node.id for node in self.kernels.around(kernel) if node.id in self._named), kernel.id)

    def operators(self) -> Iterator[ChakraNode]:
        """Nodes that name tensors, in the order in which they began; kernels count where they own themselves."""
        nodes = sorted(self.kernels.document.nodes, key=lambda node: node.id)
        place = {node.id: position for position, node in enumerate(self.kernels.nodes)}
        work = {*place, *(node.id for node in self.kernels.transfers)}
        owners = self._launched.keys() | self._copying
        chosen = [node for node in nodes if node.id in self._named and (node.id not in work or node.id in owners)]
        if all(node.id in work for node in chosen):  # a trace of the GPU alone: kernels follow their order
            return iter(sorted(chosen, key=lambda node: place.get(node.id, -1)))
        return iter(chosen)

    def follow(self, operator: ChakraNode) -> None:
        inputs, outputs = self._named[operator.id]
        given = [(tensor, self._given(tensor)) for tensor in inputs]
        created = [(tensor, self._created(tensor, operator, given)) for tensor in outputs]
        for tensor, memory in (*given, *created):
            memory.see(tensor)
        held = {id(memory) for _, memory in given}
        read = [memory for tensor, memory in given if not tensor.overwritten]
        written = [memory for tensor, memory in given if tensor.changed]
        written += [memory for _, memory in created if id(memory) not in held]
        for position in self._launched.get(operator.id, ()):
            for memory in read:
                memory.readers.add(position)
            for memory in written:
                memory.writers.add(position)
        if operator.id in self._copying:
            for memory in written:
                memory.copied = True

    def _given(self, tensor: Tensor) -> ChakraBlock:
        return self._current.get(tensor.storage) or self._new(tensor, -1)

    def _created(
        self, tensor: Tensor, operator: ChakraNode, given: Sequence[tuple[Tensor, ChakraBlock]]
    ) -> ChakraBlock:
        held = self._current.get(tensor.storage)
        if held is not None and any(memory is held for _, memory in given):
            if all(tensor.tensor != other.tensor for other, memory in given if memory is held):
                held.views.add(tensor.tensor)
            return held
        if held is not None and any(outer.id == held.begun for outer in self.kernels.around(operator)):
            return held
        return self._new(tensor, operator.id)

    def _new(self, tensor: Tensor, begun: int) -> ChakraBlock:
        memory = ChakraBlock(self._names.next(tensor.storage), begun=begun)
        self.blocks.append(memory)
        self._current[tensor.storage] = memory
        return memory


def _lists(operands: Operands) -> tuple[Any, Any, Any, None]:
    values, shapes, types = (_list(part) for part in (operands.values, operands.shapes, operands.types))
    if values and not len(values) == len(shapes) == len(types):
        raise ValueError(f"{len(values)} values, {len(shapes)} shapes and {len(types)} types")
    return values, shapes, types, None


def _list(part: Any) -> Any:
    """A list as it is, or from its text as Python writes it."""
    is_text = isinstance(part, str)
    value = (ast.literal_eval(_WORDS.sub("None", part)) if part.strip() else []) if is_text else part
    if not isinstance(value, list | tuple):
        raise ValueError(f"{shown(part)} is not a list")
    return value


def samples(kernels: Kernels) -> int | None:
    """Samples in the iteration: the first side of the first operator's data; None if unknown."""
    nodes = sorted(kernels.document.nodes, key=lambda node: node.id)
    return next((result for node in nodes if (result := data_samples(node.name, _lists(node.inputs)[1]))), None)


def block(memory: ChakraBlock, phases: Sequence[Phase], ids: Sequence[str], batch: int | None) -> Block:
    """The row of a block. phases, ids: of the kernels by position. batch: samples, None where unknown."""
    return Block(
        memory.id,
        memory.bytes,
        _kind(memory, phases, batch),
        persistent=memory.is_old,
        host_write=ids[memory.first] if memory.is_filled_unseen else None,
        shape=memory.shape,
        dtype=memory.dtype,
    )


def _kind(memory: ChakraBlock, phases: Sequence[Phase], batch: int | None) -> BlockKind:
    """What a block holds, as for every format, but for what copies and fills put there, which are no kernels."""
    if memory.copied and not memory.is_old:
        return BlockKind.INPUT
    if memory.is_filled_unseen:
        return BlockKind.OTHER
    reading = {phases[position] for position in memory.readers}
    if not memory.is_old:
        return kind_of_new(phases[min(memory.writers)], reading)
    writing = {phases[position] for position in memory.writers}
    kind = kind_of_old(reading, writing, memory.arguments, memory.shape, batch)
    return BlockKind.INPUT if kind is BlockKind.OTHER and memory.copied else kind
