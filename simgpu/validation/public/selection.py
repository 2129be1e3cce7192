"""The rule that selects published rows for a comparison: by model, GPU, memory kind and options, never by error.

A row is *comparable* if its source says what a prediction needs. Of those, a row is *covered* if simgpu models its
options and follows its model; for a time, also all that takes time in the project's loop. Every covered row is
predicted and counts; every other one is listed with its reasons. Rows that are compared: `baselines`, `pairs`.

Of several GPUs, memory is compared where simgpu follows how the project divides a model among them (`DIVIDED`), and the
row's sizes are read. Times of several GPUs are compared by their slowdowns alone (`simgpu.validation.public.several`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from simgpu.validation.public.rows import PublishedRow


class Subject(StrEnum):
    """What is compared."""

    MEMORY = "memory"
    TIME = "time"


class Reason(StrEnum):
    """Why a row is not compared."""

    # What the row does not say, or is not about.
    SEVERAL_GPUS = "several GPUs"
    NO_SIZES = "the model's sizes are not published"
    NO_SHAPE = "batch or length is not stated"
    NO_GPU = "the GPU is not stated"
    NO_MEMORY = "no peak of allocated, active, reserved or device memory"
    NO_CONTEXT = "device memory, and the CUDA context is not stated"
    NO_TIME = "no time of a training step"
    MIXED_LOOP = "not of training alone"
    NO_OPTIONS = "the options are not stated"
    # What simgpu lacks.
    OPTION = "an option is not modelled"
    MODEL = "the model is not followed"
    TIMES = "times are not predicted yet"


#: Words of `PublishedRow.uses` for rows that are not of training alone, and for rows with options that are not stated.
MIXED, UNSTATED = "reinforcement learning", "options not stated"
#: Options that simgpu models, by their words in `PublishedRow.uses`. Compiled layers are taken to hold what they hold
#: without the compiler, as under checkpointing, where that is their inputs.
MODELLED = frozenset(
    (
        *("4-bit weights", "accumulation", "adafactor", "adapter", "autocast", "checkpoint", "compile", "lora"),
        *("offloaded activations", "offloaded checkpoints", "optimizer on host", "policy-gradient loss"),
        *("distributed optimizer", "fused loss"),
    )
)
#: The configurations that simgpu follows, by the project whose code it follows.
FOLLOWED = {
    "ao": frozenset({"vit-giant-patch14-dinov2"}),
    "assignment2-systems": frozenset({"cs336-medium"}),
    "axolotl": frozenset({"qwen3-8b"}),
    "prime-rl": frozenset({"qwen3-0.6b", "qwen3-4b"}),
    "SimuMax": frozenset(
        {"llama-3-70b-12-layers", "llama-3-405b-4-layers", "deepseek-v2-4-layers", "deepseek-v3-4-layers"}
    ),
    "torchtitan": frozenset({"deepseek-v3"}),
    "transformers": frozenset({"bert-large-uncased"}),
    "litgpt": frozenset(
        (
            *("falcon-7b", "falcon-40b", "gemma-2b", "gemma-2-9b", "gemma-7b", "llama-2-7b", "llama-2-13b"),
            *("llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b", "mistral-7b-v0.2", "phi-1.5"),
            *("phi-3-mini-4k", "stablelm-alpha-3b"),
        )
    ),
}

#: Projects whose ways to divide a model among GPUs simgpu follows: tensors (tp), tokens (cp), layers (pp), experts (ep)
#: and the batch (dp).
DIVIDED = frozenset({"SimuMax"})
#: Tensor, pipeline, expert, context and data parallelism with their sizes: "TP 8", "tp1pp2", "FSDP + EP".
_SPLIT = re.compile(r"(?<![a-z])(tp|pp|ep|cp|dp)(?![a-z])\s?(\d*)", re.IGNORECASE)
#: Projects whose loops are followed in all that takes time, such as gradient clipping.
TIMED = frozenset({"ao", "prime-rl", "torchtitan", "transformers"})
#: Options that are modelled in a project alone, and how its rows name the operators that selective checkpointing saves;
#: without it, the options are not modelled.
MODELLED_OF = {"torchtitan": frozenset({"faked collectives", "selective checkpointing"})}
SAVED = "saved ops: "
#: Two measured values that differ by no more than this share of the smaller are not ordered.
MARGIN = 0.02


def reasons(row: PublishedRow, subject: Subject) -> tuple[Reason, ...]:
    """Why a row is not compared, all that its source lacks before what simgpu lacks; empty for a covered row.

    >>> from simgpu.validation.public.rows import published_rows
    >>> [reason.value for reason in reasons(published_rows()[0], Subject.MEMORY)]
    ['several GPUs']
    """
    if row.gpus != 1 and (subject is Subject.TIME or row.project not in DIVIDED or row.config is None):
        return (Reason.SEVERAL_GPUS,)
    return tuple(_lacks_of_row(row, subject)) or tuple(_lacks_of_simgpu(row, subject))


def splits(row: PublishedRow) -> frozenset[str]:
    """How a row of several GPUs divides the model, as tp, pp, ep, cp and dp.

    >>> from simgpu.validation.public.rows import published_rows
    >>> [sorted(splits(row)) for row in published_rows() if row.id in ("t-011", "t-484", "t-001")]
    [[], ['tp'], ['dp', 'ep']]
    """
    return frozenset(name.lower() for name, size in _SPLIT.findall(row.parallelism) if size != "1")


def parts_of(row: PublishedRow) -> int:
    """The GPUs that share the tensors of each layer.

    >>> from simgpu.validation.public.rows import published_rows
    >>> [parts_of(row) for row in published_rows() if row.id in ("t-001", "t-021")]
    [1, 8]
    """
    return next((int(size) for name, size in _SPLIT.findall(row.parallelism) if name.lower() == "tp" and size), 1)


def _lacks_of_row(row: PublishedRow, subject: Subject) -> Iterator[Reason]:
    if row.config is None:
        yield Reason.NO_SIZES
    if row.sequences is None or row.tokens is None:
        yield Reason.NO_SHAPE
    if MIXED in row.uses:
        yield Reason.MIXED_LOOP
    if UNSTATED in row.uses:
        yield Reason.NO_OPTIONS
    if subject is Subject.TIME:
        if row.node is None:
            yield Reason.NO_GPU
        if not row.has_time:
            yield Reason.NO_TIME
    elif not row.peaks and not row.oom:
        yield Reason.NO_MEMORY
    elif set(row.peaks) == {"device"} and row.context is None:
        yield Reason.NO_CONTEXT
    elif row.oom and row.node is None:
        yield Reason.NO_GPU


def modelled(row: PublishedRow) -> frozenset[str]:
    """The options that simgpu models for a row.

    >>> from simgpu.validation.public.rows import published_rows
    >>> rows = [row for row in published_rows() if row.id in ("t-039", "t-052")]
    >>> [sorted(set(row.uses) - modelled(row)) for row in rows]
    [[], ['faked collectives', 'selective checkpointing']]
    """
    return MODELLED | MODELLED_OF.get(row.project, frozenset()) if SAVED in row.options else MODELLED


def _lacks_of_simgpu(row: PublishedRow, subject: Subject) -> Iterator[Reason]:
    if not modelled(row).issuperset(row.uses):
        yield Reason.OPTION
    if row.config not in FOLLOWED.get(row.project, ()):
        yield Reason.MODEL
    if subject is Subject.TIME and row.project not in TIMED:
        yield Reason.TIMES


def baselines(rows: Iterable[PublishedRow]) -> dict[str, PublishedRow]:
    """The baseline of each row whose slowdown is compared, by the row's id.

    Rows that are comparable in time, of one group, model and length, differ in options only. The baseline is that with
    fewest options, the first of them in the file; a row without others, and the baseline itself, have none.

    >>> from simgpu.validation.public.rows import published_rows
    >>> baselines(published_rows())["t-206"].id
    't-205'
    """
    alike: dict[object, list[PublishedRow]] = {}
    for row in rows:
        if row.group is not None and row.gpus == 1 and not any(_lacks_of_row(row, Subject.TIME)):
            alike.setdefault((row.group, row.config, row.node, row.tokens), []).append(row)
    found: dict[str, PublishedRow] = {}
    for each in alike.values():
        baseline = min(each, key=lambda row: len(row.uses))
        found |= {row.id: baseline for row in each if row is not baseline}
    return found


def pairs(rows: Iterable[PublishedRow], values: Mapping[str, float]) -> list[tuple[PublishedRow, PublishedRow]]:
    """Pairs of rows of one group, the smaller measured value first; those that differ by at most `MARGIN` are none.

    values: measured, by the row's id; a row without one is in no pair.

    >>> from simgpu.validation.public.rows import published_rows
    >>> [(a.id, b.id) for a, b in pairs(published_rows(), {"t-148": 113.0, "t-149": 129.0, "t-150": 130.0})]
    [('t-148', 't-149'), ('t-148', 't-150')]
    """
    valued = [row for row in rows if row.group is not None and row.id in values]
    both = [(a, b) for a in valued for b in valued if a.group == b.group and values[a.id] < values[b.id]]
    return [(a, b) for a, b in both if values[b.id] > (1 + MARGIN) * values[a.id]]
