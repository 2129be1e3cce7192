"""Hand-written timelines for tests of code that reads timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simgpu.timeline.model import SHARED, MemoryCurve, SpanKind, Timeline, kind_of

#: (stream, kind or its label, name, start, end), then bytes and cause, if any
HandSpan = tuple[str, SpanKind | str, str, int, int] | tuple[str, SpanKind | str, str, int, int, int, str]
RESOURCES = ("device", "host", "d2h", "h2d")
STREAMS = ("compute", "d2h", "h2d", "host")


def curve_of(
    samples: Iterable[tuple[int, int, int]] = (), capacity: int | None = None, memory: str = "device"
) -> MemoryCurve:
    """A curve from (time, live, used)."""
    columns = np.array(list(samples), dtype=np.int64).reshape(-1, 3)
    gpu = 0 if memory == "device" else SHARED
    return MemoryCurve(columns[:, 0], columns[:, 1], columns[:, 2], capacity, memory, gpu)


def kind_and_resource(kind: SpanKind | str) -> tuple[SpanKind, int]:
    """A kind or its label as the columns of a timeline."""
    if isinstance(kind, SpanKind):
        return kind, -1
    known = kind_of(kind)
    assert known is not None, kind
    return known[0], RESOURCES.index(known[1]) if known[1] else -1


def timeline_of(
    spans: Sequence[HandSpan],
    ends: Sequence[int],
    *,
    device: MemoryCurve | None = None,
    host: MemoryCurve | None = None,
    streams: tuple[str, ...] = STREAMS,
) -> Timeline:
    """A one-GPU timeline; a span belongs to the first iteration that ends after its start."""
    full = [(*span, 0, "")[:7] if len(span) == 5 else span for span in spans]
    full.sort(key=lambda span: (span[3], streams.index(span[0])))
    names = tuple(dict.fromkeys(span[2] for span in full))

    def column(values: Iterable[int]) -> np.ndarray:
        return np.array(list(values), dtype=np.int64)

    return Timeline(
        streams=streams,
        names=names,
        gpu=column(0 for _ in full),
        stream=column(streams.index(span[0]) for span in full),
        kind=column(kind_and_resource(span[1])[0] for span in full),
        resource=column(kind_and_resource(span[1])[1] for span in full),
        resources=RESOURCES,
        name=column(names.index(span[2]) for span in full),
        start_ns=column(span[3] for span in full),
        end_ns=column(span[4] for span in full),
        bytes=column(span[5] for span in full),
        cause=column(streams.index(span[6]) if span[6] else -1 for span in full),
        iteration=column(next((i for i, end in enumerate(ends) if span[3] < end), len(ends) - 1) for span in full),
        memories=(device or curve_of(), host or curve_of(memory="host")),
        iteration_ends_ns=tuple(ends),
    )


def layered_run(
    layers: int = 60, iterations: int = 2, capacity: int | None = 2 * 2**30, bandwidth: int = 12_000_000_000
) -> Timeline:
    """A layer-synchronous offloading run: every input is offloaded in forward and prefetched one layer early.

    Layer sizes shrink and kernel times vary with depth, so that some copies overlap and others stall, as in a CNN.
    """
    spans: list[HandSpan] = []
    samples: list[tuple[int, int, int]] = []
    pinned: list[tuple[int, int, int]] = []
    ends: list[int] = []
    now, live, host = 0, 600 * 2**20, 0
    sizes = [(220 - 3 * layer if layer < layers * 2 // 3 else 40) * 2**20 for layer in range(layers)]
    times = [5_000_000 + 2_500_000 * (layer % 7) + 100_000 * layer for layer in range(layers)]

    def hold(change: int, at: int) -> None:
        nonlocal live
        live += change
        samples.append((at, live, live * 33 // 32))

    def pin(change: int, at: int) -> None:
        nonlocal host
        host += change
        pinned.append((at, host, host))

    samples.append((0, live, live * 33 // 32))
    for _ in range(iterations):
        hold(sizes[0], now)
        for layer in range(layers):
            hold(sizes[min(layer + 1, layers - 1)], now)
            done = now + times[layer]
            switch = done - times[layer] // 10
            spans.append(("compute", SpanKind.COMPUTE, f"conv{layer}.fwd", now, switch))
            spans.append(("compute", SpanKind.COMPUTE, f"relu{layer}.fwd", switch, done))
            copied = now
            if layer < layers - 1:
                pin(sizes[layer], now)
                copied = now + sizes[layer] * 10**9 // bandwidth
                spans.append(("d2h", "copy_d2h", f"map{layer}", now, copied, sizes[layer], ""))
                if copied > done:
                    spans.append(("compute", SpanKind.STALL_EVENT, f"map{layer}", done, copied, 0, "d2h"))
                elif done > copied:
                    spans.append(("d2h", SpanKind.STALL_EVENT, f"map{layer + 1}", copied, done, 0, "compute"))
            now = max(done, copied)
            if layer < layers - 1:
                hold(-sizes[layer], now)
        for layer in reversed(range(layers)):
            hold(sizes[layer], now)
            done = now + 2 * times[layer]
            spans.append(("compute", SpanKind.COMPUTE, f"conv{layer}.bwd", now, done))
            copied = now
            if layer > 0:
                hold(sizes[layer - 1], now)
                copied = now + sizes[layer - 1] * 10**9 // bandwidth
                spans.append(("h2d", "copy_h2d", f"map{layer - 1}", now, copied, sizes[layer - 1], ""))
                if copied > done:
                    spans.append(("compute", SpanKind.STALL_EVENT, f"map{layer - 1}", done, copied, 0, "h2d"))
                elif done > copied and layer > 1:
                    spans.append(("h2d", SpanKind.STALL_EVENT, f"map{layer - 2}", copied, done, 0, "compute"))
                pin(-sizes[layer - 1], copied)
            now = max(done, copied)
            hold(-2 * sizes[layer] if layer else -sizes[layer], now)
        hold(600 * 2**20 - live, now)
        for step in range(25):
            spans.append(("compute", SpanKind.COMPUTE, f"sgd{step}", now + step * 400_000, now + (step + 1) * 400_000))
        now += 25 * 400_000
        ends.append(now)
    samples.sort(key=lambda sample: sample[0])
    return timeline_of(spans, ends, device=curve_of(samples, capacity), host=curve_of(pinned, memory="host"))
