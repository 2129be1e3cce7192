"""``python -m simgpu.workloads.calibration RECORDINGS -o FILE``: fits the time model and writes its parameters.

``python -m simgpu.workloads.calibration ../shared/data -o simgpu/workloads/timemodel/parameters.yaml`` regenerates the
table that is part of simgpu. Requires SciPy (the extra ``calibrate``).
"""

from __future__ import annotations

import sys
from pathlib import Path

from simgpu.io.fitted_tables import write_fitted


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code: 0, or 2 for invalid input."""
    description = "Fit the time model to published figures and recordings, and write its table of parameters."
    source = ("recordings", "folder with the recordings listed in recordings.yaml")
    return write_fitted("python -m simgpu.workloads.calibration", description, source, _table, arguments)


def _table(recordings: Path) -> str:
    from simgpu.workloads.calibration.fit import fitted_table

    return fitted_table(recordings)


if __name__ == "__main__":
    sys.exit(main())
