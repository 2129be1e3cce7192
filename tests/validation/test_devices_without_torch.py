"""Devices and managed runs before they need PyTorch, and without it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from simgpu.errors import MissingExtraError
from simgpu.validation.devices import open_device


def test_importing_them_does_not_import_torch() -> None:
    code = "import sys, simgpu.validation.devices, simgpu.validation.managed; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    result = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else result(name, *more)
    )
    with pytest.raises(MissingExtraError, match="simgpu with its extra 'record'"):
        open_device("cpu")
