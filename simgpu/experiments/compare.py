"""Several policies on one trace and one node, side by side.

Lives here: `compare` and its answer. Does not live here: running one policy (`simgpu.simulate`), files
(`simgpu.experiments.outputs`), or drawing on a terminal (the command line's).
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from simgpu.analysis.tables import COMPARISON_HEADINGS, comparison_rows
from simgpu.errors import OutOfMemoryError
from simgpu.policies.base import Policy
from simgpu.policies.registry import make_policy
from simgpu.simulate import Result, simulate

if TYPE_CHECKING:
    import pandas as pd

    from simgpu.hardware.spec import NodeSpec
    from simgpu.trace.model import Trace

#: A policy by name, by name and parameters, as ``{name: parameters}``, or as an object.
PolicyRequest = str | tuple[str, Mapping[str, object]] | Mapping[str, Mapping[str, object]] | Policy
_Named = tuple[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's outcome: its result, or the out-of-memory error that ended it.

    label: the policy's name with the parameters that were asked for, unique within a comparison.
    """

    label: str
    policy: str
    parameters: Mapping[str, object]
    outcome: Result | OutOfMemoryError

    @property
    def result(self) -> Result | None:
        """The result, None when the run was out of memory."""
        return None if isinstance(self.outcome, OutOfMemoryError) else self.outcome

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the result's, or what is known of the lack of memory."""
        head: dict[str, Any] = {"label": self.label, "policy": self.policy, "parameters": dict(self.parameters)}
        if not isinstance(self.outcome, OutOfMemoryError):
            return head | self.outcome.to_dict()
        error = self.outcome
        facts = ("waiting", "space", "requested", "free", "largest_hole", "capacity", "at_ns")
        holders = [{"name": name, "bytes": size} for name, size in error.holders]
        told = {fact: getattr(error, fact) for fact in facts} | {"holders": holders, "message": str(error)}
        return head | {"out_of_memory": told}


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs in the order asked for. Prints as a table; in a notebook it shows as one.

    Use ``comparison["vdnn(mode=conv)"]`` for a run by its label, `frame` for all numbers.
    """

    runs: tuple[Run, ...]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, label: str) -> Run:
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(label)

    @property
    def results(self) -> dict[str, Result]:
        """The results by label, without the runs that were out of memory."""
        return {run.label: run.result for run in self.runs if run.result is not None}

    def rows(self) -> list[tuple[str, ...]]:
        """Texts under `COMPARISON_HEADINGS`, one row a run."""
        return comparison_rows((run.label, run.result.metrics if run.result else None, _note(run)) for run in self.runs)

    def frame(self) -> pd.DataFrame:
        """One row a run by label, one column a metric in base units (see `Metrics`); empty where out of memory."""
        import pandas as pd

        values = {
            run.label: {row.key: row.value for row in run.result.metrics.rows()} if run.result else {} for run in self
        }
        return pd.DataFrame.from_dict(values, orient="index").rename_axis("policy")

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain data for JSON, one entry a run."""
        return [run.to_dict() for run in self.runs]

    def __repr__(self) -> str:
        table = [COMPARISON_HEADINGS, *self.rows()]
        widths = [max(len(row[column]) for row in table) for column in range(len(COMPARISON_HEADINGS))]
        last = len(widths) - 1
        lines = [
            "  ".join(
                text.ljust(width) if column in (0, last) else text.rjust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def line(tag: str, texts: Iterable[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

        body = "".join(line("td", row) for row in self.rows())
        return f"<table><thead>{line('th', COMPARISON_HEADINGS)}</thead><tbody>{body}</tbody></table>"


def compare(
    trace: Trace,
    node: NodeSpec,
    policies: Iterable[PolicyRequest] = ("ideal", "none", "vdnn"),
    *,
    budget: int | None = None,
    iterations: int = 3,
    seed: int = 0,
    pool: Literal["counting", "addressed"] | None = None,
    alignment: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Every policy on the same trace, node and settings (see `simulate`), one after the other.

    policies: names, ``("vdnn", {"mode": "conv"})``, ``{"vdnn": {"mode": "conv"}}`` or policy objects. A policy
    that runs out of memory does not end the comparison: its run holds the error. progress: called with each
    label before its run.

    Raises `InputError` for unknown policies or parameters, before anything runs.
    """
    runs: list[Run] = []
    for policy, parameters in [_made(request) for request in policies]:
        name = policy.name
        label = policy_label(name, parameters)
        if progress:
            progress(label)
        outcome: Result | OutOfMemoryError
        try:
            outcome = simulate(
                trace,
                node,
                policy,
                budget=budget,
                iterations=iterations,
                seed=seed,
                pool=pool,
                alignment=alignment,
            )
        except OutOfMemoryError as error:
            outcome = error
        runs.append(Run(label, name, parameters, outcome))
    return Comparison(tuple(runs))


def policy_label(name: str, parameters: Mapping[str, object]) -> str:
    """A policy with its parameters in a few words.

    >>> policy_label("vdnn", {"mode": "conv"}), policy_label("none", {})
    ('vdnn(mode=conv)', 'none')
    """
    given = ", ".join(f"{key}={value}" for key, value in parameters.items())
    return f"{name}({given})" if given else name


def _made(request: PolicyRequest) -> tuple[Policy, Mapping[str, object]]:
    """The policy, and the parameters to name it by: those asked for, or those that are not its defaults."""
    if isinstance(request, Policy):
        given = {field.name: getattr(request, field.name) for field in fields(request)}  # type: ignore[arg-type]
        defaults = {field.name: field.default for field in fields(request)}  # type: ignore[arg-type]
        return request, {key: value for key, value in given.items() if value != defaults[key]}
    name, parameters = _named(request)
    return make_policy(name, parameters), parameters


def _named(request: str | tuple[str, Mapping[str, object]] | Mapping[str, Mapping[str, object]]) -> _Named:
    if isinstance(request, str):
        return request, {}
    if isinstance(request, tuple):
        return request
    if len(request) != 1:
        raise ValueError(f"{request!r} is not one policy: write {{name: parameters}} for each")
    ((name, parameters),) = request.items()
    return name, parameters


def _note(run: Run) -> str:
    if run.result is None:
        return "out of memory"
    return "" if run.result.steady else "unsteady"
