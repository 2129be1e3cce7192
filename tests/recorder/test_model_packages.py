"""Packages of models are imported next to any torchvision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

#: A torchvision that was built for the installed PyTorch: importing it declares its operators.
_BUILT_FOR_IT = """
import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
models = "its own"
"""
#: One that was not: its operators are missing, and it looks for them.
_BUILT_FOR_ANOTHER = """
import torch

torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
models = "its own"
"""


@pytest.mark.parametrize("package", [_BUILT_FOR_IT, pytest.param(_BUILT_FOR_ANOTHER, marks=pytest.mark.slow)])
def test_torchvision_is_imported_with_and_without_its_compiled_operators(tmp_path: Path, package: str) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(package)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from simgpu.recorder.model_packages import "
        "torchvision_models; print(torchvision_models())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "its own\n", done.stderr
