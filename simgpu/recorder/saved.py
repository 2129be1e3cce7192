"""What autograd saves for backward: which tensors, when it takes them back, and how long anybody else holds them.

One more pass forward and backward, in which autograd is handed copies of what it saves. So a block goes when nobody
else holds it, which the ledger sees. The operators are the same, and so is the place of each kernel in the iteration;
weights and whatever else was there before are handed over as they are, for somebody holds them throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch.autograd.graph import saved_tensors_hooks

from simgpu.recorder.iteration import as_it_was, run_gradients
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.notes import BlockNote, SavedNote, without_workspaces
from simgpu.recorder.scratch import NoScratch
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.timing import Signature, expect_same
from simgpu.recorder.watching import enter_persistent
from simgpu.recorder.workload import Workload
from simgpu.trace.model import Phase

#: PyTorch calls it, with hooks, on what it takes back; it makes a view, so no kernel.
_DETACH = "aten.detach.default"


def note_saved(
    name: str,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    calls: Sequence[Signature],
    blocks: Sequence[BlockNote],
    progress: Callable[[str], None],
    host: Sequence[torch.Tensor] = (),
) -> list[SavedNote]:
    """What autograd saves in the iteration of these calls and blocks, by the numbers of `blocks`, in order.

    Weights, buffers and random numbers are as before afterwards. host: as `Ledger` has it. Where PyTorch refuses hooks
    (`torch.func` does), or has no memory for the copies, that is said, and nothing is noted. Raises `InputError` naming
    `name` where the pass ran other operators.
    """
    ledger = Ledger(device, host)
    try:
        with as_it_was(workload.module, device), LayerTracker(workload.module) as tracker:
            enter_persistent(ledger, workload, optimizer, tracker)
            watching = SavedPass(ledger, tracker, dict(workload.module.named_parameters()))
            with watching, saved_tensors_hooks(watching.pack, watching.unpack):
                held = run_gradients(workload, watching)
                watching.finish()
            del held
    except RuntimeError as error:
        progress(f"what autograd saves is not noted: {str(error).partition(chr(10))[0]}")
        return []
    finally:
        optimizer.zero_grad(set_to_none=True)
    same, again = ([call for call in created if call[0] != _DETACH] for created in (calls, watching.signatures))
    expect_same(name, same[: len(again)], again)
    # Blocks are met in the same order, those of backward last; this pass is not told of workspaces.
    numbers = without_workspaces(blocks)
    return [replace(note, block=numbers[note.block]) for note in watching.noted() if note.block is not None]


@dataclass(slots=True, weakref_slot=True)
class _Copy:
    """The memory of a block as it was, held by whatever autograd saved of it."""

    values: torch.Tensor


class _Packed(NamedTuple):
    """What autograd holds instead of a tensor: a view of the copy, or of the tensor itself where there is none."""

    note: SavedNote | None
    copy: _Copy
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class SavedPass(StructurePass):
    """Watches an iteration whose autograd saves through `pack` and `unpack`; notes what it saves in forward."""

    def __init__(self, ledger: Ledger, tracker: LayerTracker, parameters: dict[str, torch.nn.Parameter]) -> None:
        super().__init__(ledger, tracker, parameters, NoScratch(), has_values=False)
        self._saved: list[SavedNote] = []
        self._untouched: list[tuple[SavedNote, torch.Tensor]] = []
        self._copies: WeakValueDictionary[tuple[int, torch.dtype], _Copy] = WeakValueDictionary()
        self._not_copied: set[int] = set()
        self._is_copying = False

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
        """Autograd saves a tensor; what comes back is what it holds."""
        packed: _Packed = self._unwatched(lambda: self._packed(tensor))
        return packed

    def unpack(self, packed: _Packed) -> torch.Tensor:
        """Backward takes a tensor back."""
        note = packed.note
        if note is not None and note.before is None:
            note.before = len(self.kernels)
        values = packed.copy.values
        tensor: torch.Tensor = self._unwatched(lambda: values.as_strided(packed.size, packed.stride, packed.offset))
        return tensor

    def noted(self) -> list[SavedNote]:
        """What was saved in forward, once the pass is over."""
        for note in self._saved:
            if note.block is not None:
                note.dropped = self._dropped(note.block)
        return self._saved

    def _dropped(self, number: int) -> int | Literal["end"] | None:
        block = self._ledger.blocks[number]
        if block.persistent:
            return "end"
        if number in self._not_copied:
            return None
        return "end" if block.release is None else block.release

    def _packed(self, tensor: torch.Tensor) -> _Packed:
        note, copy = None, _Copy(tensor.detach())
        if self._ledger.holds_memory(tensor):
            number = self._ledger.find(tensor)
            if number is not None and not self._ledger.blocks[number].persistent:
                copy = self._copy_of(number, tensor)
            if self._phase is Phase.FORWARD:
                note = SavedNote(number, tensor.numel() * tensor.element_size(), len(self.kernels))
                self._saved.append(note)
                if number is None:
                    self._untouched.append((note, copy.values))
        return _Packed(note, copy, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _copy_of(self, number: int, tensor: torch.Tensor) -> _Copy:
        """A copy of all memory behind a tensor, one for all that is saved of it while any of that is held."""
        copy = self._copies.get((number, tensor.dtype))
        if copy is None:
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            copy = _Copy(tensor.detach().as_strided((elements,), (1,), 0).clone())
            self._copies[number, tensor.dtype] = copy
        return copy

    def _unwatched(self, work: Callable[[], Any]) -> Any:
        was, self._is_copying = self._is_copying, True
        try:
            with torch.no_grad():
                return work()
        finally:
            self._is_copying = was
