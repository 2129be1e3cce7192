"""Activation checkpointing of chosen modules, by PyTorch itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.validation.measured import Method


@contextmanager
def checkpointed(module: nn.Module, blocks: Sequence[str]) -> Iterator[None]:
    """While the context lasts, the forward of each named module runs under ``checkpoint(use_reentrant=False)``.

    All else is as PyTorch has it from the start. It keeps the state of the random number generator for every module,
    so that dropout drops the same again: about 5 kB of host memory, which on a CPU counts as the device's.

    Raises `InputError` for a path where no module is, one named twice, and one inside another.
    """
    modules = dict(module.named_modules())
    _check_blocks(blocks, list(modules))
    wrapped = [modules[path] for path in blocks]
    before = [vars(block).get("forward") for block in wrapped]
    try:
        for block in wrapped:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        yield
    finally:
        for block, own in zip(wrapped, before, strict=True):
            if own is not None:
                block.forward = own
            else:
                vars(block).pop("forward", None)


def _check_blocks(blocks: Sequence[str], known: Sequence[str]) -> None:
    paths = [path for path in known if path]
    problems = [
        Problem(Method.CHECKPOINT, "blocks", f"there is no module {path!r}", did_you_mean(path, paths))
        for path in blocks
        if path not in paths
    ]
    for place, path in enumerate(blocks):
        if path in blocks[:place]:
            problems.append(Problem(Method.CHECKPOINT, "blocks", f"{path!r} is there twice", "leave one out"))
        for other in blocks:
            if path.startswith(f"{other}."):
                what = f"{path!r} is inside {other!r}"
                problems.append(Problem(Method.CHECKPOINT, "blocks", what, "name only one of them"))
    if problems:
        raise InputError(problems)
