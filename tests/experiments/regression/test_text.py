"""The text of a difference: it contains every difference, in lines that fit a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu.experiments.regression.difference import compare_timings
from simgpu.experiments.regression.text import difference_text
from simgpu.experiments.regression.timings import Timings
from simgpu.experiments.regression.tolerances import parse_tolerances
from simgpu.timeline.model import Span, SpanKind
from tests.experiments.regression.examples import example_timings, longer, node, with_policy


def text_of(stored: Timings, now: Timings, **tolerances: object) -> str:
    text = difference_text(compare_timings(stored, now, parse_tolerances(tolerances)))
    assert all(len(line) <= 76 for line in text.splitlines())
    return text


def after(event: int, **changes: Any) -> str:
    """The text of the difference if one event of ideal is changed."""
    stored = example_timings(policies=["ideal"])
    events = list(stored["ideal"].events)
    events[event] = events[event]._replace(**changes)
    return text_of(stored, with_policy(stored, "ideal", replace(stored["ideal"], events=tuple(events))))


def test_text_of_a_kernel_that_takes_a_nanosecond_more() -> None:
    assert (
        text_of(example_timings(policies=["ideal"]), example_timings(longer("B3"), policies=["ideal"]))
        == """\
ideal
                      stored      now         by
  iteration_ns        60,000   60,001         +1   +0.00167%
  samples_per_s      16666.7  16666.4  -0.277773   -0.00167%
  compute_ns          60,000   60,001         +1   +0.00167%
  device_mean_bytes  421,666  421,669         +3  +0.000711%
  ideal_ns            60,000   60,001         +1   +0.00167%
  timelines diverge at 36 us, on compute: compute B3 ends 1 ns later
                stored     now
    kind        compute    compute
    name        B3         B3
    iteration   0          0
    start       21,000 ns  21,000 ns
  > end         36,000 ns  36,001 ns
    events before it on compute, equal in both:
      compute F1: 0 to 5,000 ns
      compute F2: 5,000 to 12,000 ns
      compute F3: 12,000 to 21,000 ns"""
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end_ns": 12_001}, "compute F2 ends 1 ns later"),
        ({"start_ns": 5_010, "end_ns": 12_010}, "compute F2 starts 10 ns later"),
        ({"start_ns": 4_990}, "compute F2 starts 10 ns earlier, takes 10 ns more"),
        ({"start_ns": 5_010}, "compute F2 starts 10 ns later, takes 10 ns less"),
        ({"bytes": 64}, "compute F2 moves 64 B more"),
        ({"name": "F9"}, "compute F9 replaces compute F2"),
        ({"cause": "d2h"}, "compute F2 has cause d2h and had none"),
        ({"gpu": 1}, "compute F2 has gpu 1 and had none"),
        ({"iteration": 2}, "compute F2 has iteration 2 and had none"),
    ],
)
def test_text_of_a_changed_event(changes: dict[str, object], words: str) -> None:
    text = " ".join(after(1, **changes).split())
    assert f"on compute: {words}" in text
    assert "events before it on compute, equal in both: compute F1: 0 to 5,000 ns" in text


def test_text_of_an_event_in_only_one_timeline() -> None:
    three, two = example_timings(policies=["ideal"]), example_timings(policies=["ideal"], iterations=2)
    assert "compute F1 is only in the stored timeline; its stream now ends before it" in " ".join(
        text_of(three, two).split()
    )
    text = text_of(two, three)
    assert "compute F1 is only in the current timeline; the stored stream ends" in " ".join(text.split())
    assert "last of 12 events before it on compute, equal in both:" in text
    assert "stored  only now\n" in text


def test_text_of_a_difference_at_the_first_event_of_a_stream() -> None:
    assert "it is the first event on compute" in after(0, end_ns=5_001)


def test_long_names_are_shortened_in_the_middle() -> None:
    long = "stage4." + "block." * 20 + "weight"
    text = after(1, name=long)
    line = next(line for line in text.splitlines() if line.startswith("  > name"))
    assert line.endswith("weight")
    assert "stage4." in line


def test_text_of_changed_metrics_with_equal_timelines() -> None:
    stored = example_timings(policies=["ideal"])
    values = {**stored["ideal"].values, "samples_per_s": None}
    text = text_of(with_policy(stored, "ideal", replace(stored["ideal"], values=values)), stored)
    assert "the timelines are equal, event by event" in text
    assert "samples_per_s       -  16666.7   -" in text


def test_columns_are_as_wide_as_their_longest_number() -> None:
    stored = example_timings(policies=["ideal"])
    values = {**stored["ideal"].values, "d2h_exposed_ns": 10**14, "spans": 100}
    now = {**values, "d2h_exposed_ns": 10**14 + 1, "spans": 2_500}
    one, other = (with_policy(stored, "ideal", replace(stored["ideal"], values=each)) for each in (values, now))
    assert text_of(one, other).splitlines()[1:4] == [
        "                               stored                  now      by",
        "  d2h_exposed_ns  100,000,000,000,000  100,000,000,000,001      +1  +1e-12%",
        "  spans                           100                2,500  +2,400      25x",
    ]


def test_differences_that_do_not_count_are_marked() -> None:
    stored, now = example_timings(policies=["vdnn"]), example_timings(longer("B1", 10), policies=["vdnn"])
    text = " ".join(text_of(stored, now, **{"*": "1%"}).split())
    assert "vdnn (does not count) within tolerance:" in text
    assert "this does not count, as metrics have tolerances" in text


def test_text_of_changed_settings_inputs_outcomes_and_policies() -> None:
    stored = replace(example_timings(policies=["ideal", "none"]), overrides={"iterations": 3})
    text = text_of(stored, example_timings(policies=["none", "vdnn"], on=node(memory=550_000)))
    assert "stored with other settings:\n  iterations: 3 -> nothing\n" in text
    assert "trace or node changed:\n  node.gpu.memory: 1073741824 -> 550000\n" in text
    assert "only stored: ideal\nonly now: vdnn\n" in text
    assert "none\n  outcome: ran -> out of memory\n  waiting: nothing -> kernel F2" in text
    turned = text_of(example_timings(policies=["ideal", "none"]), example_timings(policies=["none", "ideal"]))
    assert turned == "policies are in another order, which does not count"


def test_no_difference_gives_no_text() -> None:
    assert text_of(example_timings(), example_timings()) == ""


@pytest.mark.parametrize("field", [field for field in Span._fields if field not in ("stream", "resource")])
def test_every_field_that_differs_is_marked(field: str) -> None:
    """Except for the stream: a change there affects two streams."""
    other = {"kind": SpanKind.RECOMPUTE, "name": "F9", "cause": "host"}.get(field, 1)
    text = after(1, **{field: other})
    assert [line.split()[1] for line in text.splitlines() if line.startswith("  >")] == [field.removesuffix("_ns")]
