"""`fit_gpus`: the best answer of `fit` on each of several GPUs, as a table with one line a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from simgpu.analysis.tables import table_html, table_text
from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.experiments.fit.answer import for_size
from simgpu.experiments.fit.entry import FitSettings, fit
from simgpu.experiments.fit.outcome import run_of
from simgpu.experiments.fit.result import Fit
from simgpu.experiments.fit.rows import speed_text
from simgpu.graph.bounds import first_reason
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import no_progress
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd

_ABSENT = "-"
#: Beginnings of notes that hold for a table of GPUs, too.
_SHARED = ("GiB", "cost", "launches", "segments")
_UNITS = {"batch": "samples", "length": "tokens per sample"}


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """The answer on one GPU. fit: None if the model or the GPU is not supported; note: why."""

    node: NodeSpec
    fit: Fit | None
    note: str = ""


@dataclass(frozen=True, repr=False)
class GpuTable:
    """The answers on several GPUs, in the order of the request. Prints as an answer and a table."""

    rows: tuple[GpuAnswer, ...]

    def __iter__(self) -> Iterator[GpuAnswer]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, gpu: str) -> GpuAnswer:
        for row in self.rows:
            if row.node.name == gpu:
                return row
        raise KeyError(did_you_mean(gpu, [row.node.name for row in self.rows]))

    @property
    def fits(self) -> list[Fit]:
        """The answers on GPUs that are supported."""
        return [row.fit for row in self.rows if row.fit is not None]

    @property
    def fitting(self) -> list[Fit]:
        """Those on which the model fits."""
        return [each for each in self.fits if each.best is not None]

    @property
    def best(self) -> Fit | None:
        """The fastest; where a size is searched, of those of the largest size. None if the model fits nowhere.

        Where the host updates weights, a GPU comes after all others, as for `Fit.best`.
        """
        return max(self.fitting, key=_rank, default=None)

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of `table`."""
        return ("GPU", "GiB", "of", self._searched or "step", self.fits[0].speed_unit, "cost", "best option")

    @property
    def _searched(self) -> str:
        return self.fits[0].question.searched

    def table(self) -> list[tuple[str, ...]]:
        """The cells under `headings`, one row per GPU: what the best option needs of the budget, its time and cost."""
        return [(row.node.name, *self._cells(row.fit)) for row in self.rows]

    def _cells(self, result: Fit | None) -> tuple[str, ...]:
        single = None if result is None else result.best or result.smallest
        if result is None or single is None:
            return (*(_ABSENT,) * (len(self.headings) - 2), "refused")
        run = run_of(single)
        memory = f"{run.reserved / 2**30:,.1f}", f"{result.question.budget / 2**30:,.1f}"
        if not single.fits:
            return (*memory, _ABSENT, _ABSENT, _ABSENT, f"OOM; least: {single.candidate.label}")
        size = f"{single.size(self._searched):,}" if self._searched else format_time(run.step_ns)
        parts = [f"{run.micro_batches} micro-batches"] if run.micro_batches > 1 else []
        option = ", ".join((single.candidate.label, *parts, *result.marks(single)))
        return (*memory, size, speed_text(run.speed), f"{run.cost:.1%}", option)

    @property
    def answer(self) -> str:
        """The answer in a few sentences: on how many GPUs it fits, on which it is fastest, and the smallest."""
        first, best, count, searched = self.fits[0], self.best, len(self.rows), self._searched
        what = first.question.workload.name
        if best is None or best.best is None:
            where = f"any of these {count} GPUs{for_size(first)}"
            return f"{what} does not fit {where} under any option that trains the same."
        what += "" if searched else for_size(first)
        run, name = run_of(best.best), best.question.node.name
        largest = f"up to {best.best.size(searched):,} {_UNITS[searched]}, " if searched else ""
        text = f"{what} fits {len(self.fitting)} of {count} GPUs. {'Most' if searched else 'Fastest'}: {name}, "
        text += f"{largest}{speed_text(run.speed)} {best.speed_unit}, with {best.best.candidate.label}."
        small = min(self.fitting, key=lambda each: each.question.budget)
        return (
            text
            if small is best
            else f"{text} The smallest that fits: {small.question.node.name}, {format_bytes(small.question.budget)}."
        )

    def notes(self) -> list[str]:
        """What the numbers include, how safe they are, and why GPUs were refused."""
        several = [each.notes() for each in self.fits]
        notes = [note for note in several[0] if note.startswith(_SHARED) and all(note in others for others in several)]
        if any("tight" in each.marks(each.best) for each in self.fitting if each.best):
            notes.append("tight: leaves less than 3% of the budget, or less than a CUDA context that is not known")
        if any(each.best.candidate.on_host for each in self.fitting if each.best):
            notes.append("host optimizer, host gradients: the calls of the host's updates take no time here")
        if any(each.best.candidate.shares > 1 for each in self.fitting if each.best):
            notes.append("FSDP2: weights, gradients and optimizer state are divided among the node's GPUs")
        notes += [f"{row.node.name}: {row.note}" for row in self.rows if row.note]
        return [*notes, "give one GPU to see all its options"]

    def frame(self) -> pd.DataFrame:
        """One row per GPU and option, as `Fit.frame` has them."""
        import pandas as pd

        return pd.concat([each.frame() for each in self.fits])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the answer, and the whole result on each GPU."""
        best = None if self.best is None else self.best.question.node.name
        refused = {row.node.name: row.note for row in self.rows if row.note}
        return {"answer": self.answer, "best": best, "gpus": [each.to_dict() for each in self.fits], "refused": refused}

    def __repr__(self) -> str:
        return "\n".join((self.answer, table_text(self.headings, self.table()), *self.notes()))

    def _repr_html_(self) -> str:
        return table_html(self.headings, self.table(), self.answer)


def fit_gpus(
    model: str | Path | Trace,
    nodes: Sequence[str | NodeSpec],
    *,
    jobs: int = 1,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[FitSettings],
) -> GpuTable:
    """The best option of training a model on each of several GPUs, what it costs and how fast it is.

    nodes: shipped nodes, node files or nodes; model, settings, jobs, progress: as for `fit`

    A GPU that the time model does not support is a row with the reason. Raises `InputError` for unknown GPUs, all at
    once, for one that is given twice, and as `fit` does where all GPUs are refused.

    >>> table = fit_gpus("alexnet", ["rtx3060", "rtx4090"], batch=64)
    >>> table.best.question.node.name, [row.fit.best.candidate.label for row in table]
    ('rtx4090', ['as it is', 'as it is'])
    """
    rows: list[GpuAnswer] = []
    problems: list[Problem] = []
    for node in _nodes(nodes):
        try:
            rows.append(GpuAnswer(node, fit(model, node, jobs=jobs, progress=_of_gpu(node, progress), **settings)))
        except InputError as error:
            problems += error.problems
            rows.append(GpuAnswer(node, None, first_reason(error)))
    if all(row.fit is None for row in rows):
        raise InputError(dict.fromkeys(problems))
    return GpuTable(tuple(rows))


def _of_gpu(node: NodeSpec, progress: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: progress(f"{node.name}: {text}")


def _nodes(gpus: Sequence[str | NodeSpec]) -> list[NodeSpec]:
    """The nodes. Raises `InputError` for all that are unknown or that have the same name."""
    nodes: list[NodeSpec] = []
    problems: list[Problem] = []
    for gpu in gpus:
        try:
            nodes.append(gpu if isinstance(gpu, NodeSpec) else load_node(gpu))
        except InputError as error:
            problems += error.problems
    names = [node.name for node in nodes]
    twice = dict.fromkeys(name for name in names if names.count(name) > 1)
    problems += [Problem("", "gpu", f"{name!r} is given twice", "give it once") for name in twice]
    if not gpus:
        problems.append(Problem("", "gpu", "no GPU is given", "give at least one"))
    if problems:
        raise InputError(problems)
    return nodes


def _rank(result: Fit) -> tuple[int, int, float]:
    assert result.best is not None, "only GPUs on which the model fits are compared"
    return result.rank(result.best)
