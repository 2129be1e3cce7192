"""``python -m simgpu.trace.calibration RECORDINGS -o FILE``: fits the time model and writes its parameters.

Lives here: that command. Does not live here: the fit (`simgpu.trace.calibration.fit`).

``python -m simgpu.trace.calibration ../shared/data -o simgpu/trace/timemodel/parameters.yaml`` writes the table that
comes with simgpu again; it needs SciPy (the extra ``calibrate``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simgpu.errors import InputError, MissingExtraError
from simgpu.whole import whole_file


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m simgpu.trace.calibration",
        description="Fit the time model to published figures and recordings, and write its table of parameters.",
    )
    parser.add_argument("recordings", type=Path, help="folder with the recordings that recordings.yaml lists")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, whole or not at all")
    given = parser.parse_args(arguments)
    from simgpu.trace.calibration.fit import fitted_table

    try:
        table = fitted_table(given.recordings)
        with whole_file(given.output) as part:
            part.write_bytes(table.encode())
    except (InputError, MissingExtraError) as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
