"""Loads the papers' claims (`load_papers`) and selects among them (`select`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.io.schema import validate
from simgpu.io.yaml_files import read_yaml_mapping

if TYPE_CHECKING:
    from simgpu.papers.claims_file import AssumptionSection, ClaimSection, FigureSection, PartSection

#: Keys of the papers, in the order of listings.
PAPERS = ("cswap", "home", "cdma", "modnn", "buddy")


@dataclass(frozen=True)
class Claim:
    """A claim with its id, such as ``cswap.sizes.vgg16``, and the paper that makes it."""

    id: str
    paper: Paper
    section: ClaimSection

    @property
    def parts(self) -> tuple[PartSection, ...]:
        """The numbers, sets and conditions that it consists of."""
        return tuple(self.section.parts)

    @property
    def kind(self) -> str:
        """``number``, ``rule`` or ``order``."""
        return self.section.kind

    @property
    def is_rule(self) -> bool:
        """Whether it is checked by tests instead of simulated."""
        return self.kind == "rule"

    @property
    def broken(self) -> bool:
        """Whether it is a rule with a part that does not hold here."""
        return any(part.broken for part in self.parts)

    @property
    def is_input(self) -> bool:
        """Whether it cannot fail, because all its parts are read back from a file or are arithmetic."""
        return all(part.input for part in self.parts)

    @property
    def fitted(self) -> bool:
        """Whether a parameter was fitted to it."""
        return bool(self.section.fit)


@dataclass(frozen=True, eq=False)
class Paper:
    """A paper and its claims.

    key: the first word of its claims' ids.
    studies: changes to studies for all claims of this paper, by study and dotted key.
    """

    key: str
    name: str
    source: str
    studies: Mapping[str, Mapping[str, object]]
    sections: Mapping[str, ClaimSection]
    assumptions: Mapping[str, AssumptionSection]
    figures: tuple[FigureSection, ...]

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """All claims, in the order of the file."""
        return tuple(Claim(f"{self.key}.{name}", self, section) for name, section in self.sections.items())


@lru_cache
def load_papers() -> tuple[Paper, ...]:
    """All papers with their claims.

    >>> [paper.key for paper in load_papers()], sum(len(paper.claims) for paper in load_papers())
    (['cswap', 'home', 'cdma', 'modnn', 'buddy'], 116)
    """
    return tuple(map(_load, PAPERS))


def _load(key: str) -> Paper:
    return read_paper(Path(str(files("simgpu.papers") / "claims" / f"{key}.yaml")), key)


def read_paper(path: Path, key: str) -> Paper:
    """The paper in a file of claims. Raises `InputError` that lists all errors of the file."""
    from simgpu.papers.claims_file import RULES_NAME_TESTS, SCHEMA, PaperFile

    document = read_yaml_mapping(path, SCHEMA, f"{RULES_NAME_TESTS} for each part of a rule, then 'schema: {SCHEMA}'")
    file = validate(PaperFile, document.values, lambda place: (str(path), document.place(place)))
    return Paper(key, file.paper, file.source, file.studies, file.claims, file.assumptions, tuple(file.figures))


def select(what: Iterable[str], *, quick: bool = False) -> tuple[Claim, ...]:
    """The claims with these ids, id prefixes that end at a dot, or paper keys; by default all.

    quick: only rules and cheap claims. Raises `InputError` for an unknown id or key.

    >>> [claim.id for claim in select(["cdma.ratio"])][:2]
    ['cdma.ratio.zvc', 'cdma.ratio.zlib']
    """
    claims = tuple(claim for paper in load_papers() for claim in paper.claims)
    requested = tuple(what)
    unknown = [prefix for prefix in requested if not any(_within(claim, prefix) for claim in claims)]
    if unknown:
        raise InputError(_unknown(prefix, claims) for prefix in unknown)
    return tuple(
        claim
        for claim in claims
        if (not requested or any(_within(claim, prefix) for prefix in requested))
        and (claim.section.quick or claim.is_rule or not quick)
    )


def _unknown(what: str, claims: Iterable[Claim]) -> Problem:
    """The error for an unknown id or key; it suggests ids of the same paper, or papers."""
    of_paper = [claim.id for claim in claims if claim.paper.key == what.partition(".")[0]]
    return Problem("", "", f"no paper or claim is called {what!r}", did_you_mean(what, of_paper or PAPERS))


def _within(claim: Claim, prefix: str) -> bool:
    return claim.id == prefix or claim.id.startswith(f"{prefix}.")
