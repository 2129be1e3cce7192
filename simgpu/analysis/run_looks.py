"""How runs look in pictures that put them side by side: colour, marker, dashes and hatching, the same everywhere.

Loads matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

#: Paul Tol's bright palette and a dark one, each with a marker of its own, for readers who see no colours.
_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#222222", "#994455")
_MARKERS = ("o", "s", "^", "D", "v", "P", "h", "*")
_DASHES = ("-", "--", ":")
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "||||")
#: Colours on which white hatching is not seen.
_LIGHT = ("#CCBB44", "#66CCEE")


class RunLook(NamedTuple):
    """Of one run: its line, its marker, and how its bars are hatched."""

    colour: str
    marker: str
    dash: str
    hatch: str
    width: float
    size: float

    @property
    def line(self) -> dict[str, Any]:
        """For `Axes.plot`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dash,
            "linewidth": self.width,
            "markersize": self.size,
        }

    @property
    def bar(self) -> dict[str, Any]:
        """For `Axes.bar` and `Patch`: without lines around, which would be as strong as the hatching."""
        ink = "#333333" if self.colour in _LIGHT else "white"
        return {"facecolor": self.colour, "hatch": self.hatch or None, "edgecolor": ink, "linewidth": 0}


def run_looks(labels: Iterable[str]) -> dict[str, RunLook]:
    """A look for each run; the first are drawn thickest, to show under later ones. Up to 24 differ in their lines, and
    up to 64 in their bars.

    >>> looks = run_looks(["none", "vDNN"])
    >>> looks["vDNN"].marker, looks["vDNN"].hatch
    ('s', '////')
    """
    every = tuple(dict.fromkeys(labels))
    found = {}
    for number, label in enumerate(every):
        turn, place = divmod(number, len(_COLOURS))
        thinner = number / max(len(every) - 1, 1)
        found[label] = RunLook(
            _COLOURS[place],
            _MARKERS[place],
            _DASHES[turn % len(_DASHES)],
            _HATCHES[(place + turn) % len(_HATCHES)],
            2.8 - 1.5 * thinner,
            7.5 - 3.5 * thinner,
        )
    return found


def head(
    figure: Figure, title: str, handles: Sequence[Artist | tuple[Line2D | Patch, ...]], texts: Sequence[str]
) -> None:
    """The title above all panels, to the left, and one legend for all of them in the right margin.

    handles, texts: the entries of the legend; several handles of one entry stand beside each other.
    """
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.legend(
        # matplotlib's types know no tuples, which its handlers take.
        cast("Sequence[Artist]", handles),
        texts,
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        handlelength=2.2,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)},
    )
