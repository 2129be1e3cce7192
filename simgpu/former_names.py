"""What keys, columns and words of files were called in their first versions: errors name the new name, and
`python -m simgpu.migration` rewrites the files."""

from __future__ import annotations

#: Metrics of reports, sweeps, tolerances and stored timings.
METRICS = {
    "bytes_out": "d2h_bytes",
    "bytes_in": "h2d_bytes",
    "stalled_copy_out_ns": "stalled_d2h_ns",
    "stalled_copy_in_ns": "stalled_h2d_ns",
    "copy_out_hidden_ns": "d2h_overlapped_ns",
    "copy_out_exposed_ns": "d2h_exposed_ns",
    "copy_in_hidden_ns": "h2d_overlapped_ns",
    "copy_in_exposed_ns": "h2d_exposed_ns",
    "link_utilisation_out": "d2h_utilisation",
    "link_utilisation_in": "h2d_utilisation",
    "largest_power_w": "peak_power_w",
}
#: Measures and amounts of memory of studies.
MEASURES = {
    "time_added": "time_increase",
    "power_added": "power_increase",
    "bytes_moved": "traffic_reduction",
    "moved": "traffic",
    "largest_power": "peak_power",
    "overflow_least": "overflow_min",
    "overflow_most": "overflow_max",
    "metadata_hits": "metadata_hit_rate",
    "batch_gain": "batch_ratio",
    "weights_leave": "weights_offloaded",
}
#: Keys of a study's published numbers, and of its runs.
PUBLISHED_KEYS = {"over": "vs", "of": "aggregate", "without": "excluding"}
RUN_KEYS = {"for_trace": "per_trace"}
#: Keys of a trace that a scenario or a study models from a configuration.
TRACE_KEYS = {"decoder": "model"}
#: Columns of a trace's tables, by file.
TRACE_COLUMNS = {
    "kernels.csv": {"spread_ns": "iqr_ns"},
    "blocks.csv": {"born": "host_write"},
    "saved.csv": {"after": "packed_after", "before": "unpacked_before", "dropped": "released_after"},
}
BLOCK_KINDS = {"feature_map": "activation"}
#: Kinds of spans, and columns of stored timelines.
SPAN_KINDS = {"copy_out": "copy_d2h", "copy_in": "copy_h2d"}
TIMELINE_COLUMNS = {"after_ns": "delta_ns", "takes_ns": "duration_ns"}
#: Members of the runs of a recorded validation case.
RUNS_MEMBERS = {"made": "setup", "held_bytes": "initial_bytes"}
#: Keys of the files of a measured recording, and values of its settings.
MACHINE_KEYS = {
    "saving_waits": "blocking_save_on_cpu",
    "both_d2h": "bidirectional_d2h",
    "both_h2d": "bidirectional_h2d",
    "products of float32": "float32 matmul precision",
    "PyTorch's profiler": "profiler",
}
MACHINE_VALUES = {
    "freed memory": {"kept": "retained by the process", "as the system has it": "system default"},
    "profiler": {"loaded before anything is timed": "loaded before timing"},
}
#: Parameters of policies and their values.
POLICY_PARAMETERS = {"joint": {"bound": "lower_bound"}}
POLICY_VALUES = {"home": {"offload": {"beside": "overlapped"}}}


def _all() -> dict[str, tuple[str, ...]]:
    tables = (
        METRICS, MEASURES, PUBLISHED_KEYS, RUN_KEYS, TRACE_KEYS, *TRACE_COLUMNS.values(), BLOCK_KINDS, SPAN_KINDS,
        RUNS_MEMBERS, TIMELINE_COLUMNS, MACHINE_KEYS, *POLICY_PARAMETERS.values(),
        *(values for each in POLICY_VALUES.values() for values in each.values()),
    )  # fmt: skip
    names: dict[str, tuple[str, ...]] = {}
    for table in tables:
        for old, new in table.items():
            names[old] = (*names.get(old, ()), new)
    return names


_FORMER = _all()


def name_today(name: str, known: frozenset[str]) -> str | None:
    """What a former name is called today, if that is one of the known names.

    >>> name_today("born", frozenset(["id", "host_write"])), name_today("born", frozenset(["id"]))
    ('host_write', None)
    """
    return next((new for new in _FORMER.get(name, ()) if new in known), None)
