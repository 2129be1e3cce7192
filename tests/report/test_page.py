"""The page shows the data of the run's result, whatever the names are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from simgpu.analysis.addresses import KIND_COLOURS
from simgpu.analysis.bars import LOOKS, PHASES, WAIT_COPY_IN
from simgpu.cli import main
from simgpu.errors import InputError
from simgpu.experiments.compare import Comparison, compare
from simgpu.experiments.measures import groups
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.report.columns import EXACT, page_data
from simgpu.report.page import SCRIPTS, page, time_bars
from simgpu.report.recorded import Ran, ReportInput, read_run, recorded_from
from simgpu.report.segment_map import segment_maps
from simgpu.report.writing import write_report
from simgpu.timeline.addresses import MemoryRange
from simgpu.timeline.model import Timeline
from simgpu.trace.model import BlockKind, Phase
from tests.report.runs import CHAIN, NASTY, NODE, TIGHT, cached, renamed, small, written
from tests.timeline.hand_made import curve_of


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return small()


@pytest.fixture(scope="module")
def quickstart() -> Comparison:
    return compare(load_scenario("quickstart"))


def timeline_of(ran: Ran) -> Timeline:
    assert ran.timeline is not None
    return ran.timeline


class _Parser(HTMLParser):
    """Elements and texts of a page; scripts and styles are separate from the visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem in self.raw:
            self.raw[str(self.cdata_elem)][-1] += data
        else:
            self.texts.append(data)


def parsed(text: str) -> _Parser:
    parser = _Parser()
    parser.feed(text)
    parser.close()
    return parser


def embedded(text: str) -> dict:
    return json.loads(parsed(text).raw["script"][0])


def test_every_span_is_in_the_data_with_its_stream_time_kind_and_name(quickstart: Comparison) -> None:
    recorded = recorded_from(quickstart)
    data = json.loads(json.dumps(page_data(recorded)))
    ended = [ran for ran in recorded.runs if ran.timeline is not None]
    assert [run["label"] for run in data["runs"]] == ["ideal", "vdnn(mode=conv)", "vdnn"]
    for ran, run in zip(ended, data["runs"], strict=True):
        rows = set()
        for track in run["tracks"]:
            now, iteration = 0, 0
            size = dict(zip(np.cumsum(track["moved"]["at"]).tolist(), track["moved"]["bytes"], strict=True))
            for i, (gap, length) in enumerate(zip(track["gap"], track["length"], strict=True)):
                iteration += track["iteration"][i]
                name, cause = track["name"][i], track["cause"][i]
                row = (iteration, track["gpu"], run["streams"][track["stream"]], data["kinds"][track["kind"][i]])
                row += (data["words"][name] if name >= 0 else "", now + gap, now + gap + length, size.get(i, 0))
                rows.add((*row, run["streams"][cause] if cause >= 0 else ""))
                now += gap + length
        frame = timeline_of(ran).frame()
        assert len(frame) == sum(len(track["gap"]) for track in run["tracks"])
        frame["kind"] = frame["kind"].str.replace("_", " ")
        assert rows == set(frame.itertuples(index=False, name=None))
        assert run["ends"] == list(timeline_of(ran).iteration_ends_ns)


def test_memory_is_in_the_data_to_the_byte(quickstart: Comparison) -> None:
    recorded = recorded_from(quickstart)
    ended = [ran for ran in recorded.runs if ran.timeline is not None]
    for ran, run in zip(ended, page_data(recorded)["runs"], strict=True):
        for message, curve in (
            (run["memory"][0], timeline_of(ran).memory("device")),
            (run["shared"][0], timeline_of(ran).memory("host")),
        ):
            assert np.cumsum(message["time"]).tolist() == curve.time_ns.tolist()
            assert np.cumsum(message["live"]).tolist() == curve.live.tolist()
            assert message["padding"] is None
        assert run["budget"] == ran.entry["budget_bytes"] == 40 * 2**20
        assert run["unlimited"] is (ran.label == "ideal")


def test_a_run_with_pytorchs_allocator_has_reserved_memory_and_a_segment_map() -> None:
    recorded = recorded_from(cached())
    data = page_data(recorded)
    assert data["map_colours"]["activation"] == KIND_COLOURS[BlockKind.ACTIVATION]
    for ran, run in zip(recorded.runs, data["runs"], strict=True):
        curve = timeline_of(ran).memory("device")
        assert curve.reserved is not None
        assert np.cumsum(run["memory"][0]["reserved"]).tolist() == curve.reserved.tolist()
        [drawn] = run["maps"]
        blocks = [each for each in ran.addresses if each.block]
        columns = drawn["blocks"]
        ids = data["tasks"][run["tasks"]]["blocks"]["id"]
        assert [data["words"][ids[block]] for block in columns["block"]] == [each.block for each in blocks]
        assert np.cumsum(columns["start"]).tolist() == [each.start_ns for each in blocks]
        assert columns["length"] == [each.end_ns - each.start_ns for each in blocks]
        assert (columns["low"], columns["bytes"]) == ([e.address for e in blocks], [e.bytes for e in blocks])
        assert drawn["total"] == max(each.address + each.bytes for each in ran.addresses) and drawn["omitted"] == 0
    text = page(recorded, {})
    assert 'id="map-legend"' in text and "CUDA context 300 MiB, in addition to the budget" in text


def test_runs_with_other_pools_have_no_segment_map(quickstart: Comparison) -> None:
    recorded = recorded_from(quickstart)
    data = page_data(recorded)
    assert "map_colours" not in data and not any(
        "maps" in run or "reserved" in run["memory"][0] for run in data["runs"]
    )
    assert 'id="map-legend"' not in page(recorded, {})


def test_of_a_long_run_the_map_has_the_largest_blocks_of_the_last_iteration() -> None:
    """Five blocks of 1 to 5 bytes in each of 100 iterations of 10 ns."""
    segment = MemoryRange(0, "", 0, 100, 0, 1000)
    blocks = [MemoryRange(0, f"b{k}", k, k, 10 * i, 10 * i + 5) for i in range(100) for k in range(1, 6)]
    [drawn] = segment_maps([segment, *blocks], [], (990, 1000), most=7)
    assert np.cumsum(drawn["blocks"]["start"]).tolist() == [0, 10, *[990] * 5]
    assert drawn["blocks"]["bytes"] == [5, 5, 1, 2, 3, 4, 5]
    assert drawn["omitted"] == 493 and drawn["blocks"]["block"] == [-1] * 7


def test_padding_is_shown_separately_from_live_bytes() -> None:
    recorded = recorded_from(compare(CHAIN, NODE, ["none"], alignment=4096, iterations=1))
    [run] = page_data(recorded)["runs"]
    curve = timeline_of(recorded.runs[0]).memory("device")
    assert np.any(curve.used > curve.live)
    assert np.cumsum(run["memory"][0]["padding"]).tolist() == (curve.used - curve.live).tolist()


def test_spans_have_the_same_styles_as_in_the_figures(quickstart: Comparison) -> None:
    recorded = recorded_from(quickstart)
    data = page_data(recorded)
    assert [look["fill"] for look in data["looks"]] == [look.fill for look in LOOKS]
    run = data["runs"][2]
    compute = run["tracks"][0]
    kernels = data["tasks"][run["tasks"]]["kernels"]
    phases = dict(zip(kernels["id"], kernels["phase"], strict=True))
    for kind, look, name, cause in zip(*(compute[key] for key in ("kind", "look", "name", "cause")), strict=True):
        if data["kinds"][kind] == "compute":
            assert LOOKS[look] is PHASES[Phase(data["words"][phases[name]])]
        elif run["streams"][cause] == "h2d":
            assert LOOKS[look] is WAIT_COPY_IN


def test_policies_with_the_same_tasks_share_them(comparison: Comparison) -> None:
    data = page_data(recorded_from(comparison))
    assert len(data["runs"]) == 2
    assert len(data["tasks"]) == 1
    words, tasks = data["words"], data["tasks"][0]
    block = tasks["blocks"]["id"].index(words.index("x2"))
    readers = [
        words[name]
        for name, reads in zip(tasks["kernels"]["id"], tasks["kernels"]["reads"], strict=True)
        if block in reads
    ]
    assert readers == [kernel.id for kernel in CHAIN.kernels if "x2" in kernel.reads]
    assert tasks["blocks"]["bytes"][block] == 200_000


def test_the_table_has_the_lines_of_the_terminal_output() -> None:
    recorded = recorded_from(compare(load_scenario("vgg16-v100"), policies=["ideal", "none", "vdnn"]))
    message = [line for group in groups([ran.entry for ran in recorded.runs]) for line in group.lines]
    done = CliRunner().invoke(main, ["run", "vgg16-v100", "-q", "--set", "policies=[ideal, none, vdnn]"])
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    first = lines.index("ideal none vdnn") + 1
    last = next(number for number, line in enumerate(lines) if line.startswith("energy, power"))
    table = lines[first:last]
    shown = [line for line in table if line and not re.fullmatch(r".*?( -)+", line)]
    simulated = [" ".join(" ".join((line.name, *line.cells)).split()) for line in message]
    assert shown == [line for line in simulated if not re.fullmatch(r".*?( -)+", line)]
    assert len(shown) > 20


def test_bars_add_up_to_the_iteration(quickstart: Comparison) -> None:
    entries = [ran.entry for ran in recorded_from(quickstart).runs]
    bars = time_bars(entries)
    longest = max(entry["metrics"]["iteration_ns"] for entry in entries if "metrics" in entry)
    assert [bar.failure for bar in bars] == ["", "OOM", "", ""]
    for bar, entry in zip(bars, entries, strict=True):
        if not bar.failure:
            share = 100 * entry["metrics"]["iteration_ns"] / longest
            assert sum(part.width for part in bar.parts) == pytest.approx(share, abs=0.001)


def test_the_page_names_the_run_and_the_sources_of_its_numbers(comparison: Comparison) -> None:
    text = " ".join(" ".join(parsed(page(recorded_from(comparison), {})).texts).split())
    for message in (
        "chain on tight",
        "modelled, not recorded, for hand-made",
        "3 iterations, the last one reported",
        "budget 537.1 KiB",
        "allocator without fragmentation",
        "seed 0",
        "mode=all",
        "out of device memory at",
    ):
        assert message in text


def test_a_run_out_of_memory_has_a_reason_and_no_timeline() -> None:
    parser = parsed(page(recorded_from(compare(CHAIN, TIGHT, ["none"])), {}))
    assert not [attributes for tag, attributes in parser.tags if tag == "canvas" or attributes.get("role") == "tab"]
    text = " ".join(parser.texts)
    assert "out of device memory at" in text
    assert "Where the time went" not in text


def _files(package: str) -> set[str]:
    return {file.name for file in (files(package) / "resources").iterdir()}


def test_a_page_loads_no_external_resources(comparison: Comparison) -> None:
    text = page(recorded_from(comparison), {"ideal": "a.json", "vdnn": "b.json"})
    parser = parsed(text)
    addresses = [
        value for _, attributes in parser.tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert addresses == ["data:,", "a.json", "b.json"]
    assert not re.search(
        r"url\(|@import|fetch\(|XMLHttpRequest|import\(", "".join(parser.raw["style"] + parser.raw["script"])
    )
    policy = next(a["content"] for tag, a in parser.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert (
        set(SCRIPTS) == {file.name for file in Path("simgpu/report/resources").glob("*.js")}
        or not Path("simgpu").is_dir()
    )


def test_names_are_escaped_everywhere() -> None:
    name = NASTY.replace(" ", "")
    trace = renamed(CHAIN, "x2", name)
    about = {"simgpu": "0", "scenario": NASTY, "description": NASTY}
    text = page(recorded_from(compare(trace, NODE, ["vdnn"]), about), {"vdnn": f"{NASTY}.json"})
    harmless = page(
        recorded_from(compare(CHAIN, NODE, ["vdnn"]), {**about, "scenario": "a", "description": "b"}), {"vdnn": "c"}
    )
    parser, other = parsed(text), parsed(harmless)
    assert [tag for tag, _ in parser.tags] == [tag for tag, _ in other.tags]
    assert name in embedded(text)["words"]
    assert NASTY in "".join(parser.texts)
    assert "<" not in parser.raw["script"][0]


def test_the_page_of_a_folder_equals_the_page_of_its_comparison(quickstart: Comparison, tmp_path: Path) -> None:
    folder = written(quickstart, tmp_path / "run", formats=("csv", "perfetto"))
    about = {"simgpu": "0", "scenario": "small"}
    from_folder, from_memory = page(read_run(folder), {}), page(recorded_from(quickstart, about), {})
    # Streams that did nothing are in no table; nothing else differs.
    simulated, expected = embedded(from_folder), embedded(from_memory)
    for data in (simulated, expected):
        for run in data["runs"]:
            for track in run["tracks"]:
                track["cause"] = [run["streams"][cause] if cause >= 0 else "" for cause in track["cause"]]
                track["stream"] = run["streams"][track["stream"]]
            del run["streams"]
    for data in (simulated, expected):
        words = data.pop("words")
        for run in data["runs"]:
            for track in run["tracks"]:
                track["name"] = [words[name] if name >= 0 else "" for name in track["name"]]
        for tasks in data["tasks"]:
            for table in tasks.values():
                for key in set(table) & {"id", "op", "layer", "phase", "kind"}:
                    table[key] = [words[number] for number in table[key]]
    assert simulated == expected
    assert parsed(from_folder).texts == parsed(from_memory).texts


def test_the_same_run_gives_the_same_page_and_perfetto_files(comparison: Comparison, tmp_path: Path) -> None:
    folder = written(comparison, tmp_path / "run", formats=("csv", "perfetto"))
    page_path, *perfetto_files = write_report(folder, tmp_path / "my page.html")
    assert [file.name for file in perfetto_files] == ["my page.ideal.perfetto.json", "my page.vdnn.perfetto.json"]
    assert all(file.name.replace(" ", "%20") in page_path.read_text(encoding="utf-8") for file in perfetto_files)
    assert perfetto_files[1].read_bytes() == (folder / "vdnn" / "timeline.perfetto.json").read_bytes()
    again, *_ = write_report(folder, tmp_path / "again.html")
    first, second = (path.read_text(encoding="utf-8") for path in (page_path, again))
    assert first.replace("my%20page", "again").replace("my page", "again") == second
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(
        [
            "run",
            "my page.html",
            "again.html",
            "again.ideal.perfetto.json",
            "again.vdnn.perfetto.json",
            *(b.name for b in perfetto_files),
        ]
    )


def test_the_quickstart_page_is_small(quickstart: Comparison) -> None:
    """Three policies, three iterations of 113 kernels each: no larger than one of the figures."""
    assert len(page(recorded_from(quickstart), {})) < 260_000


def test_numbers_that_a_browser_cannot_represent_are_refused(comparison: Comparison) -> None:
    recorded = recorded_from(comparison)
    ran = recorded.runs[0]
    timeline = timeline_of(ran)

    def with_memory(size: int) -> ReportInput:
        changed = replace(timeline, memories=(curve_of([(0, size, size)]),))
        return ReportInput(recorded.document, (replace(ran, timeline=changed),))

    assert page_data(with_memory(EXACT))["runs"][0]["memory"][0]["live"] == [2**53]
    with pytest.raises(InputError, match=r"ideal: time or size 9007199254740993 exceeds 2\*\*53"):
        page_data(with_memory(EXACT + 1))


@pytest.mark.parametrize(("key", "value"), [("steady", 7.5), ("metrics", {"iteration_ns": "long"}), ("notes", 3)])
def test_impossible_numbers_are_reported_with_their_file(tmp_path: Path, key: str, value: object) -> None:
    folder = written(small(), tmp_path / "run")
    report = json.loads((folder / "report.json").read_text())
    for entry in report["results"]:
        if "metrics" in entry:
            entry[key] = value
    (folder / "report.json").write_text(json.dumps(report))
    with pytest.raises(InputError, match=r"report\.json"):
        write_report(folder, tmp_path / "page.html")


def test_a_page_cannot_overwrite_the_data_of_a_run(tmp_path: Path) -> None:
    folder = written(small(), tmp_path / "run")
    with pytest.raises(InputError, match=r"does not end in \.html or \.htm"):
        write_report(folder, folder / "report.json")
