"""The axes of a sweep: their section in the file, and their product, which is evaluated point by point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

from pydantic import Field

from simgpu.errors import Problem
from simgpu.io.schema import LARGEST, FileModel, Where

Values = Annotated[list[Any], Field(min_length=1)]


class SweepSection(FileModel):
    """The points of a sweep, each the scenario with other values; `simgpu sweep` runs them.

    A path is a dotted key of the scenario, with indices of list entries, or of the node.
    """

    grid: dict[str, Values] = Field(
        default={}, description="values by path; every combination is a point, the last path varies fastest"
    )
    zip: list[Annotated[dict[str, Values], Field(min_length=1)]] = Field(
        default=[], description="groups of paths whose values vary together; each group is one more axis of the grid"
    )
    points: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        default=[], description="one more axis; each step lists its values by path"
    )


@dataclass(frozen=True)
class Axis:
    """Values that vary together, step by step.

    paths: all paths that any step sets
    steps: values by path, per step
    form: template of a value's place in the file, with ``{path}`` and ``{step}``
    changed: whether the axis comes from an override instead of the file
    """

    paths: tuple[str, ...]
    steps: Sequence[Mapping[str, object]]
    form: str
    changed: bool = False

    def place(self, path: str, step: int) -> str:
        """The place of a value in the file."""
        return self.form.format(path=path, step=step)


def _never(place: str) -> bool:
    return False


def axes_of(section: SweepSection, is_changed: Callable[[str], bool] = _never) -> tuple[Axis, ...]:
    """The axes in the order grid, zipped groups, list of points.

    is_changed: whether an override sets the value at a place of the section

    >>> [axis.paths for axis in axes_of(SweepSection(grid={"seed": [1, 2]}, points=[{"epoch": 3}, {"pool": None}]))]
    [('seed',), ('epoch', 'pool')]
    """
    axes = [
        Axis(
            (path,),
            [{path: value} for value in values],
            "sweep.grid.{path}[{step}]",
            is_changed(f"sweep.grid.{path}"),
        )
        for path, values in section.grid.items()
    ]
    for number, group in enumerate(section.zip):
        length = min(map(len, group.values()))
        steps = [{path: values[step] for path, values in group.items()} for step in range(length)]
        axes.append(Axis(tuple(group), steps, f"sweep.zip[{number}].{{path}}[{{step}}]", is_changed("sweep.zip")))
    if section.points:
        paths = tuple(dict.fromkeys(path for point in section.points for path in point))
        axes.append(Axis(paths, section.points, "sweep.points[{step}].{path}", is_changed("sweep.points")))
    return tuple(axes)


def count_of(axes: Sequence[Axis]) -> int:
    """The number of points of the product of the axes; 0 without axes."""
    return prod(len(axis.steps) for axis in axes) if axes else 0


def steps_of(axes: Sequence[Axis], point: int) -> tuple[int, ...]:
    """The step on each axis of a point by its number. The last axis varies fastest.

    >>> axes = axes_of(SweepSection(grid={"seed": [1, 2], "epoch": [0, 10, 20]}))
    >>> [steps_of(axes, point) for point in range(count_of(axes))]
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    steps = []
    for axis in reversed(axes):
        point, step = divmod(point, len(axis.steps))
        steps.append(step)
    if point:
        raise IndexError("the sweep has fewer points")
    return tuple(reversed(steps))


def section_problems(section: SweepSection, where: Where) -> Iterator[Problem]:
    """Problems of the section: zipped paths with different numbers of values, no axes, or too many points."""
    for number, group in enumerate(section.zip):
        if len(set(map(len, group.values()))) > 1:
            text = ", ".join(f"{path} has {len(values)}" for path, values in group.items())
            yield Problem(
                *where(f"sweep.zip[{number}]"), f"its values vary together, but {text}", "give the same number of each"
            )
    axes = axes_of(section)
    for axis in axes:
        texts = [repr(dict(step)) for step in axis.steps]
        for number, text in enumerate(texts):
            if text in texts[:number]:
                place = axis.place(next(iter(axis.steps[number])), number)
                yield Problem(*where(place), "is there twice on this axis", "give each value once")
    if not axes:
        remedy = "write for example 'grid: {budget: [4 GiB, 6 GiB]}'"
        yield Problem(*where("sweep"), "has no grid, zip or points", remedy)
    elif count_of(axes) > LARGEST:
        yield Problem(*where("sweep"), f"has {count_of(axes)} points, which is too many", "give fewer values")
