"""What the recorder does without PyTorch, and before it needs PyTorch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from simgpu.errors import InputError, MissingExtraError
from simgpu.recorder import BUILT_IN_MODELS, record


def test_importing_the_recorder_and_listing_its_models_does_not_import_torch() -> None:
    code = (
        "import sys; from simgpu.recorder import BUILT_IN_MODELS, record; "
        "assert 'vgg11' in BUILT_IN_MODELS and all(BUILT_IN_MODELS.values()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    result = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else result(name, *more)
    )
    with pytest.raises(MissingExtraError, match="simgpu with its extra 'record'"):
        record("vgg11", batch=1)


def test_wrong_arguments_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        record("vgg11", batch=0, repetitions=-1, warmup=0, epochs=-1, date="yesterday")
    assert [problem.place for problem in caught.value.problems] == ["batch", "repetitions", "warmup", "epochs", "date"]
    assert "'yesterday' is not a day" in str(caught.value)


def test_a_batch_that_is_no_int_is_refused() -> None:
    with pytest.raises(InputError, match="True is not a number of samples"):
        record("vgg11", batch=True)


def test_there_are_convolutional_and_other_models() -> None:
    assert {"vgg11", "resnet20", "mlp", "transformer", "digits-cnn"} <= set(BUILT_IN_MODELS)
