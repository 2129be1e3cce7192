"""`checkpoint`: parts of the network keep only what enters them and run again in backward, as `torch.utils.checkpoint`.

Chen et al. (Training deep nets with sublinear memory cost, 2016) as PyTorch has it (`use_reentrant=False`): inside a
checkpointed part nothing that is saved stays beyond forward. When backward first takes a tensor that was saved inside,
forward of the part runs again at once, up to the last kernel before the last tensor saved inside it (the early stop);
then backward goes on.

* `blocks` names modules by the paths in the layer tags: ``layer1.0`` is the layers ``layer1.0`` and ``layer1.0.*``. A
  whole number is as many sections of equal numbers of layers, as `torch.utils.checkpoint.checkpoint_sequential` cuts
  them: the last section, with what does not divide, is not checkpointed. Such sections may begin within a residual
  block, where PyTorch could not cut. 0, the default, takes the modules that can be checkpointed, such as residual
  blocks (`simgpu.graph.sections`). A note says what the sections are; the program lists them all.
* A part is a run of consecutive forward kernels. One that is interrupted, or runs twice, is several parts.
* What was made inside stays in forward until the framework drops it. What was made again and is used by backward stays
  until the operator of backward that took it is done: the last kernel that reads anything of what was taken at once.
  The rest stays as long, kernel for kernel, as it did in forward.
* What enters a part is held by it until backward is done with all that was saved inside, or longer where `none` does.
* All kernels of a part run again, whether they give the same of themselves or not: PyTorch puts the state of its random
  numbers back, so that a dropout draws its mask again, and a batch norm makes the statistics of its batch again (and
  moves the running ones twice). That state, 5,056 bytes for each part on a CPU and host memory on a GPU, is not part of
  this.
* A kernel that changed what entered its part in place is not run again, and what it made is kept; PyTorch refuses such
  a part where backward needs it. What is still held by somebody when its part runs again is used as it is; PyTorch
  makes it a second time. A note tells of kernels that are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Saved, backward_ends, saved_tensors
from simgpu.graph.sections import (
    NUMBERED,
    Region,
    Rerun,
    Sections,
    default_sections,
    regions_of,
    rerun_of,
    saved_inside,
)
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Repeating
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import framework, saved_note
from simgpu.program.eager import Eager
from simgpu.program.instructions import Program, Section
from simgpu.trace.model import Phase
from simgpu.units import format_bytes, format_time

#: Names of sections that a note lists.
_LISTED = 4


@dataclass(frozen=True)
class Checkpoint(Policy):
    """Keep what enters each part of the network, and run its forward again when backward comes to it."""

    name = "checkpoint"
    summary = "modules keep only their inputs, and recompute their forward pass in backward"
    source = "Chen et al., 2016, as torch.utils.checkpoint does it"

    blocks: int | Sequence[str] = parameter(
        0,
        "modules, by their paths in layer tags, or a number of sections of equal numbers of layers; 0: all modules "
        "that can be checkpointed, such as residual blocks",
    )

    def __post_init__(self) -> None:
        # A list, as files have it, cannot be hashed.
        if not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for modules that are not there or lie in one another, for more sections
        than layers, for several compute streams and for GPUs that train together."""
        graph, transforms = framework(context.graph, self.name)
        section_of, how = _sections(graph, self.blocks)
        found = saved_tensors(graph)
        regions = regions_of(graph, section_of)
        again = Repeating(tuple(k for region in regions for k in range(region.first, region.stop)))
        graph, transforms = again.apply(graph), (*transforms, again)
        saved = saved_inside(graph, regions, section_of, found.tensors)
        parts = [(region, inside) for region, inside in zip(regions, saved, strict=True) if inside]
        until = dict(zip(found.tensors, backward_ends(graph, found.tensors), strict=True))
        writing = _Checkpointing(graph, parts, until)
        writing.write()
        notes = (*saved_note(found), _sections_note(writing.sections, how), *writing.notes)
        return replace(writing.writer.program(transforms, notes), sections=writing.sections)


def _sections_note(sections: Sequence[Section], how: str) -> str:
    """The sections in a line."""
    if not sections:
        return f"sections: none, of {how}; no recomputation"
    names = list(dict.fromkeys(_name(section) for section in sections))
    listed = ", ".join(names if len(names) <= _LISTED else [*names[: _LISTED - 1], "...", names[-1]])
    least, most = (format_bytes(pick(section.held_bytes for section in sections)) for pick in (min, max))
    each = least if least == most else f"{least} to {most}"
    return f"sections: {len(names)}, {how}: {listed}; each keeps its inputs, {each}"


def _name(section: Section) -> str:
    """A module's name; of a section that is only numbered, its first and last layer."""
    backward_ends = dict.fromkeys((section.layers[0], section.layers[-1]))
    return section.name if not section.name.startswith(NUMBERED) else " to ".join(backward_ends)


def _sections(graph: TaskGraph, blocks: int | Sequence[str]) -> Sections:
    """For each layer that is checkpointed the name of its section."""
    if blocks == 0:
        return default_sections(graph)
    forward = (graph.layers.name_of(k) for k, kernel in enumerate(graph.kernels) if kernel.phase is Phase.FORWARD)
    layers = [name for name in dict.fromkeys(forward) if not name.startswith("(")]
    if not isinstance(blocks, int):
        return Sections(_named(graph, layers, blocks), "modules as named")
    if not 0 <= blocks <= len(layers):
        what = f"{blocks} sections of {len(layers)} layers"
        raise InputError.single("", "parameters.blocks", what, f"give a number from 0 to {len(layers)}, or modules")
    size = len(layers) // blocks
    checkpointed = enumerate(layers[: (blocks - 1) * size])
    how = f"all but the last of {blocks} of equal numbers of layers"
    return Sections({layer: f"{NUMBERED}{place // size + 1}" for place, layer in checkpointed}, how)


def _named(graph: TaskGraph, layers: Sequence[str], blocks: Sequence[str]) -> dict[str, str]:
    """The layers of named modules."""
    problems = []
    paths = {".".join(parts[:n]) for layer in layers if (parts := layer.split(".")) for n in range(1, len(parts) + 1)}
    for name in dict.fromkeys(blocks):
        outer = next((other for other in blocks if name.startswith(f"{other}.")), None)
        if name not in paths:
            what = f"no layer of {graph.trace.name or graph.trace.info.model} is '{name}' or lies in it"
            problems.append(Problem("", "parameters.blocks", what, did_you_mean(name, sorted(paths))))
        elif outer is not None:
            what, remedy = f"'{name}' lies in '{outer}'", "name one of them"
            problems.append(Problem("", "parameters.blocks", what, remedy))
        elif blocks.count(name) > 1:
            problems.append(Problem("", "parameters.blocks", f"'{name}' is there twice", "name it once"))
    if problems:
        raise InputError(problems)
    return {layer: name for layer in layers for name in blocks if layer == name or layer.startswith(f"{name}.")}


@dataclass
class _Checkpointing:
    """Writes the iteration. parts: the regions and what was saved inside each. until: the kernel after which backward
    is done with each saved tensor."""

    graph: TaskGraph
    parts: list[tuple[Region, list[Saved]]]
    until: dict[Saved, int]
    reruns: defaultdict[int, list[tuple[Region, Rerun]]] = field(default_factory=lambda: defaultdict(list))
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()

    def __post_init__(self) -> None:
        graph = self.graph
        entering = self._entering()
        releases = [
            None if found is None else max(found, entering.get(b, found))
            for b, found in enumerate(graph.recorded_releases)
        ]
        ancestry = Ancestry(graph)
        left_out: list[int] = []
        for region, saved in self.parts:
            start = min(tensor.before for tensor in saved)
            first = self._first_lives(region, saved, start, entering)
            rerun = rerun_of(graph, ancestry, region, saved, [b for b, until in first.items() if until is None])
            read = {b for k, _ in rerun.runs for b in ancestry.inputs[k]}
            for b, until in first.items():
                if b not in rerun.retained:
                    releases[b] = until
                elif b in read:
                    recorded = releases[b]
                    releases[b] = None if recorded is None else max(recorded, start)
            left_out += rerun.left_out
            self.sections += (self._section(region, rerun),)
            self.reruns[start].insert(0, (region, rerun))
        self.saved = dict(self.parts)
        self.writer = Eager(graph, releases)
        if left_out:
            ops = ", ".join(dict.fromkeys(graph.kernels[k].op for k in left_out))
            took = format_time(sum(graph.durations[k] for k in left_out))
            why = "what they found has changed, or what they made is still held"
            self.notes = (f"not run again, {took} in all: {len(left_out)} of {ops}, since {why}",)

    def _section(self, region: Region, rerun: Rerun) -> Section:
        """What is said of a region. Weights and the iteration's inputs are there anyway."""
        graph = self.graph
        inside = range(region.first, region.stop)
        births = {b: graph.births[b] for k in inside for b in graph.reads[k] if not graph.blocks[b].persistent}
        held = sum(graph.sizes[b] for b, birth in births.items() if birth is not None and birth < region.first)
        layers = tuple(dict.fromkeys(graph.layers.name_of(k) for k in inside))
        return Section(region.section, layers, held, sum(graph.durations[k] for k, _ in rerun.runs))

    def _entering(self) -> dict[int, int]:
        """Until after which kernel each block is held for the parts that it enters."""
        graph = self.graph
        until: dict[int, int] = {}
        for region, saved in self.parts:
            end = max(self.until[tensor] for tensor in saved)
            for k in range(region.first, region.stop):
                for b in graph.reads[k]:
                    birth = graph.births[b]
                    if birth is not None and birth < region.first:
                        until[b] = max(until.get(b, end), end)
        return until

    def _first_lives(
        self, region: Region, saved: Sequence[Saved], start: int, entering: dict[int, int]
    ) -> dict[int, int | None]:
        """For each block made in a region the kernel after which it is let go for the first time; None where it is
        still held when the region runs again."""
        graph = self.graph
        dropped: dict[int, int | None] = {tensor.block: tensor.dropped for tensor in saved}
        lives: dict[int, int | None] = {}
        for b, birth in enumerate(graph.births):
            if birth is not None and region.first <= birth < region.stop:
                until = dropped.get(b, graph.recorded_releases[b])
                used = max(k for k in (birth, *graph.uses[b]) if k < start)
                if until is not None:
                    until = max(until, used, entering.get(b, used))
                lives[b] = until if until is not None and until < start else None
        return lives

    def write(self) -> None:
        """All kernels, and those that run again between them."""
        for k in range(len(self.graph.kernels)):
            for region, rerun in self.reruns[k]:
                self._run_again(region, rerun, k)
            self.writer.run(k)
            self.writer.release_ended(k)

    def _run_again(self, region: Region, rerun: Rerun, start: int) -> None:
        """The kernels of a region run again before kernel `start`."""
        backward_ends = self._ends(region, rerun, start)
        there: set[int] = set()
        for place, (k, makes) in enumerate(rerun.runs):
            self.writer.recompute(k, makes, [b for b in makes if b not in there])
            there.update(makes)
            self.writer.release(backward_ends[place])

    def _ends(self, region: Region, rerun: Rerun, start: int) -> defaultdict[int, list[int]]:
        """By the place of a kernel among those that run again, the blocks that end with it. What backward uses ends
        when it is done with what was saved of it, and with the last kernel that uses it."""
        graph = self.graph
        done: dict[int, int] = {}
        for tensor in self.saved[region]:
            done[tensor.block] = max(done.get(tensor.block, 0), self.until[tensor])
        used: dict[int, int] = {}
        for place, (k, makes) in enumerate(rerun.runs):
            for b in (*makes, *graph.reads[k]):
                used[b] = place
        backward_ends: defaultdict[int, list[int]] = defaultdict(list)
        for b in dict.fromkeys(b for _, makes in rerun.runs for b in makes):
            recorded, last = graph.recorded_releases[b], graph.uses[b][-1]
            if last >= start:
                self.writer.release_after(b, max(last, done.get(b, 0)))
            else:
                held = [place for place, (k, _) in enumerate(rerun.runs) if recorded is not None and k <= recorded]
                backward_ends[max(used[b], *held[-1:])].append(b)
        return backward_ends
