"""What ran, on what, and how far its numbers can be trusted: the head of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simgpu.errors import InputError
from simgpu.experiments.measures import failure
from simgpu.hardware.spec import GpuSpec
from simgpu.policies.registry import describe
from simgpu.report.recorded import Recorded
from simgpu.simulation.notes import kernel_times
from simgpu.units import format_bandwidth, format_bytes

_STEADY = {
    True: "steady",
    False: "UNSTEADY: the last two iterations still differ",
    None: "one iteration does not tell whether it is steady",
}


@dataclass(frozen=True)
class PolicyTold:
    """What a policy is, and what it or its run has to say. failure: why it has no numbers, with the message.

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


def facts(recorded: Recorded) -> list[tuple[str, str]]:
    """Names and texts, in the order of the page."""
    document, info = recorded.document, recorded.info
    trace, node = document["trace"], document["node"]
    name = f"{trace['name']}: " if trace["name"] else ""
    found = [
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
    return [(name, text) for name, text in found if text]


def policies(recorded: Recorded) -> list[PolicyTold]:
    """Every policy of the run, in its order; one that is not installed here is told without a summary."""
    return [_policy(ran.entry) for ran in recorded.runs]


def _node(node: Mapping[str, Any]) -> str:
    gpu, link = node["gpu"], node["link"]
    speeds = f"{format_bandwidth(link['d2h_bandwidth'])} out, {format_bandwidth(link['h2d_bandwidth'])} in"
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
    told = [
        f"{' and '.join(map(str, iterations))} iterations, the last one reported"
        if iterations != [1]
        else "1 iteration",
        "; ".join(_STEADY[steady] for steady in each("steady")),
        f"budget {' and '.join(map(format_bytes, each('budget_bytes')))}",
        f"{' and '.join(each('pool'))} pool",
        f"seed {' and '.join(map(str, each('seed')))}",
        f"epoch {' and '.join(map(str, each('epoch')))}" if any(each("epoch")) else "",
        *dict.fromkeys(_together(entry["data_parallel"]) for entry in entries if "data_parallel" in entry),
    ]
    return "; ".join(part for part in told if part)


def _together(how: Mapping[str, Any]) -> str:
    return f"{how['gpus']} GPUs train together, gradients exchanged by {how['exchange']}"


def _policy(entry: Mapping[str, Any]) -> PolicyTold:
    try:
        known = describe(entry["policy"])
        summary, source = known.summary, known.source
    except InputError:
        summary = source = ""
    why = failure(entry)
    name, _, variant = entry["label"].partition("(")
    details = entry.get("out_of_memory") or entry.get("refused") or entry.get("error") or {}
    return PolicyTold(
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
