"""An outline has the rows and columns of the study without loading traces."""

from __future__ import annotations

import pytest

from simgpu.errors import InputError
from simgpu.experiments.scenarios.catalogue import shipped_studies
from simgpu.experiments.scenarios.load_study import load_study, outline_study


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_studies() if not name.startswith(("home", "buddy-1"))])
def test_an_outline_equals_the_study_without_traces(name: str) -> None:
    outline, study = outline_study(name), load_study(name)
    assert list(outline.traces) == list(study.traces)
    assert not any(trace.kernels for trace in outline.traces.values())
    for field in ("runs", "published", "sweeps", "baseline", "epochs", "tables", "networks"):
        assert getattr(outline, field) == getattr(study, field)


def test_an_outline_applies_overrides() -> None:
    changes = {"traces.VGG16": None, "runs.vDNN++": None, "epochs": [3], "node.link.d2h_bandwidth": "1 GB/s"}
    outline, study = outline_study("cswap-6a", changes), load_study("cswap-6a", changes)
    assert outline.runs == study.runs
    assert list(outline.traces) == list(study.traces)
    assert outline.epochs == (3,)


def test_an_outline_has_the_labels_of_sweeps() -> None:
    assert "MobileNet 4200" in outline_study("home-6").traces
    assert [run.label for run in outline_study("buddy-12").runs][-1] == "Buddy 50%"


def test_an_outline_reports_mistakes_in_the_file() -> None:
    with pytest.raises(InputError, match="did you mean 'epochs'"):
        outline_study("cswap-6a", {"epoch": 1})
