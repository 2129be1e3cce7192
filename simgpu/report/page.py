"""The page of a run: the template filled with style, scripts, data, header and time bars.

Names chosen by users are escaped, in the template and in the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from simgpu.analysis.bars import (
    CODEC,
    PART_LOOKS,
    RECOMPUTE,
    WAIT_COLLECTIVE,
    WAIT_COPY,
    WAIT_COPY_IN,
    WAIT_COPY_OUT,
    WAIT_LAUNCH,
    WAIT_MEMORY,
    WAIT_OTHER,
    Look,
)
from simgpu.errors import InputError
from simgpu.experiments.measures import engines_of, failure, groups
from simgpu.hardware.spec import GpuSpec, MemoryLink, MemorySpec
from simgpu.policies.registry import describe
from simgpu.report.columns import page_data
from simgpu.report.recorded import ReportInput
from simgpu.report.template import filled, in_one_function, resource
from simgpu.simulation.notes import allocator_text, context_text, kernel_times, other_memories_text
from simgpu.timeline.streams import OWN_ENGINES, engine_text
from simgpu.units import format_bandwidth, format_bytes, format_time

#: Scripts of the page, in order: each may use names of the scripts before it.
SCRIPTS = (
    "columns.js",
    "words.js",
    "looks.js",
    "view.js",
    "layout.js",
    "axis.js",
    "spans.js",
    "memory.js",
    "segments.js",
    "facts.js",
    "search.js",
    "marks.js",
    "details.js",
    "stage.js",
    "pointer.js",
    "keys.js",
    "main.js",
)
_resource = partial(resource, "simgpu.report")


def page(recorded: ReportInput, perfetto: Mapping[str, str]) -> str:
    """The page as HTML. perfetto: file of each policy's timeline for ui.perfetto.dev, by the policy's file name.

    Raises `InputError` as `simgpu.report.columns.page_data`. The same run gives the same text.
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
        maps=any(ran.addresses for ran in recorded.runs),
        perfetto=perfetto,
        data=Markup(_embedded(page_data(recorded))),
    )


def _embedded(data: Any) -> str:
    """JSON in which no text can end the script element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


_STEADY = {
    True: "steady",
    False: "UNSTEADY: the last two iterations still differ",
    None: "one iteration: steadiness unknown",
}


@dataclass(frozen=True)
class PolicySummary:
    """A policy, its parameters and its notes on the run.

    name, variant: the label before and after its bracket. failure: kind of failure, empty if the policy completed;
    message: the error message.
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
    """Names and texts of the page's header, in order."""
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
    """The policies of the run, in order. A policy that is not installed has no summary."""
    return [_policy(ran.entry) for ran in recorded.runs]


def _node(node: Mapping[str, Any]) -> str:
    gpu, link = node["gpu"], node["link"]
    speeds = f"D2H {format_bandwidth(link['d2h_bandwidth'])}, H2D {format_bandwidth(link['h2d_bandwidth'])}"
    count = f", {node['gpus']} GPUs" if node.get("gpus", 1) > 1 else ""
    text = f"{node['name']}: {gpu['name']}, {format_bytes(gpu['memory'])}{count}; {link['kind']}, {speeds}"
    memories = [MemorySpec(**memory) for memory in node.get("more_memories", ())]
    if others := other_memories_text(memories, [MemoryLink(**link) for link in node.get("more_links", ())]):
        text += f"; {others}"
    return f"{text} ({node['description']})" if node.get("description") else text


def _gpu(gpu: Mapping[str, Any]) -> GpuSpec:
    """The GPU in a report, with the properties that kernel times depend on."""
    return GpuSpec(
        gpu["name"],
        gpu["memory"],
        tensor_rate=gpu.get("tensor_rate"),
        architecture=gpu.get("architecture"),
        reported_as=tuple(gpu.get("reported_as", ())),
    )


def _run(entries: Sequence[Mapping[str, Any]]) -> str:
    """Settings of the runs; each distinct value once."""
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
        *dict.fromkeys(context_text(entry["metrics"]) for entry in entries),
        f"seed {' and '.join(map(str, each('seed')))}",
        f"epoch {' and '.join(map(str, each('epoch')))}" if any(each("epoch")) else "",
        *dict.fromkeys(_data_parallel(entry["data_parallel"]) for entry in entries if "data_parallel" in entry),
    ]
    return "; ".join(part for part in texts if part)


def _data_parallel(how: Mapping[str, Any]) -> str:
    exchange = "not exchanged" if how["exchange"] == "none" else f"exchanged by {how['exchange']}"
    return f"{how['gpus']} GPUs train together, gradients {exchange}"


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


#: Looks of a bar's parts by key of the metrics, in the order of the bar.
_PARTS: dict[str, Look] = {
    "computation_ns": PART_LOOKS["computation"]._replace(label="compute"),
    "overlap_ns": PART_LOOKS["overlap"]._replace(label="compute, overlapped"),
    "recompute_ns": RECOMPUTE,
    "codec_ns": CODEC,
    "stalled_d2h_ns": WAIT_COPY_OUT._replace(label="stalled on D2H"),
    "stalled_h2d_ns": WAIT_COPY_IN._replace(label="stalled on H2D"),
    "stalled_memory_ns": WAIT_MEMORY._replace(label="stalled on memory"),
    "stalled_host_ns": WAIT_OTHER._replace(label="stalled on host"),
    "stalled_launch_ns": WAIT_LAUNCH,
    "stalled_collectives_ns": WAIT_COLLECTIVE,
    "stalled_other_ns": WAIT_OTHER._replace(label="stalled, other"),
}
#: Smallest part, as a fraction of the longest bar, that is labelled with its share.
_MIN_LABELLED = 0.05


class Part(NamedTuple):
    """A part of a bar.

    width: percent of the longest bar. share: percentage of its own bar as text, empty if it does not fit.
    """

    look: Look
    time: str
    width: float
    share: str


class TimeBar(NamedTuple):
    """A policy's bar, with the length of its iteration. A policy without result has no parts but a `failure`."""

    label: str
    parts: tuple[Part, ...]
    time: str
    failure: str


def time_bars(entries: Sequence[Mapping[str, Any]]) -> list[TimeBar]:
    """A bar for each policy in report.json, on a common axis from 0 to the longest iteration.

    >>> from simgpu.report.page import _PARTS
    >>> empty = dict.fromkeys(_PARTS, 0) | {"compute_ns": 75, "stalled_memory_ns": 25, "iteration_ns": 100}
    >>> [bar] = time_bars([{"label": "vdnn", "metrics": empty}])
    >>> [(part.look.label, part.width, part.share) for part in bar.parts]
    [('compute', 75.0, '75%'), ('stalled on memory', 25.0, '25%')]
    """
    longest = max((entry["metrics"]["iteration_ns"] for entry in entries if "metrics" in entry), default=0) or 1
    return [_bar(entry, longest) for entry in entries]


def shown_looks(bars: Sequence[TimeBar]) -> list[Look]:
    """The looks used in the bars, for the legend."""
    used = dict.fromkeys(part.look for bar in bars for part in bar.parts)
    order = [*_PARTS.values(), *used]
    return sorted(used, key=order.index)


def _bar(entry: Mapping[str, Any], longest: int) -> TimeBar:
    if "metrics" not in entry:
        return TimeBar(entry["label"], (), "", failure(entry))
    metrics = entry["metrics"]
    looks = _PARTS | {
        f"stalled_{engine}_ns": WAIT_COPY._replace(label=f"stalled on {engine_text(engine)}")
        for engine in engines_of([metrics])
        if engine not in OWN_ENGINES
    }
    times = {key: metrics.get(key, 0) for key in looks} | {
        "computation_ns": metrics["compute_ns"] - metrics["overlap_ns"]
    }
    total = metrics["iteration_ns"] or 1
    parts = tuple(
        Part(
            look,
            format_time(times[key]),
            round(100 * times[key] / longest, 4),
            f"{times[key] / total:.0%}" if times[key] >= _MIN_LABELLED * longest else "",
        )
        for key, look in looks.items()
        if times[key]
    )
    return TimeBar(entry["label"], parts, format_time(metrics["iteration_ns"]), "")
