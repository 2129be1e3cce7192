"""Measuring a machine, and running models on it under real memory management.

`record_cases` does all of it; `CASES` and `SMALL_CASES` are the sets that ship. Importing this package does not import
PyTorch: the modules next to `cases` and `entry` do, and are loaded by the first recording.
"""

from simgpu.validation.harness.cases import CASES, SMALL_CASES, CasePlan, choose
from simgpu.validation.harness.entry import Recorded, record_cases

__all__ = ["CASES", "SMALL_CASES", "CasePlan", "Recorded", "choose", "record_cases"]
