"""Compares the codec time model with other regressions by relative absolute error: CSWAP, section V-C and figure 10.

The others are scikit-learn's with default settings, each a single model over all sparsities, because only the time
model has sub-models; `linear_all` is the time model without them. Bytes are given in MB and times in milliseconds: only
the default support vector machine depends on these units.

All samples are from one surface. If that is a formula, the comparison shows which regression fits the formula, not
which fits a GPU; and no model's error can be much less than twice the noise of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.gpu.samples import NOISE, CodecSample, draw_samples
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.surface import ResponseSurface
from simgpu.compression.codecs.gpu.tensors import TESTED, TRAINED, synthetic_tensors
from simgpu.compression.codecs.gpu.timemodel import PIECES, CodecTimeModel, features, require_sklearn

Direction = Literal["encode", "decode"]
ModelName = Literal["linear", "linear_all", "bayesian_ridge", "svm", "decision_tree"]
#: Number of training samples, and of the separate samples of each test: CSWAP, section V-C.
COUNT = 3000
#: The setting chosen by CSWAP's search (figure 12), assumed for its measured times.
SETTING = LaunchSetting(199, 64)


@dataclass(frozen=True, slots=True)
class ModelError:
    """Relative absolute errors of one model of one codec and direction.

    trained_range: error on tensors with the sparsities of the training (20-80%). wider: on 20-90%, as in figure 10.
    """

    codec: str
    direction: Direction
    model: ModelName
    trained_range: float
    wider: float


def compare_models(
    surface: ResponseSurface,
    codecs: Sequence[str] | None = None,
    *,
    seed: int = 0,
    count: int = COUNT,
    noise: float = NOISE,
    pieces: int = PIECES,
    setting: LaunchSetting = SETTING,
) -> tuple[ModelError, ...]:
    """Errors of every model, codec and direction, on samples that are not used for training. codecs: None for all.

    Raises `MissingExtraError` without scikit-learn, and `InputError` like `draw_samples` and `CodecTimeModel.fit`.
    """
    require_sklearn("comparing models of codec times")
    errors = []
    for codec in surface.codecs if codecs is None else codecs:
        generator = np.random.default_rng(seed)
        trained, same, wider = (
            draw_samples(surface, codec, synthetic_tensors(count, generator, zeros), setting, generator, noise)
            for zeros in (TRAINED, TRAINED, TESTED)
        )
        for direction, model, predict in _models(codec, trained, pieces):
            near, far = (relative_absolute_error(predict(each), _times(each, direction)) for each in (same, wider))
            errors.append(ModelError(codec, direction, model, near, far))
    return tuple(errors)


def mean_errors(errors: Sequence[ModelError]) -> dict[ModelName, tuple[float, float]]:
    """Mean over codecs and directions of both errors, by model."""
    result: dict[ModelName, list[tuple[float, float]]] = {}
    for each in errors:
        result.setdefault(each.model, []).append((each.trained_range, each.wider))
    return {
        model: (sum(near for near, _ in pairs) / len(pairs), sum(far for _, far in pairs) / len(pairs))
        for model, pairs in result.items()
    }


def relative_absolute_error(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """Sum of |predicted - measured| over sum of |mean of measured - measured| (CSWAP, section V-C).

    >>> relative_absolute_error(np.array([1.0, 2.5, 4.0]), np.array([1.0, 2.0, 3.0]))
    0.75
    """
    return float(np.abs(predicted - measured).sum() / np.abs(measured.mean() - measured).sum())


Predict = Callable[[Sequence[CodecSample]], NDArray[np.float64]]


def _models(codec: str, trained: Sequence[CodecSample], pieces: int) -> list[tuple[Direction, ModelName, Predict]]:
    """The fitted models as functions from samples to milliseconds."""
    from sklearn.linear_model import BayesianRidge
    from sklearn.svm import SVR
    from sklearn.tree import DecisionTreeRegressor

    models: list[tuple[Direction, ModelName, Predict]] = []
    fitted: dict[ModelName, CodecTimeModel] = {
        "linear": CodecTimeModel.fit(trained, pieces),
        "linear_all": CodecTimeModel.fit(trained, 1),
    }
    directions: tuple[Direction, Direction] = ("encode", "decode")
    for position, direction in enumerate(directions):
        models += [(direction, name, _linear(each, codec, position)) for name, each in fitted.items()]
        others: dict[ModelName, Any] = {
            "bayesian_ridge": BayesianRidge(),
            "svm": SVR(),
            "decision_tree": DecisionTreeRegressor(random_state=0),
        }
        for name, model in others.items():
            model.fit(features(trained), _times(trained, direction))
            models.append((direction, name, _other(model)))
    return models


def _linear(model: CodecTimeModel, codec: str, position: int) -> Predict:
    return lambda samples: np.array(
        [model.predict_ns(codec, each.bytes, each.sparsity)[position] / 1e6 for each in samples]
    )


def _other(model: Any) -> Predict:
    return lambda samples: np.asarray(model.predict(features(samples)), np.float64)


def _times(samples: Sequence[CodecSample], direction: Direction) -> NDArray[np.float64]:
    """Milliseconds."""
    return np.array([each.encode_ns if direction == "encode" else each.decode_ns for each in samples]) / 1e6
