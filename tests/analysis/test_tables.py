"""The comparison of policies fits a terminal."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Column, Table

from simgpu.analysis.metrics import measure
from simgpu.analysis.tables import COMPARISON_HEADINGS, breakdown_table, comparison_rows
from simgpu.hardware.spec import MemoryLink
from tests.timeline.hand_made import layered_run


def test_one_row_per_policy_with_rounded_numbers() -> None:
    link = MemoryLink(("device", "host"), "pcie", (12 * 10**9, 12 * 10**9))
    metrics = measure(layered_run(), batch=64, ideal_ns=2_746_000_000, links=[link])
    rows = comparison_rows([("vdnn all", metrics, ""), ("none", None, "out of memory")])
    assert rows[0] == ("vdnn all", "2.87 s", "22.3", "1.045x", "4.3%", "14.1 GiB", "1.264 GiB", "")
    assert rows[1] == ("none", "-", "-", "-", "-", "-", "-", "out of memory")


def test_names_and_numbers_fit_in_eighty_columns() -> None:
    link = MemoryLink(("device", "host"), "pcie", (12 * 10**9, 12 * 10**9))
    metrics = measure(layered_run(), batch=64, ideal_ns=200_000_000, links=[link])
    headings = COMPARISON_HEADINGS[:-1]  # the terminal shows notes below the table
    table = Table(*(Column(heading, no_wrap=heading != "policy") for heading in headings))
    table.box, table.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    rows = comparison_rows([("vdnn dynamic", metrics, "unsteady"), ("none", None, "OOM")])
    for row in rows:
        table.add_row(*row[:-1])
    screen = io.StringIO()
    Console(file=screen, width=80).print(table)
    assert max(map(len, screen.getvalue().splitlines())) <= 80
    assert all(text in screen.getvalue() for text in (*headings, *rows[0][:-1]))


def test_a_breakdown_row_is_the_step_time_and_its_shares() -> None:
    parts = {"computation": 500_000, "overlap": 250_000, "swapping": 250_000, "recomputation": 0, "codec": 0}
    headings, rows = breakdown_table([("vdnn", parts, ""), ("none", None, "OOM"), ("nothing", {}, "")])
    assert headings == ("", "step time", "computation", "overlap", "swapping", "recomputation")
    assert rows == [
        ("vdnn", "1 ms", "50.0%", "25.0%", "25.0%", "0.0%"),
        ("none", "OOM", "-", "-", "-", "-"),
        ("nothing", "0 ns", "0.0%", "0.0%", "0.0%", "0.0%"),
    ]


def test_codecs_and_other_waits_have_a_column_only_if_a_run_has_them() -> None:
    headings, rows = breakdown_table([("a", {"computation": 3, "codec": 1}, ""), ("b", {"other": 2}, "")])
    assert headings[-2:] == ("codec", "other")
    assert [row[-2:] for row in rows] == [("25.0%", "0.0%"), ("0.0%", "100.0%")]
