"""Every output of every shipped scenario, study and sweep, and the quick claims, have the digests on record.

    pytest tests/manifest -m exhaustive                 compare (10 minutes on two cores)
    pytest tests/manifest -m exhaustive --force-regen   write them anew, and say in the commit why they changed

A renaming that is one-to-one within each file does not change a digest (`tests.manifest.masking`); a number does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.manifest.masking import digest
from tests.manifest.outputs import everything

RECORD = Path(__file__).with_suffix("")


def digests(folder: Path) -> dict[str, str]:
    """The digest of each file in a folder that has numbers, by its place."""
    by_file = {
        path.relative_to(folder).as_posix(): digest(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
    return {place: each for place, each in by_file.items() if each is not None}


def test_digest_ignores_a_renamed_word_and_sees_a_changed_number(tmp_path: Path) -> None:
    first, renamed, merged, changed = (tmp_path / f"{n}.csv" for n in range(4))
    first.write_text("stream,kind,ns\ncompute,launch,12\nd2h,copy,13\n")
    renamed.write_text("queue,kind,time_ns\ncompute,run,12\nd2h,copy,13\n")
    merged.write_text("stream,kind,ns\ncompute,launch,12\ncompute,copy,13\n")
    changed.write_text("stream,kind,ns\ncompute,launch,12\nd2h,copy,14\n")
    assert digest(first) == digest(renamed)
    assert len({digest(first), digest(merged), digest(changed)}) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", everything())
def test_outputs_have_the_digests_on_record(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "out"
    everything()[name](folder)
    now = digests(folder)
    assert now
    record = RECORD / f"{name.replace(' ', '-')}.yml"
    if request.config.getoption("--force-regen"):
        RECORD.mkdir(exist_ok=True)
        record.write_text(yaml.safe_dump(now), encoding="utf-8")
        pytest.fail("the record is written anew: look at it")
    assert now == yaml.safe_load(record.read_text(encoding="utf-8"))
