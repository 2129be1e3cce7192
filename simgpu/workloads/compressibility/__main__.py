"""``python -m simgpu.workloads.compressibility TRACES -o FILE``: measures the profile that ships.

``python -m simgpu.workloads.compressibility traces -o simgpu/workloads/compressibility/profiles/trained.yaml`` writes
it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from simgpu.io.fitted_tables import write_fitted


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 for bad input."""
    remedy = "Measure how compressible the memory of recorded networks is, and write the profile."
    source = ("traces", "folder with the recordings")
    return write_fitted("python -m simgpu.workloads.compressibility", remedy, source, _text, arguments)


def _text(folder: Path) -> str:
    from simgpu.workloads.compressibility.measured import profile_text

    return profile_text(folder)


if __name__ == "__main__":
    sys.exit(main())
