"""Records what autograd saves for backward, when it is read and freed, and when all other references are dropped.

This runs forward and backward once more, with autograd saving copies. A block is then freed when its last other
reference is dropped, which the ledger observes. Operators and kernel positions stay the same. Persistent tensors such
as weights are not copied, because they stay referenced throughout. The pass also notes the calls of modules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from simgpu.recorder.iteration import as_it_was, run_gradients
from simgpu.recorder.layers import LOSS, LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.notes import BlockNote, CallNote, KernelNote, SavedNote, Saves
from simgpu.recorder.scratch import NoScratch
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.timing import Signature, expect_same
from simgpu.recorder.watching import enter_persistent
from simgpu.recorder.workload import Workload
from simgpu.torch.modules import module_type
from simgpu.torch.types import tensor_type
from simgpu.trace.model import BlockKind, Phase

#: With hooks installed, PyTorch calls this on the tensors it unpacks; it creates a view, so it is no kernel.
_DETACH = "aten.detach.default"


def note_saved(
    name: str,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    calls: Sequence[Signature],
    kernels: Sequence[KernelNote],
    blocks: Sequence[BlockNote],
    progress: Callable[[str], None],
    host: Sequence[torch.Tensor] = (),
) -> Saves:
    """Returns the tensors that autograd saves in the iteration and the calls of modules, with positions in `blocks`.

    calls, kernels, blocks: what the iteration ran and used when it was observed before. Weights, buffers and random
    state are restored afterwards. host: as in `Ledger`. If PyTorch does not allow hooks
    (`torch.func` does not), or has no memory for the copies, this reports it and returns nothing. Raises `InputError`
    naming `name` if the pass ran other operators than `calls`.
    """
    ledger = Ledger(device, host)
    try:
        with as_it_was(workload.module, device), LayerTracker(workload.module) as tracker:
            enter_persistent(ledger, workload, optimizer, tracker)
            before = len(ledger.blocks)
            watching = SavedPass(ledger, tracker, dict(workload.module.named_parameters()))
            tracker.watcher = watching.notes
            with watching, saved_tensors_hooks(watching.pack, watching.unpack):
                live = run_gradients(workload, watching)
                watching.finish()
            del live
    except RuntimeError as error:
        progress(f"what autograd saves is not noted: {str(error).partition(chr(10))[0]}")
        return Saves()
    finally:
        optimizer.zero_grad(set_to_none=True)
    same, again = ([call for call in created if call[0] != _DETACH] for created in (calls, watching.signatures))
    expect_same(name, same[: len(again)], again)
    return watching.noted(_same_blocks(before, watching.kernels, kernels, blocks))


def _same_blocks(
    before: int, kernels: Sequence[KernelNote], others: Sequence[KernelNote], blocks: Sequence[BlockNote]
) -> dict[int, int]:
    """By number of a block in this pass, its number in the other one, which ran the same kernels.

    before: number of blocks from before the iteration, which are the same in both passes. This pass has no workspaces,
    and more blocks in backward: where saved tensors are unpacked, and where two gradients are added.
    """
    numbers = {number: number for number in range(before)}
    for here, there in zip(kernels, others, strict=False):
        made = (number for number in there.writes if blocks[number].kind is not BlockKind.WORKSPACE)
        for one, other in (*zip(here.reads, there.reads, strict=False), *zip(here.writes, made, strict=False)):
            numbers.setdefault(one, other)
    return numbers


@dataclass(slots=True, weakref_slot=True)
class _Copy:
    """A copy of a block's memory, referenced by all that autograd saved of the block."""

    values: torch.Tensor


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Packed:
    """What autograd saves in place of a tensor: a view of the copy, or of the tensor itself if it was not copied."""

    note: SavedNote | None
    copy: _Copy
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class SaveNotes:
    """The notes of what forward saves and calls, in order; a watcher of calls for a `LayerTracker`.

    is_forward: whether forward runs now.
    """

    def __init__(self, ledger: Ledger, tracker: LayerTracker, is_forward: Callable[[], bool]) -> None:
        self.saved: list[SavedNote] = []
        self.is_finished = False
        self._calls: list[CallNote] = []
        self._open: list[CallNote | None] = []
        self._ledger = ledger
        self._tracker = tracker
        self._is_forward = is_forward

    def called(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the call of a module in forward, with gradients."""
        if not self._is_forward() or not torch.is_grad_enabled():
            self._open.append(None)
            return
        leaves = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if _is_plain(leaf)}
        given = [(self._ledger.find(each), each) for each in leaves.values() if self._ledger.holds_memory(each)]
        known = [(number, tensor_type(_dtype(each), each.shape)) for number, each in given if number is not None]
        inputs, types = tuple(number for number, _ in known), tuple(text for _, text in known)
        self._calls.append(CallNote(path, module_type(module), self._ledger.kernels, len(self.saved), inputs, types))
        self._open.append(self._calls[-1])

    def returned(self) -> None:
        """Notes the end of the call that began last."""
        call = self._open.pop()
        if call is not None:
            call.until, call.stop = self._ledger.kernels, len(self.saved)

    def ran_compiled(self) -> None:
        """Notes that compiled code runs in the calls that are under way."""
        for call in self._open:
            if call is not None:
                call.is_compiled = True

    def note_of(self, tensor: torch.Tensor) -> SavedNote:
        """A new note of a tensor that is saved now."""
        size, layer = tensor.numel() * tensor.element_size(), self._tracker.running or LOSS
        number = self._ledger.find(tensor)
        note = SavedNote(number, size, self._ledger.kernels, layer, tuple(tensor.shape), _dtype(tensor))
        self.saved.append(note)
        return note

    def result(self, numbers: Mapping[int, int]) -> Saves:
        """All notes of tensors whose block is known, and all calls. numbers: of blocks here, those in the result."""
        known = [0]
        for note in self.saved:
            known.append(known[-1] + (note.block is not None))
        tensors = (replace(note, block=numbers[note.block]) for note in self.saved if note.block is not None)
        calls = (
            replace(call, first=known[call.first], stop=known[call.stop], inputs=tuple(numbers[b] for b in call.inputs))
            for call in self._calls
        )
        return Saves(tuple(tensors), tuple(calls))


class SavedPass(StructurePass):
    """Observes an iteration whose autograd saves through `pack` and `unpack`; notes what forward saves and calls."""

    def __init__(self, ledger: Ledger, tracker: LayerTracker, parameters: dict[str, torch.nn.Parameter]) -> None:
        super().__init__(ledger, tracker, parameters, NoScratch(), has_values=False)
        self.notes = SaveNotes(ledger, tracker, lambda: self._phase is Phase.FORWARD)
        self._untouched: list[tuple[SavedNote, torch.Tensor]] = []
        self._copies: weakref.WeakValueDictionary[tuple[int, torch.dtype], _Copy] = weakref.WeakValueDictionary()
        self._not_copied: set[int] = set()
        self._is_copying = False

    def finish(self) -> None:
        """Called at the end of the iteration."""
        self.notes.is_finished = True
        super().finish()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._is_copying:
            return func(*args, **(kwargs or {}))
        before = len(self.kernels)
        returned = super().__torch_dispatch__(func, types, args, kwargs)
        if self._untouched and len(self.kernels) > before:
            for note, tensor in self._untouched:
                note.block = self._ledger.find(tensor)
                if note.block is not None:
                    self._not_copied.add(note.block)
            self._untouched.clear()
        return returned

    def pack(self, tensor: torch.Tensor) -> _Packed:
        """Returns what autograd saves in place of a tensor."""
        packed: _Packed = self._unwatched(lambda: self._packed(tensor))
        if packed.note is not None:
            weakref.finalize(packed, self._freed, packed.note).atexit = False
        return packed

    def unpack(self, packed: _Packed) -> torch.Tensor:
        """Returns the saved tensor to backward."""
        note = packed.note
        if note is not None and note.before is None:
            note.before = len(self.kernels)
        tensor: torch.Tensor = self._unwatched(lambda: self._unpacked(packed))
        return tensor

    def noted(self, numbers: Mapping[int, int]) -> Saves:
        """Returns the tensors saved and the modules called in forward; call it after the pass.

        numbers: by number of a block in this pass, its number in the result.
        """
        for note in self.notes.saved:
            if note.block is not None:
                note.dropped = self._dropped(note.block)
        return self.notes.result(numbers)

    def _dropped_by_operator(self, note: SavedNote) -> None:
        if not self.notes.is_finished:
            note.unused = max(len(self.kernels) - 1, 0)

    def _freed(self, note: SavedNote) -> None:
        if not self.notes.is_finished:
            note.freed = max(len(self.kernels) - 1, 0)

    def _dropped(self, number: int) -> int | Literal["end"] | None:
        block = self._ledger.blocks[number]
        if block.persistent:
            return "end"
        if number in self._not_copied:
            return None
        return "end" if block.release is None else block.release

    def _unpacked(self, packed: _Packed) -> torch.Tensor:
        """A tensor in a storage of its own, so that it shows when the operator drops it."""
        values = packed.copy.values
        if packed.note is not None:
            # A fake tensor has no memory to share, so a copy of it costs nothing.
            values = values.clone() if isinstance(values, FakeTensor) else torch.from_dlpack(values)
            weakref.finalize(values.untyped_storage(), self._dropped_by_operator, packed.note).atexit = False
        return values.as_strided(packed.size, packed.stride, packed.offset)

    def _packed(self, tensor: torch.Tensor) -> _Packed:
        note, copy = None, _Copy(_whole(tensor))
        if self._ledger.holds_memory(tensor):
            number = self._ledger.find(tensor)
            if number is not None and not self._ledger.blocks[number].persistent:
                copy = self._copy_of(number, tensor)
            if self._phase is Phase.FORWARD:
                note = self.notes.note_of(tensor)
                if number is None:
                    self._untouched.append((note, copy.values))
        return _Packed(note, copy, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _copy_of(self, number: int, tensor: torch.Tensor) -> _Copy:
        """Returns a copy of the tensor's storage; tensors saved of the same block share it while it is referenced."""
        copy = self._copies.get((number, tensor.dtype))
        if copy is None:
            copy = _Copy(_whole(tensor).clone())
            self._copies[number, tensor.dtype] = copy
        return copy

    def _unwatched(self, work: Callable[[], Any]) -> Any:
        previous, self._is_copying = self._is_copying, True
        try:
            with torch.no_grad():
                return work()
        finally:
            self._is_copying = previous


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All memory behind a tensor, which may be a view that begins later."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((elements,), (1,), 0)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_plain(leaf: object) -> bool:
    """Whether it is a tensor with memory of its own, none that `torch.func` wraps."""
    return isinstance(leaf, torch.Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(leaf)
