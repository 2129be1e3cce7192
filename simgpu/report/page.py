"""The page: the template filled, with its style, scripts and data inside.

Whatever a user may have named is text: the template escapes, and in the data no ``<`` remains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from simgpu.experiments.measures import groups
from simgpu.report.columns import page_data
from simgpu.report.header import facts, policies
from simgpu.report.recorded import Recorded
from simgpu.report.template import filled, in_one_function
from simgpu.report.time_bars import shown_looks, time_bars

#: In this order within one function: each may use what stands before it.
SCRIPTS = (
    "columns.js",
    "words.js",
    "looks.js",
    "view.js",
    "layout.js",
    "axis.js",
    "spans.js",
    "memory.js",
    "facts.js",
    "search.js",
    "marks.js",
    "details.js",
    "stage.js",
    "pointer.js",
    "keys.js",
    "main.js",
)
_RESOURCES = files("simgpu.report") / "resources"


def page(recorded: Recorded, perfetto: Mapping[str, str]) -> str:
    """The page as HTML. perfetto: the file of each policy's timeline for ui.perfetto.dev, by the policy's file name.

    Raises `InputError` for what `simgpu.report.columns.page_data` refuses. The same run gives the same text.
    """
    from markupsafe import Markup

    entries = [ran.entry for ran in recorded.runs]
    bars = time_bars(entries)
    return filled(
        _resource("page.html.j2"),
        style=_resource("style.css"),
        script=in_one_function(map(_resource, SCRIPTS)),
        title=recorded.title,
        origin=recorded.info.origin.value,
        provenance=recorded.info.provenance,
        facts=facts(recorded),
        policies=policies(recorded),
        groups=groups(entries),
        bars=bars,
        looks=shown_looks(bars),
        shown=[ran for ran in recorded.runs if ran.timeline is not None],
        perfetto=perfetto,
        data=Markup(_embedded(page_data(recorded))),
    )


def _embedded(data: Any) -> str:
    """JSON that ends no script element and opens no comment, whatever its texts hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@lru_cache
def _resource(name: str) -> str:
    return (_RESOURCES / name).read_text(encoding="utf-8")
