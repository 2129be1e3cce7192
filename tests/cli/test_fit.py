"""``simgpu fit``: arguments, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_helpers import simgpu


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A configuration of a small Llama."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, "vocab_size": 100}))
    return folder


def test_the_answer_comes_first_and_the_front_and_the_table_are_written(model: Path, tmp_path: Path) -> None:
    front, rows = tmp_path / "front.svg", tmp_path / "rows.csv"
    sizes = ("--batch", "2", "--length", "256", "-q")
    done = simgpu("fit", model, "--gpu", "rtx4090", *sizes, "-o", front, "-o", rows)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("In 24 GiB: train tiny on 2 sequences of 256 tokens with fused AdamW, which costs")
    heading = next(line for line in lines if line.startswith("option"))
    assert heading.split() == ["option", "GiB", "step", "tokens/s", "cost", "note"]
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert "Pareto front" in front.read_text()
    assert rows.read_text().splitlines()[1].startswith("as it is,True")


@pytest.mark.slow
def test_launches_are_noted_and_counted_where_the_node_says_what_they_take(model: Path) -> None:
    sizes = ("--gpu", "rtx4090", "--batch", "2", "--length", "256", "-q")
    plain = simgpu("fit", model, *sizes)
    text = " ".join(plain.stdout.split())
    assert "launches: trained by default, " in text and '--set node.host.launch="16 us"' in text
    waiting = simgpu("fit", model, *sizes, "--set", "node.host.launch=16 us", "--json")
    document = json.loads(waiting.stdout)
    assert document["node"]["host"]["launch_ns"] == 16_000
    [first] = [option for option in document["options"] if option["option"] == "as it is"]
    assert first["cost"] == 0 and first["step_ns"] == first["plain_ns"] > 100 * 16_000
    assert "launches: the host launches an operator in 16 us, and the GPU waits for it" in document["notes"]
    wrong = simgpu("fit", model, *sizes, "--set", "host.launch=16 us", "--set", "seed=1")
    assert wrong.exit_code == 2
    assert [line for line in wrong.stderr.splitlines() if "is no value of a node" in line] == [
        f"Error: --set: {key}: is no value of a node; write node. and a key of the node's file"
        for key in ("host.launch", "seed")
    ]


def test_problems_name_the_options(model: Path) -> None:
    sizes = ("--batch", "1", "--length", "128", "-q")
    done = simgpu("fit", model, "--gpu", "h100-x8", "--gpus", "9", *sizes)
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: --gpus: node h100-x8 has 8 GPUs, not 9")
    done = simgpu("fit", model, "--gpu", "rtx4090", "--sample-size", "32", "--target-length", "8", *sizes)
    assert "--sample-size: applies to U-Nets only" in done.stderr
    assert "--target-length: applies to T5 only" in done.stderr


@pytest.mark.parametrize("batch", [("--batch", "1"), pytest.param((), marks=pytest.mark.slow)])
def test_json_has_the_answer_and_every_option(model: Path, batch: tuple[str, ...]) -> None:
    sizes = (*batch, "--length", "256", "--budget", "6 MB")
    document = json.loads(simgpu("fit", model, "--gpu", "rtx4090", *sizes, "--json", "-q").stdout)
    assert document["question"]["searched"] == ("" if batch else "batch")
    assert document["answer"].startswith(f"In 5.722 MiB: train tiny on {'' if batch else 'up to '}")
    assert {option["option"] for option in document["options"]} >= {"as it is", document["best"]}


def test_if_nothing_fits_the_exit_code_is_3_and_verdicts_of_long_options_are_shown(model: Path) -> None:
    sizes = ("--batch", "1", "--length", "128", "--budget", "100 kB")
    done = simgpu("fit", model, "--gpu", "rtx4090", *sizes, "-q")
    assert done.exit_code == 3
    assert "does not fit on 1 sequence of 128 tokens" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    _, _, table = done.stdout.partition("\noption ")
    rows, _, _ = table.partition("\n\n")
    assert rows.count("OOM") >= 16
    assert rows.count("OOM, other training") == 4
    assert all(
        line.startswith(("as it is", "+ ", "  ", "AdamW", "LoRA", "QLoRA", "plain SGD"))
        for line in rows.splitlines()[1:]
    )
    assert any(line.startswith("  ") for line in rows.splitlines())


@pytest.mark.slow
def test_several_gpus_are_one_line_each(model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    gpus = ("--gpu", "rtx4060", "--gpu", "h100", "--gpu", "k40")
    done = simgpu("fit", model, *gpus, "--batch", "2", "--length", "256", "-q", "-o", rows)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny on 2 sequences of 256 tokens fits 2 of 3 GPUs. Fastest: h100, ")
    assert "The smallest that fits: rtx4060, 8 GiB." in " ".join(lines[:4])
    start = next(index for index, line in enumerate(lines) if line.startswith("GPU "))
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["rtx4060", "h100", "k40"]
    assert "k40: attention: Tesla K40 has no fused attention" in " ".join(done.stdout.split())
    assert {line.split(",")[-3] for line in rows.read_text().splitlines()[1:]} == {"rtx4060", "h100"}


@pytest.mark.slow
def test_json_of_several_gpus_is_that_of_each(model: Path) -> None:
    gpus = ("--gpu", "rtx4060", "--gpu", "h100", "--gpu", "k40")
    one = json.loads(simgpu("fit", model, *gpus[:2], "--batch", "2", "--length", "256", "-q", "--json").stdout)
    both = json.loads(simgpu("fit", model, *gpus, "--batch", "2", "--length", "256", "-q", "--json").stdout)
    assert both["gpus"][0] == {name: value for name, value in one.items() if name != "simgpu"}
    assert both["best"] == "h100"


def test_all_unknown_gpus_are_reported_before_anything_runs(model: Path) -> None:
    done = simgpu("fit", model, "--gpu", "rtx409", "--gpu", "h10", "--gpu", "l4", "-q")
    assert done.exit_code == 2
    assert "'rtx409'; did you mean 'rtx4090'?" in done.stderr
    assert "'h10'; did you mean 'h100'?" in done.stderr
    twice = simgpu("fit", model, "--gpu", "l4", "--gpu", "l4", "-q")
    assert "'l4' is given twice" in twice.stderr
    picture = simgpu("fit", model, "--gpu", "l4", "--gpu", "l40s", "-o", "a.png", "-q")
    assert "the picture is of one GPU; give a .csv, or one --gpu" in picture.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lora-targets", "q_proj"), "names layers for LoRA, which is off"),
        (("--length", "0"), "--length: 0 is not a number from 1 to"),
        (("-o", "front.gif"), "'gif' is not a format of figures"),
        (("--budget", "50%"), "'50%' is a part of a peak"),
        (("--budget", "lots"), "--budget: 'lots' is not a size"),
    ],
)
def test_bad_input_is_refused_without_a_traceback(model: Path, arguments: tuple[str, ...], message: str) -> None:
    done = simgpu("fit", model, "--gpu", "rtx4090", "-q", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.output
