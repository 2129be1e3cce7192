"""`checkpoint`: sections of the network keep only their inputs and are recomputed, as `torch.utils.checkpoint` does.

Chen et al. (Training deep nets with sublinear memory cost, 2016) as PyTorch implements it (`use_reentrant=False`): no
tensor saved inside a checkpointed section is kept after forward. When backward first needs one of them, the forward of
the section runs again at once, up to the last kernel before the last tensor saved inside it (the early stop); then
backward continues.

* `blocks` names modules by their paths in the layer tags: ``layer1.0`` is the layers ``layer1.0`` and ``layer1.0.*``. A
  number requests that many sections with equal numbers of layers, as `torch.utils.checkpoint.checkpoint_sequential`
  cuts them: the last section, which takes the remainder, is not checkpointed. Such sections may begin within a residual
  block, where PyTorch could not cut. 0, the default, checkpoints all modules that allow it, such as residual blocks
  (`simgpu.graph.sections`). A note summarises the sections; the program lists them all.
* A region is a run of consecutive forward kernels of a section. A section that is interrupted, or runs twice, has
  several regions.
* Blocks created inside a region stay in forward until the framework drops them. Recomputed blocks that backward uses
  stay until the operator of backward that unpacked them is done: after the last kernel that reads any tensor unpacked
  with them. Other recomputed blocks live as many kernels as they did in forward.
* A region holds its inputs until backward no longer needs any tensor saved inside, or longer where `none` does.
* All kernels of a region run again, whether they are deterministic or not: PyTorch restores its random number state, so
  that a dropout draws the same mask, and a batch norm recomputes the statistics of its batch (and updates the running
  ones twice). That state, 5,056 bytes for each region on a CPU and host memory on a GPU, is not modelled.
* A kernel that changed an input of its region in place is not run again, and its results are kept; PyTorch rejects such
  a region where backward needs them. Blocks that are still held when their region runs again are used as they are;
  PyTorch creates them a second time. A note lists the kernels that are not run again.
* `inputs` says where inputs of sections are between their last use in forward and the first one in backward: resident;
  in another memory (`to`), where compute waits for both copies, as they are on its stream (Unsloth's offloaded
  checkpoints, which also run a section to its end); or there with copies on streams of their own, like ZeRO-Infinity's
  activations on the host or an NVMe SSD (Rajbhandari et al., SC 2021; its text was not at hand, so it is decided here
  that they are fetched one section ahead). Only activations move, not what the iteration begins with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Saved, autograd_ends, backward_ends, saved_tensors
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
from simgpu.policies.base import PlanContext, Policy, parameter, require_undivided
from simgpu.policies.common.framework import framework, saved_note
from simgpu.policies.common.offloaded_inputs import OffloadedInputs, inputs_away
from simgpu.program.eager import Eager
from simgpu.program.instructions import HOST, Program, Section
from simgpu.trace.model import Phase
from simgpu.units import format_bytes, format_time

#: Names of sections that a note lists.
_LISTED = 4


@dataclass(frozen=True)
class Checkpoint(Policy):
    """Keep the inputs of each section of the network, and run its forward again when backward needs it."""

    name = "checkpoint"
    summary = "modules keep only their inputs, and recompute their forward pass in backward"
    source = "Chen et al., 2016, as torch.utils.checkpoint does it"

    blocks: int | Sequence[str] = parameter(
        0,
        "modules, by their paths in layer tags, or a number of sections of equal numbers of layers; 0: all modules "
        "that can be checkpointed, such as residual blocks",
    )

    inputs: Literal["resident", "waiting", "overlapped"] = parameter(
        "resident", "where the sections' inputs are until backward: resident, or elsewhere with copies of this kind"
    )
    to: str = parameter(HOST, "the memory they go to, which has a link to the device")

    def __post_init__(self) -> None:
        # A list, as files have it, cannot be hashed.
        if not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for unknown or nested modules, for more sections than layers, for several
        compute streams and for data parallelism."""
        if self.to not in context.node.next_to_device:
            what, known = f"no link goes from the device to memory {self.to!r}", context.node.next_to_device
            raise InputError.single("", "parameters.to", what, did_you_mean(self.to, known))
        if self.inputs != "resident":
            require_undivided(context.graph, f"{self.name} with inputs elsewhere")
        graph, transforms = framework(context.graph, self.name)
        section_of, how = _sections(graph, self.blocks)
        autograd_saved = saved_tensors(graph)
        regions = regions_of(graph, section_of)
        repeated = Repeating(tuple(k for region in regions for k in range(region.first, region.stop)))
        graph, transforms = repeated.apply(graph), (*transforms, repeated)
        saved = saved_inside(graph, regions, section_of, autograd_saved.tensors)
        parts = [(region, inside) for region, inside in zip(regions, saved, strict=True) if inside]
        tensors = autograd_saved.tensors
        unused, freed = (
            dict(zip(tensors, ends(graph, tensors), strict=True)) for ends in (backward_ends, autograd_ends)
        )
        writing = _Checkpointing(graph, parts, unused, freed, self.inputs, self.to)
        writing.write()
        notes = (*saved_note(autograd_saved), _sections_note(writing.sections, how), *writing.notes)
        return replace(writing.writer.program(transforms, notes), sections=writing.sections)


def _sections_note(sections: Sequence[Section], how: str) -> str:
    """The sections in one line."""
    if not sections:
        return f"sections: none, of {how}; no recomputation"
    names = list(dict.fromkeys(_name(section) for section in sections))
    listed = ", ".join(names if len(names) <= _LISTED else [*names[: _LISTED - 1], "...", names[-1]])
    smallest, largest = (format_bytes(pick(section.held_bytes for section in sections)) for pick in (min, max))
    each = smallest if smallest == largest else f"{smallest} to {largest}"
    return f"sections: {len(names)}, {how}: {listed}; each keeps its inputs, {each}"


def _name(section: Section) -> str:
    """A module's name; for a numbered section, its first and last layer."""
    backward_ends = dict.fromkeys((section.layers[0], section.layers[-1]))
    return section.name if not section.name.startswith(NUMBERED) else " to ".join(backward_ends)


def _sections(graph: TaskGraph, blocks: int | Sequence[str]) -> Sections:
    """The name of the section of each checkpointed layer."""
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
    """Writes the iteration. parts: the regions and the tensors saved inside each. unused, freed: for each saved tensor
    the kernel of backward after which its operator drops it, and after which autograd frees it. inputs, to: of the
    policy."""

    graph: TaskGraph
    parts: list[tuple[Region, list[Saved]]]
    unused: dict[Saved, int]
    freed: dict[Saved, int]
    inputs: str
    to: str
    reruns: defaultdict[int, list[tuple[Region, Rerun]]] = field(default_factory=lambda: defaultdict(list))
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()

    def __post_init__(self) -> None:
        graph = self.graph
        entering = self._entering()
        releases = [
            None if recorded is None else max(recorded, entering.get(b, recorded))
            for b, recorded in enumerate(graph.recorded_releases)
        ]
        ancestry = Ancestry.of(graph)
        skipped: list[int] = []
        read_at: defaultdict[int, list[int]] = defaultdict(list)
        for region, saved in self.parts:
            start = min(tensor.before for tensor in saved)
            first = self._first_releases(region, saved, start, entering)
            rerun = rerun_of(graph, ancestry, region, saved, [b for b, until in first.items() if until is None])
            read = {b for k, _ in rerun.runs for b in ancestry.inputs[k]}
            for b, until in first.items():
                if b not in rerun.retained:
                    releases[b] = until
                elif b in read:
                    recorded = releases[b]
                    releases[b] = None if recorded is None else max(recorded, start)
            made_again = first.keys() - set(rerun.retained)
            for b in (read & entering.keys()) - made_again:
                read_at[b].append(start)
            skipped += rerun.left_out
            self.sections += (self._section(region, rerun),)
            self.reruns[start].insert(0, (region, rerun))
        self.saved = dict(self.parts)
        self.writer = Eager(graph, releases)
        self.away = [] if self.inputs == "resident" else inputs_away(graph, read_at)
        self.offloaded = OffloadedInputs(self.writer, self.away, self.to, overlapped=self.inputs == "overlapped")
        self.notes = self._away_note()
        if skipped:
            ops = ", ".join(dict.fromkeys(graph.kernels[k].op for k in skipped))
            took = format_time(sum(graph.durations[k] for k in skipped))
            why = "what they found has changed, or what they made is still held"
            self.notes += (f"not run again, {took} in all: {len(skipped)} of {ops}, since {why}",)

    def _away_note(self) -> tuple[str, ...]:
        """How much is in another memory until backward."""
        if self.inputs == "resident":
            return ()
        size = format_bytes(sum(self.graph.sizes[each.block] for each in self.away))
        return (f"{size} of the sections' inputs go to {self.to} memory until backward",)

    def _section(self, region: Region, rerun: Rerun) -> Section:
        """The report on a region. Weights and the iteration's inputs do not count: they are resident anyway."""
        graph = self.graph
        inside = range(region.first, region.stop)
        births = {b: graph.births[b] for k in inside for b in graph.reads[k] if not graph.blocks[b].persistent}
        input_bytes = sum(graph.sizes[b] for b, birth in births.items() if birth is not None and birth < region.first)
        layers = tuple(dict.fromkeys(graph.layers.name_of(k) for k in inside))
        return Section(region.section, layers, input_bytes, sum(graph.durations[k] for k, _ in rerun.runs))

    def _entering(self) -> dict[int, int]:
        """The last kernel until which each block is held as an input of regions."""
        graph = self.graph
        until: dict[int, int] = {}
        for region, saved in self.parts:
            end = max(self.freed[tensor] for tensor in saved)
            for k in range(region.first, region.stop):
                for b in graph.reads[k]:
                    birth = graph.births[b]
                    if birth is not None and birth < region.first:
                        until[b] = max(until.get(b, end), end)
        return until

    def _first_releases(
        self, region: Region, saved: Sequence[Saved], start: int, entering: dict[int, int]
    ) -> dict[int, int | None]:
        """The kernel after which each block created in a region is first released; None where it is still held when
        the region runs again."""
        graph = self.graph
        dropped: dict[int, int | None] = {tensor.block: tensor.dropped for tensor in saved}
        releases: dict[int, int | None] = {}
        for b, birth in enumerate(graph.births):
            if birth is not None and region.first <= birth < region.stop:
                until = dropped.get(b, graph.recorded_releases[b])
                used = max(k for k in (birth, *graph.uses[b]) if k < start)
                if until is not None:
                    until = max(until, used, entering.get(b, used))
                releases[b] = until if until is not None and until < start else None
        return releases

    def write(self) -> None:
        """Write all kernels, with the recomputed ones between them."""
        for k in range(len(self.graph.kernels)):
            self.offloaded.before(k)
            for region, rerun in self.reruns[k]:
                self._run_again(region, rerun, k)
            self.writer.run(k)
            self.offloaded.after(k)
            self.writer.release_ended(k)

    def _run_again(self, region: Region, rerun: Rerun, start: int) -> None:
        """Run the kernels of a region again before kernel `start`."""
        backward_ends = self._ends(region, rerun, start)
        initialized: set[int] = set()
        for place, (k, makes) in enumerate(rerun.runs):
            self.writer.recompute(k, makes, [b for b in makes if b not in initialized])
            initialized.update(makes)
            self.writer.release(backward_ends[place])

    def _ends(self, region: Region, rerun: Rerun, start: int) -> defaultdict[int, list[int]]:
        """The blocks to release after each recomputed kernel, by its place. A block that backward uses is released
        after its last use and after backward's last use of the tensors saved from it."""
        graph = self.graph
        done: dict[int, int] = {}
        for tensor in self.saved[region]:
            done[tensor.block] = max(done.get(tensor.block, 0), self.unused[tensor])
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
                places = [place for place, (k, _) in enumerate(rerun.runs) if recorded is not None and k <= recorded]
                backward_ends[max(used[b], *places[-1:])].append(b)
        return backward_ends
