"""``simgpu zoo``: its list, the traces it builds, its output, and refused input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simgpu.trace.folder import read_trace
from simgpu.trace.model import Origin
from simgpu.workloads.catalogue import NETWORKS
from tests.cli.cli_helpers import simgpu


def built(out: Path, *more: object, network: str = "alexnet") -> tuple[int, str, str]:
    done = simgpu("zoo", "build", network, "--batch", 16, "--gpu", "v100", "-o", out, *more)
    return done.exit_code, " ".join(done.stdout.split()), done.stderr


def test_list_shows_every_network_and_its_variants() -> None:
    done = simgpu("zoo", "list")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line[:1].islower()][1 : 1 + len(NETWORKS)] == list(NETWORKS)
    assert next(line.split()[1:5] for line in lines if line.startswith("vgg16")) == ["138.4", "M", "15.47", "G"]
    assert "grouped=true" in done.stdout


def test_list_shows_the_variant_of_networks_for_cifar10() -> None:
    message = " ".join(simgpu("zoo", "list").stdout.partition("input cifar10\n")[2].split())
    for name, entry in NETWORKS.items():
        assert (name in re.split(r"[\s,]+", message)) == ("cifar10" in entry.inputs), name
    assert "the paper" in message and "kuangliu" in message and "Wei Yang" in message


def test_build_writes_and_describes_a_modelled_trace(tmp_path: Path) -> None:
    code, message, _ = built(tmp_path / "out")
    assert code == 0
    trace = read_trace(tmp_path / "out")
    assert (trace.info.model, trace.info.batch, trace.info.origin) == ("alexnet", 16, Origin.MODELLED)
    assert "modelled, not recorded, for Tesla V100 PCIe" in message
    assert "60.97 M parameters" in message and "724.4 M per sample" in message
    assert f"kernels {len(trace.kernels)}," in message
    assert "of compute (time model)" in message and "peak" in message


def test_the_output_path_is_printed_on_its_own_line(tmp_path: Path) -> None:
    out = tmp_path / ("long-" * 20)
    done = simgpu("zoo", "build", "alexnet", "--batch", 16, "--gpu", "v100", "-o", out)
    assert f"written to {out}" in done.stdout.splitlines()


def test_build_accepts_input_optimizer_and_variants(tmp_path: Path) -> None:
    code, message, _ = built(
        tmp_path / "out", "--input", "cifar10", "--optimizer", "adam", "--variant", "batch_norm=true", network="vgg11"
    )
    assert code == 0
    trace = read_trace(tmp_path / "out")
    shapes = [block.shape for block in trace.blocks if block.kind == "input"]
    assert shapes == [(16, 3, 32, 32)]
    form = "one linear layer in place of three, as in kuangliu's pytorch-cifar"
    assert form in message and form in trace.info.notes
    assert trace.kernels[-1].op == "_foreach_addcdiv_"
    assert "batch_norm" in {kernel.op for kernel in trace.kernels}


def test_build_replaces_another_trace_only_with_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert built(out)[0] == 0
    assert built(out)[0] == 0  # the same trace may be written again
    code, _, error = built(out, network="nin")
    assert code == 2
    assert error == (
        f"Error: {out}: contains a different trace, which would be overwritten; "
        "choose another folder, or replace it with --force\n"
    )
    assert built(out, "--force", network="nin")[0] == 0
    assert read_trace(out).info.model == "nin"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet-50", "--batch", 1, "--gpu", "v100"), "'resnet-50' is not in the zoo; did you mean 'resnet50'?"),
        (("vgg16", "--batch", 1, "--gpu", "v10"), "no shipped node is called 'v10'; did you mean 'v100'?"),
        (("vgg16", "--batch", 1, "--gpu", "laptop-2gb"), "gpu.architecture: is not stated; the time model needs it"),
        (("vgg16", "--batch", 1, "--gpu", "v100", "--input", "mnist"), "'mnist' is not one of its inputs"),
        (("vgg16", "--batch", 1, "--gpu", "v100", "--variant", "wide=2"), "variant wide: is not one of its variants"),
        (("vgg16", "--batch", 1, "--gpu", "v100", "--variant", "batch_norm=[1]"), "batch_norm: [1] is not"),
        (("vgg16", "--batch", 1, "--gpu", "v100", "--variant", "foo"), "write, for example, --variant width=0.5"),
        (("mobilenet", "--batch", 1, "--gpu", "v100", "--variant", "width=.inf"), "inf is not a number above zero"),
        (("vgg16", "--batch", 0, "--gpu", "v100"), "'--batch': 0 is not in the range x>=1"),
        (
            ("vgg16", "--batch", 1, "--gpu", "v100", "--optimizer", "lamb"),
            "'lamb' is not one of 'sgd', 'plain-sgd', 'adam'",
        ),
        (
            ("vgg16", "--batch", 1, "--gpu", "v100", "--workspace-limit", "256"),
            "--workspace-limit: '256' has no unit",
        ),
        (("vgg16", "--batch", 1), "Missing option '--gpu'"),
    ],
)
def test_unknown_networks_and_options_are_refused_by_name(
    tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    done = simgpu("zoo", "build", *arguments, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_build_respects_the_workspace_limit(tmp_path: Path) -> None:
    assert built(tmp_path / "usual")[0] == 0
    assert built(tmp_path / "small", "--workspace-limit", "8 MiB")[0] == 0
    usual, small = read_trace(tmp_path / "usual"), read_trace(tmp_path / "small")
    assert max(choice.workspace_bytes for choice in usual.algorithms) > 8 * 2**20
    assert set(small.algorithms) == {choice for choice in usual.algorithms if choice.workspace_bytes <= 8 * 2**20}
    assert max(block.bytes for block in small.blocks if block.kind == "workspace") <= 8 * 2**20
    assert "workspace is at most 8 MiB" in small.info.notes
    assert "workspace is at most 4 GiB" in usual.info.notes


def test_build_models_sparsity_over_epochs_on_request(tmp_path: Path) -> None:
    code, message, _ = built(tmp_path / "out", "--epochs", 7)
    assert code == 0
    assert {sample.epoch for sample in read_trace(tmp_path / "out").sparsity} == set(range(7))
    assert "sparsity modelled:" in message and "over 7 epochs" in message


def test_build_refuses_epochs_for_a_network_without_relu(tmp_path: Path) -> None:
    code, _, error = built(tmp_path / "out", "--epochs", 7, network="bert-base")
    assert code == 2
    assert "the forward pass has no ReLU" in error
    assert not (tmp_path / "out").exists()


def test_build_chooses_a_folder_name_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert simgpu("zoo", "build", "alexnet", "--batch", 16, "--gpu", "v100", "--input", "imagenet").exit_code == 0
    assert simgpu("zoo", "build", "alexnet", "--batch", 16, "--gpu", "v100", "--input", "cifar10").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"alexnet-b16-v100", "alexnet-cifar10-b16-v100"}
    assert read_trace(tmp_path / "alexnet-b16-v100").info.batch == 16


def test_build_refuses_a_default_folder_with_the_name_of_a_shipped_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    requested = ("zoo", "build", "vgg16", "--batch", 128, "--gpu", "v100")
    done = simgpu(*requested)
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: -o: the default folder vgg16-b128-v100 has the name of a trace that ships")
    assert not list(tmp_path.iterdir())
    named = simgpu(*requested, "-o", "vgg16-b128-v100")
    assert named.stdout.splitlines()[-1] == "to run it: simgpu run --trace ./vgg16-b128-v100 --node v100"


def test_build_prints_the_next_command_and_the_validation(tmp_path: Path) -> None:
    code, message, _ = built(tmp_path / "out")
    assert code == 0
    assert "accuracy for errors relative to published times, run simgpu zoo validate" in message
    run = message.partition("to run it: simgpu ")[2].split()
    assert simgpu(*run, "--policy", "ideal").exit_code == 0
    _, message, _ = built(tmp_path / "of-nobody", network="mobilenet")
    assert "published times (none for mobilenet), run simgpu zoo validate" in message


@pytest.mark.parametrize("key", ["name", "input", "batch"])
def test_an_option_given_as_a_variant_is_refused(key: str, tmp_path: Path) -> None:
    done = simgpu("zoo", "build", "vgg16", "--batch", 1, "--gpu", "v100", "--variant", f"{key}=1", "-o", tmp_path / "t")
    assert done.exit_code == 2
    assert f"network vgg16, variant {key}: is not one of its variants" in done.stderr
