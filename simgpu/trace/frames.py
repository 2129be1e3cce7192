"""A trace's tables as pandas frames, for notebooks and scripts.

Imports pandas, so it is imported when needed.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from simgpu.trace.model import Block, Kernel, Trace


def kernel_frame(trace: Trace) -> pd.DataFrame:
    """One row a kernel by id, in execution order; see `Trace.kernel_frame`."""
    return _rows(Kernel, trace.kernels)


def block_frame(trace: Trace) -> pd.DataFrame:
    """One row a block by id; see `Trace.block_frame`."""
    return _rows(Block, trace.blocks)


def sparsity_frame(trace: Trace) -> pd.DataFrame:
    """One row an epoch, one column a block; see `Trace.sparsity_frame`."""
    table = pd.DataFrame([asdict(sample) for sample in trace.sparsity], columns=["block", "epoch", "sparsity"])
    order = dict.fromkeys(table["block"])
    return table.pivot(index="epoch", columns="block", values="sparsity").reindex(columns=list(order))


def _rows(kind: type[Kernel] | type[Block], values: tuple[Any, ...]) -> pd.DataFrame:
    """A column a field, words as texts; what was not recorded is missing, and whole numbers stay whole."""
    names = [each.name for each in fields(kind)]
    rows = [[_plain(getattr(value, name)) for name in names] for value in values]
    return pd.DataFrame(rows, columns=names, dtype=object).convert_dtypes().set_index("id")


def _plain(value: Any) -> Any:
    """A word of the format as plain text."""
    return str(value) if isinstance(value, str) else value
