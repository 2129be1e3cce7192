"""A run explained: what it lost and to what, and its critical path, as one value that prints and shows as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simgpu.analysis.breakdown import Owner
from simgpu.analysis.tables import table_html, table_text
from simgpu.explain.answers import signed_time
from simgpu.explain.critical_path import Step, by_kind, critical_path
from simgpu.explain.losses import Loss, losses, lost
from simgpu.simulation.config import check_kind
from simgpu.simulation.result import Result
from simgpu.units import format_bytes, format_time

if TYPE_CHECKING:
    import pandas as pd

#: Rows that a printed explanation has of losses and of steps.
_SHOWN = 10
#: Layers that are told by name.
_LAYERS = 4
LOSS_HEADINGS = ("lost", "share", "to: tensor; engine, decision; why compute waited")
PATH_HEADINGS = ("time", "share", "steps", "stream", "work")


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why the last iteration of a run took as long as it did. Prints as tables; in a notebook it shows as tables.

    losses: everything that GPU 0 did besides running kernels for the first time, the largest first. path: the steps of
    the critical path in order of time. See `explain_result`.
    """

    result: Result
    losses: tuple[Loss, ...]
    path: tuple[Step, ...]

    @property
    def parts(self) -> dict[str, int]:
        """By how much the iteration is longer than the ideal one (ns), in parts that add up to it."""
        return dict(lost(self.result, self.losses))

    @property
    def headline(self) -> str:
        """One line: how long the iteration is, and by what it is longer than the ideal one."""
        result, over = self.result, self.result.iteration_ns - self.result.ideal_ns
        parts = ", ".join(f"{signed_time(ns)} {name}" for name, ns in self.parts.items() if ns)
        told = f"{format_time(result.iteration_ns)}, {format_time(abs(over))} {'under' if over < 0 else 'over'} ideal"
        return f"{result.label}: {told}" + (f" = {parts}" if parts else "")

    @property
    def engines(self) -> dict[str, int]:
        """Nanoseconds lost by the stream that was busy with it, the most first."""
        found: dict[str, int] = {}
        for loss in self.losses:
            found[loss.cause.engine] = found.get(loss.cause.engine, 0) + loss.ns
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    @property
    def layers(self) -> dict[str, int]:
        """Nanoseconds lost by the layer of the tensor, the most first; tensors of no layer are left out."""
        found: dict[str, int] = {}
        for loss in self.losses:
            if loss.layer:
                found[loss.layer] = found.get(loss.layer, 0) + loss.ns
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    @property
    def by_layer(self) -> str:
        """One line: the layers whose tensors most was lost to; empty where there are not several."""
        layers = list(self.layers.items())
        told = ", ".join(f"{layer} {format_time(ns)}" for layer, ns in layers[:_LAYERS])
        rest = f", {len(layers) - _LAYERS} more" if len(layers) > _LAYERS else ""
        return f"tensors of {told}{rest}" if len(layers) > 1 else ""

    @property
    def by_engine(self) -> str:
        """One line: what was lost by engine; empty where nothing was."""
        return ", ".join(f"{format_time(ns)} to {engine or 'nobody'}" for engine, ns in self.engines.items())

    def loss_rows(self, count: int | None = None) -> list[tuple[str, str, str]]:
        """Texts under `LOSS_HEADINGS`, the largest losses first, what is left in one row."""
        total = sum(loss.ns for loss in self.losses)
        shown = self.losses[:count]
        rows = [(*_amount(loss.ns, total), "; ".join(loss_lines(loss))) for loss in shown]
        rest = self.losses[len(shown) :]
        if rest:
            rows.append((*_amount(sum(loss.ns for loss in rest), total), f"{len(rest)} more"))
        return rows

    def path_rows(self) -> list[tuple[str, ...]]:
        """Texts under `PATH_HEADINGS`: what kinds of work the critical path consists of."""
        whole = self.result.iteration_ns
        return [
            (*_amount(ns, whole), str(count), stream, kind.replace("stall_", "wait for ").replace("_", " "))
            for (stream, kind), (ns, count) in by_kind(self.path).items()
        ]

    def frame(self) -> pd.DataFrame:
        """The losses as a pandas table: ns, owner, tensor, bytes, what, engine, decision, reason, kernel, waits."""
        import pandas as pd

        return pd.DataFrame(map(loss_dict, self.losses), columns=list(_LOSS_COLUMNS))

    def path_frame(self) -> pd.DataFrame:
        """The critical path as a pandas table: start_ns and end_ns of the run's clock, ns, stream, kind, name."""
        import pandas as pd

        return pd.DataFrame(map(step_dict, self.path), columns=["start_ns", "end_ns", "ns", "stream", "kind", "name"])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, all losses and steps."""
        return {
            "policy": self.result.label,
            "iteration_ns": self.result.iteration_ns,
            "ideal_ns": self.result.ideal_ns,
            "lost_ns": self.parts,
            "losses": [loss_dict(loss) for loss in self.losses],
            "critical_path": [step_dict(step) for step in self.path],
        }

    def __repr__(self) -> str:
        tables = [table_text(LOSS_HEADINGS, self.loss_rows(_SHOWN))] if self.losses else []
        tables.append("critical path\n" + table_text(PATH_HEADINGS, self.path_rows()))
        head = "\n".join(filter(None, (self.headline, self.by_engine, self.by_layer)))
        return "\n\n".join((head, *tables))

    def _repr_html_(self) -> str:
        tables = [table_html(LOSS_HEADINGS, self.loss_rows(_SHOWN), self.headline, left=(2,))] if self.losses else []
        return "".join((*tables, table_html(PATH_HEADINGS, self.path_rows(), "critical path", left=(3, 4))))


def explain_result(result: Result) -> Explanation:
    """Why the last iteration of a run took as long as it did; `InputError` for what is no `Result`.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
    >>> from simgpu.simulation.run import simulate
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
    >>> found = explain_result(simulate(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn"))
    >>> found.headline
    'vdnn: 83 ns, 20 ns over ideal = 20 ns stalled'
    >>> found.frame()[["ns", "tensor", "decision"]].head(1).to_dict("records")
    [{'ns': 13, 'tensor': 'x2', 'decision': 'offload beside F2 of L2'}]
    """
    check_kind("result", result, Result)
    return Explanation(result, losses(result), critical_path(result.timeline))


def loss_lines(loss: Loss) -> list[str]:
    """Tensor, decision and reason of a loss, each in words."""
    size = format_bytes(loss.tensor_bytes) if loss.tensor_bytes else ""
    tensor = ", ".join(filter(None, (loss.cause.tensor, size, loss.what)))
    decision = ", ".join(filter(None, (loss.cause.engine, loss.cause.decision)))
    return [line for line in (tensor, decision, loss.cause.reason) if line]


def step_dict(step: Step) -> dict[str, Any]:
    """A step of the critical path as plain data."""
    times = {"start_ns": step.start_ns, "end_ns": step.end_ns, "ns": step.ns}
    return {**times, "stream": step.stream, "kind": step.label, "name": step.name}


_LOSS_COLUMNS = ("ns", "owner", "tensor", "bytes", "what", "engine", "decision", "reason", "kernel", "waits")


def loss_dict(loss: Loss) -> dict[str, Any]:
    """A loss as plain data."""
    cause = loss.cause
    told = (cause.tensor, loss.tensor_bytes, loss.what, cause.engine, cause.decision, cause.reason)
    return dict(zip(_LOSS_COLUMNS, (loss.ns, _owner(loss.owner), *told, loss.kernel, loss.waits), strict=True))


def _owner(owner: Owner) -> str:
    return owner.name.lower()


def _amount(ns: int, whole: int) -> tuple[str, str]:
    return format_time(ns), f"{ns / whole:.1%}" if whole else "-"
