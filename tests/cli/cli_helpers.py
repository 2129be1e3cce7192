"""A small study on disk, and running the command line on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from simgpu.cli import main
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace

SCENARIO = """\
schema: simgpu.scenario/2
name: study
description: a hand-made chain
trace: chain
node: node.yaml
policies: [ideal, none, vdnn]
"""
NODE = """\
schema: simgpu.node/1
name: bench
gpu:
  name: a GPU
  memory: 8 GiB
link:
  kind: PCIe
  d2h_bandwidth: 10 GB/s
  h2d_bandwidth: 10 GB/s
"""


def make_study(folder: Path) -> Path:
    """Writes a scenario file, its node and its trace of three layers (100, 200, 300 kB; 60 us of compute)."""
    sizes = [100_000, 200_000, 300_000]
    write_trace(chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], sizes), folder / "chain")
    (folder / "node.yaml").write_text(NODE, encoding="utf-8")
    path = folder / "study.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def simgpu(*arguments: object) -> Result:
    """Runs the command line in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def simgpu_process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a new process, with pipes instead of a terminal."""
    command = [sys.executable, "-c", "from simgpu.cli import main; main(prog_name='simgpu')"]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
