"""Loading a study by name or path, with every problem in every file it leads to told at once.

Lives here: what makes a study of a file. Does not live here: the model of the file (`simgpu.scenario.study`), what
reading it has in common with a scenario (`simgpu.scenario.reading`), or running it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, did_you_mean
from simgpu.hardware.spec import NodeSpec
from simgpu.scenario.catalogue import read_file
from simgpu.scenario.reading import Reading
from simgpu.scenario.study import AGGREGATES, STUDY_SCHEMA, Published, PublishedSection, Study, StudyFile, StudyRun
from simgpu.trace.model import Trace
from simgpu.validation import validate


def load_study(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Study:
    """A study by its shipped name or its file, with its traces, nodes and policies loaded and checked.

    overrides: values by dotted key, of the study (``epochs``, ``runs.CSWAP.policy``) or of all its nodes
    (``node.gpu.memory``). They win over the file's own. Paths start as those of a scenario (`load_scenario`).

    Raises `InputError` with the problems of the study, its nodes, traces and policies together.

    >>> study = load_study("cswap-6a", {"epochs": [0, 48]})
    >>> study.baseline, study.epochs, study.traces["VGG16"].info.batch
    (('vDNN',), (0, 48), 2560)
    """
    return _Loading(read_file(name_or_path, STUDY_SCHEMA), dict(overrides or {})).study()


class _Loading(Reading):
    """One study on its way in."""

    def study(self) -> Study:
        """The study; raises `InputError` with every problem found."""
        file = self.attempt(lambda: validate(StudyFile, self.values, self.where))
        everywhere = {"overrides": self.values.get("overrides")}
        node = self.node(self.values.get("node"), "node", everywhere)
        traces = {label: self._trace(label, entry, node) for label, entry in self._labelled("traces")}
        nodes = {label: self._run(label, run, node, everywhere) for label, run in self._labelled("runs")}
        published = self._check_labels(file) if file is not None else ()
        if self.problems or file is None:
            # the same node or trace named twice tells its problems twice
            raise InputError(dict.fromkeys(self.problems))
        return Study(
            name=file.name or Path(self.document.file).stem,
            description=file.description,
            paper=file.paper,
            notes=tuple(file.notes),
            traces={label: trace for label, trace in traces.items() if trace is not None},
            runs=tuple(
                StudyRun(label, run.policy, found)
                for label, run in file.runs.items()
                if (found := nodes[label]) is not None
            ),
            baseline=tuple(dict.fromkeys(file.baseline)),
            epochs=tuple(dict.fromkeys(file.epochs)),
            iterations=file.iterations,
            seed=file.seed,
            published=published,
        )

    def _labelled(self, key: str) -> list[tuple[str, Any]]:
        """What is written under a key by label; nothing where that is no mapping, of which the file's model tells."""
        written = self.values.get(key)
        return list(written.items()) if isinstance(written, dict) else []

    def _trace(self, label: str, entry: object, node: NodeSpec | None) -> Trace | None:
        place = f"traces.{label}"
        if label in AGGREGATES:
            self.tell(place, f"{label!r} stands for all traces together", "give it another label")
        return self.trace(entry, place, node, self.values.get("node"))

    def _run(self, label: str, run: object, own: NodeSpec | None, everywhere: dict[str, Any]) -> NodeSpec | None:
        """The node of a run, once its policy has been looked at."""
        if not isinstance(run, dict):
            return None  # the model of the file has already said so
        place = f"runs.{label}"
        self.policy(run.get("policy"), f"{place}.policy")
        if run.get("node") is None and not run.get("overrides"):
            return own
        sections = {f"{place}.overrides": run.get("overrides"), **everywhere}
        if run.get("node") is None:
            return self.node(self.values.get("node"), "node", sections)
        return self.node(run["node"], f"{place}.node", sections)

    def _check_labels(self, file: StudyFile) -> tuple[Published, ...]:
        """Baselines and published numbers of runs and traces that there are."""
        listed = isinstance(self.values.get("baseline"), list)
        for number, label in enumerate(file.baseline):
            self._known(label, file.runs, f"baseline[{number}]" if listed else "baseline", "run")
        return tuple(self._published(row, f"published[{at}]", file) for at, row in enumerate(file.published))

    def _published(self, row: PublishedSection, place: str, file: StudyFile) -> Published:
        over = row.over if row.over is not None else file.baseline[0]
        self._known(row.run, file.runs, f"{place}.run", "run")
        if row.over is not None:
            self._known(over, file.runs, f"{place}.over", "run")
        if row.run == over:
            self.tell(
                f"{place}.run", f"{over!r} is compared with itself", "name another run, or another to compare it with"
            )
        self._known(row.of, (*AGGREGATES, *file.traces), f"{place}.of", "trace")
        for number, label in enumerate(row.without):
            self._known(label, file.traces, f"{place}.without[{number}]", "trace")
        if row.without and row.of in file.traces:
            remedy = f"leave it out, or write of: {', '.join(AGGREGATES)}"
            self.tell(f"{place}.without", f"{row.of!r} is one trace, of which none can be left out", remedy)
        if not set(file.traces) - set(row.without):
            self.tell(f"{place}.without", "leaves no trace", "name fewer")
        return Published(
            row.run, over, row.of, row.value, row.measure, row.source, tuple(row.without), row.note.strip()
        )

    def _known(self, label: str, known: Iterable[str], place: str, word: str) -> None:
        if label not in known:
            self.tell(place, f"there is no {word} {label!r}", did_you_mean(label, known))
