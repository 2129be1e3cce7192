"""The launch tuner: searches for the grid and block size with the shortest codec time for a network's tensors.

The expert uses 128 threads, as in the paper, and eight blocks per multiprocessor, which is our assumption: see
`simgpu.compression.codecs.gpu.paper`. The Bayesian search uses the library's defaults: a Gaussian process with a Matern
5/2 kernel, and the upper confidence bound with 2.576 standard deviations. Grids start at 1; the paper's start at 0,
which cannot be launched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simgpu.compression.codecs.gpu.setting import EXPERT_BLOCKS, LARGEST_GRID, THREADS, LaunchSetting, all_settings
from simgpu.compression.codecs.gpu.surface import ResponseSurface, network_ns, network_times
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.errors import InputError, MissingExtraError
from simgpu.hardware.spec import GpuSpec

#: Initial random settings, and steps of the search: CSWAP, section IV-D.
INITIAL, STEPS = 10, 25
Method = Literal["random", "expert", "bayesian", "grid_search"]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of a search method.

    total_ns: time to encode and decode every tensor once at the setting, ns. evaluations: number of settings tried.
    search_ns: total codec time of all of them, ns.
    """

    method: Method
    setting: LaunchSetting
    total_ns: int
    evaluations: int
    search_ns: int


@dataclass(frozen=True)
class LaunchTuner:
    """Chooses settings for one codec and the tensors of one network, on one surface."""

    surface: ResponseSurface
    codec: str
    tensors: tuple[SparseTensor, ...]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise InputError.single("", "tensors", "are empty", "give the tensors that the network compresses")

    def at(self, setting: LaunchSetting) -> int:
        """Nanoseconds to encode and decode all tensors at a setting."""
        return network_ns(self.surface, self.codec, self.tensors, setting)

    def random(self, seed: int = 0) -> Tuned:
        """One setting drawn at random."""
        generator = np.random.default_rng(seed)
        grid, threads = int(generator.integers(1, LARGEST_GRID, endpoint=True)), int(generator.choice(THREADS))
        return self._without_search("random", LaunchSetting(grid, threads))

    def expert(self, gpu: GpuSpec) -> Tuned:
        """The setting of `expert_setting`."""
        return self._without_search("expert", expert_setting(gpu))

    def grid_search(self) -> Tuned:
        """The best of all settings; among equal ones that with fewer threads, then fewer blocks."""
        times = network_times(self.surface, self.codec, self.tensors)
        grids, threads = all_settings()
        best = int(times.argmin())
        setting = LaunchSetting(int(grids[best]), int(threads[best]))
        return Tuned("grid_search", setting, int(times[best]), len(times), int(times.sum()))

    def bayesian(self, seed: int = 0, initial: int = INITIAL, steps: int = STEPS) -> Tuned:
        """The best of `initial` random settings and `steps` proposed ones; the first among equal ones.

        The same seed and library versions give the same setting. Raises `InputError` for less than one initial setting
        or a negative number of steps, and `MissingExtraError` without bayesian-optimization.
        """
        if initial < 1 or steps < 0:
            remedy = "give 1 or more initial settings, and 0 or more steps"
            raise InputError.single(
                "", "search", f"{initial} initial settings and {steps} steps are not a valid search", remedy
            )
        tried = self._propose(seed, initial, steps)
        setting, total = min(tried, key=lambda each: each[1])
        return Tuned("bayesian", setting, total, len(tried), sum(each for _, each in tried))

    def _propose(self, seed: int, initial: int, steps: int) -> list[tuple[LaunchSetting, int]]:
        if importlib.util.find_spec("bayes_opt") is None:
            raise MissingExtraError("tuning a codec's launch", "bayesian-optimization", "cswap")
        from bayes_opt import BayesianOptimization

        tried: list[tuple[LaunchSetting, int]] = []

        def milliseconds_saved(grid: float, threads: str) -> float:
            setting = LaunchSetting(int(grid), int(threads))
            tried.append((setting, self.at(setting)))
            return -tried[-1][1] / 1e6

        # The library prints every setting that it proposes repeatedly, and warns about integers and about length scales
        # at a bound: neither matters for tuning a codec.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", UserWarning)
            search = BayesianOptimization(
                milliseconds_saved,
                {"grid": (1, LARGEST_GRID, int), "threads": tuple(str(count) for count in THREADS)},
                random_state=seed,
                verbose=0,
                allow_duplicate_points=True,
            )
            search.maximize(init_points=initial, n_iter=steps)
        return tried

    def _without_search(self, method: Method, setting: LaunchSetting) -> Tuned:
        return Tuned(method, setting, self.at(setting), 0, 0)


def expert_setting(gpu: GpuSpec) -> LaunchSetting:
    """Blocks of 128 threads, eight per multiprocessor. Raises `InputError` if the number of these is unknown.

    >>> from simgpu import load_node
    >>> str(expert_setting(load_node("v100").gpu))
    '(640, 128)'
    """
    if gpu.multiprocessors is None:
        what = f"missing in the description of GPU {gpu.name!r}"
        raise InputError.single("", "gpu.multiprocessors", what, "add it")
    return LaunchSetting(min(EXPERT_BLOCKS * gpu.multiprocessors, LARGEST_GRID), THREADS[-1])


def tune_all(
    surface: ResponseSurface, gpu: GpuSpec, codec: str, tensors: Iterable[SparseTensor], seed: int = 0
) -> tuple[Tuned, ...]:
    """The results of figure 12's four methods: random, expert, Bayesian search, grid search."""
    tuner = LaunchTuner(surface, codec, tuple(tensors))
    return tuner.random(seed), tuner.expert(gpu), tuner.bayesian(seed), tuner.grid_search()
