"""A page with everything inside: its template filled, with its style and its script.

Nothing of a page comes from elsewhere: its policy (Content-Security-Policy) forbids every request, and allows the one
script by its hash. Whatever a user may have named is text: templates escape.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from simgpu.errors import InputError

_BASE = files("simgpu.report") / "base.css"


def filled(template: str, *, style: str, script: str, **values: Any) -> str:
    """A template as HTML: with the values, and with `style`, `script` and `policy`, as they are.

    style: rules beyond those that all pages have.

    >>> filled("<p>{{ told }}</p><script>{{ script }}</script>", style="", script="f('<')", told="<b>")
    "<p>&lt;b&gt;</p><script>f('<')</script>"
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:"
    style_sheet = _BASE.read_text(encoding="utf-8") + style
    return environment.from_string(template).render(
        **values, style=Markup(style_sheet), script=Markup(script), policy=Markup(policy)
    )


def in_one_function(modules: Iterable[str]) -> str:
    """Scripts that share names with each other, and with nothing else."""
    return '(() => {\n"use strict";\n' + "\n".join(modules) + "\n})();\n"


def check_page(path: Path, name: str) -> None:
    """What can be known before a long run: `InputError` for a page that could not be written there.

    name: of such a page, for the remedy.
    """
    if path.is_dir():
        raise InputError.single(path, "", "is a folder", f"name the page, for example {path / name}")
    if path.suffix.lower() not in (".html", ".htm"):
        # Whoever names the data of a run by mistake would lose them.
        raise InputError.single(path, "", "is no name of a page", f"end it in .html, for example {path.stem}.html")
    if not path.absolute().parent.is_dir():
        what = f"cannot be written: {path.absolute().parent} is not a folder"
        raise InputError.single(path, "", what, "make that folder, or choose another place")
