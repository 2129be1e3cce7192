"""What a sweep reads, and digests of it: by these another machine, or another day, is known to have the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simgpu.errors import InputError
from simgpu.hardware.layering import read_layered
from simgpu.hardware.nodes import SCHEMA
from simgpu.io.input_files import open_input, pieces
from simgpu.io.shipped import Kind, find

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep

_WORDS: Mapping[Kind, str] = {"traces": "trace", "configs": "node"}


class Named(NamedTuple):
    """A trace or node as a scenario names it, and the folder in which a path starts."""

    kind: Kind
    name: str
    folder: Path

    @property
    def title(self) -> str:
        """What it is called among others."""
        return f"{_WORDS[self.kind]} {self.name}"


def digests_of(sweep: Sweep) -> dict[str, str]:
    """SHA-256 of each trace's and each node's files by ``trace NAME`` and ``node NAME``, sorted.

    What cannot be read has the digest ``missing``.

    >>> from simgpu.experiments.scenarios.load_sweep import load_sweep
    >>> list(digests_of(load_sweep("memory-sweep")))
    ['node laptop-2gb', 'trace resnet20-cifar-cpu']
    """
    return {named.title: _digest(named) for named in sorted(set(_named(sweep)))}


def _named(sweep: Sweep) -> Iterator[Named]:
    """What the scenario and each step of each axis name, whatever else a point gives."""
    yield from _in(sweep.document.values, sweep.folder)
    yield from _in(sweep.overrides, sweep.here)
    for axis in sweep.axes:
        for step in axis.steps:
            yield from _in(step, sweep.here if axis.changed else sweep.folder)


def _in(values: Mapping[str, object], folder: Path) -> Iterator[Named]:
    trace = values.get("trace")
    gpus: Iterable[object] = (
        values.get("node"),
        values.get("trace.gpu"),
        trace.get("gpu") if isinstance(trace, dict) else None,
    )
    if isinstance(trace, str):
        yield Named("traces", trace, folder)
    for name in gpus:
        if isinstance(name, str):
            yield Named("configs", name, folder)


def _digest(named: Named) -> str:
    try:
        path = find(named.kind, named.name, named.folder)
        if named.kind == "traces":
            files = sorted(file for file in path.iterdir() if file.is_file())
        else:
            files = [Path(document.file) for document in read_layered(path, SCHEMA).files]
        digest = hashlib.sha256()
        for file in files:
            with open_input(file) as stream:
                digest.update(f"{file.name}\0{os.fstat(stream.fileno()).st_size}\0".encode())
                for piece in pieces(stream, file):
                    digest.update(piece)
    except (OSError, InputError):
        return "missing"
    return digest.hexdigest()
