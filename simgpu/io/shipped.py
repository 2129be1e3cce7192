"""Finds the node configurations, traces and scenarios that ship with simgpu by name, and others by path.

An installed wheel has them inside the package; a checkout, or an editable install, at the repository's top level.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from simgpu.errors import InputError, did_you_mean

Kind = Literal["configs", "traces", "scenarios"]

#: What one thing of each kind is called, and the file that makes a folder one of them (None: it is a YAML file).
_WORDS: dict[Kind, tuple[str, str | None]] = {
    "configs": ("node", None),
    "traces": ("trace", "trace.yaml"),
    "scenarios": ("scenario or study", None),
}
_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_folder(kind: Kind) -> Path:
    """The folder that holds what ships of this kind."""
    installed = _PACKAGE / "_shipped" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def shipped_names(kind: Kind) -> tuple[str, ...]:
    """The names of what ships of this kind, sorted.

    >>> "v100" in shipped_names("configs")
    True
    """
    folder, (_, marker) = shipped_folder(kind), _WORDS[kind]
    if marker is not None:
        return tuple(sorted(result.parent.name for result in folder.glob(f"*/{marker}")))
    return tuple(sorted(result.stem for result in folder.glob("*.yaml")))


def find(kind: Kind, name_or_path: str | Path, base: Path | None = None) -> Path:
    """The file or folder that a shipped name or a path means.

    A bare word is a shipped name first and a path second; anything with a folder in it, or ending in ``.yaml``, is
    a path. A relative path starts at `base`, or at the current folder.

    Raises `InputError` when there is no such thing.

    >>> find("configs", "v100").name
    'v100.yaml'
    >>> find("configs", "v10")
    Traceback (most recent call last):
    simgpu.errors.InputError: no shipped node is called 'v10'; did you mean 'v100'? ...
    """
    text, (word, marker) = str(name_or_path), _WORDS[kind]
    names = shipped_names(kind)
    if text in names:
        return shipped_folder(kind) / (text if marker is not None else f"{text}.yaml")
    path = (base or Path()) / Path(text).expanduser()
    if path.exists() and text:
        return path
    if isinstance(name_or_path, Path) or Path(text).name != text or text.endswith((".yaml", ".yml")):
        what = "folder" if marker is not None else "file"
        raise InputError.single(
            path, "", f"no such {what}", f"give a path that exists, or the name of a shipped {word}"
        )
    raise InputError.single(
        "", "", f"no shipped {word} is called {text!r}", f"{did_you_mean(text, names)}; or give a path to one"
    )
