"""A reproduction on disk, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.io.atomic import atomic_file
from simgpu.report.template import check_page

if TYPE_CHECKING:
    from simgpu.papers.reproduce import Run
    from simgpu.papers.reproduction import Reproduction


def write_page(run: Run, reproduction: Reproduction, path: str | Path) -> Path:
    """Write a reproduction with its figures as one self-contained page, which makes no request.

    run: the run of the reproduction, with figures. The write is atomic; the same results give the same bytes. Returns
    the path. Raises `InputError` where it cannot be written.
    """
    from simgpu.papers.page.figures import figures_of
    from simgpu.papers.page.page import page

    target = Path(path)
    check_target(target)
    text = page(reproduction, figures_of(run))
    with atomic_file(target) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return target


def check_target(path: Path) -> None:
    """Raise `InputError`, before a long run, for a page that could not be written there."""
    check_page(path, "reproduction.html")
