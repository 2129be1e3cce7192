"""The rule that selects slowdowns among rows of several GPUs: by what their sources say, never by error.

The step of one GPU predicts a slowdown of several if all GPUs do the same on their own samples, and if the option does
not change what they exchange: plain data parallelism, with sharded weights (FSDP, ZeRO) or without. Where simgpu
follows how a project divides a model (`simgpu.validation.public.selection.DIVIDED`), one GPU of the job with its
exchanges predicts it. The same holds for rows of projects in `SPLIT_TENSORS`, whose GPUs also do the same when they
share the tensors of each layer; there an option may change how GPUs exchange. As there, a row is *comparable* if its
source says enough, and *covered* if simgpu also models it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import DIVIDED, FOLLOWED, MODELLED, UNSTATED, splits


class SeveralReason(StrEnum):
    """Why a slowdown of several GPUs is not compared; of several reasons, the first counts."""

    NO_TIME = "no time or rate of a training step"
    ALONE = "no other row differs in options alone"
    NOT_STATED = "the parallelism is not stated"
    NOT_DATA = "tensors, layers, experts or sequences are split"
    DIFFERS = "the parallelism is not that of the baseline"
    NO_SIZES = "the model's sizes are not published"
    NO_SHAPE = "batch per GPU or length is not stated"
    NO_GPU = "the GPU is not stated"
    NO_OPTIONS = "the options are not stated"
    COMMUNICATION = "the option changes what GPUs exchange"
    # What simgpu lacks.
    OPTION = "an option is not modelled"
    MODEL = "the model is not followed"


@dataclass(frozen=True, slots=True)
class CoverageOfSeveral:
    """The slowdowns of several GPUs. rows: without the baselines; baselines: their number.

    comparable: rows whose source says enough; covered: those of them that simgpu predicts; reasons: the number of rows
    by the first reason against them.
    """

    rows: int
    baselines: int
    comparable: int
    covered: int
    reasons: dict[SeveralReason, int]


#: What simgpu lacks, not the row.
OURS = frozenset({SeveralReason.OPTION, SeveralReason.MODEL})
#: Words of `PublishedRow.uses` for options that change what GPUs exchange; with LoRA, the gradients of adapters alone.
EXCHANGED = frozenset({"lora", "own FSDP", "sharded optimizer"})
#: Projects whose GPUs may split tensors (tp), not layers or experts.
SPLIT_TENSORS = frozenset({"torchtitan"})
#: The configurations that simgpu follows, by project.
_IN_STEP = {"torchtitan": frozenset({"llama-3.1-8b", "llama-3.1-70b"}), "llm-foundry": frozenset({"mpt-1b"})}
FOLLOWED_OF_SEVERAL = _IN_STEP | {"prime-rl": frozenset({"intellect-3"})} | {name: FOLLOWED[name] for name in DIVIDED}
#: Options that are modelled in the projects of `_IN_STEP` alone.
_OPTIONS = frozenset({"selective checkpointing", "float8", "rowwise scales", "async tensor parallelism"})
#: Beginnings of `PublishedRow.time` that are no time of a step: that of a whole run, or none because memory ran out.
_NO_STEP = ("total", "OOM")


def slowdowns_of_several(rows: Iterable[PublishedRow]) -> dict[str, tuple[PublishedRow | None, list[SeveralReason]]]:
    """The baseline of each row of several GPUs, and why its slowdown is not compared, by the row's id.

    Baselines are left out. The baseline has the fewest options of its group; of several, it is the first in the file.
    Rows without a group are compared if they have the same source, model, GPU, parallelism, batch and length.

    >>> from simgpu.validation.public.rows import published_rows
    >>> baseline, against = slowdowns_of_several(published_rows())["t-046"]
    >>> baseline.id, [reason.value for reason in against]
    ('t-045', ['tensors, layers, experts or sequences are split'])
    """
    alike: dict[object, list[PublishedRow]] = {}
    found: dict[str, tuple[PublishedRow | None, list[SeveralReason]]] = {}
    for row in rows:
        if row.gpus == 1:
            continue
        if not row.time or row.time.startswith(_NO_STEP):
            found[row.id] = None, [SeveralReason.NO_TIME]
        else:
            stated = (row.source, row.model, row.gpu, row.gpus, row.parallelism, row.batch, row.length)
            alike.setdefault(row.group or stated, []).append(row)
    for group in alike.values():
        baseline = min(group, key=lambda row: len(row.uses))
        if len(group) == 1:
            found[baseline.id] = None, [SeveralReason.ALONE]
        for row in group:
            if row is not baseline:
                found[row.id] = baseline, _lacks(row, baseline) or list(_lacks_of_simgpu(row))
    return found


def coverage_of_several(rows: Iterable[PublishedRow]) -> CoverageOfSeveral:
    """The coverage of slowdowns of several GPUs.

    >>> from simgpu.validation.public.rows import published_rows
    >>> coverage_of_several(published_rows()).reasons[SeveralReason.NOT_DATA]
    14
    """
    found = slowdowns_of_several(rows)
    against = Counter(each[0] for _, each in found.values() if each)
    return CoverageOfSeveral(
        rows=len(found),
        baselines=len({baseline.id for baseline, _ in found.values() if baseline}),
        comparable=sum(set(each) <= OURS for _, each in found.values()),
        covered=sum(not each for _, each in found.values()),
        reasons={reason: against[reason] for reason in SeveralReason if against[reason]},
    )


def _lacks(row: PublishedRow, baseline: PublishedRow) -> list[SeveralReason]:
    """What the sources of a row and its baseline do not say. The rest was read only where all GPUs do the same."""
    both = (row, baseline)
    return list(_of_parallelism(both)) or list(_of_the_rest(both))


def _of_parallelism(both: tuple[PublishedRow, PublishedRow]) -> Iterator[SeveralReason]:
    if not all(each.parallelism for each in both):
        yield SeveralReason.NOT_STATED
    if any(splits(each) - _may_split(each) and each.project not in DIVIDED for each in both):
        yield SeveralReason.NOT_DATA
    if len({(each.gpus, each.parallelism) for each in both}) > 1:
        yield SeveralReason.DIFFERS


def _may_split(row: PublishedRow) -> frozenset[str]:
    return frozenset({"dp", "tp"} if row.project in SPLIT_TENSORS else {"dp"})


def _of_the_rest(both: tuple[PublishedRow, PublishedRow]) -> Iterator[SeveralReason]:
    if any(each.config is None for each in both):
        yield SeveralReason.NO_SIZES
    if any(each.sequences is None or each.tokens is None for each in both):
        yield SeveralReason.NO_SHAPE
    if any(each.node is None for each in both):
        yield SeveralReason.NO_GPU
    if any(UNSTATED in each.uses for each in both):
        yield SeveralReason.NO_OPTIONS
    if EXCHANGED & (set(both[0].uses) ^ set(both[1].uses)):
        yield SeveralReason.COMMUNICATION


def _lacks_of_simgpu(row: PublishedRow) -> Iterator[SeveralReason]:
    if not (MODELLED | _OPTIONS).issuperset(row.uses):
        yield SeveralReason.OPTION
    if row.config not in FOLLOWED_OF_SEVERAL.get(row.project, ()):
        yield SeveralReason.MODEL
