"""The rule that selects slowdowns among rows of several GPUs: by what their sources say, never by error.

A slowdown of several GPUs can be predicted from the step of one where all GPUs do alike on their own samples, and
where the option changes nothing that they exchange: plain data parallelism, whether weights are sharded (FSDP, ZeRO) or
not. As in `simgpu.validation.public.selection`, a row is *comparable* if its source says enough, and *covered* if
simgpu also models it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import MODELLED, UNSTATED


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


#: Reasons for which simgpu is to blame, not the row.
OURS = frozenset({SeveralReason.OPTION, SeveralReason.MODEL})
#: Words of `PublishedRow.uses` for options that change what GPUs exchange. With LoRA, gradients of adapters alone.
EXCHANGED = frozenset({"lora", "own FSDP", "sharded optimizer"})
#: The configurations that simgpu follows, by project.
FOLLOWED_OF_SEVERAL: dict[str, frozenset[str]] = {}
#: Tensor, pipeline, expert and context parallelism, with their sizes: "TP 8", "tp1pp2", "FSDP + EP".
_SPLIT = re.compile(r"(?<![a-z])(?:tp|pp|ep|cp)(?![a-z])\s?(\d*)", re.IGNORECASE)
#: Times that are not of a step: of a whole run, or none as memory ran out.
_NO_STEP = ("total", "OOM")


def slowdowns_of_several(rows: Iterable[PublishedRow]) -> dict[str, tuple[PublishedRow | None, list[SeveralReason]]]:
    """The baseline of each row of several GPUs, and why its slowdown is not compared, by the row's id.

    Baselines themselves are left out. The baseline is that with fewest options of its group, the first in the file if
    several have as few. Rows without a group are alike if source, model, GPU, parallelism, batch and length are.

    >>> from simgpu.validation.public.rows import published_rows
    >>> baseline, against = slowdowns_of_several(published_rows())["t-022"]
    >>> baseline.id, [reason.value for reason in against]
    ('t-021', ['tensors, layers, experts or sequences are split'])
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


def counts_of_several(rows: Iterable[PublishedRow]) -> dict[SeveralReason, int]:
    """The number of slowdowns of several GPUs by the first reason against them."""
    against = Counter(each[0] for _, each in slowdowns_of_several(rows).values() if each)
    return {reason: against[reason] for reason in SeveralReason if against[reason]}


def _lacks(row: PublishedRow, baseline: PublishedRow) -> list[SeveralReason]:
    """What a row or its baseline does not say, or is not about. Only where all GPUs do alike was the rest read."""
    both = (row, baseline)
    return list(_of_parallelism(both)) or list(_of_the_rest(both))


def _of_parallelism(both: tuple[PublishedRow, PublishedRow]) -> Iterator[SeveralReason]:
    if not all(each.parallelism for each in both):
        yield SeveralReason.NOT_STATED
    if any(size != "1" for each in both for size in _SPLIT.findall(each.parallelism)):
        yield SeveralReason.NOT_DATA
    if len({(each.gpus, each.parallelism) for each in both}) > 1:
        yield SeveralReason.DIFFERS


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
    if not (MODELLED | {"selective checkpointing"}).issuperset(row.uses):
        yield SeveralReason.OPTION
    if row.config not in FOLLOWED_OF_SEVERAL.get(row.project, ()):
        yield SeveralReason.MODEL
