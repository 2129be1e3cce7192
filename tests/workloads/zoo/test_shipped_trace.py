"""The shipped modelled trace equals the output of the command in its README."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_helpers import simgpu

TRACES = Path(__file__).resolve().parents[3] / "traces"
COMMAND = "zoo build vgg16 --batch 128 --gpu v100 --input imagenet --epochs 50"


def test_the_shipped_vgg16_trace_is_reproduced_to_the_byte(tmp_path: Path) -> None:
    assert f"simgpu {COMMAND}" in (TRACES / "README.md").read_text(encoding="utf-8")
    done = simgpu(*COMMAND.split(), "-o", tmp_path / "again")
    assert done.exit_code == 0, done.stderr
    shipped = TRACES / "vgg16-b128-v100"
    files = sorted(path.name for path in shipped.iterdir())
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == files
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (shipped / name).read_bytes(), name
