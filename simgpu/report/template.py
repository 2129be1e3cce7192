"""Self-contained HTML pages: a template filled with its values, style and script.

The Content-Security-Policy of a page forbids all requests, and allows its one script by hash. Templates escape values.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from simgpu.errors import InputError


def resource(package: str, name: str) -> str:
    """The text of a file in the folder ``resources`` of a package.

    >>> "--accent" in resource("simgpu.report", "base.css")
    True
    """
    return (files(package) / "resources" / name).read_text(encoding="utf-8")


def filled(template: str, *, style: str, script: str, **values: Any) -> str:
    """Renders a template with escaped values, and with unescaped `style`, `script` and `policy`.

    style: rules in addition to those of all pages.

    >>> filled("<p>{{ text }}</p><script>{{ script }}</script>", style="", script="f('<')", text="<b>")
    "<p>&lt;b&gt;</p><script>f('<')</script>"
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:"
    style_sheet = resource("simgpu.report", "base.css") + style
    return environment.from_string(template).render(
        **values, style=Markup(style_sheet), script=Markup(script), policy=Markup(policy)
    )


def in_one_function(modules: Iterable[str]) -> str:
    """Wraps scripts in one function, so that only they share names."""
    return '(() => {\n"use strict";\n' + "\n".join(modules) + "\n})();\n"


def check_page(path: Path, name: str) -> None:
    """Checks before a long run that a page can be written; raises `InputError` otherwise.

    name: example file name for the error message.
    """
    if path.is_dir():
        raise InputError.single(path, "", "is a folder", f"give the path of a file, for example {path / name}")
    if path.suffix.lower() not in (".html", ".htm"):
        # Do not overwrite other files, such as the data of a run.
        remedy = f"use a name that ends in .html, for example {path.stem}.html"
        raise InputError.single(path, "", "does not end in .html or .htm", remedy)
    if not path.absolute().parent.is_dir():
        what = f"cannot be written: {path.absolute().parent} is not a folder"
        raise InputError.single(path, "", what, "create that folder, or choose another")
