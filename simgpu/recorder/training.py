"""Trains a model before a recording, and measures sparsity and compressed sizes after each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.contents import Values
from simgpu.recorder.in_place_backward import fold_in_place
from simgpu.recorder.iteration import NoWatcher, Watcher, as_it_was, run_forward, run_iteration, state_as_it_was
from simgpu.recorder.notes import BlockNote, ValueNote, created_in_iteration
from simgpu.recorder.timing import Signature, expect_same
from simgpu.recorder.watching import watch
from simgpu.recorder.workload import Workload


@dataclass
class TrainingLog:
    """The results of a training run.

    calls: the observed operators, the same at every epoch.
    covers_iteration: whether `calls` and `values` cover the full iteration, or only forward.
    values: per epoch, from 0 (before training): the values of all blocks of the iteration, or of those created in
        forward, in the order of `created_in_iteration`.
    losses: mean loss over the steps of each epoch, from 1.
    steps: number of steps in all epochs.
    right: accuracy on the labels of all batches after training; None if labels are not class numbers.
    """

    calls: list[Signature]
    covers_iteration: bool
    values: list[list[ValueNote]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    right: float | None = None

    def seen_of(self, blocks: Sequence[BlockNote]) -> list[dict[int, ValueNote]]:
        """Returns the measured values per epoch, by position in the blocks of the full iteration."""
        numbers = range(len(blocks)) if self.covers_iteration else created_in_iteration(blocks)
        return [dict(zip(numbers, values, strict=self.covers_iteration)) for values in self.values]

    def summary(self) -> str:
        """Describes the run in one or two sentences."""
        steps = self.steps // len(self.losses)
        return (
            f"Trained for {len(self.losses)} epoch{'s' if len(self.losses) > 1 else ''} of {steps} "
            f"step{'s' if steps > 1 else ''}; the mean loss was {self.losses[0]:.4g} in the first and "
            f"{self.losses[-1]:.4g} in the last."
            + ("" if self.right is None else f" It then finds {self.right:.1%} of the labels.")
        )


def train(
    name: str,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    epochs: int,
    progress: Callable[[str], None],
    look_at: Values | None = None,
) -> TrainingLog:
    """Trains for `epochs` passes over the workload's batches, or as many steps on its single batch.

    Feature maps are measured on the workload's own inputs, the same for each epoch, in training mode (with dropout).
    Measuring restores weights, buffers, optimizer state and random state.

    look_at: what to measure in addition to sparsity. Memory-entries are measured over a full iteration, with the
    weights and optimizer state from before it; at epoch 0, with the optimizer state after a first step.

    Raises `InputError` naming `name` if a step fails, the loss is not finite, or the operators change.
    """
    looked = look_at or Values()
    values, calls = _look(name, workload, optimizer, device, looked)
    result = TrainingLog(calls, looked.entries is not None, [values])
    for epoch in range(1, epochs + 1):
        losses = [_step(name, step, optimizer, epoch) for step in workload.steps(device)]
        if not losses:
            raise InputError.single(name, "batches", "there are none", "give at least one pair (inputs, labels)")
        result.losses.append(math.fsum(losses) / len(losses))
        result.steps += len(losses)
        values, signatures = _look(name, workload, optimizer, device, looked)
        expect_same(name, calls, signatures)
        result.values.append(values)
        progress(f"trained epoch {epoch} of {epochs}, loss {result.losses[-1]:.4g}")
    result.right = _right(workload, device)
    return result


def _step(name: str, step: Workload, optimizer: torch.optim.Optimizer, epoch: int) -> float:
    try:
        loss = float(run_iteration(step, optimizer, NoWatcher()).detach())
    except SimgpuError:
        raise
    except Exception as error:
        what = f"a training step raised {type(error).__name__}: {error}"
        remedy = "make sure that loss(module(*inputs), *labels) works for every batch"
        raise InputError.single(name, f"epoch {epoch}", what, remedy) from error
    if not math.isfinite(loss):
        remedy = "lower the learning rate, with your own --optimizer module.path:factory"
        raise InputError.single(name, f"epoch {epoch}", f"the loss has become {loss}", remedy)
    return loss


def _right(workload: Workload, device: torch.device) -> float | None:
    """Returns the accuracy (fraction of labels with the highest score) over all batches, without dropout."""
    result = total = 0
    with as_it_was(workload.module, device), torch.no_grad():
        workload.module.eval()
        try:
            for step in workload.steps(device):
                scores, labels = step.output(), step.labels[0]
                if labels.is_floating_point() or scores.shape[:-1] != labels.shape:
                    return None
                result += int((scores.argmax(-1) == labels).sum())
                total += labels.numel()
        except Exception:  # no labels, several outputs, a module without evaluation mode: no accuracy, but no error
            return None
        finally:
            workload.module.train()
    return result / total


def _look(
    name: str, workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, values: Values
) -> tuple[list[ValueNote], list[Signature]]:
    """Like `_seen`, but raises `InputError` naming `name` if the observed iteration fails."""
    try:
        return _seen(workload, optimizer, device, values)
    except SimgpuError:
        raise
    except Exception as error:
        what = f"an iteration raised {type(error).__name__}: {error}"
        remedy = "make sure that loss(module(*inputs), *labels).backward() and an optimizer step work"
        raise InputError.single(name, "iteration", what, remedy) from error


def _seen(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, values: Values
) -> tuple[list[ValueNote], list[Signature]]:
    """Returns the measured values of all blocks (only those of forward if no entries are measured) and the calls."""
    covers_iteration = values.entries is not None
    with state_as_it_was(optimizer, workload.scaler), as_it_was(workload.module, device):
        if covers_iteration and not optimizer.state:
            with as_it_was(workload.module, device):
                run_iteration(workload, optimizer, NoWatcher())
        run = run_iteration if covers_iteration else _forward
        structure, ledger = watch(
            workload, optimizer, device, lambda watcher: run(workload, optimizer, watcher), values
        )
    _, blocks = fold_in_place(structure.kernels, ledger.blocks)
    seen = blocks if covers_iteration else [blocks[number] for number in created_in_iteration(blocks)]
    return [ValueNote(block.sparsity, block.sizes, block.entries) for block in seen], structure.signatures


def _forward(workload: Workload, _: torch.optim.Optimizer, watcher: Watcher) -> None:
    live = run_forward(workload, watcher)
    watcher.finish()
    del live
