"""Stored timings: round trips, reproducible bytes, and refusal of damaged files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.experiments.regression.store import read_events, read_timings, write_events, write_timings
from simgpu.experiments.regression.timings import timings_of
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.timeline.model import Span, SpanKind
from tests.experiments.regression.examples import example_timings, node

KINDS = [
    *((kind, "") for kind in SpanKind if kind not in (SpanKind.COPY, SpanKind.STALL_MEMORY)),
    *((SpanKind.COPY, engine) for engine in ("d2h", "h2d", "host2ssd")),
    *((SpanKind.STALL_MEMORY, memory) for memory in ("device", "host", "ssd")),
]
SPANS = st.builds(
    lambda kind, **fields: Span(kind=kind[0], resource=kind[1], **fields),
    gpu=st.integers(0, 3),
    stream=st.sampled_from(["compute", "compute1", "d2h", "h2d", "host", "gpu1.data"]),
    kind=st.sampled_from(KINDS),
    name=st.text(st.characters(exclude_categories=["C", "Z"])),  # ids of a trace are printable, without spaces
    start_ns=st.integers(0, 2**62),
    end_ns=st.integers(0, 2**62),
    bytes=st.integers(0, 2**62),
    cause=st.sampled_from(["", "d2h"]),
    iteration=st.integers(0, 9),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with timings of completed policies and one out of memory."""
    write_timings(example_timings(on=node(memory=550_000)), tmp_path / "example_timings")
    return tmp_path / "example_timings"


@given(st.lists(SPANS, max_size=8))
def test_timelines_round_trip(tmp_path_factory: pytest.TempPathFactory, spans: list[Span]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv.gz"
    write_events(spans, path)
    assert read_events(path) == tuple(spans)


def test_timings_round_trip(folder: Path) -> None:
    assert read_timings(folder) == example_timings(on=node(memory=550_000))
    assert {path.name for path in folder.iterdir()} == {"timings.json", "ideal.csv.gz", "vdnn.csv.gz"}


def test_timings_of_several_gpus_with_energy_round_trip(tmp_path: Path) -> None:
    changes = {"node": "k40-x4", "overrides": {}, "data_parallel.gpus": 4, "policies": "none", "iterations": 1}
    several = timings_of(load_scenario("quickstart", changes), overrides=changes)
    write_timings(several, tmp_path / "example_timings")
    assert read_timings(tmp_path / "example_timings") == several
    assert several["none"].settings["gpus"] == 4
    assert {event.gpu for event in several["none"].events} == {0, 1, 2, 3}


def test_the_same_timings_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_timings(read_timings(folder), tmp_path / "again")
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
        if path.suffix == ".gz":
            assert path.read_bytes()[3:8] == bytes(5)  # no name, no time


def test_repeated_iterations_are_the_same_text(folder: Path) -> None:
    rows = gzip.decompress((folder / "ideal.csv.gz").read_bytes()).decode().splitlines()[1:]
    of_iteration = [[row.partition(",")[2] for row in rows if row.startswith(f"{number},")] for number in range(3)]
    assert of_iteration[1] == of_iteration[2]
    assert len(of_iteration[1]) == 6


def test_files_of_removed_policies_are_deleted_and_foreign_files_are_refused(folder: Path) -> None:
    write_timings(example_timings(policies=["none"]), folder)
    assert {path.name for path in folder.iterdir()} == {"timings.json", "none.csv.gz"}
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"a file that does not belong to stored timings: notes\.txt"):
        write_timings(example_timings(), folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert read_timings(folder).labels == ("none",)


def test_a_foreign_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "timings.json").write_text('{"schema": "other/1"}')
    with pytest.raises(InputError, match="files that are not timings stored by simgpu"):
        write_timings(example_timings(), tmp_path)


def _changed(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / "timings.json").read_text())
        change(document)
        (folder / "timings.json").write_text(json.dumps(document))

    return apply


def _rows(change: Callable[[str], str]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        path = folder / "ideal.csv.gz"
        path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()).decode()).encode()))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "timings.json").unlink(), "timings.json: no such file"),
        (lambda folder: (folder / "timings.json").write_text("<<<<<<< HEAD"), "timings.json: line 1: is not JSON"),
        (lambda folder: (folder / "timings.json").write_text("[]"), "timings.json: is not a mapping"),
        (_changed(lambda result: result.update(schema="simgpu.timings/3")), "schema: 'simgpu.timings/3' is not one"),
        (_changed(lambda result: result.update(policies=[])), "policies: [] is too short"),
        (
            _changed(lambda result: result["policies"].append(result["policies"][0])),
            "policies: two have the label 'ideal'",
        ),
        (_changed(lambda result: result["policies"][0]["values"].update(slowdown=nan)), "NaN is no finite number"),
        (
            lambda folder: (folder / "timings.json").write_text('{"schema": 1e999}'),
            "timings.json: is not JSON: 1e999 is no finite number",
        ),
        (_changed(lambda result: result.update(more=1)), "more: unknown key"),
        (_changed(lambda result: result["policies"][0].update(timeline="../x.csv.gz")), "policies[0].timeline: '../x"),  # type: ignore[index]
        (_changed(lambda result: result["policies"][0].update(outcome="fell")), "policies[0].outcome: 'fell'"),  # type: ignore[index]
        (lambda folder: (folder / "ideal.csv.gz").unlink(), "ideal.csv.gz: no such file"),
        (lambda folder: (folder / "ideal.csv.gz").write_bytes(b"no gzip"), "ideal.csv.gz: the gzip file is damaged"),
        (
            lambda folder: (folder / "ideal.csv.gz").write_bytes((folder / "ideal.csv.gz").read_bytes()[:90]),
            "ideal.csv.gz: the gzip file is cut off; restore it from version control",
        ),
        (_rows(lambda text: ""), "ideal.csv.gz: is empty"),
        (_rows(lambda text: "a,b\n"), "ideal.csv.gz: row 1: does not have the columns"),
        (_rows(lambda text: text.replace("F2", "F2,")), "ideal.csv.gz: row 3: '0,0,compute,compute,F2,"),
        (_rows(lambda text: text.replace(",compute,F1", ",computing,F1")), "row 2: "),
        (_rows(lambda text: text.replace("compute,compute,F1", "Stream?,compute,F1")), "row 2: "),
        (_rows(lambda text: text.replace("5000", "5000.0")), "row 2: "),
    ],
)
def test_damage_is_reported_with_its_place(damage: Callable[[Path], object], message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(InputError) as caught:
        read_timings(folder)
    assert message in str(caught.value)


def test_the_version_that_wrote_timings_does_not_matter(folder: Path) -> None:
    other = replace(read_timings(folder), version="99")
    write_timings(other, folder)
    assert read_timings(folder).version == "99"
