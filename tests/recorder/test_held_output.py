"""The usual loop releases the model's output. One that holds it is recorded on request; the trace states which."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from click.testing import CliRunner
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simgpu.cli import main
from simgpu.recorder import record
from simgpu.trace.folder import read_trace
from simgpu.trace.model import OutputLife, Trace
from tests.recorder.live_bytes import live_bytes
from tests.recorder.small_models import plain_sgd

BATCH, WIDTH, WORDS = 32, 4, 5000
OUTPUT = BATCH * WORDS * 4

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Storages(TorchDispatchMode):
    """Bytes of all storages that operators made while this watches, and that are not freed yet; and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.known.update(tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs)))
        returned = func(*args, **(kwargs or {}))
        for tensor in _tensors(returned):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return returned

    def _free(self, key: int, nbytes: int) -> None:
        self.known.discard(key)
        self.live -= nbytes


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _ingredients() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS, bias=False))
    return module, torch.randn(BATCH, WIDTH), torch.randint(WORDS, (BATCH,))


def _own_loop_peak(loss_fn: Loss, holds: bool) -> int:
    """The peak of a loop that is written out here, by the tracker above."""
    model, x, y = _ingredients()
    optimizer = plain_sgd(model.parameters())
    with _Storages() as storages:
        if holds:
            output = model(x)
            loss = loss_fn(output, y)
        else:
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return storages.peak


def _recorded(loss_fn: Loss, **options: Any) -> Trace:
    def factory() -> tuple[Any, ...]:
        return (*_ingredients(), loss_fn)

    return record(factory, batch=BATCH, repetitions=1, warmup=1, optimizer=plain_sgd, date="2026-01-01", **options)


def _squared(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Autograd saves the output itself for this one."""
    return output.square().sum()


def _converted(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The argument's name gets another value, so that the usual loop has nothing left that holds the first one."""
    output = output.double()
    return nn.functional.cross_entropy(output, labels)


@pytest.mark.parametrize("hold_output", [False, True])
@pytest.mark.parametrize("loss_fn", [nn.functional.cross_entropy, nn.CrossEntropyLoss(), _squared, _converted])
def test_the_recorded_peak_is_that_of_a_loop_of_ones_own(loss_fn: Loss, hold_output: bool) -> None:
    assert max(live_bytes(_recorded(loss_fn, hold_output=hold_output))) == _own_loop_peak(loss_fn, hold_output)


def test_holding_the_output_costs_its_bytes_where_the_loss_does_not_save_it() -> None:
    # Backward of log-softmax: its result, the gradient of that, and the gradient of the output that it makes.
    softmax, loss = 3 * OUTPUT, 4
    one = 4  # the gradient of the loss, which is held while backward runs
    hidden = BATCH * WIDTH * 4
    released, held = (max(live_bytes(_recorded(nn.functional.cross_entropy, hold_output=h))) for h in (False, True))
    assert released == softmax + hidden + loss + one
    assert held - released == OUTPUT


def test_holding_the_output_costs_nothing_where_the_loss_saves_it() -> None:
    released, held = (max(live_bytes(_recorded(_squared, hold_output=h))) for h in (False, True))
    assert held == released


def test_modelled_recordings_follow_the_same_two_loops() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        return (*_ingredients(), nn.functional.cross_entropy)

    released, held = (record(factory, batch=BATCH, gpu="v100", hold_output=h) for h in (False, True))
    assert max(live_bytes(held)) - max(live_bytes(released)) == OUTPUT
    assert (released.info.output, held.info.output) == (OutputLife.RELEASED, OutputLife.HELD)


def test_the_saved_tensors_are_those_of_the_loop_that_was_recorded() -> None:
    released, held = (_recorded(_squared, hold_output=h) for h in (False, True))
    output = next(row.block for row in released.saved if row.bytes == OUTPUT)
    # The loss function's own argument holds it until the function returns: after the last kernel of forward.
    *_, last = (kernel for kernel in released.kernels if kernel.phase == "forward")
    assert {row.released_after for row in released.saved if row.block == output} == {last.id}
    assert {row.released_after for row in held.saved if row.block == output} == {"end"}


@pytest.mark.parametrize(("options", "written"), [([], "released"), (["--hold-output"], "held")])
def test_the_command_writes_which_loop_it_was(tmp_path: Path, options: list[str], written: str) -> None:
    folder = tmp_path / "mlp"
    arguments = ["record", "mlp", "--batch", "8", "--repetitions", "1", *options, "-o", str(folder)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert f"\noutput: {written}\n" in (folder / "trace.yaml").read_text()
    assert read_trace(folder).info.output == written
    shown = CliRunner().invoke(main, ["trace", "show", str(folder)])
    assert f"output {written}" in " ".join(shown.output.split())
