"""``KEY=VALUE`` and sizes as options take them.

Lives here: reading them. Does not live here: which keys there are.
"""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.units import parse_bytes


def parse_settings(settings: tuple[str, ...], of: str = "override", example: str = "--set seed=1") -> dict[str, object]:
    """``KEY=VALUE`` texts as values by key, each value read as YAML reads it.

    of, example: what they are, and one of them, for the `InputError` that tells a text of another form.

    >>> parse_settings(("iterations=5", "node.gpu.memory=8 GiB"))
    {'iterations': 5, 'node.gpu.memory': '8 GiB'}
    """
    import yaml

    values: dict[str, object] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise InputError.single(of, "", f"{setting!r} is not KEY=VALUE", f"write for example {example}")
        try:
            values[key.strip()] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            values[key.strip()] = text
    return values


def parse_size(text: str, option: str) -> int:
    """Bytes of a size such as ``8 GiB``; `InputError` naming the option for anything else.

    >>> parse_size("8 GiB", "--workspace-limit")
    8589934592
    """
    from simgpu.validation import Quantity

    try:
        return Quantity(parse_bytes, "size", "8 GiB", zero=True).read(text)
    except ValueError as error:
        raise InputError.single("", option, str(error)) from None
