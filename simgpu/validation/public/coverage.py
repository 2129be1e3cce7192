"""How many published rows are compared, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from simgpu.validation.public.rows import PublishedRow
from simgpu.validation.public.selection import Reason, Subject, modelled, reasons

#: Reasons for which simgpu is to blame, not the row.
_OURS = {Reason.OPTION, Reason.MODEL, Reason.TIMES}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of some rows. comparable: those whose source says enough; covered: those of them that simgpu predicts.

    reasons: the number of rows by the first reason against them. options, models: what simgpu lacks for comparable
    rows, with the number of rows that lack it.
    """

    subject: Subject
    rows: int
    comparable: int
    covered: int
    reasons: dict[Reason, int]
    options: dict[str, int]
    models: dict[str, int]


def coverage(rows: Iterable[PublishedRow], subject: Subject) -> Coverage:
    """The coverage of rows.

    >>> from simgpu.validation.public.rows import published_rows
    >>> coverage(published_rows(), Subject.MEMORY).reasons[Reason.SEVERAL_GPUS]
    205
    """
    listed = [(row, reasons(row, subject)) for row in rows]
    against = Counter(found[0] for _, found in listed if found)
    comparable = [(row, found) for row, found in listed if set(found) <= _OURS]
    options = Counter(word for row, _ in comparable for word in row.uses if word not in modelled(row))
    models = Counter(row.config for row, found in comparable if Reason.MODEL in found and row.config is not None)
    return Coverage(
        subject=subject,
        rows=len(listed),
        comparable=len(comparable),
        covered=sum(not found for _, found in comparable),
        reasons={reason: against[reason] for reason in Reason if against[reason]},
        options=dict(options.most_common()),
        models=dict(models.most_common()),
    )
