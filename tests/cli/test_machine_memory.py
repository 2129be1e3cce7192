"""If the machine that runs simgpu is out of memory, there is one message and exit code 2, never a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.cli.cli_helpers import make_study, simgpu

ROOT = Path(__file__).parents[2]
MESSAGE = (
    "Error: simgpu ran out of memory on this machine; "
    "use shorter traces or fewer parallel runs, raise the memory limit, or use a machine with more memory\n"
)
START = b'{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}\n'


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))], ids=["python", "system"]
)
def test_a_memory_error_exits_with_2_and_one_message(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> NoReturn:
        raise error

    monkeypatch.setattr("simgpu.experiments.compare.simulate", no_memory)
    done = simgpu("run", make_study(tmp_path), "-o", tmp_path / "out")
    assert (done.exit_code, done.stderr) == (2, MESSAGE)
    assert isinstance(done.exception, SystemExit)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_running_out_of_memory_while_reading_exits_with_2_and_one_message(tmp_path: Path) -> None:
    log = tmp_path / "net-b4.log"
    log.write_bytes(START)
    with log.open("r+b") as file:
        file.truncate((2 << 30) - 1)
    code = """
import resource, sys
from simgpu.io import free_memory
free_memory.available_memory = lambda: None
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from simgpu.cli import main
main(["trace", "import", sys.argv[1], "-o", sys.argv[2], "--quiet"], prog_name="simgpu")
"""
    command = [sys.executable, "-c", code, str(log), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, MESSAGE)
    assert not done.stdout
    assert not (tmp_path / "out").exists()
