"""The page in a real browser: drawing, panning, tooltips and search, without errors or network requests.

One headless Chromium serves all tests of this file; each reopens the page.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from simgpu.experiments.compare import Comparison, compare
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.report.recorded import recorded_from
from simgpu.report.writing import write_recorded, write_report
from simgpu.simulation.addresses import address_ranges
from simgpu.timeline.model import Timeline
from simgpu.units import format_time
from tests.report.runs import CHAIN, NASTY, NODE, cached, huge, renamed

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "Chromium and its driver are not installed: apt-get install chromium chromium-driver (Debian)"
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)
#: On each of two streams.
SPANS = 50_000
#: The run of quickstart that is looked at.
LABEL = "vdnn"


@pytest.fixture(scope="module")
def quickstart() -> Comparison:
    return compare(load_scenario("quickstart"))


@pytest.fixture(scope="module")
def timeline(quickstart: Comparison) -> Timeline:
    return quickstart.results[LABEL].timeline


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def page(quickstart: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(quickstart, tmp_path_factory.mktemp("page") / "report.html")[0]


@pytest.fixture
def at(browser: Chrome) -> Iterator[Callable[..., Chrome]]:
    """Opens a page, and checks at the end that the browser logged no error and made no request."""

    def open_page(path: Path, *, tab: str = "", width: int = 1280, dark: bool = False) -> Chrome:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get(path.as_uri())
        if tab:
            next(each for each in browser.find_elements("css selector", "[role=tab]") if each.text == tab).click()
        return browser

    yield open_page
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    for entry in browser.get_log("performance"):  # type: ignore[no-untyped-call]
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent" and event["params"]["documentURL"].startswith("file:"):
            assert event["params"]["request"]["url"].startswith(("file:", "data:"))


def run(browser: Chrome, script: str, *arguments: object) -> Any:
    return browser.execute_script(script, *arguments)  # type: ignore[no-untyped-call]


def seen(browser: Chrome) -> tuple[float, float]:
    """The painted time interval after the next frame, ns."""
    wait = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    browser.execute_async_script(wait)  # type: ignore[no-untyped-call]
    start, end = run(browser, "const d = document.getElementById('stage').dataset; return [d.start, d.end]")
    return float(start), float(end)


def wheel(browser: Chrome, delta: int, x: int = 600, y: int = 30) -> None:
    run(
        browser,
        """const c = document.getElementById("picture"), b = c.getBoundingClientRect();
        c.dispatchEvent(new WheelEvent("wheel",
            {clientX: b.left + arguments[1], clientY: b.top + arguments[2], deltaY: arguments[0],
            cancelable: true}))""",
        delta,
        x,
        y,
    )


def pointer_to(browser: Chrome, x: float, y: float) -> None:
    """Moves the mouse to a point of the picture, in CSS pixels from its corner."""
    from selenium.webdriver import ActionChains

    picture = browser.find_element("id", "picture")
    run(browser, "arguments[0].scrollIntoView({block: 'center'})", picture)
    width, height = picture.size["width"], picture.size["height"]
    moved = ActionChains(browser, duration=0).move_to_element_with_offset(picture, x - width // 2, y - height // 2)
    moved.perform()  # type: ignore[no-untyped-call]


def place_of(browser: Chrome, time: float) -> float:
    """The x position of a time in the picture: left margin 104, right margin 14."""
    start, end = seen(browser)
    width = browser.find_element("id", "picture").size["width"]
    return float(104 + (time - start) / (end - start) * (width - 104 - 14))


def text_of(browser: Chrome, name: str) -> str:
    return browser.find_element("id", name).text


def colours(browser: Chrome) -> set[tuple[int, int, int]]:
    """The colours of the picture's pixels."""
    values = run(
        browser,
        """const c = document.getElementById("picture");
        const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, found = new Set();
        for (let i = 0; i < data.length; i += 4) found.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
        return [...found]""",
    )
    return {(value >> 16, value >> 8 & 255, value & 255) for value in values}


@pytest.mark.slow
def test_the_page_opens_from_disk_and_draws(at: Callable[..., Chrome], page: Path, timeline: Timeline) -> None:
    browser = at(page, tab=LABEL)
    assert seen(browser) == timeline.window(-1)
    # Forward, backward, copies out and in, as simgpu's figures have them.
    assert {(0x66, 0x99, 0xCC), (0x2B, 0x4C, 0x7E), (0xEE, 0x88, 0x66), (0x44, 0xAA, 0x99)} <= colours(browser)
    assert run(browser, "return performance.getEntriesByType('resource').length") == 0
    assert text_of(browser, "range") == f"all {format_time(timeline.window(-1)[1] - timeline.window(-1)[0])}"


@pytest.mark.slow
def test_the_wheel_zooms_at_the_pointer_and_dragging_pans(
    at: Callable[..., Chrome], page: Path, timeline: Timeline
) -> None:
    from selenium.webdriver import ActionChains

    browser = at(page, tab=LABEL)
    start, end = seen(browser)
    wheel(browser, -400)
    closer_start, closer_end = seen(browser)
    assert closer_end - closer_start == pytest.approx((end - start) / 2.718, rel=0.01)
    assert closer_start > start
    assert closer_end < end
    pointer_to(browser, 600, 30)
    drag = ActionChains(browser, duration=0).click_and_hold().move_by_offset(-100, 0).release()  # type: ignore[no-untyped-call]
    drag.perform()
    moved_start, moved_end = seen(browser)
    assert moved_end - moved_start == pytest.approx(closer_end - closer_start)
    assert moved_start > closer_start
    wheel(browser, 4000)
    wheel(browser, 4000)
    assert seen(browser) == (start, end)
    browser.find_element("id", "closer").click()
    assert seen(browser)[0] > start
    browser.find_element("id", "fit").click()
    assert seen(browser) == timeline.window(-1)


@pytest.mark.slow
def test_hovering_describes_a_span_and_clicking_pins_the_description(
    at: Callable[..., Chrome], page: Path, timeline: Timeline
) -> None:
    from selenium.webdriver import ActionChains

    browser = at(page, tab=LABEL)
    begin = timeline.window(-1)[0]
    span = max((s for s in timeline if s.start_ns >= begin and s.label == "copy_d2h"), key=lambda s: s.bytes)
    pointer_to(browser, place_of(browser, (span.start_ns + span.end_ns) / 2), 6 + 34 + 17)
    tip = text_of(browser, "tip")
    message = dict(zip(tip.splitlines()[1::2], tip.splitlines()[2::2], strict=True))
    assert tip.splitlines()[0] == span.name
    assert (message["kind"], message["stream"], message["tensor"]) == ("copy d2h", "d2h", "activation")
    assert message["start"] == f"{(span.start_ns - begin) / 1e6:.6f}".rstrip("0") + " ms"
    assert message["duration"] == format_time(span.end_ns - span.start_ns)
    assert f"({span.bytes:,} B)" in message["transferred"]
    assert message["bandwidth"] == "1 GB/s"
    ActionChains(browser, duration=0).click().perform()  # type: ignore[no-untyped-call]
    assert text_of(browser, "details").splitlines()[0] == span.name
    stall = max(
        (s for s in timeline if s.start_ns >= begin and s.kind.is_stall and s.stream == "compute"),
        key=lambda s: s.end_ns - s.start_ns,
    )
    pointer_to(browser, place_of(browser, (stall.start_ns + stall.end_ns) / 2), 6 + 17)
    tip = text_of(browser, "tip")
    assert tip.startswith("waits for another stream")
    assert f"waits for\n{stall.name}\nof stream\n{stall.cause}" in tip
    # Below the streams, the memory in use.
    pointer_to(browser, 600, 200)
    assert text_of(browser, "tip").startswith("memory in use\ntime\n")


@pytest.mark.slow
def test_a_tensor_search_lists_every_write_read_and_move(
    at: Callable[..., Chrome], page: Path, timeline: Timeline, quickstart: Comparison
) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = at(page, tab=LABEL)
    name = "stage1_1.conv1:convolution"
    start, end = timeline.window(-1)
    kernels = {k.id for k in quickstart.results[LABEL].graph.kernels if name in (*k.reads, *k.writes)}
    inside = [s for s in timeline if s.start_ns < end and s.end_ns > start]
    hits = [s for s in inside if s.name == name or (s.name in kernels and not s.kind.is_stall)]
    query = browser.find_element("id", "query")
    query.send_keys(name)
    assert text_of(browser, "count") == f"{len(hits)} hits"
    assert len(browser.find_elements("css selector", "#hits li")) == len(hits)
    query.send_keys(Keys.ENTER)
    assert text_of(browser, "count") == f"1 of {len(hits)}"
    first_start, first_end = seen(browser)
    assert first_end - first_start < end - start
    assert first_start <= hits[0].start_ns < first_end
    assert hits[0].name in text_of(browser, "details")
    query.send_keys(Keys.SHIFT, Keys.ENTER)
    last_start, last_end = seen(browser)
    assert last_start <= max(s.start_ns for s in hits) < last_end
    browser.find_elements("css selector", "#hits li button")[1].click()
    assert text_of(browser, "count") == f"2 of {len(hits)}"
    # A part of names finds more, among it what only begins like the whole name.
    query.send_keys(Keys.BACKSPACE)
    assert int(text_of(browser, "count").split()[0]) > len(hits)
    query.clear()
    query.send_keys("no such tensor")
    assert text_of(browser, "count") == "no hit"
    assert not browser.find_element("id", "hits").is_displayed()


@pytest.mark.slow
def test_the_keyboard_zooms_pans_selects_and_searches(
    at: Callable[..., Chrome], page: Path, timeline: Timeline
) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = at(page, tab=LABEL)
    picture = browser.find_element("id", "picture")
    start, end = timeline.window(-1)
    picture.send_keys("ww")
    closer = seen(browser)
    assert closer[1] - closer[0] == pytest.approx(0.49 * (end - start), rel=0.001)
    picture.send_keys("d", Keys.ARROW_RIGHT)
    assert seen(browser)[0] > closer[0]
    picture.send_keys("aas0")
    assert seen(browser) == (start, end)
    picture.send_keys(".", ".")
    first = text_of(browser, "details")
    picture.send_keys(".")
    assert text_of(browser, "details") != first
    picture.send_keys(Keys.ARROW_DOWN)
    assert "stream\nd2h" in text_of(browser, "details")
    picture.send_keys(Keys.ESCAPE)
    assert not browser.find_element("id", "details").is_displayed()
    picture.send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "query"


@pytest.mark.slow
def test_tabs_and_iterations_switch_the_view(
    at: Callable[..., Chrome], page: Path, quickstart: Comparison, timeline: Timeline
) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    browser = at(page)
    tabs = browser.find_elements("css selector", "[role=tab]")
    assert [tab.text for tab in tabs] == ["ideal", "vdnn(mode=conv)", "vdnn"]
    # What keeps a budget comes first.
    assert tabs[1].get_attribute("aria-selected") == "true"
    tabs[1].send_keys(Keys.ARROW_RIGHT)
    assert tabs[2].get_attribute("aria-selected") == "true"
    assert seen(browser) == timeline.window(-1)
    choice = Select(browser.find_element("id", "scope"))
    assert [option.text for option in choice.options] == ["1", "2", "3 of 3", "all"]
    choice.select_by_visible_text("1")
    assert seen(browser) == timeline.window(0)
    choice.select_by_visible_text("all")
    assert seen(browser) == (0, max(timeline.end_ns.max(), timeline.iteration_ends_ns[-1]))
    tabs[0].click()
    assert seen(browser)[1] == quickstart.results["ideal"].timeline.end_ns.max()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 700, 400])
def test_the_layout_works_at_every_width_and_in_dark_mode(at: Callable[..., Chrome], page: Path, width: int) -> None:
    light = colours(at(page, tab=LABEL, width=width))
    browser = at(page, tab=LABEL, width=width, dark=True)
    dark = colours(browser)
    assert (255, 255, 255) in light
    assert (0x12, 0x16, 0x1C) in dark
    assert run(browser, "return document.documentElement.scrollWidth") <= width
    assert run(browser, "return getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    picture = browser.find_element("id", "picture")
    assert picture.size["width"] > 0.8 * width - 40


@pytest.mark.slow
def test_names_with_markup_are_shown_literally(at: Callable[..., Chrome], tmp_path: Path) -> None:
    name = NASTY.replace(" ", "")
    about = {"simgpu": "0", "scenario": NASTY}
    nasty = recorded_from(compare(renamed(CHAIN, "x2", name), NODE, ["vdnn"]), about)
    browser = at(write_recorded(nasty, tmp_path / "nasty.html")[0])
    assert browser.title == f"{NASTY} - simgpu"
    assert browser.find_element("css selector", "h1").text.startswith(NASTY)
    browser.find_element("id", "query").send_keys("</script>")
    run(browser, "document.querySelector('#hits li button').click()")
    assert name in text_of(browser, "details")
    assert len(browser.find_elements("css selector", "#details b, #hits b, #tip b")) == 0


@pytest.mark.slow
def test_a_hundred_thousand_spans_are_painted_within_a_frame(at: Callable[..., Chrome], tmp_path: Path) -> None:
    """The median of twenty paints over all zooms; at 60 frames per second a frame has 16.7 ms."""
    browser = at(write_recorded(huge(SPANS), tmp_path / "huge.html")[0])
    times = []
    for turn in range(20):
        wheel(browser, -150 if turn < 15 else 300)
        seen(browser)
        times.append(run(browser, "return performance.getEntriesByName('simgpu: paint')[0].duration"))
    assert sorted(times)[len(times) // 2] < 16.7
    assert len(colours(browser)) > 10


@pytest.mark.slow
def test_the_segment_map_names_what_is_at_an_address(at: Callable[..., Chrome], tmp_path: Path) -> None:
    """The map is 240 pixels high, above the axis of 24."""
    comparison = cached()
    browser = at(write_report(comparison, tmp_path / "report.html")[0], tab="none")
    seen(browser)
    result = comparison.results["none"]
    height = browser.find_element("id", "picture").size["height"]
    bottom, total = height - 24, result.high_water
    start, end = result.timeline.window(-1)
    ranges = [each for each in address_ranges(result) if each.end_ns > start]
    shown = max((each for each in ranges if each.block), key=lambda each: each.end_ns - max(each.start_ns, start))
    x = place_of(browser, (max(shown.start_ns, start) + min(shown.end_ns, end)) / 2)
    pointer_to(browser, x, bottom - 240 * (shown.address + shown.bytes / 2) / total)
    tip = browser.find_element("id", "tip").text
    assert shown.block in tip and "12 MiB (12,582,912 B)" in tip
    labels = [each.text for each in browser.find_elements("css selector", "#map-legend li")]
    assert labels == ["activation", "input", "free in a segment"]
    pointer_to(browser, x, bottom - 240 - 60)
    assert "reserved" in browser.find_element("id", "tip").text
