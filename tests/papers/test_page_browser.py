"""The page in a real browser: claims are found by verdict and by words, links reach them, and nothing goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from simgpu.papers.checks.results import bars
from simgpu.papers.page.drawings import drawn
from simgpu.papers.page.figures import FigureView
from simgpu.papers.page.page import page
from simgpu.papers.page.svg import inline_svg
from tests.papers.sample_paper import sample

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "Chromium and its driver are not installed: apt-get install chromium chromium-driver (Debian)"
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)
CLAIMS = [outcome.claim.id for outcome in sample().claims]
SHOWN = 'return [...document.querySelectorAll("table.claims > tbody")].filter(b => b.offsetHeight > 0).map(b => b.id)'


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    figure = drawn(bars("speed", {"VGG16": {"ours": 1.2}}, {"VGG16": {"ours": 1.25}}))
    view = FigureView("figure-sample-1", "Speed", inline_svg(figure, "figure-sample-1-"), "", "", ("sample.speed",))
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(sample(), {"sample": [view]}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    profile = f"user-data-dir={tmp_path_factory.mktemp('chromium')}"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run", profile):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def at(browser: Chrome, path: Path) -> Iterator[Chrome]:
    """The page, opened anew; in the end nothing went wrong."""
    browser.get("about:blank")
    browser.set_window_size(1200, 900)
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def run(browser: Chrome, script: str) -> Any:
    return browser.execute_script(script)  # type: ignore[no-untyped-call]


def press(browser: Chrome, label: str) -> None:
    buttons = browser.find_elements("css selector", "#tools button")
    next(button for button in buttons if button.text.startswith(label)).click()


def count(browser: Chrome) -> str:
    return browser.find_element("id", "count").text


@pytest.mark.slow
def test_verdicts_are_chosen_one_by_one_and_together(at: Chrome) -> None:
    assert run(at, SHOWN) == CLAIMS
    press(at, "off")
    assert run(at, SHOWN) == ["sample.speed", "sample.layers"]
    press(at, "broken")
    assert run(at, SHOWN) == ["sample.speed", "sample.broken", "sample.layers"]
    assert count(at) == "3 of 9 claims"
    press(at, "off")
    press(at, "broken")
    assert run(at, SHOWN) == CLAIMS and count(at) == ""


@pytest.mark.slow
def test_fits_and_predictions_can_be_filtered(at: Chrome) -> None:
    press(at, "fitted")
    assert run(at, SHOWN) == ["sample.rates.a_very_long_name.of_a_claim.that_takes_room"]
    press(at, "broken")
    assert run(at, SHOWN) == []
    assert "No claim of this paper" in at.find_element("tag name", "main").text


@pytest.mark.slow
def test_the_search_matches_the_text_of_a_claim(at: Chrome) -> None:
    from selenium.webdriver.common.keys import Keys

    at.find_element("tag name", "body").send_keys("/")
    at.switch_to.active_element.send_keys("DATA sheet")
    assert run(at, SHOWN) == ["sample.speed"]
    at.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert run(at, SHOWN) == CLAIMS


@pytest.mark.slow
def test_a_link_to_a_claim_that_is_not_shown_shows_it(at: Chrome) -> None:
    press(at, "off")
    run(at, 'location.hash = "sample.opinion"')
    run(at, "window.dispatchEvent(new Event('hashchange'))")
    assert "sample.opinion" in run(at, SHOWN)


@pytest.mark.slow
@pytest.mark.parametrize("width", [500, 800, 1200, 2000])
def test_the_page_is_never_wider_than_the_window(at: Chrome, width: int) -> None:
    at.set_window_size(width, 900)
    assert run(at, "return document.documentElement.scrollWidth <= innerWidth")
    assert run(at, 'return document.querySelector(".drawing svg").getBoundingClientRect().width > 300')


@pytest.mark.slow
def test_a_link_that_leads_nowhere_breaks_nothing(at: Chrome, path: Path) -> None:
    at.get("about:blank")
    at.get(f"{path.as_uri()}#%")
    assert run(at, SHOWN) == CLAIMS
