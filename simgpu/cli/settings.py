"""Parsers of ``KEY=VALUE`` settings, sizes and epochs in options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from simgpu.errors import InputError
from simgpu.units import parse_bytes


def parse_settings(settings: tuple[str, ...], of: str = "override", example: str = "--set seed=1") -> dict[str, object]:
    """Parses ``KEY=VALUE`` texts into values by key; the values are parsed as YAML.

    of, example: name of the setting and an example, for the `InputError` raised for a text of another form.

    >>> parse_settings(("iterations=5", "node.gpu.memory=8 GiB"))
    {'iterations': 5, 'node.gpu.memory': '8 GiB'}
    """
    from simgpu.io.yaml_files import yaml_value

    values: dict[str, object] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise InputError.single(of, "", f"{setting!r} is not KEY=VALUE", f"write, for example, {example}")
        try:
            values[key.strip()] = yaml_value(text)
        except InputError as error:
            raise InputError(replace(each, file=of, place=key.strip()) for each in error.problems) from None
        except ValueError:
            if text.lstrip().startswith(("[", "{")):
                what = f"{text!r} is not YAML: a bracket or a quote is missing"
                raise InputError.single(of, key.strip(), what, f"write, for example, {key.strip()}=[1, 2]") from None
            values[key.strip()] = text
    return values


def option_of(argument: str) -> str:
    """The option of an argument.

    >>> option_of("sample_size")
    '--sample-size'
    """
    return f"--{argument.replace('_', '-')}"


@contextmanager
def arguments_as_options(names: Iterable[str]) -> Iterator[None]:
    """Inside, problems of an argument with one of these names are raised as those of its option."""
    known = frozenset(names)
    try:
        yield
    except InputError as error:
        problems = []
        for each in error.problems:
            name = each.place.removeprefix("argument ")
            problems.append(replace(each, place=option_of(name)) if not each.file and name in known else each)
        raise InputError(problems) from None


def parse_size(text: str, option: str) -> int:
    """Parses a size such as ``8 GiB`` into bytes. Raises `InputError` that names the option otherwise.

    >>> parse_size("8 GiB", "--workspace-limit")
    8589934592
    """
    from simgpu.io.schema import Quantity

    try:
        return Quantity(parse_bytes, "size", "8 GiB", zero=True).read(text)
    except ValueError as error:
        raise InputError.single("", option, str(error)) from None


def parse_budget(text: str, option: str) -> int | str:
    """Parses a size into bytes; a percentage stays text. Raises `InputError` that names the option otherwise.

    >>> parse_budget("8 GiB", "--budget"), parse_budget("50%", "--budget")
    (8589934592, '50%')
    """
    from simgpu.io.schema import BudgetEntry

    try:
        return BudgetEntry(zero=True).read(text)
    except ValueError as error:
        raise InputError.single("", option, str(error)) from None


def parse_epochs(text: str) -> tuple[int, ...]:
    """Parses epochs and ranges of epochs into ascending numbers. Raises `InputError` for other text.

    >>> parse_epochs("0,10,20-22")
    (0, 10, 20, 21, 22)
    """
    result: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not (_is_epoch(first) and (_is_epoch(last) if dash else not last)) or (dash and int(last) < int(first)):
            what = f"{part.strip()[:60]!r} is neither an epoch nor a range of epochs"
            raise InputError.single("", "--epochs", what, "write, for example, 0,10,20-30, up to epoch 99999")
        result.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(result))


def _is_epoch(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5
