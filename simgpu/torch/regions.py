"""Runs calls of modules under `torch.utils.checkpoint`, with the results of some operators kept."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simgpu.errors import InputError, Problem
from simgpu.torch.modules import parts_of
from simgpu.torch.patching import replaced_forward

#: Results that a region keeps: the name of an operator, and how many calls of it came before in the region.
Kept = Collection[tuple[str, int]]


def checkpointed(path: str, module: nn.Module, forward: Callable[..., Any], keeps: Kept) -> Callable[..., Any]:
    """The module's forward, of which backward runs again what it needs, except operators whose results are kept.

    It raises `InputError` naming `path` if forward does not run an operator whose result is to be kept.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        again = _Again(module, forward, args, kwargs)
        if not keeps:
            return checkpoint(again, *again.take_tensors(), use_reentrant=False)
        keeping = _Keeping(keeps)
        result = checkpoint(again, *again.take_tensors(), use_reentrant=False, context_fn=keeping.contexts)
        keeping.check(path)
        return result

    return run


class _Again:
    """A forward that runs twice: first with its own arguments, then with new containers of the given tensors.

    The first run may change a list or a dictionary that it was given; the second one gets it as it was. Modules that
    trained in the first run train in the second one, and no others. Random numbers of Python and NumPy are repeated if
    the first run drew any; `torch.utils.checkpoint` repeats those of PyTorch.
    """

    def __init__(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._module = module
        self._trained = [part.training for part in module.modules()]
        self._forward = forward
        self._own: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, kwargs)
        leaves, self._layout = tree_flatten((args, kwargs))
        # A tensor that is given twice stays one tensor: attention runs other operators if query and key are the same.
        self._tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())
        number = {id(tensor): n for n, tensor in enumerate(self._tensors)}
        self._places = [(p, number[id(leaf)]) for p, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._drawn: _RandomState | None = None

    def take_tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, each once; this object holds them no longer."""
        tensors, self._tensors = self._tensors, []
        return tensors

    def __call__(self, *given: torch.Tensor) -> Any:
        if self._own is not None:
            (args, kwargs), self._own = self._own, None
            del given
            before = _RandomState()
            result = self._forward(*args, **kwargs)
            self._drawn = None if before.is_current() else before
            return result
        filled = list(self._others)
        for place, n in self._places:
            filled[place] = given[n]
        args, kwargs = tree_unflatten(filled, self._layout)
        del filled, given
        with ExitStack() as stack:
            stack.enter_context(_training(self._module, self._trained))
            stack.enter_context(statistics_unchanged(self._module))
            if self._drawn is not None:
                stack.enter_context(self._drawn.repeated())
            return self._forward(*args, **kwargs)


class _RandomState:
    """The state of the random numbers of Python, and of NumPy if it is in use."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._numpy: Any = None if numpy is None else numpy.random
        self._of_python = random.getstate()
        self._of_numpy = None if self._numpy is None else self._numpy.get_state(legacy=False)

    def is_current(self) -> bool:
        """Whether nothing has been drawn since."""
        now = _RandomState()
        if self._of_python != now._of_python:
            return False
        if self._of_numpy is None or now._of_numpy is None:
            return True
        own, other = self._of_numpy["state"], now._of_numpy["state"]
        return bool(own["pos"] == other["pos"] and (own["key"] == other["key"]).all())

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Inside the context the same numbers are drawn again."""
        after = _RandomState()
        self._set()
        try:
            yield
        finally:
            after._set()

    def _set(self) -> None:
        random.setstate(self._of_python)
        if self._of_numpy is not None:
            self._numpy.set_state(self._of_numpy)


class _Keeping:
    """Chooses the results that a call of a region keeps. seen: calls of each operator, in forward and when it runs
    again, in which releases of PyTorch before 2.13 ask too."""

    def __init__(self, keeps: Kept) -> None:
        self.keeps = keeps
        self.seen: Counter[tuple[str, bool]] = Counter()

    def contexts(self) -> Any:
        """What `torch.utils.checkpoint` asks for."""
        return create_selective_checkpoint_contexts(self._policy)

    def _policy(self, context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = str(op._schema.name)
        key = name, bool(context.is_recompute)
        self.seen[key] += 1
        is_kept = (name, self.seen[key] - 1) in self.keeps
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.MUST_RECOMPUTE

    def check(self, path: str) -> None:
        """Raises `InputError` for each result that does not exist."""
        remedy = "make the plan anew for this model with `simgpu plan`"
        problems = [
            Problem(path, op, f"the plan keeps result {number + 1}; forward ran {self.seen[op, False]}", remedy)
            for op, number in sorted(self.keeps)
            if self.seen[op, False] <= number
        ]
        if problems:
            raise InputError(problems)


@contextmanager
def _training(module: nn.Module, flags: Sequence[bool]) -> Iterator[None]:
    """Inside the context, the parts of a module train or evaluate as these say."""
    parts = list(module.modules())
    before = [part.training for part in parts]
    for part, flag in zip(parts, flags, strict=True):
        part.training = flag
    try:
        yield
    finally:
        for part, flag in zip(parts, before, strict=True):
            part.training = flag


#: By device, what counts batches while a region runs again.
_SCRATCH: dict[torch.device, torch.Tensor] = {}


@contextmanager
def statistics_unchanged(module: nn.Module) -> Iterator[None]:
    """Inside the context, batch normalization does not update its running statistics: forward has done so."""
    norms = [each for each in module.modules() if isinstance(each, _NormBase) and each.num_batches_tracked is not None]
    before = [(each.momentum, each._buffers["num_batches_tracked"]) for each in norms]
    try:
        for each, (_, batches) in zip(norms, before, strict=True):
            each.momentum = 0.0
            each._buffers["num_batches_tracked"] = _scratch(batches.device)
        yield
    finally:
        for each, (momentum, batches) in zip(norms, before, strict=True):
            each.momentum = momentum
            each._buffers["num_batches_tracked"] = batches


def _scratch(device: torch.device) -> torch.Tensor:
    if device not in _SCRATCH:
        with _disable_current_modes():  # the region's operators must be the same each time it runs
            _SCRATCH[device] = torch.zeros((), dtype=torch.long, device=device)
    return _SCRATCH[device]


class Regions:
    """Checkpoints calls of modules.

    regions: what each call keeps, by the path of its module and the number of its earlier calls in a step. calls: by
    path, how often a step calls the module.
    """

    def __init__(self, regions: Mapping[tuple[str, int], Kept], calls: Mapping[str, int]) -> None:
        self._regions = regions
        self._calls = calls
        self._counts: Counter[str] = Counter()

    def begin(self) -> None:
        """A step begins."""
        self._counts.clear()

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Checkpoints them inside the context."""
        modules = parts_of(model)
        with ExitStack() as stack:
            for path in dict.fromkeys(path for path, _ in self._regions):
                stack.enter_context(replaced_forward(modules[path], partial(self._choose, path)))
            yield

    def _choose(self, path: str, module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Of a module's plain forward, the one that runs: checkpointed if this call of the module is a region."""
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return plain
        key = path, self._counts[path] % self._calls[path]
        self._counts[path] += 1
        return checkpointed(path, module, plain, self._regions[key]) if key in self._regions else plain
