"""Observes what autograd saves in a step that runs once: when it is dropped, unpacked and freed, and in which module.

Nothing is copied, so no lifetime changes. Who holds a block is seen in the number of tensors that refer to its storage:
when only those remain that autograd saved, everything else has dropped it; while an operator of backward holds what it
unpacked, there is one more. These numbers are looked at before each operator.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch.autograd.graph import saved_tensors_hooks

from simgpu.recorder.autocast import replaced
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.notes import SavedNote, Saves
from simgpu.recorder.saved import SaveNotes


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Packed:
    """What autograd holds in place of a tensor: the same memory. note: None for what is not noted. run: of backward,
    the first that unpacked it."""

    tensor: torch.Tensor
    note: SavedNote | None
    run: int = -1


@dataclass(slots=True)
class _Unpacked:
    """Tensors of one block that operators of backward have unpacked. others: references to it from elsewhere."""

    others: int
    notes: list[SavedNote]


class StepSaves:
    """Notes what autograd saves, if its hooks are installed (`watching`) and `look` is called before each operator.

    stand: of a tensor that is saved, the one that stands for it, which the ledger knows.
    """

    def __init__(self, notes: SaveNotes, ledger: Ledger) -> None:
        self.notes = notes
        self._ledger = ledger
        self._held: Counter[int] = Counter()
        self._storages: dict[int, int] = {}
        self._pending: dict[int, list[SavedNote]] = {}
        self._unpacked: dict[int, _Unpacked] = {}
        self._untouched: list[tuple[SavedNote, _Packed]] = []
        self.was_refused = False
        self.stand: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Autograd saves through hooks inside the context, except where PyTorch does not allow them."""
        allowed = torch.autograd.graph.disable_saved_tensors_hooks

        @contextmanager
        def set_aside(message: str) -> Iterator[None]:
            self.was_refused = True
            torch._C._autograd._pop_saved_tensors_default_hooks()
            try:
                with allowed(message):
                    yield
            finally:
                torch._C._autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)

        with (
            replaced(torch.autograd.graph, "disable_saved_tensors_hooks", set_aside),
            saved_tensors_hooks(self._pack, self._unpack),
        ):
            yield

    def look(self) -> None:
        """Notes what has been dropped since the last operator."""
        if self._untouched:
            self._find()
        last = self._last()
        for key in [key for key in self._pending if self._others(key) <= 0]:
            for note in self._pending.pop(key):
                note.dropped = last
        self._settle()

    def _settle(self) -> None:
        """Notes what operators of backward have dropped: of one block, what was unpacked first."""
        for key, unpacked in list(self._unpacked.items()):
            held = max(self._others(key) - unpacked.others, 0)
            while len(unpacked.notes) > held:
                unpacked.notes.pop(0).unused = self._last()
            if not unpacked.notes:
                del self._unpacked[key]

    def finish(self) -> None:
        """Called at the end: what is still referenced is held to the end."""
        self.look()
        for notes in self._pending.values():
            for note in notes:
                note.dropped = "end"
        self._pending.clear()
        for note in self.notes.saved:
            if note.freed is not None and note.unused is not None:
                note.freed = max(note.freed, note.unused)
        self.notes.is_finished = True

    def result(self, numbers: Mapping[int, int]) -> Saves:
        """All notes; nothing where PyTorch did not allow hooks. numbers: as in `SaveNotes.result`."""
        return Saves() if self.was_refused else self.notes.result(numbers)

    def _last(self) -> int:
        return max(self._ledger.kernels - 1, 0)

    def _others(self, key: int) -> int:
        """References to a storage that are not autograd's; 0 if it is freed."""
        if key not in self._storages:
            return 0
        return int(torch._C._storage_Use_Count(key)) - _references_of_none() - self._held[key]

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        with torch.utils._python_dispatch._disable_current_modes():
            packed = _Packed(tensor.detach(), None)
        tensor = self.stand(tensor)
        if self._ledger.holds_memory(tensor) and torch._C._current_graph_task_id() == -1:
            packed.note = note = self.notes.note_of(tensor)
            storage = tensor.untyped_storage()
            key = storage._cdata
            self._held[key] += 1
            if key not in self._storages:
                self._storages[key] = key
                weakref.finalize(storage, self._storage_freed, key).atexit = False
            weakref.finalize(packed, self._freed, note, key).atexit = False
            if note.block is None:
                self._untouched.append((note, packed))
            elif self._ledger.blocks[note.block].persistent:
                note.dropped = "end"
            else:
                self._pending.setdefault(key, []).append(note)
        return packed

    def _unpack(self, packed: _Packed) -> torch.Tensor:
        note = packed.note
        if note is not None and torch._C._current_graph_task_id() != -1:
            run = torch._C._current_graph_task_id()
            if note.before is None:
                note.before, packed.run = self._ledger.kernels, run
            note.is_reread = note.is_reread or run != packed.run
            key = packed.tensor.untyped_storage()._cdata
            self._settle()
            self._unpacked.setdefault(key, _Unpacked(self._others(key), [])).notes.append(note)
        # A tensor of its own, so that there is one more reference while the operator holds it.
        with torch.utils._python_dispatch._disable_current_modes():
            return packed.tensor.detach()

    def _freed(self, note: SavedNote, key: int) -> None:
        self._held[key] -= 1
        if not self.notes.is_finished:
            note.freed = self._last()
            # Compiled code may still hold what it has unpacked.
            if note.unused is None and all(each is not note for one in self._unpacked.values() for each in one.notes):
                note.unused = note.freed

    def _storage_freed(self, key: int) -> None:
        self._storages.pop(key, None)
        self._held.pop(key, None)
        if not self.notes.is_finished:
            for note in self._pending.pop(key, ()):
                note.dropped = self._last()

    def _find(self) -> None:
        """Finds the blocks of tensors that no operator had touched when they were saved."""
        still = []
        for note, packed in self._untouched:
            note.block = self._ledger.find(packed.tensor)
            if note.block is None:
                still.append((note, packed))
            elif self._ledger.blocks[note.block].persistent:
                note.dropped = "end"
        self._untouched = still


@cache
def _references_of_none() -> int:
    """References to a storage without any tensor: some releases of PyTorch count that of its Python object."""
    with torch.utils._python_dispatch._disable_current_modes():
        tensor = torch.empty(1)
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1
