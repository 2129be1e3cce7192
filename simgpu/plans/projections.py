"""Settings of other frameworks that come closest to a plan: the fastest of each framework that fits, simulated.

They choose among the layers of a model's longest list of equal layers, and know nothing of a budget:

* Hugging Face Transformers, ``gradient_checkpointing_kwargs``: every n-th layer from the first is recomputed
  (docs/source/en/grad_checkpointing.md). Its ``offload`` of the layers' inputs waits for each copy.
* torchtitan, ``activation_checkpoint``: mode ``full``, every layer; mode ``selective`` with a number n, every n-th
  layer counted from 1; with ``op``, every layer, with the results of attention and of every other matrix product kept
  (torchtitan/distributed/activation_checkpoint.py). Mode ``memory_budget`` is for compiled models.
* Megatron-LM: whole layers, or some of its modules in every layer, recomputed or offloaded (`simgpu.plans.megatron`).
* JAX, ``save_and_offload_only_these_names`` around each layer: the same results kept, and offloaded, in every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.spec import NodeSpec
from simgpu.plans.candidate import Candidate
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.megatron import Selective, full
from simgpu.plans.regions import Region, Steps
from simgpu.plans.repeats import equal_layers

#: Operators whose results torchtitan's ``op`` keeps: attention; of matrix products, every other one.
_ATTENTION = "_scaled_dot_product"
_PRODUCT = "aten::mm"
_TORCHTITAN = "no choice of results, no parts of layers, no offloads; its mode memory_budget is for compiled models"


class Projection(NamedTuple):
    """framework; setting: as it is written there. peak: bytes. time_ns: simulated step time, None if it does not fit.
    lost: what of a plan the framework cannot do."""

    framework: str
    setting: str
    peak: int
    time_ns: int | None
    lost: str


class _Setting(NamedTuple):
    text: str
    candidate: Candidate


def projections(steps: Steps, node: NodeSpec, budget: int) -> list[Projection]:
    """For each framework its fastest setting that fits; where none fits, the one with the smallest peak.

    Empty for a model without a list of equal layers. Raises `InputError` for a step that calls these layers several
    times, as one in micro-batches does: settings are simulated for one call.
    """
    layers = equal_layers(steps)
    if not layers:
        return []
    names = {layer.module for layer in layers}
    if any(region.call and region.module in names for region in steps.regions()):
        name, what = steps.trace.name or steps.trace.info.model, "a step calls its layers several times"
        raise InputError.single(name, "settings", what, "leave out --settings, or plan for one micro-batch")
    selective = Selective(steps, layers)
    megatron = map(_Setting._make, (*full(steps, layers), *selective.settings()))
    no_part = f"no single results, no differences between layers but their number; no part here: {selective.unmapped}"
    settings: dict[str, tuple[Iterable[_Setting], str]] = {
        "Transformers": (_transformers(steps, layers), "no single results, no parts of layers, no overlapped copies"),
        "torchtitan": (_torchtitan(steps, layers), _TORCHTITAN),
        "Megatron-LM": (megatron, no_part),
        "JAX": (_jax(steps, layers), "no differences between layers"),
    }
    plain = _Setting("nothing to set", Candidate(steps))
    return [_best(name, [plain, *each], lost, node, budget) for name, (each, lost) in settings.items()]


def _best(name: str, settings: Sequence[_Setting], lost: str, node: NodeSpec, budget: int) -> Projection:
    tried = []
    for each in settings:
        peak = each.candidate.trail(node).peak
        time_ns = None
        if peak <= budget:
            try:
                time_ns = each.candidate.run(node, budget).iteration_ns
            except OutOfMemoryError:
                peak = budget + 1
        tried.append(Projection(name, each.text, peak, time_ns, lost))
    fitting = [each for each in tried if each.time_ns is not None]
    if fitting:
        return min(fitting, key=lambda each: (each.time_ns or 0, each.peak))
    return min(tried, key=lambda each: each.peak)


def _whole(steps: Steps, layers: Sequence[Region]) -> Candidate:
    return Candidate(steps, tuple(Checkpointed(layer) for layer in layers))


def _transformers(steps: Steps, layers: Sequence[Region]) -> Iterator[_Setting]:
    for n in range(1, len(layers) + 1):
        yield _Setting(f'{{"every_n_layers": {n}}}', _whole(steps, layers[::n]))
    inputs = {b for layer in layers for b in layer.inputs if steps.births[b] >= 0}
    names = tuple(steps.trace.blocks[b].id for b in sorted(inputs))
    every = _whole(steps, layers)
    yield _Setting('{"offload": True}', replace(every, offloaded=names, prefetch=0, stash=0))


def _torchtitan(steps: Steps, layers: Sequence[Region]) -> Iterator[_Setting]:
    yield _Setting('mode = "full"', _whole(steps, layers))
    for n in range(1, len(layers) + 1):
        yield _Setting(f'mode = "selective", selective_ac_option = "{n}"', _whole(steps, layers[n - 1 :: n]))
    kept = tuple(Checkpointed(layer, _listed_results(steps, layer)) for layer in layers)
    yield _Setting('mode = "selective", selective_ac_option = "op"', Candidate(steps, kept))


def _listed_results(steps: Steps, layer: Region) -> frozenset[int]:
    """Attention, and the first, third, and so on of the matrix products."""
    keepable, products, kept = set(steps.keepable(layer)), 0, set()
    for k in range(layer.first, layer.stop):
        op = steps.trace.kernels[k].op
        products += op == _PRODUCT
        if k in keepable and (_ATTENTION in op or (op == _PRODUCT and products % 2 == 1)):
            kept.add(k)
    return frozenset(kept)


def _jax(steps: Steps, layers: Sequence[Region]) -> Iterator[_Setting]:
    """The longest running results of a layer kept, one more at a time; with and without its input offloaded."""
    kernels, first = steps.trace.kernels, layers[0]
    keepable = sorted(steps.keepable(first), key=lambda k: -kernels[k].duration_ns)
    inputs = {b for layer in layers for b in layer.inputs if steps.births[b] >= 0}
    names = tuple(steps.trace.blocks[b].id for b in sorted(inputs))
    for count in range(len(keepable) + 1):
        offsets = [k - first.first for k in keepable[:count]]
        saved = [f"{kernels[k].layer}:{kernels[k].op.rpartition('::')[2]}" for k in sorted(keepable[:count])]
        kept = tuple(Checkpointed(layer, frozenset(layer.first + offset for offset in offsets)) for layer in layers)
        relative = [name.removeprefix(f"{first.module}.") for name in saved]
        text = f"names_which_can_be_saved={relative}, names_which_can_be_offloaded="
        yield _Setting(f"{text}[]", Candidate(steps, kept))
        yield _Setting(f"{text}['input']", Candidate(steps, kept, names, 2, 2))
