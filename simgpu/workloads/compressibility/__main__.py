"""``python -m simgpu.workloads.compressibility TRACES -o FILE``: measures a profile and writes it.

``python -m simgpu.workloads.compressibility traces -o simgpu/workloads/compressibility/profiles/trained.yaml``
regenerates the shipped profile.
"""

from __future__ import annotations

import sys
from pathlib import Path

from simgpu.io.fitted_tables import write_fitted


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 for invalid input."""
    description = "Measure the compressibility of recorded networks, and write the profile."
    source = ("traces", "folder with the recordings")
    return write_fitted("python -m simgpu.workloads.compressibility", description, source, _text, arguments)


def _text(folder: Path) -> str:
    from simgpu.workloads.compressibility.measured import profile_text

    return profile_text(folder)


if __name__ == "__main__":
    sys.exit(main())
