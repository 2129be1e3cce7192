"""The networks that represent HOME's: fitted to the largest batches of its table 2 (traces/README.md)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from simgpu.experiments.max_batch import max_batch
from simgpu.experiments.scenarios.load import make_scenario
from simgpu.io.shipped import find
from tests.papers.published import published as figures

_CIFAR = {"input": "cifar10"}
_APART = {"framework": "pytorch-1.5"}
_NORMALIZED: dict[str, Any] = {"variant": {"batch_norm": True}}

#: By the names of the table, in its order: the chosen form first, then others that are published.
FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "MobileNet": ({"zoo": "mobilenet", **_CIFAR, **_APART}, {"zoo": "mobilenet", **_CIFAR}, {"zoo": "mobilenet"}),
    "Plain20": (
        {"zoo": "plain20", **_APART, "variant": {"width": 4}},
        {"zoo": "plain20", **_APART},
        *({"zoo": "plain20", "variant": {"width": width}} for width in (1, 2, 4, 8)),
        {"zoo": "plain20", **_APART, "variant": {"width": 8}},
    ),
    "SqueezeNet": (
        {"zoo": "squeezenet", **_CIFAR, **_APART, **_NORMALIZED},
        {"zoo": "squeezenet", **_CIFAR, **_NORMALIZED},
        {"zoo": "squeezenet", **_CIFAR, **_APART},
        {"zoo": "squeezenet", **_CIFAR},
        {"zoo": "squeezenet"},
        {"zoo": "squeezenet1.1"},
    ),
    "VGG16": (
        {"zoo": "vgg16", **_CIFAR, **_APART, **_NORMALIZED},
        {"zoo": "vgg16", **_CIFAR, **_NORMALIZED},
        {"zoo": "vgg16", **_CIFAR, **_APART},
        {"zoo": "vgg16", **_CIFAR},
    ),
    "ResNet": (
        {"zoo": "resnet18", **_CIFAR, **_APART},
        *({"zoo": f"resnet{depth}", **_CIFAR, **_APART} for depth in (34, 50)),
        {"zoo": "resnet20", **_APART},
        {"zoo": "resnet20", **_APART, "variant": {"width": 4}},
    ),
    "InceptionV3": (
        {"zoo": "inception-v3", "variant": {"side": 256}},
        {"zoo": "inception-v3"},
        {"zoo": "inception-v3", **_APART},
        {"zoo": "inception-v3", **_CIFAR},
        {"zoo": "inception-v3", **_CIFAR, **_APART},
    ),
}


@pytest.fixture(scope="module")
def published() -> dict[str, int]:
    return dict(zip(FORMS, figures()["home.max_batch.pytorch"], strict=True))


def written(form: dict[str, Any]) -> str:
    """The settings in one line, in sorted order."""
    words = {key: form[key] for key in ("zoo", "input", "framework", "variant") if key in form}
    return yaml.safe_dump(words, default_flow_style=True, sort_keys=False, width=200).strip()


@cache
def plain(text: str, budget: str) -> int:
    """The largest batch of a variant without a memory policy, in PyTorch's memory, with small workspaces."""
    trace = {**yaml.safe_load(text), "batch": 32, "workspace_limit": "64 MiB"}
    values = {"trace": trace, "node": "2080ti", "policies": "none", "budget": budget, "pool": "caching"}
    (result,) = max_batch(make_scenario(values, "these tests"), speeds=False)
    return result.batch or 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMS)
def test_each_home_network_is_the_variant_that_fits_least_more_than_the_published(
    name: str, published: dict[str, int]
) -> None:
    """With the paper's 11 GB: what is not modelled can only take memory."""
    chosen, *others = (plain(written(form), "11 GB") for form in FORMS[name])
    assert published[name] <= chosen
    assert all(other < published[name] or chosen < other for other in others)


def rows() -> dict[str, list[str]]:
    """The cells of the table in the README by network."""
    readme = (find("traces", "vgg16-b128-v100").parent / "README.md").read_text(encoding="utf-8")
    lines = [line.strip("|").split("|") for line in readme.splitlines() if "| `{zoo: " in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FORMS)
def test_the_readme_states_the_settings_and_their_error(name: str) -> None:
    settings, table, *simulated = rows()[name]
    assert settings == f"`{written(FORMS[name][0])}`"
    for budget, cell in zip(("11 GB", "11 GiB"), simulated, strict=True):
        batch = plain(written(FORMS[name][0]), budget)
        assert cell == f"{batch} ({batch / int(table) - 1:+.0%})"


def test_the_readme_has_the_largest_batches_of_the_table(published: dict[str, int]) -> None:
    assert {name: int(cells[1]) for name, cells in rows().items()} == published
