"""Measures a machine, and records models running on it under each memory management method.

Call `record_cases`; `CASES` and `SMALL_CASES` are the shipped sets. Importing this package does not import PyTorch; the
first recording does.
"""

from simgpu.validation.harness.cases import CASES, SMALL_CASES, CasePlan, choose
from simgpu.validation.harness.entry import Recorded, record_cases

__all__ = ["CASES", "SMALL_CASES", "CasePlan", "Recorded", "choose", "record_cases"]
