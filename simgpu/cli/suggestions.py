"""Shell completion of names. Slow imports are inside functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem

from simgpu.io.input_files import read_text
from simgpu.io.shipped import shipped_folder, shipped_names

Suggest = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
#: Prefix of a network of the zoo, where a trace is also accepted.
ZOO = "zoo:"
#: The argument of ``simgpu reproduce`` for the shipped recordings.
RECORDINGS = "recordings"
_IS_STUDY = re.compile(r"^schema:\s*simgpu\.study/", re.MULTILINE)


def suggest(names: Callable[[], Iterable[str]], paths: str = "") -> Suggest:
    """Completes names with the typed prefix; if none matches, falls back to paths.

    paths: ``file`` or ``dir`` where a path is also accepted, otherwise empty.
    """

    def offer(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        result = [CompletionItem(name) for name in names() if name.startswith(incomplete) and name != _open(incomplete)]
        return result if result or not paths else [CompletionItem(incomplete, type=paths)]

    return offer


def _open(incomplete: str) -> str | None:
    """The text if it is a complete key that ends with ``=``; the shell would take it as a finished word."""
    return incomplete if incomplete.endswith("=") else None


def _scenario_names() -> list[str]:
    return [*_shipped(study=False), *_yaml_files()]


def _study_names() -> list[str]:
    return [*_shipped(study=True), *_yaml_files()]


def _shipped(study: bool) -> Iterator[str]:
    folder = shipped_folder("scenarios")
    for name in shipped_names("scenarios"):
        text = read_text(folder / f"{name}.yaml")
        if study == (_IS_STUDY.search(text) is not None):
            yield name


def _yaml_files() -> list[str]:
    """YAML files in the current folder."""
    return sorted(path.name for end in ("yaml", "yml") for path in Path().glob(f"*.{end}"))


def _trace_names() -> list[str]:
    return [*shipped_names("traces"), *sorted(path.parent.name for path in Path().glob("*/trace.yaml"))]


def network_names() -> list[str]:
    """Names of the zoo's networks."""
    from simgpu.workloads.catalogue import NETWORKS

    return list(NETWORKS)


def _codec_names() -> Iterable[str]:
    from simgpu.compression.codecs.registry import codec_names

    return codec_names()


def _policy_names() -> Iterable[str]:
    from simgpu.policies.registry import policy_names

    return policy_names()


def claims(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes papers and recordings; after a paper and a dot, the paper's claims."""
    from simgpu.papers.claims import PAPERS, select

    names = [claim.id for claim in select(())] if "." in incomplete else [*PAPERS, RECORDINGS]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _workloads() -> Iterator[str]:
    yield from _trace_names()
    yield from _scenario_names()
    yield from (f"{ZOO}{network}" for network in network_names())


def _models() -> Iterator[str]:
    """Traces, networks of the zoo, and configurations in folders here."""
    yield from _trace_names()
    yield from network_names()
    yield from sorted(path.parent.name for path in Path().glob("*/config.json"))


def _setting_keys(kind: str) -> Iterator[str]:
    """Keys that ``--set`` accepts, each followed by ``=``."""
    from simgpu.experiments.scenarios.model import ScenarioFile
    from simgpu.experiments.scenarios.study import StudyFile
    from simgpu.hardware.nodes import NodeFile

    yield from _keys(StudyFile if kind == "study" else ScenarioFile)
    yield from (f"node.{key}" for key in _keys(NodeFile))


def _keys(model: Any) -> Iterator[str]:
    """The keys of a file; keys inside sections are joined with dots, and each key ends with ``=``."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        section = _section(field.annotation)
        if key == "schema":
            continue
        if section is None:
            yield f"{key}="
        else:
            yield from (f"{key}.{inner}" for inner in _keys(section))


def _section(annotation: Any) -> Any:
    """The model of a section (optional or not); None for values and for mappings of sections."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return next((kind for kind in kinds if hasattr(kind, "model_fields")), None)


scenarios = suggest(_scenario_names, "file")
studies = suggest(_study_names, "file")
traces = suggest(_trace_names, "dir")
#: A trace or other files.
traces_or_files = suggest(_trace_names, "file")
#: A trace, a scenario or a network of the zoo.
workloads = suggest(_workloads, "file")
#: What `simgpu fit` takes.
models = suggest(_models, "file")
nodes = suggest(lambda: [*shipped_names("configs"), *_yaml_files()], "file")
policies = suggest(_policy_names)
codecs = suggest(_codec_names)
networks = suggest(network_names)
scenario_keys = suggest(lambda: _setting_keys("scenario"))
study_keys = suggest(lambda: _setting_keys("study"))
