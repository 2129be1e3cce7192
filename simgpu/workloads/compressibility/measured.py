"""Measures a compressibility profile from recordings, with `profile_text`.

The shares of a role are the unweighted mean over the recordings that have such blocks; within a recording, all entries
of the role have equal weight. A role of three or more parts also counts for its prefixes, so that a ReLU after a layer
that no recording has gets the mean of all ReLUs. The epochs are those that all recordings have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from simgpu.errors import InputError
from simgpu.trace.entries import histograms
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace
from simgpu.workloads.compressibility.generator import DIGITS, SCHEMA
from simgpu.workloads.compressibility.roles import roles_of

#: The recordings behind the shipped profile: networks trained on photographs and on text.
RECORDINGS = ("photos-resnet-cpu", "photos-squeezenet-cpu", "photos-vgg-cpu", "words-lstm-cpu")

_HEADER = """\
# Shares of compressed sizes of 128-byte memory-entries (bit-plane compression), by role and epoch of training: the mean
# of the recordings listed with each role. Measured, not chosen; written by
# python -m simgpu.workloads.compressibility traces -o simgpu/workloads/compressibility/profiles/trained.yaml
"""

#: Number of entries by epoch and size.
_Counts = dict[int, Counter[int]]


def profile_text(folder: Path) -> str:
    """The text of the shipped profile's file, measured from the recordings in a folder.

    Raises `InputError` if a recording is missing or invalid, or if the recordings have no common epoch.
    """
    traces = [read_trace(folder / name) for name in RECORDINGS]
    counted = [_counted(trace) for trace in traces]
    epochs = sorted(set.intersection(*(_epochs(counts) for counts in counted)))
    if not epochs:
        problem = "the recordings have no common epoch with sizes of memory-entries"
        raise InputError.single(folder, "", problem, "record them with --codec bpc")
    sizes = sorted(
        {size for counts in counted for by_epoch in counts.values() for c in by_epoch.values() for size in c}
    )
    lines = [
        f"schema: {SCHEMA}",
        f"recordings: {_listed(RECORDINGS)}",
        f"epochs: {epochs}",
        f"sizes: {sizes}",
        "roles:",
    ]
    for role in sorted({role for counts in counted for role in counts}):
        having = {name: counts[role] for name, counts in zip(RECORDINGS, counted, strict=True) if role in counts}
        lines += [f"  {role}:", f"    recordings: {_listed(list(having))}", "    shares:"]
        lines += [f"      - {_mean(list(having.values()), epoch, sizes)}" for epoch in epochs]
    return _HEADER + "\n".join(lines) + "\n"


def _counted(trace: Trace) -> dict[str, _Counts]:
    """Number of entries of each size by role, or prefix of a role, and epoch."""
    roles = roles_of(trace)
    result: defaultdict[str, _Counts] = defaultdict(dict)
    for (block, epoch), histogram in histograms(trace.compressibility).items():
        for role in _prefixes(roles.get(block, "")):
            result[role].setdefault(epoch, Counter()).update(histogram)
    return dict(result)


def _prefixes(role: str) -> list[str]:
    parts = role.split(".") if role else []
    return [".".join(parts[:count]) for count in range(min(2, len(parts)), len(parts) + 1) if count]


def _epochs(counts: Mapping[str, _Counts]) -> set[int]:
    return {epoch for by_epoch in counts.values() for epoch in by_epoch}


def _mean(having: Sequence[_Counts], epoch: int, sizes: Sequence[int]) -> list[float]:
    shares = [[counts[epoch][size] / counts[epoch].total() for size in sizes] for counts in having]
    return [round(sum(column) / len(shares), DIGITS) for column in zip(*shares, strict=True)]


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"
