"""Both lower bounds on the time of an iteration, and which of them holds for a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec

from simgpu.graph.transforms import WithEncodings
from simgpu.planning.bound import Bound, lower_bound, quick_bound
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.planning.wide_bound import wide_bound
from simgpu.program.instructions import (
    COMPUTE,
    Acquire,
    CopyIn,
    CopyOut,
    Decode,
    Encode,
    Initialize,
    Instruction,
    Launch,
    Program,
    Space,
)
from simgpu.units import format_time

#: Why a result has no distance to a bound, in the words of all that print one.
NOT_BOUNDED = "splits the batch, chooses algorithms, or has compressed, paged or unlimited memory"


@dataclass(frozen=True)
class LowerBounds:
    """of_activations: no placement of the decisions is faster, and none fits where `fits` is False. of_all: the same
    of every program of the whole batch, whatever it moves. blocks: of the graph, without encoded forms."""

    of_activations: Bound
    of_all: Bound
    decisions: Decisions
    blocks: int

    def of(self, program: Program) -> Bound | None:
        """The bound that holds for a program that fits; None for one that `NOT_BOUNDED` describes."""
        if not is_bounded(program):
            return None
        if self.of_activations.fits and moves_only_activations(program, self.decisions, self.blocks):
            return max(self.of_activations, self.of_all, key=lambda bound: bound.ns)
        return self.of_all

    @property
    def main(self) -> Bound:
        """That of feature maps; where no placement of these alone fits, that of all programs."""
        return self.of_activations if self.of_activations.fits else self.of_all

    @property
    def summary(self) -> str:
        """Both bounds, and the programs that have none."""
        maps, everything = self.of_activations, self.of_all
        if maps.fits:
            first = f"Placements of feature maps: at least {format_time(maps.ns)} ({maps.how})"
        else:
            first = f"No placement of feature maps alone fits ({maps.how})"
        others = f"programs that move more: at least {format_time(everything.ns)} ({everything.how})"
        return f"{first}; {others}; no bound: a program that {NOT_BOUNDED}"


def bounds_of(evaluator: Evaluator) -> LowerBounds:
    """Both bounds for the graph, node and budget of an evaluator, the first one for its decisions.

    That for feature maps is by a linear program where SciPy is installed.
    """
    narrow = lower_bound(evaluator.tables) if find_spec("scipy") else quick_bound(evaluator.tables)
    wide = wide_bound(evaluator.graph, evaluator.node, evaluator.budget)
    return LowerBounds(narrow, wide, evaluator.decisions, len(evaluator.graph.blocks))


def is_bounded(program: Program) -> bool:
    """Whether `wide_bound` holds for a program: the whole batch, the recorded algorithms, memory of its own."""
    only_encodes = all(isinstance(transform, WithEncodings) for transform in program.transforms)
    return only_encodes and program.gpus == 1 and not program.unlimited_memory and program.residency is None


def moves_only_activations(program: Program, decisions: Decisions, count: int) -> bool:
    """Whether a program moves, drops and makes again the feature maps of the decisions alone, each in its own gap.

    Then `simgpu.planning.bound` holds for it, which proves more. count: blocks of the graph; those from there on are
    encoded forms. What a program does elsewhere than in its compute stream's order is not looked into: it counts as
    moving more.
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
    """Whether an instruction concerns feature maps in their gaps alone, or is what every program does."""
    match instruction:
        case CopyOut(block) | CopyIn(block) | Encode(block) | Decode(block):
            return block in gaps or block >= count
        case Initialize(_, space):
            return space is Space.DEVICE and launched < 0
        case Acquire(blocks, Space.DEVICE):
            acquired.update(blocks)
            repeated = [b for b in blocks if acquired[b] > 1 and b < count]
            return all(_in_gap(b, gaps, acquired, launched) for b in repeated) and (in_order or not repeated)
        case _:
            return True


def _in_gap(b: int, gaps: dict[int, int], acquired: Counter[int], launched: int) -> bool:
    return b in gaps and acquired[b] == 2 and launched >= gaps[b]
