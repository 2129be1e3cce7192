"""The blocks of a Chakra trace: the storages of the tensors that its nodes list.

Nodes converted from PyTorch list their tensors, with storage and size; a kernel uses those of the operator that
launched it. Traces from other tools have no tensors, so they have no blocks. Lifetimes are not recorded.

The importer assigns storages to blocks by following the host's operators in start order, which is the order of ids:
- Tensors with the same storage share a block, but storages are reused: an output is a new block if its storage is
  neither an input of the operator nor the result of an enclosing operator. The block begins with its operator, because
  inner operators may use the result before it is returned.
- An input that no earlier operator returned is old: it existed before the iteration.
- All kernels of an operator read its inputs, and write what it changed (by its schema) or created.
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

#: Numbers that Python prints as words, which are not Python literals.
_WORDS = re.compile(r"(?<![\w'\"])-?(?:inf|nan)(?![\w'\"])")


@dataclass(slots=True, eq=False)
class ChakraBlock(BlockDraft):
    """A block of a Chakra trace.

    begun: id of the operator that created it; -1 if it existed before the iteration.
    arguments: names of the operator arguments through which it is passed.
    views: ids of its tensors that are views.
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
        """Whether it is new and read before any kernel writes it: a copy or fill, which is not imported, wrote it."""
        return not self.is_old and self.first not in self.writers

    def see(self, tensor: Tensor) -> None:
        self.arguments.add(tensor.argument)
        if tensor.tensor not in self.views and (self.shape is None or tensor.bytes > self.bytes):
            self.bytes, self.shape, self.dtype = tensor.bytes, tensor.shape, tensor.dtype or None


def find_memory(kernels: Kernels) -> list[ChakraBlock]:
    """All blocks that kernels use, in the order in which operators list them."""
    walk = _Walk(kernels)
    for operator in walk.operators():
        walk.follow(operator)
    result = [memory for memory in walk.blocks if memory.is_used]
    for memory in result:
        if not memory.is_old:
            memory.drop_read_of_nothing()
    return result


class _Walk:
    """Follows the operators in order and tracks the current block of each storage."""

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
        """The innermost operator around a kernel that lists tensors, or the kernel itself."""
        return next((node.id for node in self.kernels.around(kernel) if node.id in self._named), kernel.id)

    def operators(self) -> Iterator[ChakraNode]:
        """Nodes that list tensors, in start order; kernels only if they belong to no operator with tensors."""
        nodes = sorted(self.kernels.document.nodes, key=lambda node: node.id)
        place = {node.id: position for position, node in enumerate(self.kernels.nodes)}
        work = {*place, *(node.id for node in self.kernels.transfers)}
        owners = self._launched.keys() | self._copying
        chosen = [node for node in nodes if node.id in self._named and (node.id not in work or node.id in owners)]
        if all(node.id in work for node in chosen):  # only GPU nodes: use the order of the kernels
            return iter(sorted(chosen, key=lambda node: place.get(node.id, -1)))
        return iter(chosen)

    def follow(self, operator: ChakraNode) -> None:
        inputs, outputs = self._named[operator.id]
        passed = [(tensor, self._input(tensor)) for tensor in inputs]
        returned = [(tensor, self._output(tensor, operator, passed)) for tensor in outputs]
        for tensor, memory in (*passed, *returned):
            memory.see(tensor)
        input_ids = {id(memory) for _, memory in passed}
        read = [memory for tensor, memory in passed if not tensor.overwritten]
        written = [memory for tensor, memory in passed if tensor.changed]
        written += [memory for _, memory in returned if id(memory) not in input_ids]
        for position in self._launched.get(operator.id, ()):
            for memory in read:
                memory.readers.add(position)
            for memory in written:
                memory.writers.add(position)
        if operator.id in self._copying:
            for memory in written:
                memory.copied = True

    def _input(self, tensor: Tensor) -> ChakraBlock:
        return self._current.get(tensor.storage) or self._new(tensor, -1)

    def _output(
        self, tensor: Tensor, operator: ChakraNode, inputs: Sequence[tuple[Tensor, ChakraBlock]]
    ) -> ChakraBlock:
        current = self._current.get(tensor.storage)
        if current is not None and any(memory is current for _, memory in inputs):
            if all(tensor.tensor != other.tensor for other, memory in inputs if memory is current):
                current.views.add(tensor.tensor)
            return current
        if current is not None and any(outer.id == current.begun for outer in self.kernels.around(operator)):
            return current
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
    """Returns a list unchanged, or parses it from its Python text."""
    is_text = isinstance(part, str)
    value = (ast.literal_eval(_WORDS.sub("None", part)) if part.strip() else []) if is_text else part
    if not isinstance(value, list | tuple):
        raise ValueError(f"{shown(part)} is not a list")
    return value


def samples(kernels: Kernels) -> int | None:
    """Samples per iteration: the first dimension of the first operator's data; None if unknown."""
    nodes = sorted(kernels.document.nodes, key=lambda node: node.id)
    return next((result for node in nodes if (result := data_samples(node.name, _lists(node.inputs)[1]))), None)


def block(memory: ChakraBlock, phases: Sequence[Phase], ids: Sequence[str], batch: int | None) -> Block:
    """The trace's row of a block. phases, ids: of the kernels by position. batch: samples; None if unknown."""
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
    """The kind of a block. Blocks written by copies are input; fills are not imported, so their blocks are `other`."""
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
