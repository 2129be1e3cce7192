"""How many modules to checkpoint or offload: a candidate's parameter with which it fits and spares most modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simgpu.experiments.fit.candidates import Candidate
from simgpu.experiments.fit.rows import FitRun
from simgpu.graph.sections import default_sections
from simgpu.hardware.spec import NodeSpec
from simgpu.planning.search.bisection import largest_by_guess
from simgpu.simulation.tasks import task_graph
from simgpu.trace.model import Trace

#: Runs one candidate at the size in question.
RunCandidate = Callable[[Candidate], FitRun]


def sections_in(trace: Trace, node: NodeSpec) -> int:
    """The number of modules that `checkpoint` checkpoints by default."""
    return len(set(default_sections(task_graph(trace, node, 0)).of_layer.values()))


def valued_candidate(candidate: Candidate, sections: int, run: RunCandidate) -> tuple[Candidate, FitRun]:
    """The candidate with the best value of its parameter, and its run.

    Of `every`, `count` and `num_layers`, the value that spares most modules and fits; if none fits, the one that spares
    fewest. They are bisected, as each spared module adds its activations. Of `group`, which no recomputation depends
    on, the smallest from 2 on that fits or, from where on the peak grows, the one of the smallest peak.
    """
    if candidate.searched == "group":
        return _smallest_group(candidate, sections, run)
    values = spared_by(candidate.searched, sections)
    if not values:
        only = candidate.valued(candidate.valued_at or max(sections, 1))
        return only, run(only)
    spared = sorted(values)
    known: dict[int, tuple[Candidate, FitRun]] = {}

    def fits(place: int) -> bool:
        valued = candidate.valued(values[spared[place]])
        known[place] = valued, run(valued)
        return known[place][1].fits

    # Guess the middle: the peak is linear in the spared modules only where backward's recomputation does not set it.
    place = largest_by_guess(fits, len(spared) - 1, lambda fit, over: (fit + over) // 2)
    return known[place or 0]


def spared_by(parameter: str, sections: int) -> Mapping[int, int]:
    """By number of modules that are not checkpointed or offloaded, the value of the parameter that spares so many.

    >>> spared_by("every", 8), spared_by("count", 4)
    ({4: 2, 5: 3, 6: 4}, {1: 3, 2: 2, 3: 1})
    """
    if parameter == "every":
        by_value = {n: sections - -(-sections // n) for n in range(sections - 1, 1, -1)}
    else:
        by_value = {n: sections - n for n in range(sections - 1, 0, -1)}
    result = {spared: n for n, spared in by_value.items()}
    return dict(sorted(result.items()))


def _smallest_group(candidate: Candidate, sections: int, run: RunCandidate) -> tuple[Candidate, FitRun]:
    best = candidate.valued(2), run(candidate.valued(2))
    for size in range(3, sections + 1):
        if best[1].fits:
            break
        valued = candidate.valued(size)
        other = run(valued)
        if not other.fits and other.peak >= best[1].peak:
            break
        best = valued, other
    return best
