"""The structure pass: one iteration that records what every operator reads and writes, regardless of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils.flop_counter import flop_registry

from simgpu.recorder.contents import Values
from simgpu.recorder.in_place_backward import SELECTING, fits_in_first, may_sum, meetings_marked
from simgpu.recorder.layers import LOSS, LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.notes import KernelNote
from simgpu.recorder.operators import OperandAccess, access, operator_name, operator_purity
from simgpu.recorder.scratch import ScratchMeter
from simgpu.recorder.source_lines import source_line
from simgpu.recorder.timing import Signature, signature
from simgpu.trace.allocations import Frame
from simgpu.trace.code_lines import short_line
from simgpu.trace.model import BlockKind, Phase

_SPARSITY_DIGITS = 6


class StructurePass(TorchDispatchMode):
    """Notes what each operator of one iteration reads and writes.

    An operator is a kernel if it accesses memory of the recorded device. Operators that only create views (all results
    share storage with an argument, and nothing is written) do no work on the device and are omitted; later operators
    on the view read the block behind it.

    has_values: whether the tensors hold values whose sparsity can be measured.
    values: further measurements on the values.
    flops: operations of matrix products so far, by number format of their operands.
    """

    def __init__(
        self,
        ledger: Ledger,
        tracker: LayerTracker,
        parameters: dict[str, torch.nn.Parameter],
        scratch: ScratchMeter,
        has_values: bool = True,
        values: Values | None = None,
    ) -> None:
        super().__init__()
        self._has_values = has_values
        self._values = values or Values()
        self.kernels: list[KernelNote] = []
        self.signatures: list[Signature] = []
        self.flops: Counter[str] = Counter()
        self._ledger = ledger
        self._tracker = tracker
        self._parameters = parameters
        self._scratch = scratch
        self._phase = Phase.FORWARD
        self._layer: str | None = None
        self._scopes: dict[int, int] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: otherwise PyTorch would not run compiled code while this mode is active."""
        return True

    def begin(self, phase: Phase) -> None:
        """Called at the start of each phase; after backward, names the gradients of weights."""
        self._phase = phase
        self._layer = LOSS if phase is Phase.BACKWARD else None
        if phase is Phase.OPTIMIZER:
            self._name_weight_gradients()

    def __enter__(self) -> StructurePass:
        self._marking = meetings_marked()
        self._marking.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._marking.__exit__(*error)

    def finish(self) -> None:
        """Called at the end of the iteration."""
        self._values.between_operators(self._ledger)
        self._ledger.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the class of such a tensor calls operators on the tensors inside
        named = kwargs or {}
        if func.namespace == "prim":  # queries the device of a fake tensor
            return func(*args, **named)
        self._values.between_operators(self._ledger)
        layer = self._current_layer()
        self._scratch.start()
        log = self._ledger.log
        if log is not None:
            log.begin_operator()
        returned = func(*args, **named)
        scratch = self._scratch.used()
        self.signatures.append(signature(func, returned))
        if operator_name(func) == "aten::lift_fresh":
            self._lifted(returned)
            return returned
        done = self._on_device(access(func, args, named, returned))
        if not self._is_view(done):
            pure = operator_purity(func, args, named)
            line = None if log is None else source_line()
            self._note(func, layer, done, scratch, pure, _flops(func, args, named, returned), line)
            if log is not None:
                log.end_operator(func, args, named, returned, self._places(done), line)
        return returned

    def _lifted(self, tensor: torch.Tensor) -> None:
        """Called for a tensor that was created from Python numbers."""
        self._ledger.note_from_host(tensor)

    def _places(self, done: OperandAccess) -> dict[int, int]:
        """Position in the returned value of each block that an operator created."""
        numbers = ((self._ledger.find(tensor), place) for place, tensor in done.results)
        return {number: place for number, place in numbers if number is not None}

    def _current_layer(self) -> str | None:
        """The running module, else in backward the layer of the autograd node, or of the previous node if none runs."""
        if self._phase is Phase.OPTIMIZER:
            return None
        if self._tracker.running is not None:
            return self._tracker.running
        if self._phase is Phase.FORWARD:
            return LOSS
        node = torch._C._current_autograd_node()
        self._layer = (self._tracker.layer_of(node) if node is not None else None) or self._layer
        return self._layer

    def _may_be_in_place(self, func: Any, reads: tuple[int, ...], operands: Sequence[torch.Tensor]) -> bool:
        """Returns whether autograd may run this in place of its first operand when the pass does not observe it."""
        is_sum = func is torch.ops.aten.add.Tensor
        if not is_sum and operator_name(func) not in SELECTING:
            return False
        node = torch._C._current_autograd_node()
        if self._phase is not Phase.BACKWARD or node is None or self._tracker.running is not None:
            return False
        if torch.is_grad_enabled():  # backward creates a graph, in which the gradients must stay as they are
            return False
        is_own: bool = self._scopes.get(reads[0]) == node._sequence_nr()
        if not is_sum:
            return is_own and not isinstance(node, BackwardCFunction)  # a function of the user's own
        return len(operands) == 2 and fits_in_first(operands) and may_sum(node, is_own_result=is_own)

    def _on_device(self, done: OperandAccess) -> OperandAccess:
        tensors = [*done.read, *done.overwritten, *done.changed]
        if any(self._ledger.is_on_host(tensor) for tensor in tensors):
            return OperandAccess()  # a single value used with host tensors is on the host too
        return done.of(self._ledger.holds_memory)

    def _is_view(self, done: OperandAccess) -> bool:
        if done.overwritten or done.changed or not done.results:
            return False
        known = {_storage_key(tensor) for tensor in done.read}
        return all(_storage_key(tensor) in known for _, tensor in done.results)

    def _note(
        self,
        func: Any,
        layer: str | None,
        done: OperandAccess,
        scratch: int,
        pure: bool | None,
        flops: int | None,
        line: Frame | None,
    ) -> None:
        op = operator_name(func)
        reads = dict.fromkeys(self._ledger.block_read(tensor, layer) for tensor in done.read + done.changed)
        written = [(0, tensor) for tensor in done.overwritten + done.changed]
        written += [(place, tensor) for place, tensor in done.results if self._ledger.find(tensor) is None]
        writes = dict.fromkeys(
            self._ledger.block_created(tensor, self._kind(place, tensor), layer, op) for place, tensor in written
        )
        if not reads and not writes:
            return
        if scratch:
            writes[self._ledger.scratch(scratch, layer, op)] = None
        if self._has_values:
            self._values.changed(self._ledger, reads, writes)
            if self._phase is Phase.FORWARD:
                self._measure(tensor for _, tensor in written)
        lasting = any(self._ledger.blocks[number].persistent for number in writes)
        pure = False if lasting else pure
        in_place = bool(reads) and self._may_be_in_place(func, tuple(reads), done.read)
        call = len(self.signatures) - 1
        source = None if line is None else short_line(str(line))
        self.kernels.append(
            KernelNote(call, op, self._phase, layer, tuple(reads), tuple(writes), pure, flops, in_place, source)
        )
        self._ledger.kernels = len(self.kernels)
        if flops is not None and done.read:
            self.flops[_operand_format(done)] += flops
        node = torch._C._current_autograd_node()
        if node is not None:
            self._scopes.update(dict.fromkeys(writes, node._sequence_nr()))

    def _kind(self, place: int, tensor: torch.Tensor) -> BlockKind:
        """Returns the kind of a new block: only an operator's first result is an activation, others serve backward."""
        if not tensor.is_floating_point() or self._phase is Phase.OPTIMIZER:
            return BlockKind.OTHER
        if self._phase is Phase.BACKWARD and self._tracker.running is None:
            return BlockKind.GRADIENT
        return BlockKind.ACTIVATION if place == 0 else BlockKind.OTHER

    def _measure(self, written: Iterable[torch.Tensor]) -> None:
        """Measures the fraction of exact zeros in each activation just written; a later write replaces the value."""
        for tensor in written:
            block = self._ledger.blocks[self._ledger.block_read(tensor, None)]
            if block.kind is BlockKind.ACTIVATION:
                storage = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
                zeros = storage.numel() - int(torch.count_nonzero(storage))
                block.sparsity = round(zeros / storage.numel(), _SPARSITY_DIGITS)
                self._values.maps.show(tensor, block)

    def _name_weight_gradients(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and (number := self._ledger.find(parameter.grad)) is not None:
                block = self._ledger.blocks[number]
                block.kind = BlockKind.WEIGHT_GRADIENT
                block.name = f"{name}.grad"
                block.layer = self._tracker.owner(name)


def _storage_key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _operand_format(done: OperandAccess) -> str:
    """Returns the number format of a product: that of its last floating-point operand, which is never the summand."""
    floating = [tensor.dtype for tensor in done.read if tensor.is_floating_point()]
    return str(floating[-1] if floating else done.read[-1].dtype).removeprefix("torch.")


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> int | None:
    formula = flop_registry.get(func._overloadpacket)
    try:
        return None if formula is None else int(formula(*args, **kwargs, out_val=returned))
    except AssertionError:  # PyTorch 2.11 has no formula for attention with fewer keys than queries
        return None
