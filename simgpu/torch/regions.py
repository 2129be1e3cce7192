"""Runs calls of modules under `torch.utils.checkpoint`, with the results of some operators kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simgpu.errors import InputError, Problem

#: Results that a region keeps: the name of an operator, and how many calls of it came before in the region.
Kept = Collection[tuple[str, int]]


def checkpointed(path: str, module: nn.Module, forward: Callable[..., Any], keeps: Kept) -> Callable[..., Any]:
    """The module's forward, of which backward runs again what it needs, except operators whose results are kept.

    It raises `InputError` naming `path` if forward does not run an operator whose result is to be kept.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, layout = tree_flatten((args, kwargs))
        # A tensor that is given twice stays one tensor: attention runs other operators if query and key are the same.
        tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())
        number = {id(tensor): n for n, tensor in enumerate(tensors)}
        places = [(p, number[id(leaf)]) for p, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        del leaves, args, kwargs
        runs = 0

        def inner(*given: torch.Tensor) -> Any:
            nonlocal runs
            filled = list(others)
            for place, n in places:
                filled[place] = given[n]
            own_args, own_kwargs = tree_unflatten(filled, layout)
            del filled, given
            runs += 1
            if runs == 1:
                return forward(*own_args, **own_kwargs)
            with statistics_unchanged(module):
                return forward(*own_args, **own_kwargs)

        if not keeps:
            return checkpoint(inner, *tensors, use_reentrant=False)
        keeping = _Keeping(keeps)
        result = checkpoint(inner, *tensors, use_reentrant=False, context_fn=keeping.contexts)
        keeping.check(path)
        return result

    return run


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
            Problem(
                path, op, f"the plan keeps result {number + 1}; forward ran it {self.seen[op, False]} times", remedy
            )
            for op, number in sorted(self.keeps)
            if self.seen[op, False] <= number
        ]
        if problems:
            raise InputError(problems)


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


@contextmanager
def regions_applied(
    model: nn.Module, regions: Mapping[tuple[str, int], Kept], calls: Mapping[str, int]
) -> Iterator[None]:
    """Checkpoints calls of modules inside the context.

    regions: what each call keeps, by the path of its module and the number of its earlier calls in a step. calls: by
    path, how often a step calls the module.
    """
    modules = dict(model.named_modules())
    with ExitStack() as stack:
        for path in dict.fromkeys(path for path, _ in regions):
            own = {call: keeps for (other, call), keeps in regions.items() if other == path}
            stack.enter_context(_replaced_forward(path, modules[path], own, calls[path]))
        yield


@contextmanager
def _replaced_forward(path: str, module: nn.Module, keeps: Mapping[int, Kept], per_step: int) -> Iterator[None]:
    own = vars(module).get("forward")
    plain = module.forward
    count = 0

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        call, count = count % per_step, count + 1
        if call not in keeps:
            return plain(*args, **kwargs)
        return checkpointed(path, module, plain, keeps[call])(*args, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
