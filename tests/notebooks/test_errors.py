"""A user's mistake in a notebook is reported as on the command line, without a traceback."""

import os
import subprocess
import sys

import pytest

import simgpu
from simgpu.errors import MissingExtraError

pytest.importorskip("IPython")


def output_of(cell, folder):
    """The output of IPython, which notebook kernels use, for a cell that fails."""
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", cell]
    environment = {**os.environ, "IPYTHONDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 1, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_mistake_shows_only_its_message(tmp_path):
    with pytest.raises(simgpu.InputError) as raised:
        simgpu.load_node("v1000")
    assert output_of("import simgpu; simgpu.load_node('v1000')", tmp_path) == f"InputError: {raised.value}"


def test_a_missing_package_shows_only_its_message(tmp_path):
    cell = "from simgpu.errors import MissingExtraError; raise MissingExtraError('this notebook', 'torch', 'record')"
    assert output_of(cell, tmp_path) == f"MissingExtraError: {MissingExtraError('this notebook', 'torch', 'record')}"


@pytest.mark.slow
def test_other_errors_have_a_traceback(tmp_path):
    shown = output_of("import simgpu; simgpu.load_node('v100') / 0", tmp_path)
    assert "Traceback" in shown and "TypeError" in shown
