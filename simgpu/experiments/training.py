"""Training over many epochs: `train` simulates one steady iteration per epoch and weights it by the epoch's iterations.

Sparsity, and with it a policy's decisions, changes from epoch to epoch (CSWAP, section IV-A).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.policies.base import Policy, policy_label
from simgpu.policies.registry import make_policy
from simgpu.simulation.config import RunConfig, RunSettings, run_config
from simgpu.simulation.run import Result, simulate
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.trace.epochs import epochs_of
from simgpu.trace.model import Trace, TraceInfo

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.hardware.spec import NodeSpec

#: The codec of a block that is offloaded uncompressed.
AS_IT_IS = ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch: its number, its number of iterations, and the result of one of them."""

    number: int
    iterations: int
    result: Result


@dataclass(frozen=True)
class Training:
    """The epochs of one policy in order. label: the policy with its non-default parameters."""

    label: str
    trace: TraceInfo
    trace_name: str
    epochs: tuple[Epoch, ...]

    @property
    def total_ns(self) -> int:
        """Time of all iterations of all epochs, ns."""
        return sum(epoch.result.iteration_ns * epoch.iterations for epoch in self.epochs)

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all epochs."""
        samples = self.trace.batch * sum(epoch.iterations for epoch in self.epochs)
        return samples * 10**9 / self.total_ns if self.total_ns else float("inf")

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the policy and the runs; of notes that differ only in numbers, the last one."""
        last = {re.sub(r"\d+", "", note): note for epoch in self.epochs for note in epoch.result.notes}
        return tuple(last.values())

    @cached_property
    def decisions(self) -> dict[str, tuple[str | None, ...]]:
        """For each block that is offloaded in some epoch, in order of the first offload, its codec per epoch.

        The codec is `AS_IT_IS` for an uncompressed offload, and None if the block stays resident.
        """
        by_epoch = [departures(epoch.result) for epoch in self.epochs]
        blocks = dict.fromkeys(block for result in by_epoch for block in result)
        return {block: tuple(result.get(block) for result in by_epoch) for block in blocks}

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of blocks offloaded compressed, per epoch (CSWAP, figure 8)."""
        return tuple(sum(bool(row[at]) for row in self.decisions.values()) for at in range(len(self.epochs)))

    def plot(self) -> Figure:
        """A matplotlib figure of the decisions per epoch (CSWAP, figures 8 and 9)."""
        from simgpu.analysis.charts import plot_decisions

        title = f"{self.label}: {self.trace_name or self.trace.model}\n{self.trace.provenance}"
        return plot_decisions(self.decisions, [epoch.number for epoch in self.epochs], title=title)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "policy": self.label,
            "total_ns": self.total_ns,
            "samples_per_s": self.samples_per_s,
            "decisions": {block: list(row) for block, row in self.decisions.items()},
            "compressed": list(self.counts),
            "epochs": [
                {"epoch": epoch.number, "iterations": epoch.iterations, **epoch.result.to_dict()}
                for epoch in self.epochs
            ],
        }

    def frame(self) -> pd.DataFrame:
        """One row per epoch: iterations, all metrics of the steady iteration in base units, compressed blocks."""
        import pandas as pd

        rows = [epoch.result.metrics.by_key for epoch in self.epochs]
        frame = pd.DataFrame(rows, index=pd.Index([epoch.number for epoch in self.epochs], name="epoch"))
        return frame.assign(iterations=[epoch.iterations for epoch in self.epochs], compressed=list(self.counts))


def departures(result: Result) -> dict[str, str]:
    """The blocks offloaded in the last iteration, in order, with their codec.

    A block encoded by the GPU is copied as ``block:codec``; one encoded on the host is copied uncompressed first.
    """
    timeline = result.timeline
    last = timeline.iteration == result.iterations - 1
    chosen = last & ((timeline.kind == SpanKind.ENCODE) | timeline.copies(OWN_ENGINES[0]))
    columns = (column[chosen].tolist() for column in (timeline.start_ns, timeline.name, timeline.kind))
    spans = sorted((start, timeline.names[name], kind) for start, name, kind in zip(*columns, strict=True))
    forms = {name for _, name, kind in spans if kind == SpanKind.ENCODE}
    results: dict[str, str] = {}
    for _, name, kind in spans:
        block, _, codec = name.rpartition(":") if name in forms else (name, "", AS_IT_IS)
        if kind == SpanKind.COPY or block in results:
            results[block] = codec or results.get(block, AS_IT_IS)
    return results


def train(
    trace: Trace,
    node: NodeSpec,
    policy: str | Policy,
    config: RunConfig | None = None,
    *,
    parameters: Mapping[str, object] | None = None,
    epochs: Iterable[int] | None = None,
    iterations_per_epoch: int = 1,
    progress: Callable[[str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> Training:
    """Simulate one iteration of each epoch under a policy, which may keep state from one epoch to the next.

    config, settings: as for `simulate`, without the epoch
    epochs: numbers of the epochs; by default all of the trace
    progress: called with a line before the first epoch

    Raises `InputError` if there are no epochs, and the errors of `simulate`.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.trace.folder import load_trace
    >>> trace, node = load_trace("vgg16-b128-v100"), load_node("v100")
    >>> training = train(trace, node, "oracle", parameters={"codec": "zvc"}, epochs=[0, 40])
    >>> training.decisions["conv1_1"], training.counts
    (('zvc', 'zvc'), (12, 12))
    """
    chosen = make_policy(policy, parameters) if isinstance(policy, str) else policy
    numbers = tuple(dict.fromkeys(epochs_of(trace) if epochs is None else epochs))
    if not numbers:
        what = "the trace has no epochs, and none were given"
        raise InputError.single(trace.name or trace.info.model, "epochs", what, "give epochs, or record with --epochs")
    if iterations_per_epoch < 1:
        what = f"{iterations_per_epoch!r} is too few iterations"
        raise InputError.single("", "argument iterations_per_epoch", what, "give at least 1")
    config = run_config(config, settings)
    carried: dict[str, Any] = {}
    runs = []
    if progress:
        progress(f"{policy_label(chosen)}, {len(numbers)} epochs")
    for number in numbers:
        try:
            result = simulate(trace, node, chosen, config, epoch=number, carried=carried)
        except OutOfMemoryError as error:
            error.add_note(f"{policy_label(chosen)}, epoch {number}")
            raise
        runs.append(Epoch(number, iterations_per_epoch, result))
    return Training(policy_label(chosen), trace.info, trace.name, tuple(runs))
