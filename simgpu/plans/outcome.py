"""What a check of a plan finds, as rows that are printed or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Finding(NamedTuple):
    """One comparison: what was planned, what was found, and whether they agree; None where nothing is demanded."""

    what: str
    planned: str
    found: str
    agrees: bool | None


@dataclass(frozen=True)
class PlanCheck:
    """findings: the comparisons, in order. notes: what limits them."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all that must agree agrees."""
        return all(each.agrees is not False for each in self.findings)

    def __getitem__(self, what: str) -> Finding:
        """The comparison of that name."""
        return next(each for each in self.findings if each.what == what)
