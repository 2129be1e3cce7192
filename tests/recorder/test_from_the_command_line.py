"""``simgpu record`` with PyTorch: every option reaches the recording."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS, record
from simgpu.trace.folder import read_trace
from tests.cli.cli_helpers import simgpu

_SOURCE = """
import torch
from torch import nn

def tiny(batch):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    images, labels = torch.randn(batch, 1, 4, 4), torch.randint(2, (batch,))
    return module, images, labels, nn.functional.cross_entropy, [(images, labels)] * 3

def gentle(parameters):
    return torch.optim.Adagrad(parameters, lr=1e-3)
"""


def test_every_option_reaches_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recorder_test_command.py").write_text(_SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--batch", "2", "--optimizer", "recorder_test_command:gentle", "--warmup", "4", "--repetitions", "3"]
    done = simgpu(
        "record", "recorder_test_command:tiny", *options, "--epochs", "2", "--algorithms", "--seed", "9", "-o", "tiny"
    )
    assert done.exit_code == 0, done.stderr
    trace = read_trace(tmp_path / "tiny")
    assert "with weights 10 steps of Adagrad after the factory made them (seed 9)" in trace.info.notes
    assert "median of 3 iterations. Trained for 2 epochs of 3 steps;" in trace.info.notes
    assert {sample.epoch for sample in trace.sparsity} == {0, 1, 2}
    assert {choice.algorithm for choice in trace.algorithms} == {"default", "without-onednn"}
    assert all(kernel.iqr_ns is not None for kernel in trace.kernels)
    shown = simgpu("trace", "stats", "tiny").stdout
    assert "summed over kernels" in shown
    assert "sparsity over training" in shown


def test_an_unknown_optimizer_is_reported() -> None:
    done = simgpu("record", "mlp", "--batch", "2", "--optimizer", "sdg", "-o", "never")
    assert done.exit_code == 2
    assert "did you mean 'sgd'" in done.stderr
    assert not Path("never").exists()


def test_help_lists_models_and_optimizers() -> None:
    description = simgpu("record", "--help").stdout
    assert all(f"  {name} " in description for name in (*BUILT_IN_MODELS, *BUILT_IN_OPTIMIZERS))


def test_a_batch_beyond_pytorchs_integers_is_reported(tmp_path: Path) -> None:
    done = simgpu("record", "mlp", "--batch", 10**25, "-o", tmp_path / "never")
    assert done.exit_code == 2
    assert "is not in the range" in done.stderr
    for batch in (10**25, 2**62):
        with pytest.raises(InputError, match=f"^record: batch: {batch} samples run out of memory: PyTorch"):
            record("mlp", batch=batch)


@pytest.mark.parametrize("model", ["mlp", "resnet20", "transformer"])
def test_inputs_beyond_any_memory_are_reported(model: str, tmp_path: Path) -> None:
    done = simgpu("record", model, "--batch", 2**31 - 1, "-o", tmp_path / "never")
    assert done.exit_code == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert re.fullmatch(
        r"Error: record: batch: 2147483647 samples run out of memory: "
        r"PyTorch requested another [0-9.]+ [TG]iB; give a smaller batch",
        line,
    )


def test_an_iteration_beyond_any_memory_is_reported() -> None:
    class Wasteful(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if self.training:
                torch.empty(2**50)
            return images.flatten(1)[:, :10] * self.weight

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(10))

    with pytest.raises(InputError, match=r"2 samples run out of memory: .* another 4096 TiB; give a smaller batch"):
        record(Wasteful, batch=2, inputs={"images": "Bx3x32x32"})


def test_a_modelled_recording_predicts_memory_and_writes_it_as_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--batch", "8", "--gpu", "laptop-2gb", "--zero-grad", "end", "--iterations", "2"]
    node = Path("node.yaml")
    shipped = Path(__file__).parents[2] / "configs" / "a100.yaml"
    node.write_text(shipped.read_text().replace("  memory: 40 GiB", "  memory: 510 MiB"))
    options[options.index("laptop-2gb")] = str(node)
    done = simgpu("record", "mlp", *options, "-o", "mlp", "--snapshot", "run.pickle")
    assert done.exit_code == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "2 iterations, by PyTorch's allocator as in versions 2.6 to 2.13" in shown
    assert "CUDA context 481 MiB, already subtracted from the capacity" in shown
    assert "verdict out of memory in 29 MiB" in shown  # one segment of 20 MiB
    assert "fits with " in shown and "batch 4 " in shown
    explained = simgpu("memory", "run.pickle").stdout
    assert "out of memory" in explained and "weight" in explained


@pytest.mark.parametrize("option", [["--iterations", "2"], ["--zero-grad", "end"], ["--snapshot", "run.pickle"]])
def test_options_of_the_predicted_memory_need_a_gpu(option: list[str]) -> None:
    done = simgpu("record", "mlp", "--batch", "2", *option, "-o", "never")
    assert done.exit_code == 2
    assert f"{option[0]}: predicts the memory of a GPU; add --gpu NODE" in " ".join(done.stderr.split())
