"""Two lower bounds on the step time, and which of them holds for a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from importlib.util import find_spec

from simgpu.graph.transforms import WithEncodings
from simgpu.planning.bound import Bound, lower_bound, quick_bound
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.planning.wide_bound import wide_bound
from simgpu.program.instructions import (
    COMPUTE,
    DEVICE,
    Acquire,
    Copy,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
)
from simgpu.units import format_time

#: Programs without a lower bound, as reports describe them.
NOT_BOUNDED = (
    "splits the batch, chooses algorithms, reorders kernels, exchanges data with other GPUs, copies over a second link "
    "of the GPU, or has compressed, paged or unlimited memory"
)


@dataclass(frozen=True)
class TimeBounds:
    """Lower bounds on the step time.

    of_activations: holds for every placement of the decisions; where its `fits` is False, none fits. of_all: holds for
    every program of the full batch, whatever it moves over the GPU's link. blocks: number of the graph's blocks without
    encoded forms. own_links: memories with another link to the GPU.
    """

    of_activations: Bound
    of_all: Bound
    decisions: Decisions
    blocks: int
    own_links: tuple[str, ...] = ()

    def of(self, program: Program) -> Bound | None:
        """The bound that holds for a program that fits; None for one that `NOT_BOUNDED` describes."""
        if not is_bounded(program) or (self.own_links and _uses(program, self.own_links)):
            return None
        if self.of_activations.fits and moves_only_activations(program, self.decisions, self.blocks):
            return max(self.of_activations, self.of_all, key=lambda bound: bound.ns)
        return self.of_all

    @property
    def tightest(self) -> Bound:
        """The bound of placements of feature maps; where none of these fits, the bound of all programs."""
        return self.of_activations if self.of_activations.fits else self.of_all

    @property
    def summary(self) -> str:
        """Both bounds, and the programs without a bound, as text."""
        maps, everything = self.of_activations, self.of_all
        if maps.fits:
            first = f"Placements of feature maps: at least {format_time(maps.ns)} ({maps.how})"
        else:
            first = f"No placement of feature maps alone fits ({maps.how})"
        others = f"programs that move more: at least {format_time(everything.ns)} ({everything.how})"
        return f"{first}; {others}; no bound: a program that {NOT_BOUNDED}"


def bounds_of(evaluator: Evaluator) -> TimeBounds:
    """Both bounds for an evaluator's graph, node, budget and decisions.

    The bound of feature maps uses a linear program where SciPy is installed.
    """
    narrow = lower_bound(evaluator.tables) if find_spec("scipy") else quick_bound(evaluator.tables)
    wide = wide_bound(evaluator.graph, evaluator.node, evaluator.budget)
    if evaluator.node.host.launch_ns:
        narrow, wide = _with_launches(narrow, evaluator), _with_launches(wide, evaluator)
    return TimeBounds(narrow, wide, evaluator.decisions, len(evaluator.graph.blocks), evaluator.node.with_own_link)


def _with_launches(bound: Bound, evaluator: Evaluator) -> Bound:
    """A bound where the host launches each kernel in its time: every program launches the kernels in their order."""
    least = evaluator.graph.ideal_ns(evaluator.node.host.launch_ns)
    return bound if bound.ns >= least else replace(bound, ns=least, how="time of the kernels and of their launches")


def is_bounded(program: Program) -> bool:
    """Whether `wide_bound` holds for a program: full batch, recorded algorithms and order, ordinary device memory."""
    only_encodes = all(isinstance(transform, WithEncodings) for transform in program.transforms)
    return only_encodes and program.gpus == 1 and not program.unlimited_memory and program.residency is None


def _uses(program: Program, memories: tuple[str, ...]) -> bool:
    """Whether a program copies to or from one of these memories."""
    code = (each for segment in program.segments for stream in segment.streams.values() for each in stream)
    return any(isinstance(each, Copy) and (each.src in memories or each.dst in memories) for each in code)


def moves_only_activations(program: Program, decisions: Decisions, count: int) -> bool:
    """Whether a program moves, drops and recomputes only feature maps of the decisions, each in its own gap.

    Then the tighter `simgpu.planning.bound` holds for it. count: blocks of the graph; later ones are encoded forms.
    Memory that a program acquires on other streams than compute counts as moving more.
    """
    gaps = {each.block: each.after for each in decisions.maps}
    acquired: Counter[int] = Counter()
    launched = -1
    for segment in program.segments:
        for stream, code in segment.streams.items():
            for instruction in code:
                if isinstance(instruction, Launch) and not instruction.recompute:
                    launched = instruction.kernel
                if not _stays_in_gaps(instruction, gaps, acquired, launched, in_order=stream == COMPUTE, count=count):
                    return False
    return len(program.segments) == 1 and program.segments[0].repeat == 1


def _stays_in_gaps(
    instruction: Instruction, gaps: dict[int, int], acquired: Counter[int], launched: int, *, in_order: bool, count: int
) -> bool:
    """Whether an instruction moves only feature maps in their gaps, or is one that every program has."""
    match instruction:
        case Copy(block) | Encode(block) | Decode(block):
            return block in gaps or block >= count
        case Initialize(_, memory):
            return memory == DEVICE and launched < 0
        case Acquire(blocks, memory) if memory == DEVICE:
            acquired.update(blocks)
            repeated = [b for b in blocks if acquired[b] > 1 and b < count]
            return all(_in_gap(b, gaps, acquired, launched) for b in repeated) and (in_order or not repeated)
        case _:
            return True


def _in_gap(b: int, gaps: dict[int, int], acquired: Counter[int], launched: int) -> bool:
    return b in gaps and acquired[b] == 2 and launched >= gaps[b]
