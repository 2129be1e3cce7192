"""The result of a search for a placement: `Search`, with each feature map's action, the convergence and the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simgpu.analysis.tables import facts_html, facts_text
from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import DEVICE
from simgpu.planning.evaluator import DOES_NOT_FIT
from simgpu.planning.options import Action, Option
from simgpu.policies.base import Trial, plain_parameters
from simgpu.timeline.model import SpanKind
from simgpu.timeline.streams import OWN_ENGINES
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simgpu.graph.saved import Activation
    from simgpu.graph.taskgraph import TaskGraph
    from simgpu.hardware.spec import NodeSpec
    from simgpu.planning.evaluator import Chosen
    from simgpu.timeline.model import Timeline
    from simgpu.trace.model import TraceInfo


#: The run of the chosen placement, or the error that ended it.
Outcome = Trial | OutOfMemoryError
Floats = NDArray[np.float64]

#: Iterations of a search shown in tables, in addition to the last one and the one that first reached the best.
_SHOWN_ITERATIONS = {1, 2, 5, 10, 20, 50, 100, 200, 500}


@dataclass(frozen=True, slots=True)
class WallClock:
    """Wall-clock seconds on this machine. They differ from run to run, so no file holds them.

    planning_s: the search and the generation of the program, without one-time compilation
    evaluation_s: one evaluation of a random placement on one thread; None if there is nothing to decide
    threads: number of threads of the search
    """

    planning_s: float
    evaluation_s: float | None
    threads: int


@dataclass(frozen=True, slots=True)
class Convergence:
    """The convergence of a swarm: arrays of shape (iterations,) over the particles that fit; NaN if none fits.

    worst_ns, mean_ns: worst and mean step time in this iteration
    best_ns: best step time up to this iteration
    fitting: fraction of the particles that fit
    """

    worst_ns: Floats
    mean_ns: Floats
    best_ns: Floats
    fitting: Floats


@dataclass(frozen=True, repr=False)
class Search:
    """The placement that a policy chose, its search, and its run. Prints as a summary, in notebooks too.

    Use `frame` and `convergence_frame` for the numbers, `plot` for the figure.

    label: the policy with its non-default parameters
    parameters: all parameters
    budget: device memory, bytes
    ideal_ns: step time with unlimited memory, ns
    chosen: the placement vector, its evaluator and its search
    maps: each feature map's action and times; empty if the program is not built from a vector
    notes: the policy's notes
    outcome: the run on the machine, or the error that ended it
    """

    label: str
    policy: str
    parameters: Mapping[str, object]
    trace: TraceInfo
    trace_name: str
    node: NodeSpec
    budget: int
    seed: int
    epoch: int
    ideal_ns: int
    chosen: Chosen
    maps: tuple[PlacedMap, ...]
    notes: tuple[str, ...]
    outcome: Outcome
    wall_clock: WallClock = field(compare=False)

    @property
    def fits(self) -> bool:
        """Whether the chosen placement ran within the budget."""
        return not isinstance(self.outcome, OutOfMemoryError)

    @property
    def iteration_ns(self) -> int | None:
        """Simulated step time, ns; None if out of memory."""
        return None if isinstance(self.outcome, OutOfMemoryError) else self.outcome.iteration_ns

    @property
    def predicted_ns(self) -> int | None:
        """Step time predicted by the evaluator, ns; None if the placement does not fit, or there is no vector."""
        if self.chosen.vector is None:
            return None
        costs = self.chosen.evaluator.costs([self.chosen.vector])
        return None if costs.short[0] > 0 else int(costs.time_ns[0])

    @property
    def convergence(self) -> Convergence | None:
        """The convergence of the swarm; None without a swarm."""
        if self.chosen.swarm is None:
            return None
        costs = self.chosen.swarm.costs
        fits = costs < DOES_NOT_FIT
        count, some = fits.sum(axis=1), fits.any(axis=1)
        total = np.where(fits, costs, 0).sum(axis=1)
        best = np.minimum.accumulate(costs.min(axis=1))
        return Convergence(
            worst_ns=np.where(some, np.where(fits, costs, 0).max(axis=1), np.nan),
            mean_ns=np.where(some, total / np.maximum(count, 1), np.nan),
            best_ns=np.where(best < DOES_NOT_FIT, best, np.nan),
            fitting=count / costs.shape[1],
        )

    @property
    def title(self) -> str:
        """The title of a figure: policy, network, node and budget in one line."""
        return f"{self.label}: {self.trace_name or self.trace.model} on {self.node.name}, {format_bytes(self.budget)}"

    def plot(self) -> Figure | None:
        """A matplotlib figure of the convergence (HOME, figure 8).

        None without a swarm, if no evaluated placement fits, or if the best takes no time.
        """
        curves, swarm = self.convergence, self.chosen.swarm
        if curves is None or swarm is None or not curves.best_ns[-1] > 0:
            return None
        from simgpu.analysis.charts import plot_convergence

        return plot_convergence(
            curves.worst_ns / 1e6,
            curves.mean_ns / 1e6,
            curves.best_ns / 1e6,
            unit="ms",
            title=f"{self.title}\n{self.trace.provenance}",
            converged_at=swarm.converged_at,
            fitting=curves.fitting,
        )

    def frame(self) -> pd.DataFrame:
        """One row per feature map, in order of production; times in ns from the start of the iteration."""
        import pandas as pd

        columns = [
            "name",
            "layer",
            "bytes",
            "action",
            "prefetch_distance",
            "overhead_ns",
            "offloaded_ns",
            "prefetched_ns",
            "needed_ns",
        ]
        result = pd.DataFrame([asdict(each) for each in self.maps], columns=columns)
        integers = {name: "Int64" for name in columns if name.endswith("_ns") or name in ("bytes", "prefetch_distance")}
        return result.astype(integers).rename_axis("activation")

    def convergence_frame(self) -> pd.DataFrame | None:
        """One row per iteration of the search, from 1; cells are empty if no particle fits. None without a swarm."""
        import pandas as pd

        curves = self.convergence
        if curves is None:
            return None
        result = pd.DataFrame(asdict(curves)).round({"mean_ns": 1})
        result = result.astype({"worst_ns": "Int64", "best_ns": "Int64"})
        return result.set_index(pd.RangeIndex(1, len(result) + 1, name="iteration"))

    # --- as text ----------------------------------------------------------------------------------------------

    @property
    def options_text(self) -> str:
        """The size of the search space."""
        decisions = self.chosen.evaluator.decisions
        recomputable = sum(any(option.action is Action.RECOMPUTE for option in own) for own in decisions.options)
        exponent = sum(map(log10, decisions.choices))
        return f"{len(decisions.maps)}, {recomputable} recomputable; 10^{exponent:.1f} placements"

    @property
    def stop_text(self) -> str:
        """Why a swarm stopped; empty without one."""
        if self.chosen.swarm is None:
            return ""
        count = self.chosen.swarm.iterations
        return {
            "converged": f"after iteration {count}: all particles agree",
            "patience": f"after iteration {count}: no recent improvement",
            "iterations": f"after iteration {count}: the limit",
        }[self.chosen.swarm.stopped]

    @property
    def curve_text(self) -> str:
        """Why a search has no convergence curve; empty if it has one, or there was no search."""
        if self.chosen.swarm is None:
            searched = self.chosen.evaluations is not None and self.chosen.evaluations > 1
            return "none: the search uses no swarm" if searched else ""
        curves = self.convergence
        if curves is None or curves.best_ns[-1] > 0:
            return ""
        takes_none = curves.best_ns[-1] == 0
        return "none: the best placement takes no time" if takes_none else "none: no evaluated placement fits"

    @property
    def evaluations_text(self) -> str:
        """The number of evaluations."""
        swarm, count = self.chosen.swarm, self.chosen.evaluations
        if swarm is None:
            return "" if count is None else str(count)
        saved = "" if swarm.as_printed == count else f" ({swarm.as_printed} without caching)"
        return f"{count}{saved}, {swarm.iterations} iterations of {swarm.costs.shape[1]} particles"

    @property
    def prediction_text(self) -> str:
        """The best placement's step time as predicted by the evaluator."""
        if self.chosen.vector is None:
            return ""
        if (predicted := self.predicted_ns) is None:
            short = int(self.chosen.evaluator.costs([self.chosen.vector]).short[0])
            return f"no placement fits; the best lacks {format_bytes(short)}"
        when = "" if self.chosen.swarm is None else f", reached in iteration {self.chosen.swarm.converged_at}"
        return f"{format_time(predicted)}{when}"

    @property
    def simulation_text(self) -> str:
        """The placement's simulated step time and peak memory."""
        if isinstance(self.outcome, OutOfMemoryError):
            return "out of memory"
        time = self.outcome.iteration_ns
        peak = int(self.outcome.timeline.memory(DEVICE).used.max(initial=0))
        over = f"slowdown {time / self.ideal_ns:.3f}x" if self.ideal_ns else "ideal takes no time"
        return f"{format_time(time)}, {over}, peak memory {format_bytes(peak)}"

    @property
    def wall_clock_text(self) -> str:
        """The wall-clock time of the search."""
        clock = self.wall_clock
        one = f"; {_seconds(clock.evaluation_s)} per evaluation" if clock.evaluation_s is not None else ""
        threads = f"{clock.threads} threads" if clock.threads > 1 else "1 thread"
        return f"{_seconds(clock.planning_s)} on {threads}{one}"

    def facts(self) -> list[tuple[str, str]]:
        """The summary as pairs of name and text."""
        texts = [
            ("feature maps", self.options_text),
            ("evaluations", self.evaluations_text),
            ("stopped", self.stop_text),
            ("convergence", self.curve_text),
            ("predicted", self.prediction_text),
            ("simulated", self.simulation_text),
            ("wall clock", self.wall_clock_text),
        ]
        return [(name, text) for name, text in texts if text]

    def iteration_rows(self) -> list[tuple[str, ...]]:
        """Selected iterations of a swarm: number; worst, mean and best time; share of particles that fit.

        Empty without a swarm, or if no evaluated placement fits.
        """
        curves, swarm = self.convergence, self.chosen.swarm
        if curves is None or swarm is None or np.isnan(curves.best_ns).all():
            return []
        shown = sorted(n for n in _SHOWN_ITERATIONS | {swarm.converged_at, swarm.iterations} if n <= swarm.iterations)
        lines = (curves.worst_ns, curves.mean_ns, curves.best_ns)
        return [(str(n), *(_time(line[n - 1]) for line in lines), f"{curves.fitting[n - 1]:.1%}") for n in shown]

    def action_rows(self) -> list[tuple[str, ...]]:
        """The feature maps summed by action: action, count, bytes, overhead."""
        counts = Counter(each.action for each in self.maps)
        return [
            (
                action,
                str(count),
                format_bytes(sum(each.bytes for each in self.maps if each.action == action)),
                format_time(sum(each.overhead_ns for each in self.maps if each.action == action)),
            )
            for action, count in sorted(counts.items())
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without wall-clock times: the same for every run."""
        swarm, decisions, frame = self.chosen.swarm, self.chosen.evaluator.decisions, self.convergence_frame()
        swarm_data = None
        if swarm is not None and frame is not None:
            swarm_data = {
                "iterations": swarm.iterations,
                "particles": swarm.costs.shape[1],
                "as_printed": swarm.as_printed,
                "stopped": swarm.stopped,
                "best_in_iteration": swarm.converged_at,
                "convergence": _plain(frame.reset_index()),
            }
        return {
            "label": self.label,
            "policy": self.policy,
            "parameters": plain_parameters(self.parameters),
            "seed": self.seed,
            "epoch": self.epoch,
            "activations": len(decisions.maps),
            "options": list(decisions.choices),
            "evaluations": self.chosen.evaluations,
            "swarm": swarm_data,
            "exact": self.chosen.evaluator.why_not is None,
            "predicted_ns": self.predicted_ns,
            "fits": self.fits,
            "iteration_ns": self.iteration_ns,
            "ideal_ns": self.ideal_ns,
            "notes": list(self.notes),
            "placement": [asdict(each) for each in self.maps],
        }

    def __repr__(self) -> str:
        return f"{self.title}\n{facts_text(self.facts())}"

    def _repr_html_(self) -> str:
        return facts_html([("search", self.title), *self.facts()])


def _time(ns: float) -> str:
    return "-" if np.isnan(ns) else format_time(round(ns))


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_time(round(seconds * 1e9))


def _plain(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """A table's columns for JSON; empty cells are None."""
    return {
        str(name): [None if value != value else value for value in column.astype(object).where(column.notna(), None)]
        for name, column in frame.items()
    }


#: Start and end of the first span by kind (`Span.label`) and name, ns from the start of the iteration.
_Spans = Mapping[tuple[str, str], tuple[int, int]]

_COMPUTE, _RECOMPUTE = SpanKind.COMPUTE.label(), SpanKind.RECOMPUTE.label()
_D2H, _H2D = (SpanKind.COPY.label(engine) for engine in OWN_ENGINES)


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A feature map in the simulated iteration. Times count from its start; None if the event did not happen.

    layer: the layer that produces it
    bytes: size without padding
    action: keep, swap, swap with a codec, or recompute
    prefetch_distance: layer steps between the prefetch and the next use; None if not swapped
    overhead_ns: its share of the step time (HOME, TC 2022, algorithm 2)
    offloaded_ns: end of its offload, or of its last use in forward if it is recomputed
    prefetched_ns: end of its prefetch or recomputation
    needed_ns: start of its next use
    """

    name: str
    layer: str
    bytes: int
    action: str
    prefetch_distance: int | None
    overhead_ns: int
    offloaded_ns: int | None
    prefetched_ns: int | None
    needed_ns: int | None


def placed_maps(graph: TaskGraph, chosen: Chosen, timeline: Timeline | None) -> tuple[PlacedMap, ...]:
    """All feature maps in order of production; empty if the program has no placement vector.

    graph: the graph that the policy planned on
    timeline: the timeline of the run; None if it was out of memory
    """
    if chosen.vector is None:
        return ()
    decisions, spans = chosen.evaluator.decisions, _spans(timeline) if timeline is not None else {}
    picked = [options[number] for options, number in zip(decisions.options, chosen.vector, strict=True)]
    overheads = chosen.evaluator.overheads(chosen.vector)
    return tuple(
        _placed(graph, each, option, overhead, spans)
        for each, option, overhead in zip(decisions.maps, picked, overheads, strict=True)
    )


def _spans(timeline: Timeline) -> _Spans:
    """The spans of the last iteration."""
    begin, last = timeline.window(-1)[0], len(timeline.iteration_ends_ns) - 1
    results: dict[tuple[str, str], tuple[int, int]] = {}
    for span in timeline:
        if span.iteration == last and not span.kind.is_stall:
            results.setdefault((span.label, span.name), (span.start_ns - begin, span.end_ns - begin))
    return results


def _placed(graph: TaskGraph, each: Activation, option: Option, overhead: int, spans: _Spans) -> PlacedMap:
    block, maker = graph.blocks[each.block], graph.uses[each.block][0]

    def at(kind: str, name: str, end: bool) -> int | None:
        return spans[kind, name][end] if (kind, name) in spans else None

    offloaded = prefetched = None
    if option.action is Action.SWAP:
        copied = block.id if option.encoding is None else f"{block.id}:{option.encoding.codec}"
        offloaded, prefetched = at(_D2H, copied, True), at(_H2D, copied, True)
    elif option.action is Action.RECOMPUTE:
        writer = max(k for k in graph.uses[each.block] if k <= each.after and each.block in graph.writes[k])
        offloaded = at(_COMPUTE, graph.kernels[each.after].id, True)
        prefetched = at(_RECOMPUTE, graph.kernels[writer].id, True)
    return PlacedMap(
        name=block.id,
        layer=graph.layers.name_of(maker),
        bytes=block.bytes,
        action=_action_text(option),
        prefetch_distance=option.ahead if option.action is Action.SWAP else None,
        overhead_ns=overhead,
        offloaded_ns=offloaded,
        prefetched_ns=prefetched,
        needed_ns=at(_COMPUTE, graph.kernels[each.before].id, False),
    )


def _action_text(option: Option) -> str:
    """The action, with the codec if it has one."""
    word = option.action.name.lower()
    return word if option.encoding is None else f"{word} with {option.encoding.codec}"
