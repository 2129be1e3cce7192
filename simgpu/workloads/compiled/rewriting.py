"""`compile_session` replaces the kernels of an iteration that ran eagerly by those of compiled graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simgpu.trace.model import RELEASED_AT_END, BlockKind, Phase, SavedTensor
from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.compiled.fused import fused_operation
from simgpu.workloads.compiled.graph import INPUTS, GraphNode, Joint, NodeKind, simplified
from simgpu.workloads.compiled.partition import saved_nodes
from simgpu.workloads.compiled.regions import Output, Region, layer_of, regions_of
from simgpu.workloads.compiled.scheduling import GraphKernel, scheduled
from simgpu.workloads.eager.session import Save, Session
from simgpu.workloads.lowering.tape import Tape, TapeBlock

#: The operator of a generated kernel.
GENERATED = "triton_fused"
#: Operators that read of their first operand what they write.
_PARTLY = frozenset(("embedding", "gather", "index_select"))


class CompiledIteration(NamedTuple):
    """The tape of an iteration with compiled graphs, and what autograd saves in it."""

    tape: Tape
    saved: tuple[SavedTensor, ...]


def compile_session(session: Session, form: CompileForm) -> CompiledIteration:
    """The iteration of a session, whose backward has run and whose launches are noted, with compiled graphs.

    Raises `InputError` for operators in a graph that are not modelled.
    """
    splits: dict[object, list[int]] = {}
    compiled = []
    for region in regions_of(session, form):
        joint = simplified(region.joint)
        key = _form_of(joint)
        if key not in splits:
            splits[key] = [node.place for node in saved_nodes(joint)]
        compiled.append(_Compiled.of(region, joint, [joint.nodes[place] for place in splits[key]]))
    return _Writer(session, form).written(compiled)


def _form_of(joint: Joint) -> object:
    """Equal for graphs that are split alike, such as those of equal layers."""
    nodes = tuple(
        (node.op, node.kind, node.shape, node.dtype, tuple(each.place for each in node.inputs)) for node in joint.nodes
    )
    return nodes, *(tuple(each.place for each in group) for group in (joint.results, joint.gradients))


@dataclass(frozen=True, slots=True, eq=False)
class _Compiled:
    """The kernels of one run of a graph. saved: what forward keeps for backward, with weights. forward, backward: the
    kernels of each pass. results, gradients: what these return."""

    region: Region
    saved: list[GraphNode]
    forward: list[GraphKernel]
    backward: list[GraphKernel]
    results: list[Output]
    gradients: list[Output]

    @classmethod
    def of(cls, region: Region, joint: Joint, saved: list[GraphNode]) -> _Compiled:
        inputs = [node for node in joint.nodes if node.kind in INPUTS]
        stored = [*joint.results, *(each for each in saved if each.base.kind not in INPUTS)]
        given = [*saved, *(node for node in inputs if node.kind is NodeKind.TANGENT)]
        return cls(
            region,
            saved,
            scheduled(joint.nodes, inputs, stored, backward=False),
            scheduled(joint.nodes, given, joint.gradients, backward=True),
            [each._replace(node=node) for each, node in zip(region.results, joint.results, strict=True)],
            [each._replace(node=node) for each, node in zip(region.gradients, joint.gradients, strict=True)],
        )


class _Row(NamedTuple):
    """What a graph saved. after: position of the last kernel of forward. before: that of the first one of backward.
    freed: that of the last one that uses it."""

    node: GraphNode
    block: TapeBlock
    after: int
    before: int
    freed: int


@dataclass(slots=True, eq=False)
class _Writer:
    """Writes the new tape. moved: by the position of an eager kernel, that of the last new one up to it. renamed: by
    the block of a gradient in eager execution, its block now. memory: by a run of a graph, the blocks of its nodes.
    ends: by a run, the position of forward's last kernel. taken: blocks that have a value. copied: positions of eager
    kernels that run already."""

    session: Session
    form: CompileForm
    tape: Tape = field(default_factory=Tape)
    moved: list[int] = field(default_factory=list)
    renamed: dict[TapeBlock, TapeBlock] = field(default_factory=dict)
    memory: dict[_Compiled, dict[GraphNode, TapeBlock]] = field(default_factory=dict)
    ends: dict[_Compiled, int] = field(default_factory=dict)
    rows: list[_Row] = field(default_factory=list)
    taken: set[TapeBlock] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)

    def written(self, compiled: Sequence[_Compiled]) -> CompiledIteration:
        """The new tape, and what autograd saves."""
        old = self.session.tape
        held = self._held_longer(compiled)
        self.tape.blocks += [block for block in old.blocks if block.persistent]
        self.taken |= {output.block for each in compiled for output in (*each.results, *each.gradients)}
        owner = {place: each for each in compiled for place in each.region.places}
        begun: set[tuple[_Compiled, Phase]] = set()
        for place, kernel in enumerate(old.kernels):
            each = owner.get(place)
            self.tape.phase = kernel.phase
            if each is None:
                self._copy(place)
            elif (each, kernel.phase) not in begun:
                begun.add((each, kernel.phase))
                if kernel.phase is Phase.FORWARD:
                    self._write_forward(each)
                else:
                    self._write_backward(each)
            self.moved.append(len(self.tape.kernels) - 1)
        return self._finished(held)

    def _copy(self, place: int) -> None:
        """Runs an eager kernel, once."""
        if place in self.copied:
            return
        kernel = self.session.tape.kernels[place]
        self.copied.add(place)
        self.tape.layer = kernel.layer
        reads, writes = ([self.renamed.get(x, x) for x in group] for group in (kernel.reads, kernel.writes))
        self.tape.launch_blocks(kernel.op, kernel.operations, reads, writes, pure=kernel.pure)

    def _held_longer(self, compiled: Sequence[_Compiled]) -> dict[TapeBlock, int | None]:
        """Blocks that are freed later than after their last use, by a kernel that is not compiled, and after which."""
        tape = self.session.tape
        inside = {place for each in compiled for place in each.region.places}
        last: dict[TapeBlock, int] = {}
        for place, kernel in enumerate(tape.kernels):
            last |= dict.fromkeys((*kernel.reads, *kernel.writes), place)
        return {
            block: block.release
            for block in tape.blocks
            if not block.persistent and block in last
            if block.release is None or (block.release > last[block] and block.release not in inside)
        }

    def _write_forward(self, compiled: _Compiled) -> None:
        memory = self.memory[compiled] = {}
        for block, node in compiled.results:
            memory.setdefault(node.base, block)
        for kernel in compiled.forward:
            self._launch(kernel, memory, compiled.results)
        self.ends[compiled] = len(self.tape.kernels) - 1

    def _write_backward(self, compiled: _Compiled) -> None:
        for place in compiled.region.before:
            self._copy(place)
        first, memory, begin = self.memory[compiled], dict[GraphNode, TapeBlock](), len(self.tape.kernels)
        for node in compiled.saved:
            memory[node.base] = first.get(node.base) or self._input(node.base)
        gradients = [Output(self._own(compiled, *each), each.node) for each in compiled.gradients]
        for block, node in gradients:
            memory.setdefault(node.base, block)
        for kernel in compiled.backward:
            self._launch(kernel, memory, gradients)
        self.renamed |= {old.block: new.block for old, new in zip(compiled.gradients, gradients, strict=True)}
        freed = {block: at for at in range(begin, len(self.tape.kernels)) for block in self.tape.kernels[at].reads}
        for node in compiled.saved:
            block = memory[node.base]
            self.rows.append(_Row(node, block, self.ends[compiled], begin, freed.get(block, begin)))

    def _own(self, compiled: _Compiled, block: TapeBlock, node: GraphNode) -> TapeBlock:
        """Memory for a gradient that eager execution adds to one that the graph is given: new."""
        if not any(node.kind is NodeKind.TANGENT and node.block is block for node in compiled.region.nodes):
            return block
        return self._created(node, block.kind)

    def _input(self, node: GraphNode) -> TapeBlock:
        assert node.block is not None
        return self.renamed.get(node.block, node.block)

    def _launch(self, kernel: GraphKernel, memory: dict[GraphNode, TapeBlock], outputs: Sequence[Output]) -> None:
        """Puts one kernel on the tape; its new values get memory."""
        last = next(reversed(kernel.computed))
        self.tape.layer = last.layer
        reads = [memory.get(node) or self._input(node) for node in kernel.reads if node.bytes]
        for node in kernel.writes:
            if node not in memory:
                memory[node] = self._new(node)
        stored = [memory[node] for node in kernel.writes if node.bytes]
        if kernel.extern is not None:
            launch = kernel.extern.launch
            assert launch is not None
            eager = self.session.tape.kernels[launch.place]
            results = {node.slot: memory[node] for node in kernel.writes}
            unread = [x.block for place, x in enumerate(launch.created) if place not in results and x.block.bytes]
            self.tape.launch_blocks(eager.op, eager.operations, reads, [*stored, *unread], pure=eager.pure)
            return
        stored += [block for block, node in outputs if node.base in kernel.writes and block not in stored]
        moved = sum(self._read_bytes(kernel, node) for node in kernel.reads) + sum(block.bytes for block in stored)
        pure = all(node.op != "inductor_random" for node in kernel.computed)
        self.tape.launch_blocks(GENERATED, (fused_operation(self.tape.phase, moved),), reads, stored, pure=pure)

    def _new(self, node: GraphNode) -> TapeBlock:
        """The block of eager execution, or a new one for values that it does not have, or that exist again."""
        block = node.block
        if block is not None and block not in self.taken and block.dtype == node.dtype:
            self.taken.add(block)
            return block
        is_float = node.dtype in ("bfloat16", "float16", "float32")
        kind = BlockKind.GRADIENT if self.tape.phase is Phase.BACKWARD else BlockKind.ACTIVATION
        return self._created(node, kind if is_float else BlockKind.OTHER)

    def _created(self, node: GraphNode, kind: BlockKind) -> TapeBlock:
        """A new block, with a name that eager execution does not use."""
        tape = self.session.tape
        tape.layer = node.layer
        return tape.new(f"{node.layer}:{node.op}", node.shape, kind, node.dtype).block

    def _read_bytes(self, kernel: GraphKernel, node: GraphNode) -> int:
        """Bytes that a kernel reads of a value: all, or of a table the rows that it takes."""
        takers = [each for each in kernel.computed if node in (x.base for x in each.inputs)]
        if takers and all(each.op in _PARTLY and each.inputs[0].base is node for each in takers):
            return min(node.bytes, sum(each.bytes for each in takers))
        return node.bytes

    def _finished(self, held: dict[TapeBlock, int | None]) -> CompiledIteration:
        """The tape with the blocks that it uses, and when they are freed."""
        used = dict.fromkeys(block for kernel in self.tape.kernels for block in (*kernel.reads, *kernel.writes))
        for block, place in held.items():
            now = self.renamed.get(block, block)
            if place is None:
                now.release = None
            elif now.release is not None:
                now.release = max(now.release, self.moved[place])
        self.tape.blocks += [block for block in used if not block.persistent]
        return CompiledIteration(self.tape, tuple(self._saved()))

    def _saved(self) -> Iterator[SavedTensor]:
        """What graphs and operators outside of them save, in the order of saving."""
        names = [kernel.id for kernel in self.tape.kernels]
        last: dict[TapeBlock, int] = {}
        for place, kernel in enumerate(self.tape.kernels):
            if kernel.phase is Phase.FORWARD:
                last |= dict.fromkeys((*kernel.reads, *kernel.writes), place)
        for block, after in self._saved_after():
            last[block] = max(after, last.get(block, -1))
        rows = [(row.after, self._of_graph(row, names, last)) for row in self.rows]
        rows += [(self._moved(save.after), self._of_operator(save, names, last)) for save in self._outside()]
        return (row for _, row in sorted(rows, key=lambda each: each[0]))

    def _saved_after(self) -> Iterator[tuple[TapeBlock, int]]:
        """The blocks that are saved, and after which kernel."""
        yield from ((row.block, row.after) for row in self.rows)
        yield from ((save.tensor.block, self._moved(save.after)) for save in self._outside())

    def _outside(self) -> Iterator[Save]:
        """What autograd saves outside of compiled graphs."""
        if self.form is CompileForm.LAYERS:
            yield from (save for save in self.session.saves if layer_of(save.node.layer) is None)

    def _moved(self, place: int) -> int:
        return self.moved[place] if place >= 0 else -1

    def _of_graph(self, row: _Row, names: Sequence[str], last: dict[TapeBlock, int]) -> SavedTensor:
        block, node = row.block, row.node
        return SavedTensor(
            block.id,
            node.bytes,
            packed_after=names[row.after],
            unpacked_before=names[row.before],
            released_after=_released(block, last[block], names),
            unused_after=names[row.freed],
            freed_after=names[row.freed],
            layer=node.layer,
            shape=node.shape,
            dtype=node.dtype,
        )

    def _of_operator(self, save: Save, names: Sequence[str], last: dict[TapeBlock, int]) -> SavedTensor:
        node, tensor, after = save.node, save.tensor, self._moved(save.after)
        assert node.begin is not None and node.unused is not None and node.freed is not None
        return SavedTensor(
            tensor.block.id,
            tensor.bytes,
            packed_after=names[after] if after >= 0 else None,
            unpacked_before=names[self._moved(node.begin - 1) + 1],
            released_after=_released(tensor.block, last[tensor.block], names),
            unused_after=names[self._moved(node.unused)],
            freed_after=names[self._moved(node.freed)],
            layer=node.layer,
            shape=tensor.shape,
            dtype=tensor.dtype,
        )


def _released(block: TapeBlock, place: int, names: Sequence[str]) -> str:
    """The kernel after which only autograd holds a block."""
    return RELEASED_AT_END if block.persistent or block.release is None else names[place]
