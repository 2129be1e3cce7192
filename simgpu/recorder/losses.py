"""The loss of a module that comes without one: what its output carries, or cross-entropy on its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.arguments import Arguments, call, forward_of

_REMEDY = (
    "return (module, inputs, labels, loss) from the factory, where loss(module(*inputs), *labels) is a single value, "
    "or give {module} what it computes a loss of its own from"
)


def own_loss(output: Any, *_: torch.Tensor) -> torch.Tensor:
    """The loss that a module's output carries, by the key or attribute ``loss``; `InputError` where there is none.

    >>> own_loss({"loss": torch.tensor(2.0), "logits": torch.ones(1)})
    tensor(2.)
    """
    loss = _carried(output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"the module returned {_described(output)}, which carries no loss of a single value"
        raise InputError.single("record", "loss", what, _REMEDY.format(module="the module"))
    return loss


def cross_entropy_of_scores(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over samples, or over the tokens of all samples; the last dimension of the scores is the classes."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def find_loss(
    name: str, module: nn.Module, inputs: Arguments, batch: int, given: str
) -> tuple[tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Labels and loss of a module, by what a trial run without gradients returns.

    An output that carries a loss needs no labels. Scores, a row for each sample or each token, get random labels.
    given: what the inputs are, in words. Raises `InputError` naming `name` where the run fails or returns neither.
    """
    try:
        with torch.no_grad():
            output = call(module.eval(), inputs)
    except SimgpuError:
        raise
    except Exception as error:
        what = f"{type(module).__name__} raised {type(error).__name__} on {given}: {error}"
        remedy = f"give inputs that {forward_of(module)} works on, of its shapes, types and, for integers, bounds"
        raise InputError.single(name, "inputs", what, remedy) from error
    if isinstance(_carried(output), torch.Tensor):
        return (), own_loss
    if _is_scores(output) and output.shape[0] == batch:
        return (torch.randint(output.shape[-1], output.shape[:-1]),), cross_entropy_of_scores
    what = f"the module returned {_described(output)} on {given}, neither a loss nor a row of scores for each sample"
    raise InputError.single(name, "loss", what, _REMEDY.format(module=forward_of(module)))


def _carried(output: Any) -> Any:
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


def _is_scores(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and output.is_floating_point() and output.dim() in (2, 3)


def _described(output: Any) -> str:
    if isinstance(output, torch.Tensor):
        return f"a tensor {tuple(output.shape)} of {str(output.dtype).removeprefix('torch.')}"
    held = f" of {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    return f"{type(output).__name__}{held}"
