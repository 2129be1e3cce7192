"""The axes of a sweep: what varies, in the file and as a product that is never written out."""

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
    """Many points, each the scenario with other values; `simgpu sweep` runs them.

    A path is a dotted key of the scenario, with the index of an entry of a list, or a value of the node.
    """

    grid: dict[str, Values] = Field(
        default={}, description="every combination of these values by path, those of the last path fastest"
    )
    zip: list[Annotated[dict[str, Values], Field(min_length=1)]] = Field(
        default=[], description="groups of paths whose values move together; each group is one more axis of the grid"
    )
    points: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        default=[], description="one more axis, whose steps are written out one by one as values by path"
    )


@dataclass(frozen=True)
class Axis:
    """Values that vary together, step by step.

    paths: all that any step gives. steps: values by path. form: the place in the file of a path's value at a step, with
    ``{path}`` and ``{step}`` to be put in. changed: given by an override and not by the file.
    """

    paths: tuple[str, ...]
    steps: Sequence[Mapping[str, object]]
    form: str
    changed: bool = False

    def place(self, path: str, step: int) -> str:
        """Where in the file a value stands."""
        return self.form.format(path=path, step=step)


def _never(place: str) -> bool:
    return False


def axes_of(section: SweepSection, is_changed: Callable[[str], bool] = _never) -> tuple[Axis, ...]:
    """The axes in the order of the file: those of the grid, the zipped groups, the list of points.

    is_changed: whether an override has given what stands at a place of the block.

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
    """How many points the product of the axes has; none where there are no axes."""
    return prod(len(axis.steps) for axis in axes) if axes else 0


def steps_of(axes: Sequence[Axis], point: int) -> tuple[int, ...]:
    """The step on each axis of a point by its number, which counts the last axis fastest.

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
    """Groups whose paths have different numbers of values, no axes at all, and too many points to count."""
    for number, group in enumerate(section.zip):
        if len(set(map(len, group.values()))) > 1:
            text = ", ".join(f"{path} has {len(values)}" for path, values in group.items())
            yield Problem(
                *where(f"sweep.zip[{number}]"), f"its values move together, but {text}", "give as many of each"
            )
    axes = axes_of(section)
    if not axes:
        remedy = "write for example 'grid: {budget: [4 GiB, 6 GiB]}'"
        yield Problem(*where("sweep"), "has neither grid nor zip nor points", remedy)
    elif count_of(axes) > LARGEST:
        yield Problem(*where("sweep"), f"has {count_of(axes)} points, more than can be counted", "give fewer values")
