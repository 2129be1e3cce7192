"""`load_study` loads a study by name or path; the problems of all its files are reported at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, get_args

from simgpu.errors import InputError, did_you_mean
from simgpu.experiments.scenarios.catalogue import STUDY_SCHEMA, read_file
from simgpu.experiments.scenarios.model import DataParallelSection, PolicyChoice
from simgpu.experiments.scenarios.reading import Library, Reading
from simgpu.experiments.scenarios.study import (
    AGGREGATES,
    Alone,
    OfSweep,
    PublishedNumber,
    PublishedSection,
    RunSection,
    Study,
    StudyFile,
    StudyRun,
)
from simgpu.graph.replicate import Exchange
from simgpu.hardware.spec import NodeSpec
from simgpu.io.schema import validate
from simgpu.program.data_parallel import DataParallel
from simgpu.simulation.config import RunConfig
from simgpu.simulation.plain_peak import PeakPart
from simgpu.trace.model import NOT_RECORDED, Origin, Trace, TraceInfo
from simgpu.units import parse_percentage


def load_study(
    name_or_path: str | Path, overrides: Mapping[str, object] | None = None, *, library: Library | None = None
) -> Study:
    """Load and check a study by its shipped name or its file, with its traces, nodes and policies.

    overrides: values by dotted key, of the study (``epochs``, ``runs.CSWAP.policy``) or of all its nodes
    (``node.gpu.memory``). They take precedence over the file's own. A trace or run that is null
    (``traces.VGG16``: None) is excluded, with its published numbers. Paths are resolved as in `load_scenario`.
    library: cache of traces and nodes loaded by earlier studies

    Raises `InputError` with the problems of the study, its nodes, traces and policies together.

    >>> study = load_study("cswap-6a", {"epochs": [0, 48]})
    >>> study.baseline, study.epochs, study.traces["VGG16"].info.batch
    (('vDNN',), (0, 48), 2560)
    """
    return StudyReading(read_file(name_or_path, STUDY_SCHEMA), dict(overrides or {}), library).study()


#: A policy and a budget, in bytes or as a percentage, that change on a trace; None for the run's own.
Changed = tuple[PolicyChoice | None, int | str | None]


class StudyReading(Reading):
    """Loads one study, and collects its problems."""

    @cached_property
    def sweeps(self) -> dict[str, tuple[str, ...]]:
        """The labels of the traces of each sweep of batches, by its label, including those that could not be read."""
        written = {label: tuple(_swept(label, entry)) for label, entry in self._labelled("traces")}
        return {label: batches for label, batches in written.items() if batches}

    def study(self) -> Study:
        """The study. Raises `InputError` with every problem found."""
        self._leave_out()
        file = self.attempt(lambda: validate(StudyFile, self.values, self.where))
        everywhere = {"overrides": self.values.get("overrides")}
        node = self.node(self.values.get("node"), "node", everywhere)
        networks = {label: self._traces(label, entry, node) for label, entry in self._labelled("traces")}
        traces = {label: trace for result in networks.values() for label, trace in result.items()}
        self._check_traces(networks)
        if self.sweeps and self.values.get("largest_batch"):
            what = f"cannot be combined with the sweep of batches of {', '.join(self.sweeps)}"
            self.report("largest_batch", what, "give every trace one batch, at which the search starts")
        nodes = {label: self._run(label, run, node, everywhere) for label, run in self._labelled("runs")}
        runs = tuple(run for label in nodes for run in self._runs(label, file, nodes[label], traces)) if file else ()
        self._check_unique(runs)
        published = self._check_labels(file, runs) if file is not None else ()
        if self.problems or file is None:
            # a node or trace named twice reports its problems twice
            raise InputError(dict.fromkeys(self.problems))
        return Study(
            name=file.name or Path(self.document.file).stem,
            description=file.description,
            paper=file.paper,
            notes=tuple(file.notes),
            traces=traces,
            sweeps=self.sweeps,
            runs=runs,
            baseline=tuple(dict.fromkeys(file.baseline)),
            epochs=tuple(dict.fromkeys(file.epochs)),
            iterations=file.iterations,
            seed=file.seed,
            published=published,
            tables=tuple(dict.fromkeys(file.tables)),
            pool=file.pool,
            largest_batch=file.largest_batch,
        )

    def _leave_out(self) -> None:
        """Drop traces and runs that are null, and published numbers of them or relative to them."""
        null_labels: list[object] = []
        dropped: set[object] = set()
        for key in ("traces", "runs"):
            null = [label for label, entry in self._labelled(key) if entry is None]
            if null and len(null) < len(self.values[key]):
                self.values[key] = {label: entry for label, entry in self._labelled(key) if label not in null}
                null_labels += null
                original = self.document.values.get(key)
                points = [_swept(label, original.get(label)) for label in null] if isinstance(original, dict) else []
                dropped.update(null, *points)
        if not dropped:
            return
        text = f"Excluded: {', '.join(map(str, null_labels))}. Means cover the rest, even if the paper's cover all."
        if isinstance(notes := self.values.get("notes", []), list):
            self.values["notes"] = [*notes, text]
        for key in ("published", "baseline"):
            written = self.values.get(key)
            if isinstance(written, list):
                self.values[key] = [each for each in written if dropped.isdisjoint(_labels_in(each))]
        for row in self.values.get("published") or ():
            if isinstance(row, dict) and isinstance(row.get("excluding"), list):
                row["excluding"] = [label for label in row["excluding"] if label not in dropped]
        if isinstance(written := self.values.get("published"), list):
            remaining = [label for label, _ in self._labelled("traces")]
            self.values["published"] = [
                row for row in written if not all(label in _excluded(row) for label in remaining)
            ]
        for _, run in self._labelled("runs"):
            if isinstance(run, dict) and isinstance(run.get("per_trace"), dict):
                run["per_trace"] = {label: each for label, each in run["per_trace"].items() if label not in dropped}

    def _labelled(self, key: str) -> list[tuple[str, Any]]:
        """The entries of a key by label; empty if it is not a mapping, which the file's model reports."""
        written = self.values.get(key)
        return list(written.items()) if isinstance(written, dict) else []

    def _traces(self, label: str, entry: object, node: NodeSpec | None) -> dict[str, Trace]:
        """A trace, or the traces of a sweep of batches, by label; empty if they could not be read."""
        place = f"traces.{label}"
        if label in AGGREGATES:
            self.report(place, f"{label!r} is the name of an aggregate over all traces", "give it another label")
        if isinstance(entry, dict) and not {"batches", "trace"}.isdisjoint(entry):
            result = self.batches(entry, place, node, self.values.get("node"))
            return {_point(label, trace.info.batch): trace for trace in result}
        trace = self.trace(entry, place, node, self.values.get("node"))
        return {label: trace} if trace is not None else {}

    def _check_traces(self, networks: Mapping[str, object]) -> None:
        """Report traces whose label is also that of a sweep's trace."""
        for label, batches in self.sweeps.items():
            for other in networks.keys() & batches:
                self.report(f"traces.{other}", f"is also the label of {label!r} at that batch", "give it another label")

    def _run(self, label: str, run: object, own: NodeSpec | None, everywhere: dict[str, Any]) -> NodeSpec | None:
        """The node of a run; also checks its policies."""
        if not isinstance(run, dict):
            return None  # the file's model reports it
        place = f"runs.{label}"
        self.policy(run.get("policy"), f"{place}.policy")
        changes = run.get("per_trace")
        for trace, change in changes.items() if isinstance(changes, dict) else ():
            if isinstance(change, dict) and change.get("policy") is not None:
                self.policy(change["policy"], f"{place}.per_trace.{trace}.policy")
        if run.get("node") is None and not run.get("overrides"):
            return own
        sections = {f"{place}.overrides": run.get("overrides"), **everywhere}
        if run.get("node") is None:
            return self.node(self.values.get("node"), "node", sections)
        return self.node(run["node"], f"{place}.node", sections)

    def _runs(
        self, label: str, file: StudyFile, node: NodeSpec | None, traces: Mapping[str, Trace]
    ) -> Iterator[StudyRun]:
        """The run, or each run of a sweep; nothing if its node could not be read."""
        section, written, place = file.runs[label], self.values["runs"][label], f"runs.{label}"
        self._check_size(section.budget, written.get("budget"), f"{place}.budget", node)
        for number, size in enumerate(section.budgets):
            self._check_size(size, written["budgets"][number], f"{place}.budgets[{number}]", node)
        batches = tuple(trace.info.batch for trace in traces.values())
        how = self.data_parallel(section.data_parallel, f"{place}.data_parallel", node, batches)
        for trace, change in section.per_trace.items():
            at = f"{place}.per_trace.{trace}"
            self._known(trace, self._traces_of(file), at, "trace")
            if change.policy is None and change.budget is None:
                self.report(at, "changes nothing", "give it a policy or a budget, or remove it")
            self._check_size(change.budget, written["per_trace"][trace].get("budget"), f"{at}.budget", node)
        if node is None:
            return
        parts = _Parts(self, file, node, how, traces)
        own = None if isinstance(section.budget, str) else section.budget
        changed = parts.resolved(self._changed(section), section.budget, place)
        run = StudyRun(label, section.policy, node, own, how, changed=changed)
        if not section.budgets and not section.oversubscription:
            yield run
        yield from self._swept_runs(run, section, traces, parts)

    def _swept_runs(
        self, run: StudyRun, section: RunSection, traces: Mapping[str, Trace], parts: _Parts
    ) -> Iterator[StudyRun]:
        """The runs of a sweep of budgets or of oversubscription; nothing for other runs."""
        written, place = self.values["runs"][run.label], f"runs.{run.label}"
        for text, share in zip(written.get("oversubscription") or (), section.oversubscription, strict=True):
            shrunk = {name: (self._policy_on(run, name), _shrunk(trace, share)) for name, trace in traces.items()}
            for name, (_, bytes_) in shrunk.items():
                at = f"{place}.oversubscription"
                self.budget(bytes_, f"the memory that the peak of {name} exceeds by {text}", at, run.node)
            yield replace(run, label=_point(run.label, text), sweep=run.label, oversubscribed=share, changed=shrunk)
        for number, (text, size) in enumerate(zip(written.get("budgets") or (), section.budgets, strict=True)):
            point = replace(run, label=_point(run.label, text), sweep=run.label)
            if isinstance(size, str):
                changed = parts.resolved(self._changed(section), size, f"{place}.budgets[{number}]")
                yield replace(point, changed=changed, peak_part=float(parse_percentage(size)))
            else:
                yield replace(point, budget=size)

    def _check_size(self, size: int | str | None, written: object, place: str, node: NodeSpec | None) -> None:
        """Report a budget in bytes that exceeds the node's; a percentage is checked with each trace."""
        if not isinstance(size, str):
            self.budget(size, written, place, node)

    def _policy_on(self, run: StudyRun, trace: str) -> PolicyChoice | None:
        return run.changed.get(trace, (None, None))[0]

    def _changed(self, section: RunSection) -> dict[str, Changed]:
        """The changes on traces, by label. Changes for one batch take precedence over those for a sweep."""
        results: dict[str, Changed] = {}
        for label, change in sorted(section.per_trace.items(), key=lambda item: item[0] not in self.sweeps):
            for trace in self.sweeps.get(label, (label,)):
                policy, budget = results.get(trace, (None, None))
                results[trace] = (change.policy or policy, budget if change.budget is None else change.budget)
        return results

    def _traces_of(self, file: StudyFile) -> tuple[str, ...]:
        """The labels of the file's traces, and those of the batches of its sweeps."""
        return (*file.traces, *(trace for batches in self.sweeps.values() for trace in batches))

    def _check_unique(self, runs: tuple[StudyRun, ...]) -> None:
        """Report runs of a sweep with the same label as another run."""
        taken = Counter(run.label for run in runs)
        for run in dict.fromkeys(run.sweep for run in runs if taken[run.label] > 1 and run.sweep):
            shares = any(each.oversubscribed is not None for each in runs if each.sweep == run)
            key = "oversubscription" if shares else "budgets"
            self.report(f"runs.{run}.{key}", "two runs have the same label", "give each budget once, or another label")

    def _check_labels(self, file: StudyFile, runs: tuple[StudyRun, ...]) -> tuple[PublishedNumber, ...]:
        """The published numbers. Reports unknown labels of runs and traces in them and in the baselines."""
        listed = isinstance(self.values.get("baseline"), list)
        known = dict.fromkeys((*file.runs, *(run.label for run in runs)))
        for number, label in enumerate(file.baseline):
            self._known(label, known, f"baseline[{number}]" if listed else "baseline", "run")
        return tuple(
            self._published(row, f"published[{at}]", file, known, runs) for at, row in enumerate(file.published)
        )

    def _published(
        self, row: PublishedSection, place: str, file: StudyFile, known: Iterable[str], runs: tuple[StudyRun, ...]
    ) -> PublishedNumber:
        alone = row.measured in get_args(Alone)
        over = "" if row.run is None or alone else row.vs if row.vs is not None else file.baseline[0]
        if row.run is not None:
            self._known(row.run, known, f"{place}.run", "run")
            if row.vs is not None:
                self._known(over, known, f"{place}.vs", "run")
            if row.run == over:
                remedy = "name another run, or another to compare it with"
                self.report(f"{place}.run", f"{over!r} is compared with itself", remedy)
            self._check_sweeps(row.run, over, place, runs)
        self._check_of(row, place, file)
        if row.excluding and row.aggregate not in AGGREGATES:
            remedy = f"remove it, or write aggregate: {', '.join(AGGREGATES)}"
            self.report(f"{place}.excluding", f"applies only to aggregates, and {row.aggregate!r} is one trace", remedy)
        note = row.note.strip()
        return PublishedNumber(
            row.run or "",
            over,
            row.aggregate,
            row.value,
            row.measured,
            row.source,
            tuple(row.excluding),
            note,
            row.memory,
        )

    def _check_of(self, row: PublishedSection, place: str, file: StudyFile) -> None:
        """Check that a published number names known traces or sweeps of batches, and does not exclude all traces."""
        of_sweep = row.measured in get_args(OfSweep)
        known = tuple(file.traces) if of_sweep else self._traces_of(file)
        self._known(
            row.aggregate, (*AGGREGATES, *known), f"{place}.aggregate", "sweep of batches" if of_sweep else "trace"
        )
        for number, label in enumerate(row.excluding):
            self._known(label, known, f"{place}.excluding[{number}]", "trace")
        excluded = set(row.excluding)
        if all(label in excluded or excluded.issuperset(self.sweeps.get(label, (label,))) for label in file.traces):
            self.report(f"{place}.excluding", "excludes every trace", "name fewer")

    def _check_sweeps(self, label: str, over: str, place: str, runs: tuple[StudyRun, ...]) -> None:
        """Check that a sweep used as the baseline has a run with the same budget."""
        baseline_points = {run.point for run in runs if run.sweep == over}
        points = {run.point for run in runs if label in (run.label, run.sweep)}
        if over and baseline_points and not baseline_points.issuperset(points):
            what = f"{over!r} is a sweep, and has no run for every budget of {label!r}"
            self.report(
                f"{place}.run", what, f"give {label!r} budgets of {over!r} only, or compare it with another run"
            )

    def _known(self, label: str, known: Iterable[str], place: str, word: str) -> None:
        if label not in known:
            self.report(place, f"there is no {word} {label!r}", did_you_mean(label, known))


@dataclass(frozen=True)
class _Parts:
    """The budgets of a run that are percentages of the peaks of a study's traces."""

    reading: StudyReading
    file: StudyFile
    node: NodeSpec
    how: DataParallel | None
    traces: Mapping[str, Trace]

    def resolved(
        self, changed: Mapping[str, Changed], common: int | str | None, place: str
    ) -> dict[str, tuple[PolicyChoice | None, int | None]]:
        """The changes of a run with budgets in bytes. common: the budget of traces without their own."""
        results: dict[str, tuple[PolicyChoice | None, int | None]] = {}
        for name in dict.fromkeys((*changed, *(self.traces if isinstance(common, str) else ()))):
            policy, own = changed.get(name, (None, None))
            budget = common if own is None and isinstance(common, str) else own
            results[name] = policy, self._bytes(budget, name, place) if isinstance(budget, str) else budget
        return results

    def _bytes(self, percentage: str, name: str, place: str) -> int | None:
        trace = self.traces.get(name)
        if trace is None:
            return None  # its own problem is reported
        file = self.file
        config = RunConfig(
            budget=percentage,
            iterations=file.iterations,
            pool=file.pool,
            epoch=file.epochs[0],
            **(self.how.arguments if self.how else {}),
        )
        budget = self.reading.part_of_peak(trace, self.node, config, place)
        self.reading.budget(budget, f"{percentage} of the peak of {name}", place, self.node)
        return budget


def _point(label: str, at: object) -> str:
    """The label of a sweep's trace or run at one of its batches or budgets."""
    return f"{label} {str(at).strip()}"


def _shrunk(trace: Trace, share: float) -> int:
    """The memory in bytes, rounded up, that the trace's peak exceeds by this share; recorded lifetimes if known."""
    from simgpu.trace.stats import trace_stats

    stats = trace_stats(trace)
    peak = stats.peak_recorded or stats.peak_needed
    return 0 if peak is None else ceil(peak.bytes / (1 + Fraction(str(share))))


def _swept(label: str, entry: object) -> list[str]:
    """The labels of the traces or runs of a sweep, as written; empty if the entry is not a sweep."""
    keys = ("batches", "budgets", "oversubscription")
    points = next((entry[key] for key in keys if entry.get(key)), None) if isinstance(entry, dict) else None
    return [_point(label, at) for at in points] if isinstance(points, list) else []


def _excluded(row: object) -> list[object]:
    """The labels that a published row excludes."""
    without = row.get("excluding") if isinstance(row, dict) else None
    return without if isinstance(without, list) else []


def _labels_in(entry: object) -> list[object]:
    """The labels that a published row or a baseline names."""
    return [entry.get(key) for key in ("run", "vs", "aggregate")] if isinstance(entry, dict) else [entry]


def outline_study(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Study:
    """Load a study without its traces: labels, batches, runs and their measures.

    Its traces are empty and have no origin, those given by name have batch 1, and budgets derived from a trace are 0.
    Raises the errors of `load_study` for the file itself.

    >>> outline = outline_study("cswap-6a")
    >>> list(outline.traces)[:2], outline.traces["VGG16"].info.batch, outline.runs[0].label
    (['AlexNet', 'Plain20'], 2560, 'vDNN')
    """
    return _Outlining(read_file(name_or_path, STUDY_SCHEMA), dict(overrides or {})).study()


class _Outlining(StudyReading):
    """Loads a study without reading or modelling its traces."""

    def trace(self, written: object, place: str, node: NodeSpec | None, node_name: object) -> Trace | None:
        batch = written.get("batch", 1) if isinstance(written, dict) else 1
        return _empty(batch) if isinstance(written, str | dict) else None

    def batches(self, written: Mapping[str, Any], place: str, node: NodeSpec | None, node_name: object) -> list[Trace]:
        return [_empty(batch) for batch in written.get("batches") or ()]

    def part_of_peak(self, trace: Trace, node: NodeSpec, config: RunConfig, place: str) -> PeakPart | None:
        return PeakPart(Fraction(0), 0)

    def data_parallel(
        self, section: DataParallelSection | None, place: str, node: NodeSpec | None, batches: Iterable[int]
    ) -> DataParallel | None:
        if section is None or section.gpus == 1:
            return None
        return DataParallel(section.gpus, Exchange(section.exchange), section.cores)


def _empty(batch: int) -> Trace:
    info = TraceInfo(NOT_RECORDED, batch, NOT_RECORDED, NOT_RECORDED, Origin.MODELLED, NOT_RECORDED)
    return Trace(info, (), ())
