"""Mutants are drawn and applied as `tests.mutation` says; trying them is not part of the suite."""

from __future__ import annotations

import ast
from itertools import islice
from pathlib import Path

import pytest

from tests.mutation.mutants import ROOT, Mutant, chosen, drawn, equivalents, mutants_of, mutated
from tests.mutation.reached import Reached, digest, selected


def lines(source: str) -> set[str]:
    """What becomes of a source's one line."""
    text = source.encode()
    return {
        mutated(text, mutant.change).decode().splitlines()[mutant.line - 1].strip() for mutant in mutants_of("m", text)
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is not b", {"a is b"}),
        ("0 <= a", {"0 < a", "0 > a", "1 <= a"}),
        ("a = (b) * c", {"a = (b) // c"}),
        ("a = -(b + c)", {"a = (b + c)", "a = -(b - c)"}),
        ("a[1:]", {"a[2:]"}),
        ("a[-1]", {"a[-2]"}),
        ("a = max(b, 1)", {"a = min(b, 1)", "a = max(b, 2)"}),
        ("a = b and c", {"a = b or c", "a = True and c", "a = b and True"}),
        ("a = not b", {"a =  b"}),
        ("a = [b for b in c if b]", {"a = [b for b in c if True]", "a = [b for b in c if not (b)]"}),
        ("a = b if c else d", {"a = b if not (c) else d"}),
        ("call(1)", {"pass"}),
        ("a.b = c", {"pass"}),
        ("a += b", {"pass"}),
        ("é = a < b", {"é = a <= b", "é = a >= b"}),
        ("a = b  # a < b", set()),
        ('a = f"{b + 1}"', set()),
        ("raise Error(a + 1)", {"pass"}),
        ("assert a < b", set()),
        ("a: X | Y = b", set()),
        ("Both = X | Y", set()),
        ("isinstance(a, X | Y)", {"pass"}),
    ],
)
def test_each_mutation_is_applied_at_its_place(source: str, expected: set[str]):
    assert lines(source) == expected


def test_a_change_over_several_lines_is_reported_by_its_first_line():
    source = b"def f():\n    '''Says a < b.'''\n    return (\n        a  # or b\n        and b\n    )\n"
    printed = [(mutant.line, mutant.before, mutant.after) for mutant in mutants_of("m", source)]
    assert printed == [(5, "and b", "or b"), (4, "a  # or b", "True  # or b"), (5, "and b", "and True")]


@pytest.mark.slow
def test_every_mutant_of_a_module_is_another_program():
    path = ROOT / "simgpu/graph/recompute.py"
    source = path.read_bytes()
    mutants = mutants_of("simgpu/graph/recompute.py", source)
    assert len(mutants) > 50
    for mutant in mutants:
        assert ast.dump(ast.parse(mutated(source, mutant.change))) != ast.dump(ast.parse(source)), str(mutant)


def test_packages_take_turns_and_each_line_is_drawn_once(tmp_path: Path):
    for name, source in (("one", "a < b\nc += 1 + d\n"), ("two", "e and f\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").write_text(source)
    result = [*drawn(["one", "two"], 5, tmp_path)]
    assert [(mutant.path, mutant.line) for mutant in result[:2]] in (
        [("one/m.py", 1), ("two/m.py", 1)],
        [("one/m.py", 2), ("two/m.py", 1)],
    )
    assert sorted((mutant.path, mutant.line) for mutant in result) == [
        ("one/m.py", 1),
        ("one/m.py", 2),
        ("two/m.py", 1),
    ]
    assert result == [*drawn(["one", "two"], 5, tmp_path)]
    assert len({tuple(drawn(["one", "two"], seed, tmp_path)) for seed in range(20)}) > 1


def test_a_draw_stays_when_other_lines_change(tmp_path: Path):
    def draw(source: str) -> list[str]:
        (tmp_path / "m.py").write_text(source)
        return [str(mutant) for mutant in drawn(["m.py"], 21, tmp_path)]

    before = draw("a < b\nc += d\n")
    assert [each for each in draw("\n\na < b\ne = not f\nc += d\n") if "f" not in each] == before


def test_equivalent_mutants_are_counted_separately_and_replaced():
    mutants = [Mutant("m", (0, 0, ""), 1, before, "x") for before in "abcd"]
    result, same = chosen(mutants, 2, {"m: b  ->  x": "why"})
    assert [mutant.before for mutant in result] == ["a", "c"]
    assert [mutant.before for mutant in same] == ["b"]


def test_every_equivalent_mutant_has_a_reason():
    assert all(" ->  " in mutant and why.strip() for mutant, why in equivalents().items())


def test_tests_of_the_module_come_first_and_then_quick_ones_of_its_package():
    path = "simgpu/graph/recompute.py"
    now = digest(ROOT / path)

    def file(seconds: float, *reached: int, then: str = now) -> Reached:
        return Reached("", seconds, [], {path: (then, [*reached])})

    mutant = next(islice(mutants_of(path, (ROOT / path).read_bytes()), 1))
    at = mutant.line
    known = {
        "tests/graph/test_slow.py": file(50, at),
        "tests/cli/test_quick.py": file(1, at),
        "tests/graph/test_quick.py": file(2, at),
        "tests/graph/test_recompute.py": file(9, at),
        "tests/graph/test_elsewhere.py": file(1, at + 1),
    }
    assert selected(mutant, known, 12) == (
        ["tests/graph/test_recompute.py", "tests/graph/test_quick.py", "tests/cli/test_quick.py"],
        12,
        4,
    )
    changed = {name: each._replace(lines={path: ("before", each.lines[path][1])}) for name, each in known.items()}
    assert selected(mutant, changed, 1000)[2] == 5, "all that reach the module, since its lines have moved"
    mixed = {**known, "tests/graph/test_elsewhere.py": changed["tests/graph/test_elsewhere.py"]}
    assert selected(mutant, mixed, 1000)[2] == 5, "a file that was measured before may reach the line now"


def test_mutants_of_compiled_modules_are_tried_on_all_tests_of_their_package():
    path, other = "simgpu/planning/relaunches.py", "simgpu/planning/evaluator.py"
    mutant = next(islice(mutants_of(path, (ROOT / path).read_bytes()), 1))
    known = {
        "tests/planning/test_plain.py": Reached("", 1, [], {path: (digest(ROOT / path), [mutant.line])}),
        "tests/planning/test_compiled.py": Reached("", 2, [], {other: ("", [1])}),
        "tests/graph/test_graph.py": Reached("", 1, [], {"simgpu/graph/blocks.py": ("", [1])}),
    }
    assert selected(mutant, known, 100)[0] == ["tests/planning/test_plain.py", "tests/planning/test_compiled.py"]
