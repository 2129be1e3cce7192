"""A reproduction on disk, as one page.

Lives here: `write_page`. Does not live here: what the page shows (`simgpu.reproduction.page.page`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.webpage.page import check_page
from simgpu.whole import whole_file

if TYPE_CHECKING:
    from simgpu.reproduction.outcome import Reproduction
    from simgpu.reproduction.reproduce import Run


def write_page(run: Run, found: Reproduction, path: str | Path) -> Path:
    """Writes what was found, with its figures, as one page that needs nothing beside it and makes no request.

    run: whose outcome `found` is, with figures. The page appears whole or not at all; the same results give the same
    bytes. Returns where it is. Raises `InputError` where it cannot be written.
    """
    from simgpu.reproduction.page.figures import figures_of
    from simgpu.reproduction.page.page import page

    target = Path(path)
    check_target(target)
    text = page(found, figures_of(run))
    with whole_file(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return target


def check_target(path: Path) -> None:
    """What can be known before a long run: `InputError` for a page that could not be written there."""
    check_page(path, "reproduction.html")
