"""Mutants: single changes of the program's source, and how some are drawn. `tests.mutation` says what for."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

#: Each comparison as it is written, and what it becomes: the other boundary where there is one, and its negation.
_COMPARISONS = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}
_ARITHMETIC = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_REMOVED = (ast.AugAssign, ast.Continue, ast.Break, ast.Delete, ast.Raise)

#: A change of a source: the bytes from `start` to `stop` become a text.
Change = tuple[int, int, str]


class Mutant(NamedTuple):
    """One change of one file. line: the first that it changes, counted from 1; before, after: that line."""

    path: str
    change: Change
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before}  ->  {self.after}"

    def place(self) -> str:
        """The same with the line's number."""
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


class _Changes:
    """All changes of a source."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset

    def between(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int]:
        """Where the operator of two operands is."""
        start, stop = self.span(left)[1], self.span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:stop])
        operator = re.search(pattern.encode(), gap)
        assert operator is not None, f"no {pattern} in {gap!r}"
        return start + operator.start(), start + operator.end()

    def below(self, node: ast.AST) -> Iterator[Change]:
        yield from self.of_expression(node)
        yield from self.of_statement(node)
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            return
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name) and name.id[0].isupper():
            return  # a type or a setting
        skipped: list[object] = [*getattr(node, "decorator_list", ())]
        skipped += [getattr(node, field, None) for field in ("annotation", "returns")]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            skipped += node.args[1:]
        for child in ast.iter_child_nodes(node):
            if not any(child is each for each in skipped):
                yield from self.below(child)

    def of_expression(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                for (left, right), op in zip(pairwise((node.left, *node.comparators)), node.ops, strict=True):
                    pattern, others = _COMPARISONS[type(op)]
                    yield from ((*self.between(left, right, pattern), other) for other in others)
                yield from self.off_by_one(node.left, *node.comparators)
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                pattern, other = _ARITHMETIC[type(op)]
                yield *self.between(node.left, node.right, pattern), other
                yield from self.off_by_one(node.left, node.right)
            case ast.BoolOp():
                yield from self.conditions(node)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as op, operand=operand) if not isinstance(operand, ast.Constant):
                start = self.span(node)[0]
                yield start, start + (3 if isinstance(op, ast.Not) else 1), ""
            case ast.Subscript(slice=index):
                yield from self.off_by_one(index)
            case ast.Slice(lower=lower, upper=upper):
                yield from self.off_by_one(lower, upper)
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS or name == "range":
                if name in _FUNCTIONS:
                    yield *self.span(node.func), _FUNCTIONS[name]
                yield from self.off_by_one(*arguments)
            case ast.comprehension():
                for test in node.ifs:
                    yield *self.span(test), "True"
                    yield from self.negated(test)

    def of_statement(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.If() | ast.While() | ast.IfExp():
                yield from self.negated(node.test)
            case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
                yield *self.span(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield *self.span(node), "pass"
            case _ if isinstance(node, _REMOVED):
                yield *self.span(node), "pass"

    def conditions(self, node: ast.BoolOp) -> Iterator[Change]:
        """`or` in place of `and`, or the reverse; and each condition dropped."""
        word, other, neutral = ("and", "or", "True") if isinstance(node.op, ast.And) else ("or", "and", "False")
        (at, stop), text = self.span(node), ""
        for left, right in pairwise(node.values):
            start, end = self.between(left, right, rf"\b{word}\b")
            text, at = f"{text}{self.source[at:start].decode()}{other}", end
        yield self.span(node)[0], stop, text + self.source[at:stop].decode()
        yield from ((*self.span(value), neutral) for value in node.values)

    def negated(self, test: ast.expr) -> Iterator[Change]:
        """Of comparisons and `not` the negation is one of their own changes."""
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            start, stop = self.span(test)
            yield start, stop, f"not ({self.source[start:stop].decode()})"

    def off_by_one(self, *operands: ast.expr | None) -> Iterator[Change]:
        for each in operands:
            number = each.operand if isinstance(each, ast.UnaryOp) else each
            if isinstance(number, ast.Constant) and type(number.value) is int:
                yield *self.span(number), str(number.value + 1)


def mutated(source: bytes, change: Change) -> bytes:
    """The source with a change.

    >>> mutated(b"a < b", (2, 3, "<="))
    b'a <= b'
    """
    start, stop, text = change
    return source[:start] + text.encode() + source[stop:]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All mutants of a file; of changes that give the same text the first."""
    operator: dict[bytes, Mutant] = {}
    lines = source.splitlines()
    for change in _Changes(source).below(ast.parse(source)):
        text = mutated(source, change)
        now = text.splitlines()
        line = next(n for n, (old, new) in enumerate(zip(lines, now, strict=False)) if old != new)
        operator.setdefault(
            text, Mutant(path, change, line + 1, *(each[line].decode().strip() for each in (lines, now)))
        )
    return list(operator.values())


def drawn(packages: Sequence[str], seed: int, root: Path = ROOT) -> Iterator[Mutant]:
    """Mutants of the files of each package in turn, in an order that the seed decides. Paths are relative to root;
    ``simgpu/a+simgpu/b`` counts as one package."""
    ranked = []
    for package in packages:
        files = [file for part in package.split("+") for file in _files(root / part)]
        every, seen = [], Counter[str]()
        for file in files:
            for mutant in mutants_of(file.relative_to(root).as_posix(), file.read_bytes()):
                seen[str(mutant)] += 1
                every.append((hashlib.sha256(f"{seed} {mutant} {seen[str(mutant)]}".encode()).digest(), mutant))
        by_line: dict[tuple[str, int], Mutant] = {}
        for _, mutant in sorted(every, key=lambda each: each[0]):
            by_line.setdefault((mutant.path, mutant.line), mutant)
        ranked.append(iter(by_line.values()))
    while ranked:
        for each in [*ranked]:
            if (operator := next(each, None)) is None:
                ranked.remove(each)
            else:
                yield operator


def listed(file: Path, root: Path = ROOT) -> list[Mutant]:
    """The mutants of a list, one on a line as `str(Mutant)`. Raises `ValueError` for lines without a mutant."""
    lines = file.read_text(encoding="utf-8").splitlines()
    by_text: dict[str, Mutant] = {}
    for path in dict.fromkeys(line.partition(": ")[0] for line in lines):
        for mutant in mutants_of(path, (root / path).read_bytes()) if (root / path).is_file() else ():
            by_text.setdefault(str(mutant), mutant)
    if missing := [line for line in lines if line not in by_text]:
        raise ValueError("these mutants are not in the code any more; edit the list:\n" + "\n".join(missing))
    return [by_text[line] for line in lines]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def equivalents() -> dict[str, str]:
    """Mutants that mean the same, and why."""
    listed = tomllib.loads((Path(__file__).with_name("equivalent.toml")).read_text(encoding="utf-8"))
    return {each["mutant"]: each["why"] for each in listed["equivalent"]}


def chosen(mutants: Iterable[Mutant], count: int, known: Mapping[str, str]) -> tuple[list[Mutant], list[Mutant]]:
    """The first `count` that are not known to be equivalent, and the equivalent ones met on the way."""
    operator: list[Mutant] = []
    same: list[Mutant] = []
    for mutant in mutants:
        if len(operator) == count:
            break
        (same if str(mutant) in known else operator).append(mutant)
    return operator, same
