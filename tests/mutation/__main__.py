"""Draws mutants of the program, applies each to a copy of the repository, and reports which ones the tests kill.

A mutant changes one place of the code: a comparison, an operator, a constant, a condition, a statement. Where no test
fails, either the mutant means the same (it is *equivalent*, and listed with the reason in ``equivalent.toml``), or the
tests do not see that line. This is not part of the suite, and needs `coverage` (extra ``dev``)::

    python -m tests.mutation --count 24 --seed 21 simgpu/policies simgpu/graph

* Mutants are ranked by a hash of the seed and of their text, so that a change elsewhere in the code leaves a draw as it
  is. The packages take turns; a line is drawn once. Equivalent mutants are counted apart, and the next one is drawn.
* Docstrings, messages, annotations, assertions, decorators and named settings are not mutated.
* Which test files reach which line is measured once and saved (``--map``; ``--tests`` selects the tests); test files
  that have changed since are measured again. A mutant is tried on the files that reach its line: first those named
  after its module, then those of its package, then the others, the quick ones first, up to ``--seconds`` of measured
  time. A file measured before the module changed counts if it reaches the module. For a line that runs on import alone,
  and for modules that numba compiles, these are the files that reach its package. Tests that fail on the unchanged tree
  are left out.
* A run that takes a minute more than four times the measured time on the processor hangs, and the mutant is killed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.mutants import ROOT, Mutant, chosen, drawn, equivalents, listed, mutated
from tests.mutation.reached import PYTEST, Reached, copied, environment, measured, selected


def outcome(mutant: Mutant, tree: Path, reached: Mapping[str, Reached], seconds: float) -> tuple[bool, str]:
    """Whether the tests kill a mutant in this copy of the repository, and how. Afterwards the copy is as it was."""
    files, expected, of = selected(mutant, reached, seconds)
    if not files:
        return False, "no test reaches it"
    left_out = [f"--deselect={test}" for file in files for test in reached[file].failed]
    source = (tree / mutant.path).read_bytes()
    (tree / mutant.path).write_bytes(mutated(source, mutant.change))
    try:
        code, text = run([sys.executable, "-m", "pytest", "-x", *PYTEST, *left_out, *files], tree, expected)
    finally:
        (tree / mutant.path).write_bytes(source)
    if code is None or code == -signal.SIGXCPU:
        return True, "hangs"
    if code < 0:
        return True, f"crashes with {signal.Signals(-code).name}"
    if code == 0:
        return False, f"{len(files)} of {of} test files that reach it pass"
    if failed := re.search(r"^(?:FAILED|ERROR) (.*)$", text, re.MULTILINE):
        return True, failed[1]
    raise RuntimeError(f"pytest ended with {code}:\n{text}")


def run(command: Sequence[str], tree: Path, expected: float) -> tuple[int | None, str]:
    """Exit code and output of a command that is expected to take so long (s). It may take a minute more than four times
    as long on the processor, whatever else runs there; None where it does not even end in twenty times as long."""
    limited = ("sh", "-c", f'ulimit -S -t {int(4 * expected + 60)} && exec "$@"', "sh", *command)
    with subprocess.Popen(
        limited, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            text = process.communicate(timeout=20 * expected + 600)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
        return process.returncode, text


def main() -> None:
    """The command in the docstring of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("packages", nargs="*", help="folders or files below the root; a+b counts as one")
    parser.add_argument("--listed", type=Path, help="try the mutants of this list instead of drawing some")
    parser.add_argument("--count", type=int, default=24, help="mutants to try (default: 24)")
    parser.add_argument("--seed", type=int, default=0, help="decides which are drawn (default: 0)")
    parser.add_argument(
        "--tests", nargs="+", default=["tests", "simgpu"], help="folders or files (default: all tests and doctests)"
    )
    parser.add_argument("--map", type=Path, default=ROOT / "results/mutation-map.json", help="where coverage is saved")
    parser.add_argument("--seconds", type=float, default=180, help="measured time of tests per mutant (default: 180)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at a time (default: 1)")
    parser.add_argument("--only", default="", help="of the mutants that are drawn only those with this text")
    parser.add_argument("--list", action="store_true", help="print the mutants that are drawn and run nothing")
    options = parser.parse_args()
    known = equivalents()
    pool = listed(options.listed) if options.listed else drawn(options.packages, options.seed)
    mutants, same = chosen(pool, options.count, known)
    tried = [mutant for mutant in mutants if options.only in str(mutant)]
    for mutant in same:
        print(f"equivalent  {mutant}\n            ({known[str(mutant)]})")
    if options.list:
        print("\n".join(mutant.place() for mutant in tried))
        return
    reached = measured(options.tests, options.map)
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            trees.put(copied(Path(folder) / str(job)))

        def try_one(mutant: Mutant) -> bool:
            tree, begun = trees.get(), time.monotonic()
            killed, how = outcome(mutant, tree, reached, options.seconds)
            trees.put(tree)
            print(f"{'killed' if killed else 'SURVIVED':<11} {mutant.place()}", flush=True)
            print(f"            ({time.monotonic() - begun:.0f} s: {how})", flush=True)
            return killed

        with ThreadPoolExecutor(options.jobs) as pool:
            killed = sum(pool.map(try_one, tried))
    print(f"{killed} of {len(tried)} killed; {len(same)} equivalent")


if __name__ == "__main__":
    main()
