"""Checks of CSWAP's codec times: launch settings, the search for the best one, and regressions that predict times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from simgpu.compression.codecs.gpu.compare import compare_models, mean_errors
from simgpu.compression.codecs.gpu.paper import FIGURE_5, FIGURE_12, FIGURES, CodecFigure
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.samples import NOISE
from simgpu.compression.codecs.gpu.setting import THREADS, LaunchSetting
from simgpu.compression.codecs.gpu.surface import ResponseSurface, network_ns
from simgpu.compression.codecs.gpu.timemodel import PIECES
from simgpu.compression.codecs.gpu.tuner import LaunchTuner
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.cswap_layers import study_of, trained
from simgpu.papers.checks.results import bars, lines

_MS = 10**6
_GPU = load_node("v100").gpu
#: The names of the four methods in `simgpu.compression.codecs.gpu.paper`, and their abbreviations in figure 12.
_NAMES = {"random": "random", "expert": "expert", "bayesian": "Bayesian", "grid_search": "grid search"}
_WAYS = {"random": "RD", "expert": "EP", "bayesian": "BO", "grid_search": "GS"}
_PUBLISHED = {figure.name: figure for figure in FIGURES}
_RANDOM = _PUBLISHED["figure 12, random"]
#: Seeds of the Bayesian searches.
_SEEDS = (0, 1, 2)
#: Grids shown in the drawing of figure 5.
_GRIDS = (1, 2, 4, 7, 10, 20, 30, 40, 60, 80, 100, 120, 160, 197, 240, 320, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True)
class SlowedSurface(ResponseSurface):
    """The times of the surface `of`, multiplied by `times`."""

    of: ResponseSurface
    times: float

    @property
    def codecs(self) -> tuple[str, ...]:
        return self.of.codecs

    def _encode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return np.rint(self.of._encode(codec, tensor_bytes, sparsity, grid, threads) * self.times)

    def _decode(self, codec: str, tensor_bytes: Any, sparsity: Any, grid: Any, threads: Any) -> Any:
        return np.rint(self.of._decode(codec, tensor_bytes, sparsity, grid, threads) * self.times)


def _surface(slower: float) -> ResponseSurface:
    plain = response_of(_GPU)
    return plain if slower == 1 else SlowedSurface(plain.gpu, plain.basis, plain.description, plain, slower)


def launches(slower: float = 1) -> dict[str, Any]:
    """Milliseconds to encode and decode a tensor of 500 MB with 50% zeros, by launch setting (figure 5).

    slower: factor on all codec times.
    """
    surface = _surface(slower)
    ms = {
        (grid, threads): network_ns(surface, "zvc", FIGURE_5, LaunchSetting(grid, threads)) / _MS
        for grid in _GRIDS
        for threads in THREADS
    }
    published = [_PUBLISHED[f"figure 5, grid {grid}"] for grid in (10, 197, 1024)]
    return {
        **{f"grid_{grid}": ms[grid, 64] for grid in (10, 197, 1024)},
        "figure_5": lines(
            "ms to compress and decompress 500 MB",
            "thread blocks",
            {f"{threads} threads": [(grid, ms[grid, threads]) for grid in _GRIDS] for threads in THREADS},
            {"64 threads": [(_of(each).grid, each.paper_ms) for each in published]},
            log=True,
        ),
    }


def _of(figure: CodecFigure) -> LaunchSetting:
    assert figure.setting is not None
    return figure.setting


def tuner() -> dict[str, Any]:
    """Codec milliseconds for VGG16 at the settings that four methods find (figure 12).

    The random setting is the paper's, because every draw is different. The Bayesian search depends on its seed too: the
    result is the median of several seeds. Result tried_ratio: settings tried by grid search over those tried by the
    Bayesian search.
    """
    tuner_ = LaunchTuner(_surface(1), "zvc", FIGURE_12)
    grid, searches = tuner_.grid_search(), [tuner_.bayesian(seed) for seed in _SEEDS]
    ms = {
        "random": tuner_.at(_of(_RANDOM)) / _MS,
        "expert": tuner_.expert(_GPU).total_ns / _MS,
        "bayesian": median(each.total_ns for each in searches) / _MS,
        "grid_search": grid.total_ns / _MS,
    }
    published = {way: _PUBLISHED[f"figure 12, {name}"].paper_ms for way, name in _NAMES.items()}
    return {
        **ms,
        "tried_ratio": grid.evaluations / searches[0].evaluations,
        "figure_12": bars(
            "ms to compress and decompress VGG16's tensors",
            {_WAYS[way]: {"codec": value} for way, value in ms.items()},
            {_WAYS[way]: {"codec": float(value)} for way, value in published.items()},
        ),
    }


def random_setting(changed: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The codec's share of VGG16's iteration at figure 12's random setting; the rest is as at the tuned one."""
    study = study_of("cswap-6a", changed)
    results = [epoch.result for epoch in trained(study, "VGG16", "cswap", {"launch": "grid_search"}).epochs]
    rest = sum(each.iteration_ns - each.metrics.breakdown.codec for each in results) / len(results)
    codec = network_ns(_surface(1), "zvc", FIGURE_12, _of(_RANDOM))
    return {"share": codec / (codec + rest)}


def time_models(noise: float = NOISE, pieces: int = PIECES) -> dict[str, Any]:
    """Errors of regressions that predict codec times (figure 10).

    noise: relative noise of the samples. pieces: number of sub-models of the linear regression.
    """
    errors = mean_errors(compare_models(_surface(1), noise=noise, pieces=pieces))
    error = {model: wider for model, (_, wider) in errors.items()}
    return {
        "linear": error["linear"],
        "under_ridge": 1 - error["linear"] / error["bayesian_ridge"],
        "under_svm": 1 - error["linear"] / error["svm"],
    }


CHECKS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "launches": launches,
    "tuner": tuner,
    "random_setting": random_setting,
    "time_models": time_models,
}
