"""Converts matplotlib figures to SVG elements of a page (`inline_svg`). Loads matplotlib."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib import rc_context
from matplotlib.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METADATA: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
_STYLE = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_BLANK = re.compile(r"\s*\n\s*")
_HEAD = re.compile(r"<svg\b[^>]*>")
_SIZE = re.compile(r'(width|height)="([0-9.]+)pt"')
_PATTERN = re.compile(r'<pattern id="(h[0-9a-f]+)".*?</pattern>', re.DOTALL)
#: All ids except those of patterns.
_ID = re.compile(r'(\bid="|\bhref="#|url\(#(?!h[0-9a-f]+\)))')
_FONT = re.compile(r"font-family: ([^;\"]*);? ?")
#: Colours that are replaced by the page's, so that figures follow its dark mode and runs stay visible in it.
_PAGES = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--page)",
    "#333333": "var(--ink)",
    "#222222": "var(--dark-run)",
    "#2b4c7e": "var(--dark-part)",
    "#666666": "var(--soft)",
    "#777777": "var(--soft)",
    "#dddddd": "var(--grid)",
    "#bbbbbb": "var(--grid)",
}
_COLOUR = re.compile("|".join(_PAGES))
_PIXELS_PER_POINT = 96 / 72


class Inline(NamedTuple):
    """A figure as an SVG element.

    text: the element.
    patterns: its hatching patterns by id, which the page must contain once.
    """

    text: str
    patterns: dict[str, str]


def inline_svg(figure: Figure, prefix: str) -> Inline:
    """A figure in the page's colours and font. prefix: makes its ids unique in the page.

    Halos of texts are removed, since matplotlib would write these texts as outlines; each such text gets a group whose
    id ends in ``halo`` and a number. The same figure gives the same text.

    >>> from matplotlib.figure import Figure
    >>> text, patterns = inline_svg(Figure(figsize=(3, 2)), "a-")
    >>> text.startswith('<svg '), 'width="288"' in text, 'id="a-figure_1"' in text, "#ffffff" in text, patterns
    (True, True, True, False, {})
    """
    for number, label in enumerate(figure.findobj(Text)):
        if label.get_path_effects():
            label.set_path_effects([])
            label.set_gid(f"halo{number}")
    written = StringIO()
    # Texts stay searchable texts instead of outlines; the salt makes ids the same in every run.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "simgpu"}):
        figure.savefig(written, format="svg", metadata=_METADATA, transparent=True)
    text = _COMMENT.sub("", written.getvalue())
    text = _STYLE.sub("", text[text.index("<svg ") :].rstrip(), count=1)
    text = _FONT.sub("", _BLANK.sub("\n", text))
    text = _COLOUR.sub(lambda match: _PAGES[match[0]], text)
    patterns = {match[1]: match[0] for match in _PATTERN.finditer(text)}
    text = _PATTERN.sub("", text)
    text = _HEAD.sub(lambda head: _SIZE.sub(_pixels, head[0]).replace("<svg ", '<svg role="img" ', 1), text, count=1)
    return Inline(_ID.sub(lambda match: match[1] + prefix, text), patterns)


def _pixels(size: re.Match[str]) -> str:
    return f'{size[1]}="{float(size[2]) * _PIXELS_PER_POINT:.0f}"'
