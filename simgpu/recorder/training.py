"""Training before a recording, and the sparsity and sizes observed at the end of each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.contents import Values
from simgpu.recorder.gradient_sums import fold_sums
from simgpu.recorder.iteration import NoWatcher, Watcher, as_it_was, run_forward, run_iteration, state_as_it_was
from simgpu.recorder.notes import BlockNote, ValueNote, created_in_iteration
from simgpu.recorder.timing import Signature, expect_same
from simgpu.recorder.watching import watch
from simgpu.recorder.workload import Workload


@dataclass
class TrainingLog:
    """What a training run showed.

    calls: the operators that were looked at, the same at every epoch: a whole iteration's, or its forward part's.
    values: for each epoch from 0, before training, what was seen of all blocks of the iteration, or of those that
    forward makes, in the order of `created_in_iteration`. losses: the mean loss over the steps of each epoch from 1.
    steps: of all epochs. right: the share of the labels of all batches that it finds at the end; None where a label is
    not the place of a score.
    """

    calls: list[Signature]
    covers_iteration: bool
    values: list[list[ValueNote]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    steps: int = 0
    right: float | None = None

    def seen_of(self, blocks: Sequence[BlockNote]) -> list[dict[int, ValueNote]]:
        """For each epoch what was seen, by position in the blocks of a whole iteration."""
        numbers = range(len(blocks)) if self.covers_iteration else created_in_iteration(blocks)
        return [dict(zip(numbers, values, strict=self.covers_iteration)) for values in self.values]

    def summary(self) -> str:
        """The run in one sentence."""
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
    """Train for `epochs` walks through the workload's batches, or as many steps on its one batch.

    Feature maps are measured on the workload's own inputs, the same ones each time, in training mode, so dropout
    counts. Looking at them leaves weights, buffers, optimizer state and random numbers as they were.
    look_at: what is measured next to their sparsity. Entries of memory are those of a whole iteration: weights and
    optimizer state as it finds them, but at epoch 0 the state that a first step leaves, for there is none before it.

    Raises `InputError` naming `name` where a step fails, the loss is no longer a number, or the operators change.
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
        remedy = "every batch is trained with loss(module(*inputs), *labels)"
        raise InputError.single(name, f"epoch {epoch}", what, remedy) from error
    if not math.isfinite(loss):
        remedy = "train more gently: --optimizer module.path:factory sets a learning rate of your own"
        raise InputError.single(name, f"epoch {epoch}", f"the loss has become {loss}", remedy)
    return loss


def _right(workload: Workload, device: torch.device) -> float | None:
    """The share of labels that are the place of the highest score, over all batches and without dropout."""
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
        except Exception:  # no labels, several results, a module that only trains: nothing to tell, and no mistake
            return None
        finally:
            workload.module.train()
    return result / total


def _look(
    name: str, workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, values: Values
) -> tuple[list[ValueNote], list[Signature]]:
    """As `_seen`; `InputError` naming `name` where the iteration that is looked at fails."""
    try:
        return _seen(workload, optimizer, device, values)
    except SimgpuError:
        raise
    except Exception as error:
        what = f"an iteration raised {type(error).__name__}: {error}"
        remedy = "the iteration is loss(module(*inputs), *labels).backward() and an optimizer step"
        raise InputError.single(name, "iteration", what, remedy) from error


def _seen(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, values: Values
) -> tuple[list[ValueNote], list[Signature]]:
    """What is seen of all blocks where their entries are measured, else of those that forward makes; the operators."""
    covers_iteration = values.entries is not None
    with state_as_it_was(optimizer, workload.scaler), as_it_was(workload.module, device):
        if covers_iteration and not optimizer.state:
            with as_it_was(workload.module, device):
                run_iteration(workload, optimizer, NoWatcher())
        run = run_iteration if covers_iteration else _forward
        structure, ledger = watch(
            workload, optimizer, device, lambda watcher: run(workload, optimizer, watcher), values
        )
    _, blocks = fold_sums(structure.kernels, ledger.blocks)
    seen = blocks if covers_iteration else [blocks[number] for number in created_in_iteration(blocks)]
    return [ValueNote(block.sparsity, block.sizes, block.entries) for block in seen], structure.signatures


def _forward(workload: Workload, _: torch.optim.Optimizer, watcher: Watcher) -> None:
    held = run_forward(workload, watcher)
    watcher.finish()
    del held
