"""The page of a run: the template with its style, scripts, data, header and time bars.

Names that a user chose are text: the template escapes them, and in the data no ``<`` remains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from simgpu.analysis.bars import (
    CODEC,
    PART_LOOKS,
    RECOMPUTE,
    WAIT_COPY_IN,
    WAIT_COPY_OUT,
    WAIT_MEMORY,
    WAIT_OTHER,
    Look,
)
from simgpu.errors import InputError
from simgpu.experiments.measures import failure, groups
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.registry import describe
from simgpu.report.columns import page_data
from simgpu.report.recorded import ReportInput
from simgpu.report.template import filled, in_one_function
from simgpu.simulation.notes import allocator_text, kernel_times
from simgpu.units import format_bandwidth, format_bytes, format_time

#: In this order within one function: each may use what stands before it.
SCRIPTS = (
    "columns.js",
    "words.js",
    "looks.js",
    "view.js",
    "layout.js",
    "axis.js",
    "spans.js",
    "memory.js",
    "facts.js",
    "search.js",
    "marks.js",
    "details.js",
    "stage.js",
    "pointer.js",
    "keys.js",
    "main.js",
)
_RESOURCES = files("simgpu.report") / "resources"


def page(recorded: ReportInput, perfetto: Mapping[str, str]) -> str:
    """The page as HTML. perfetto: the file of each policy's timeline for ui.perfetto.dev, by the policy's file name.

    Raises `InputError` for what `simgpu.report.columns.page_data` refuses. The same run gives the same text.
    """
    from markupsafe import Markup

    entries = [ran.entry for ran in recorded.runs]
    bars = time_bars(entries)
    return filled(
        _resource("page.html.j2"),
        style=_resource("style.css"),
        script=in_one_function(map(_resource, SCRIPTS)),
        title=recorded.title,
        origin=recorded.info.origin.value,
        provenance=recorded.info.provenance,
        facts=facts(recorded),
        policies=policies(recorded),
        groups=groups(entries),
        bars=bars,
        looks=shown_looks(bars),
        shown=[ran for ran in recorded.runs if ran.timeline is not None],
        perfetto=perfetto,
        data=Markup(_embedded(page_data(recorded))),
    )


def _embedded(data: Any) -> str:
    """JSON that ends no script element and opens no comment, whatever its texts hold."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@lru_cache
def _resource(name: str) -> str:
    return (_RESOURCES / name).read_text(encoding="utf-8")


_STEADY = {
    True: "steady",
    False: "UNSTEADY: the last two iterations still differ",
    None: "one iteration: steadiness unknown",
}


@dataclass(frozen=True)
class PolicySummary:
    """A policy, its parameters and its notes on the run. failure: why it has no numbers, with the message.

    name, variant: its label before and after the bracket.
    """

    label: str
    name: str
    variant: str
    summary: str
    source: str
    parameters: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    failure: str
    message: str


def facts(recorded: ReportInput) -> list[tuple[str, str]]:
    """Names and texts, in the order of the page."""
    document, info = recorded.document, recorded.info
    trace, node = document["trace"], document["node"]
    name = f"{trace['name']}: " if trace["name"] else ""
    results = [
        ("about", document.get("description") or ""),
        ("trace", f"{name}{info.model}, batch {info.batch}, {info.format}"),
        ("origin", f"{info.provenance}, by {info.tool}"),
        ("notes", info.notes),
        ("node", _node(node)),
        ("times", kernel_times(info, _gpu(node["gpu"]))),
        ("run", _run([entry for entry in document["results"] if "metrics" in entry])),
        ("energy", "; ".join(dict.fromkeys(filter(None, (e.get("energy_note") for e in document["results"]))))),
        ("simgpu", str(document.get("simgpu", ""))),
    ]
    return [(name, text) for name, text in results if text]


def policies(recorded: ReportInput) -> list[PolicySummary]:
    """Every policy of the run, in its order; one that is not installed here has no summary."""
    return [_policy(ran.entry) for ran in recorded.runs]


def _node(node: Mapping[str, Any]) -> str:
    gpu, link = node["gpu"], node["link"]
    speeds = f"D2H {format_bandwidth(link['d2h_bandwidth'])}, H2D {format_bandwidth(link['h2d_bandwidth'])}"
    count = f", {node['gpus']} GPUs" if node.get("gpus", 1) > 1 else ""
    text = f"{node['name']}: {gpu['name']}, {format_bytes(gpu['memory'])}{count}; {link['kind']}, {speeds}"
    return f"{text} ({node['description']})" if node.get("description") else text


def _gpu(gpu: Mapping[str, Any]) -> GpuSpec:
    """What a report says of the GPU, as far as kernel times are concerned."""
    return GpuSpec(
        gpu["name"],
        gpu["memory"],
        tensor_rate=gpu.get("tensor_rate"),
        architecture=gpu.get("architecture"),
        reported_as=tuple(gpu.get("reported_as", ())),
    )


def _run(entries: Sequence[Mapping[str, Any]]) -> str:
    """What all runs have in common; each value once where they differ."""
    if not entries:
        return ""

    def each(key: str) -> list[Any]:
        return list(dict.fromkeys(entry[key] for entry in entries))

    iterations = each("iterations")
    texts = [
        f"{' and '.join(map(str, iterations))} iterations, the last one reported"
        if iterations != [1]
        else "1 iteration",
        "; ".join(_STEADY[steady] for steady in each("steady")),
        f"budget {' and '.join(map(format_bytes, each('budget_bytes')))}",
        " and ".join(map(allocator_text, each("pool"))),
        f"seed {' and '.join(map(str, each('seed')))}",
        f"epoch {' and '.join(map(str, each('epoch')))}" if any(each("epoch")) else "",
        *dict.fromkeys(_together(entry["data_parallel"]) for entry in entries if "data_parallel" in entry),
    ]
    return "; ".join(part for part in texts if part)


def _together(how: Mapping[str, Any]) -> str:
    return f"{how['gpus']} GPUs train together, gradients exchanged by {how['exchange']}"


def _policy(entry: Mapping[str, Any]) -> PolicySummary:
    try:
        known = describe(entry["policy"])
        summary, source = known.summary, known.source
    except InputError:
        summary = source = ""
    why = failure(entry)
    name, _, variant = entry["label"].partition("(")
    details = entry.get("out_of_memory") or entry.get("refused") or entry.get("error") or {}
    return PolicySummary(
        label=entry["label"],
        name=name,
        variant=variant,
        summary=summary,
        source=source,
        parameters=tuple((name, str(value)) for name, value in entry.get("parameters", {}).items()),
        notes=tuple(entry.get("notes", ())),
        failure=why,
        message=details.get("message", ""),
    )


#: In the order of a bar, by the key of the metrics.
_PARTS: Mapping[str, Look] = {
    "computation_ns": PART_LOOKS["computation"]._replace(label="compute"),
    "overlap_ns": PART_LOOKS["overlap"]._replace(label="compute, overlapped"),
    "recompute_ns": RECOMPUTE,
    "codec_ns": CODEC,
    "stalled_d2h_ns": WAIT_COPY_OUT._replace(label="stalled on D2H"),
    "stalled_h2d_ns": WAIT_COPY_IN._replace(label="stalled on H2D"),
    "stalled_memory_ns": WAIT_MEMORY._replace(label="stalled on memory"),
    "stalled_host_ns": WAIT_OTHER._replace(label="stalled on host"),
    "stalled_other_ns": WAIT_OTHER._replace(label="stalled, other"),
}
#: A share is written into its part if the part is so much of the longest bar.
_LEAST_WRITTEN = 0.05


class Part(NamedTuple):
    """A part of a bar. width: of the longest bar, in percent; share: of its own bar, empty where it does not fit."""

    look: Look
    time: str
    width: float
    share: str


class TimeBar(NamedTuple):
    """A policy's bar, as long as its iteration; no parts and `failure` where there is none."""

    label: str
    parts: tuple[Part, ...]
    time: str
    failure: str


def time_bars(entries: Sequence[Mapping[str, Any]]) -> list[TimeBar]:
    """A bar for each policy of report.json, all on one axis from 0 to the longest iteration.

    >>> from simgpu.report.page import _PARTS
    >>> empty = dict.fromkeys(_PARTS, 0) | {"compute_ns": 75, "stalled_memory_ns": 25, "iteration_ns": 100}
    >>> [bar] = time_bars([{"label": "vdnn", "metrics": empty}])
    >>> [(part.look.label, part.width, part.share) for part in bar.parts]
    [('compute', 75.0, '75%'), ('stalled on memory', 25.0, '25%')]
    """
    longest = max((entry["metrics"]["iteration_ns"] for entry in entries if "metrics" in entry), default=0) or 1
    return [_bar(entry, longest) for entry in entries]


def shown_looks(bars: Sequence[TimeBar]) -> list[Look]:
    """The looks that some bar has, for a legend."""
    used = {part.look for bar in bars for part in bar.parts}
    return [look for look in _PARTS.values() if look in used]


def _bar(entry: Mapping[str, Any], longest: int) -> TimeBar:
    if "metrics" not in entry:
        return TimeBar(entry["label"], (), "", failure(entry))
    metrics = entry["metrics"]
    times = {key: metrics.get(key, 0) for key in _PARTS} | {
        "computation_ns": metrics["compute_ns"] - metrics["overlap_ns"]
    }
    total = metrics["iteration_ns"] or 1
    parts = tuple(
        Part(
            look,
            format_time(times[key]),
            round(100 * times[key] / longest, 4),
            f"{times[key] / total:.0%}" if times[key] >= _LEAST_WRITTEN * longest else "",
        )
        for key, look in _PARTS.items()
        if times[key]
    )
    return TimeBar(entry["label"], parts, format_time(metrics["iteration_ns"]), "")
