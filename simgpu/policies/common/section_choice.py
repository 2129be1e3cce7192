"""Which modules `checkpoint` checkpoints, in which groups, and the operators whose results their sections keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import compress

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.regions import Region
from simgpu.graph.sections import NUMBERED, Sections, default_sections
from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.common.layer_parts import MODULES
from simgpu.policies.common.recomputed_modules import RECOMPUTED
from simgpu.spelling import closest
from simgpu.trace.model import BlockKind, Phase

#: Lists of operators by name: what torchtitan keeps in its selective mode, see `simgpu.policies.checkpoint`.
LISTS = {
    "torchtitan": (
        "mm/2",
        "linear/2",
        "addmm",
        "bmm",
        "_scaled_mm",
        "convolution",
        "_scaled_dot_product_*",
        "_flash_attention_forward",
        "_efficient_attention_forward",
        "flex_attention",
        "upsample_bilinear2d",
        "max",
        "topk",
        "reduce_scatter",
        "all_to_all",
    )
}


def sections_of(graph: TaskGraph, blocks: int | Sequence[str]) -> Sections:
    """The name of the section of each checkpointed layer. Raises `InputError` for a number of sections above that of
    layers, and for modules that are unknown, named twice, or in one another."""
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
    names: list[str] = []
    for name in dict.fromkeys(blocks):
        matching = [path for path in sorted(paths) if _matches(path, name)]
        if not matching:
            what = f"no layer of {graph.trace.name or graph.trace.info.model} is '{name}' or lies in it"
            problems.append(Problem("", "parameters.blocks", what, _near(name, paths)))
        elif blocks.count(name) > 1:
            problems.append(Problem("", "parameters.blocks", f"'{name}' is there twice", "name it once"))
        names += [path for path in matching if path not in names]
    for name in names:
        outer = next((other for other in names if name.startswith(f"{other}.")), None)
        if outer is not None:
            problems.append(Problem("", "parameters.blocks", f"'{name}' lies in '{outer}'", "name one of them"))
    if problems:
        raise InputError(problems)
    return {layer: name for layer in layers for name in names if layer == name or layer.startswith(f"{name}.")}


def _near(name: str, paths: Iterable[str]) -> str:
    """What may be meant by the name of no module: a path, the last part of one, or a module of Megatron-LM.

    >>> _near("self_atn", ["layers.0.self_attn", "layers.0.mlp", "layers.1.mlp"])
    "did you mean 'layers.*.self_attn'? known: layers.*.mlp, layers.*.self_attn"
    >>> _near("coreattn", ["layers.0.mlp"])
    "'core_attn' is a module of Megatron-LM: give parameter modules instead, or a path; known: layers.*.mlp"
    """
    known = sorted({re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path) for path in paths})
    if closest(name, known) is None:
        last = {path.rpartition(".")[2]: path for path in reversed(known)}
        if (end := closest(name, last)) is not None:
            return did_you_mean(last[end], known)
        if (module := closest(name, sorted({*MODULES, *RECOMPUTED}))) is not None:
            other = f"'{module}' is a module of Megatron-LM: give parameter modules instead"
            return f"{other}, or a path; {did_you_mean(name, known)}"
    return did_you_mean(name, known)


def _matches(path: str, pattern: str) -> bool:
    """Whether a module's path matches, part by part, where `*` stands for any part or any end of one.

    >>> _matches("layers.0.mlp", "layers.*.mlp"), _matches("layers.0.mlp.up", "layers.*")
    (True, False)
    """
    parts, patterns = path.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def chosen(sections: Sections, *, first: int, every: int, count: int, group: int) -> Sections:
    """Some of the sections, in groups.

    first, every: of the sections in order, the one at `first`, counted from 0, and every `every`-th after it. count: at
    most as many of these, 0 for all. group: as many of these together are one section.

    >>> four = Sections({"a.x": "a", "a.y": "a", "b": "b", "c": "c", "d": "d"}, "modules")
    >>> chosen(four, first=1, every=2, count=0, group=1)
    Sections(of_layer={'b': 'b', 'd': 'd'}, how='modules, every 2nd')
    >>> chosen(four, first=0, every=1, count=3, group=2).of_layer
    {'a.x': 'a to b', 'a.y': 'a to b', 'b': 'a to b', 'c': 'c'}
    """
    names = list(dict.fromkeys(sections.of_layer.values()))[first::every]
    names = names[:count] if count else names
    groups = [names[start : start + group] for start in range(0, len(names), group)]
    of_name = {name: each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in groups for name in each}
    parts = (f"every {ordinal(every)}", f"at most {count}", f"{group} together")
    how = ", ".join((sections.how, *compress(parts, (every > 1, count, group > 1))))
    return Sections({layer: of_name[name] for layer, name in sections.of_layer.items() if name in of_name}, how)


def ordinal(n: int) -> str:
    """A number in words of rank.

    >>> [ordinal(n) for n in (2, 3, 4, 11, 22)]
    ['2nd', '3rd', '4th', '11th', '22nd']
    """
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


@dataclass(frozen=True)
class _Rule:
    """Keep the results of operators with these names, of `every` in a region the first."""

    name: str
    every: int


def keeping_rules(keep: Sequence[str]) -> tuple[_Rule, ...]:
    """The rules of a list of operators, in which a name of `LISTS` stands for that list.

    >>> keeping_rules(["_softmax", "mm/2"])
    (_Rule(name='_softmax', every=1), _Rule(name='mm', every=2))
    """
    rules, problems = [], []
    for written in (each for name in keep for each in LISTS.get(name, (name,))):
        match = re.fullmatch(r"([^/\s]+)(?:/([1-9][0-9]*))?", written)
        if match is None:
            what, remedy = (
                f"'{written}' names no operators",
                "write a name, such as _softmax, or mm/2 for every second mm",
            )
            problems.append(Problem("", "parameters.keep", what, remedy))
        else:
            rules.append(_Rule(match[1], int(match[2] or 1)))
    if problems:
        raise InputError(problems)
    return tuple(rules)


def kept_results(graph: TaskGraph, region: Region, rules: Iterable[_Rule]) -> dict[int, list[int]]:
    """The kernels of a region whose results are kept, with the blocks of these results.

    Results that another kernel of forward changes later are not kept, as PyTorch refuses that.
    """
    kept: dict[int, list[int]] = {}
    for rule in rules:
        count = 0
        for k in range(region.first, region.stop):
            if not _is_of(rule, graph.kernels[k].op):
                continue
            if count % rule.every == 0 and (results := _results(graph, k)):
                kept[k] = results
            count += 1
    return dict(sorted(kept.items()))


def absent_note(graph: TaskGraph, keep: Sequence[str]) -> tuple[str, ...]:
    """A note on names, given one by one, that no operator of forward has."""
    ops = {kernel.op for kernel in graph.kernels if kernel.phase is Phase.FORWARD}
    named = keeping_rules([each for each in keep if each not in LISTS])
    absent = [rule.name for rule in named if not any(_is_of(rule, op) for op in ops)]
    return (f"keep: forward has no operator {' or '.join(absent)}",) if absent else ()


def _is_of(rule: _Rule, op: str) -> bool:
    return fnmatchcase(op.rpartition("::")[2], rule.name.rpartition("::")[2])


def _results(graph: TaskGraph, k: int) -> list[int]:
    """The blocks that a kernel creates as results, if no other kernel of forward changes any of them."""
    results = [b for b in graph.writes[k] if graph.blocks[b].kind is not BlockKind.WORKSPACE and graph.sizes[b]]
    is_new = all(graph.births[b] == k and b not in graph.reads[k] for b in results)
    writers = (u for b in results for u in graph.uses[b] if u != k and b in graph.writes[u])
    return results if is_new and not any(graph.kernels[u].phase is Phase.FORWARD for u in writers) else []
