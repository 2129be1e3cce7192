"""A reproduction on disk, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.io.atomic import atomic_file
from simgpu.report.template import check_page

if TYPE_CHECKING:
    from simgpu.papers.outcome import Reproduction
    from simgpu.papers.reproduce import Run


def write_page(run: Run, found: Reproduction, path: str | Path) -> Path:
    """Writes what was found, with its figures, as one page that needs nothing beside it and makes no request.

    run: whose outcome `found` is, with figures. The page appears whole or not at all; the same results give the same
    bytes. Returns where it is. Raises `InputError` where it cannot be written.
    """
    from simgpu.papers.page.figures import figures_of
    from simgpu.papers.page.page import page

    target = Path(path)
    check_target(target)
    text = page(found, figures_of(run))
    with atomic_file(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return target


def check_target(path: Path) -> None:
    """What can be known before a long run: `InputError` for a page that could not be written there."""
    check_page(path, "reproduction.html")
