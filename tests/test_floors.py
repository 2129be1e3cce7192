"""A module imports only from floors below its own, or from its own room; SimPy is used in the machine alone.

The modules of floor 0 are one room.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "simgpu"

FLOORS = {
    0: (
        *("errors", "units", "arguments", "inputfile", "textfile", "jsonfile", "arrayfile", "yamlfile", "filemodel"),
        *("whole", "fitting", "shipped", "codestate", "webpage"),
    ),
    1: ("trace", "hardware", "timeline"),
    2: ("graph", "memory", "codecs", "analysis"),
    3: ("program", "search", "evaluate", "buddy"),
    4: ("policies", "machine", "parallel", "remarks", "tasks"),
    5: ("simulation", "result"),
    6: ("scenario", "experiments", "explain"),
    7: ("testing", "report", "reproduction", "validation"),
    8: ("cli",),
    9: ("__main__",),
}
#: On one floor, and yet one builds on the other: modelled durations need the rates of a GPU, and a run gives a result.
BESIDE = {("trace", "hardware"), ("simulation", "result")}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
#: They tell how far the time model can be trusted.
COMMANDS_OF_THE_FIT = {Path("cli/zoo_validate.py"), Path("cli/zoo_build.py")}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, also inside functions; those for the type checker alone are not imports."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "simgpu")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_come_from_lower_floors_or_the_same_room(path: Path) -> None:
    room = room_of(path)
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "simgpu" or len(parts) < 2 or parts[1] == "__version__":
            continue
        other = parts[1]
        below = FLOOR_OF[other] < FLOOR_OF[room] or (room, other) in BESIDE
        assert below or other == room or FLOOR_OF[room] == 0, f"{room} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_commands_of_the_zoo_know_how_the_time_model_was_fitted(path: Path) -> None:
    module = path.relative_to(PACKAGE)
    knows = any(name.startswith("simgpu.trace.calibration") for name in imports_of(path))
    assert not knows or module.is_relative_to("trace/calibration") or module in COMMANDS_OF_THE_FIT


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_simpy_is_used_in_the_machine_alone(path: Path) -> None:
    uses = any(name.split(".")[0] == "simpy" for name in imports_of(path))
    assert not uses or room_of(path) == "machine"


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in MODULES} <= set(FLOOR_OF)
