"""`checkpoint`: sections of the network keep only their inputs and are recomputed, as `torch.utils.checkpoint` does.

Chen et al. (Training deep nets with sublinear memory cost, 2016) as PyTorch implements it (`use_reentrant=False`): no
tensor saved inside a checkpointed section is kept after forward. When backward first needs one of them, the forward of
the section runs again at once, up to the last kernel before the last tensor saved inside it (the early stop); then
backward continues.

* `blocks` names modules by their paths in the layer tags: ``layer1.0`` is the layers ``layer1.0`` and ``layer1.0.*``. A
  number requests that many sections with equal numbers of layers, as `torch.utils.checkpoint.checkpoint_sequential`
  cuts them: the last section, which takes the remainder, is not checkpointed. Such sections may begin within a residual
  block, where PyTorch could not cut. 0, the default, checkpoints all modules that allow it, such as residual blocks
  (`simgpu.graph.sections`). A `*` in a name stands for any part of a path: ``layers.*.mlp`` is a module of each layer.
  A note summarises the sections; the program lists them all.
* `modules` are parts of these modules, by the names of Megatron-LM's ``--recompute-modules``: ``core_attn`` (attention
  without its projections), ``mlp``, ``moe`` and ``shared_experts`` run again as sections do; ``layernorm`` and
  ``moe_act`` discard their output too (`simgpu.policies.common.recomputed_modules`). Experts run one after the other
  here, and each discards on its own; in Megatron-LM's grouped ones, ``moe_act`` also multiplies by the router's weight.
* Of these modules in order, `first`, `every`, `count` and `group` choose some and join them, as other frameworks do
  (`FRAMEWORKS.md`): Transformers' ``every_n_layers`` from the first, torchtitan's ``selective_ac_option`` n from the
  n-th, Megatron-LM's ``block`` the first n, and its ``uniform`` n together. Joined modules between which others lie are
  regions of their own.
* `keep` names operators whose results a region keeps in forward, as PyTorch's `create_selective_checkpoint_contexts`
  does (torch/utils/checkpoint.py, 2.13): they do not run again, all others do, those too that only they read. A result
  that backward does not need is held until the rerun takes it; where the rerun stops before it, as long as the inputs.
  Results that are changed in place later are not kept, which PyTorch refuses. ``mm/2`` keeps every second result of a
  region, from the first. ``torchtitan`` is the list of torchtitan's ``SelectiveAC``
  (torchtitan/distributed/activation_checkpoint.py, commit b5bcd76c of 2026-08-21), and ``compute_intensive_ops`` of
  torch/_functorch/partitioners.py, which it adds.
* `early_stop=False` runs regions again to their end, as reentrant checkpoints, Unsloth, Megatron-LM and torchtitan do.
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
  checkpoints, Transformers' ``offload``); or there with copies on streams of their own, like ZeRO-Infinity's
  activations on the host or an NVMe SSD (Rajbhandari et al., SC 2021; its text was not at hand, so it is decided here
  that they are fetched one section ahead). To a memory behind the host they go through the host. Only activations
  move, not what the iteration begins with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.recompute import Ancestry
from simgpu.graph.regions import Region, Rerun, regions_of, rerun_of, saved_inside
from simgpu.graph.saved import Saved, autograd_ends, backward_ends, saved_tensors
from simgpu.graph.sections import NUMBERED
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Repeating, transformed
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import framework, saved_note
from simgpu.policies.common.offloaded_inputs import OffloadedInputs, inputs_away
from simgpu.policies.common.recomputed_modules import RecomputedPart, check_recomputed, recomputed_parts
from simgpu.policies.common.section_choice import absent_note, chosen, keeping_rules, kept_results, sections_of
from simgpu.program.eager import Eager
from simgpu.program.instructions import HOST, Program, Section
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

    modules: Sequence[str] = parameter((), "Megatron-LM: --recompute-modules, such as core_attn, layernorm")
    first: int = parameter(0, "the first of these modules that is checkpointed, counted from 0")
    every: int = parameter(1, "of the modules from there on, every n-th is checkpointed")
    count: int = parameter(0, "at most as many of these are checkpointed; 0: all")
    group: int = parameter(1, "number of these modules that are one section together")
    keep: Sequence[str] = parameter(
        (), "operators whose results are kept, such as _scaled_dot_product_*, or mm/2 for every second; or torchtitan"
    )
    early_stop: bool = parameter(True, "whether a section runs again only up to what backward needs last")
    inputs: Literal["resident", "waiting", "overlapped"] = parameter(
        "resident", "where the sections' inputs are until backward: resident, or offloaded with copies of this kind"
    )
    to: str = parameter(HOST, "the memory they go to, which has a link to the device or to the host")

    def __post_init__(self) -> None:
        # A list, as files have it, cannot be hashed.
        if not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))
        object.__setattr__(self, "keep", tuple(self.keep))
        object.__setattr__(self, "modules", tuple(self.modules))

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for unknown or nested modules, for more sections than layers, for several
        compute streams and for data parallelism."""
        known = (*context.node.next_to_device, *context.node.behind_host)
        if self.to not in known:
            what = f"no link goes from the device or the host to memory {self.to!r}"
            raise InputError.single("", "parameters.to", what, did_you_mean(self.to, known))
        if self.to != HOST and self.inputs == "resident":
            what = f"{self.to!r} would have no effect, since the sections' inputs are resident"
            raise InputError.single("", "parameters.to", what, "add inputs: overlapped or waiting, or leave it out")
        self._check_numbers()
        rules = keeping_rules(self.keep)
        graph, transforms = framework(context.graph, self.name)
        section_of, how = chosen(
            sections_of(graph, self.blocks), first=self.first, every=self.every, count=self.count, group=self.group
        )
        autograd_saved = saved_tensors(graph)
        tensors = autograd_saved.tensors
        if self.modules:
            how = f"{', '.join(self.modules)} of {how}"
            parts = recomputed_parts(graph, section_of, self.modules, tensors)
        else:
            regions = regions_of(graph, section_of)
            saved = saved_inside(graph, regions, section_of, tensors)
            parts = [RecomputedPart(*each, {}) for each in zip(regions, saved, strict=True) if each[1]]
        repeated = Repeating(tuple(k for part in parts for k in range(part.region.first, part.region.stop)))
        graph, transforms = transformed(graph, (repeated,)), (*transforms, repeated)
        parts = [part._replace(kept={**part.kept, **kept_results(graph, part.region, rules)}) for part in parts]
        way = context.node.way_to(self.to)
        writing = _Checkpointing(graph, parts, tensors, self.early_stop, self.inputs, way)
        writing.write()
        notes = (*saved_note(autograd_saved), _sections_note(writing.sections, how), *writing.notes)
        notes += absent_note(graph, self.keep)
        return replace(writing.writer.program(transforms, notes), sections=writing.sections)

    def _check_numbers(self) -> None:
        least = {"first": 0, "every": 1, "count": 0, "group": 1}
        if self.group > 1 and self.modules:
            what = f"{self.group} of {', '.join(self.modules)}, which do not follow one another"
            raise InputError.single("", "parameters.group", what, "leave it out")
        check_recomputed(self.modules)
        low = [(name, value) for name, value in least.items() if int(getattr(self, name)) < value]
        if low:
            raise InputError(
                Problem("", f"parameters.{name}", f"{getattr(self, name)} is too small", f"give {value} or more")
                for name, value in low
            )


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


@dataclass
class _Checkpointing:
    """Writes the iteration. parts: the regions, in order. tensors: all that autograd saves. early_stop, inputs: of the
    policy. way: the memories from the device to where inputs go. taken: for each region the kept results that its rerun
    drops, with the kernel after which forward drops them without checkpointing."""

    graph: TaskGraph
    parts: Sequence[RecomputedPart]
    tensors: Sequence[Saved]
    early_stop: bool
    inputs: str
    way: Sequence[str]
    reruns: defaultdict[int, list[tuple[Region, Rerun]]] = field(default_factory=lambda: defaultdict(list))
    taken: defaultdict[Region, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()

    def __post_init__(self) -> None:
        graph = self.graph
        self.saved = {part.region: part.saved for part in self.parts}
        self.kept = {part.region: part.kept for part in self.parts}
        #: By saved tensor, the kernel of backward after which its operator drops it, and after which autograd frees it.
        every = tuple(dict.fromkeys((*self.tensors, *(tensor for part in self.parts for tensor in part.saved))))
        self.unused, self.freed = (
            dict(zip(every, ends(graph, every), strict=True)) for ends in (backward_ends, autograd_ends)
        )
        #: By kernel, the blocks that exist from there on.
        self.born: defaultdict[int, list[int]] = defaultdict(list)
        for b, birth in enumerate(graph.births):
            if birth is not None:
                self.born[birth].append(b)
        self.discarded = {b for part in self.parts if part.discard for b in part.discard.blocks}
        entering = self._entering()
        releases = [
            None if recorded is None else max(recorded, entering.get(b, recorded))
            for b, recorded in enumerate(graph.recorded_releases)
        ]
        ancestry = Ancestry.of(graph)
        skipped: list[int] = []
        read_at: defaultdict[int, list[int]] = defaultdict(list)
        for part in self.parts:
            region, saved, start = part.region, part.saved, part.start
            first = self._first_releases(region, saved, start, entering)
            kept = {b for results in self.kept[region].values() for b in results}
            held = {b for b, until in first.items() if until is None} | kept
            to_end = not self.early_stop or part.discard is not None
            rerun = rerun_of(graph, ancestry, region, saved, held, start=start, to_end=to_end)
            read = {b for k, _ in rerun.runs for b in ancestry.inputs[k]}
            for b, until in first.items():
                recorded = releases[b]
                if b not in rerun.retained:
                    releases[b] = until
                elif b in kept and recorded is not None and recorded < start:
                    releases[b] = self._kept_until(region, rerun, b, recorded, start)
                elif b in read:
                    releases[b] = None if recorded is None else max(recorded, start)
            made_again = first.keys() - set(rerun.retained)
            for b in (read & entering.keys()) - made_again:
                read_at[b].append(start)
            skipped += [k for k in rerun.left_out if k not in self.kept[region]]
            self.sections += (self._section(region, rerun),)
            self.reruns[start].insert(0, (region, rerun))
        self.writer = Eager(graph, releases)
        for region, taken in self.taken.items():
            self.writer.not_after(min(tensor.before for tensor in self.saved[region]), taken)
        self.away = [] if self.inputs == "resident" else inputs_away(graph, read_at)
        self.offloaded = OffloadedInputs(self.writer, self.away, self.way, overlapped=self.inputs == "overlapped")
        self.notes = (*self._kept_note(), *self._away_note())
        if skipped:
            ops = ", ".join(dict.fromkeys(graph.kernels[k].op for k in skipped))
            took = format_time(sum(graph.durations[k] for k in skipped))
            why = "what they found has changed, or what they made is still held"
            self.notes += (f"not run again, {took} in all: {len(skipped)} of {ops}, since {why}",)

    def _kept_until(self, region: Region, rerun: Rerun, b: int, recorded: int, start: int) -> int:
        """The kernel after which a kept result is released that backward does not need: the rerun drops it before
        `start`; one that an early stop does not reach is held as long as the region's inputs."""
        birth, last = self.graph.births[b], max((k for k, _ in rerun.runs), default=-1)
        if self.early_stop and birth is not None and birth > last:
            return max(self.freed[tensor] for tensor in self.saved[region])
        self.taken[region][b] = recorded
        return start

    def _kept_note(self) -> tuple[str, ...]:
        """How many results are kept, of which operators."""
        kept = {k: results for part in self.parts if part.discard is None for k, results in part.kept.items()}
        if not kept:
            return ()
        ops = ", ".join(dict.fromkeys(self.graph.kernels[k].op for k in kept))
        size = format_bytes(sum(self.graph.sizes[b] for results in kept.values() for b in results))
        return (f"results kept in sections: {len(kept)} of {ops}, {size}",)

    def _away_note(self) -> tuple[str, ...]:
        """How much is in another memory until backward."""
        if self.inputs == "resident":
            return ()
        size = format_bytes(sum(self.graph.sizes[each.block] for each in self.away))
        return (f"{size} of the sections' inputs go to {self.way[-1]} memory until backward",)

    def _section(self, region: Region, rerun: Rerun) -> Section:
        """The report on a region. Weights and the iteration's inputs do not count: they are resident anyway."""
        graph = self.graph
        inside = range(region.first, region.stop)
        births = {b: graph.births[b] for k in inside for b in graph.reads[k] if not graph.blocks[b].persistent}
        inputs = [b for b, birth in births.items() if birth is not None and birth < region.first]
        input_bytes = sum(graph.sizes[b] for b in inputs if b not in self.discarded)
        layers = tuple(dict.fromkeys(graph.layers.name_of(k) for k in inside))
        return Section(region.section, layers, input_bytes, sum(graph.durations[k] for k, _ in rerun.runs))

    def _entering(self) -> dict[int, int]:
        """The last kernel until which each block is held as an input of regions."""
        graph = self.graph
        until: dict[int, int] = {}
        for region, saved, *_ in self.parts:
            end = max(self.freed[tensor] for tensor in saved)
            for k in range(region.first, region.stop):
                for b in graph.reads[k]:
                    birth = graph.births[b]
                    if birth is not None and birth < region.first and b not in self.discarded:
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
        for b, birth in sorted((b, k) for k in range(region.first, region.stop) for b in self.born[k]):
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
        self.writer.release(backward_ends[-1])
        for place, (k, makes) in enumerate(rerun.runs):
            self.writer.recompute(k, makes, [b for b in makes if b not in initialized])
            initialized.update(makes)
            self.writer.release(backward_ends[place])

    def _ends(self, region: Region, rerun: Rerun, start: int) -> defaultdict[int, list[int]]:
        """The blocks to release after each recomputed kernel, by its place. A block that backward uses is released
        after its last use and after backward's last use of the tensors saved from it. Place -1: before the first."""
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
        for b, recorded in self.taken[region].items():
            places = [place for place, (k, _) in enumerate(rerun.runs) if k <= recorded]
            backward_ends[max(used.get(b, -1), *places[-1:], -1)].append(b)
        return backward_ends
