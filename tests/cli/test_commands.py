"""The smaller commands, and the command line as a whole."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import json
from pathlib import Path

import click
import pytest

from simgpu.cli import RENAMED, SECTIONS
from simgpu.cli.schema import json_schema
from simgpu.hardware.nodes import load_node, node_names
from simgpu.policies.registry import describe, policy_names
from simgpu.trace.chain import chain
from simgpu.trace.folder import read_trace, write_trace
from simgpu.trace.model import Trace
from tests.cli.cli_helpers import make_study, simgpu, simgpu_process
from tests.importers.test_triosim import written

HEAVY = ("numpy", "pandas", "matplotlib", "networkx", "pydantic", "rich", "torch", "yaml", "simpy")
#: What neither a short run, nor a comparison, nor a list of nodes uses.
UNUSED = (
    "numba",
    "pandas",
    "scipy",
    "networkx",
    "pyarrow",
    "sklearn",
    "torch",
    "matplotlib.pyplot",
    "rich.progress",
    "simgpu.compression.codecs.patterns",
    "simgpu.experiments.scenarios.study",
    "simgpu.workloads.catalogue",
    "simgpu.workloads.lowering.entry",
)
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


def test_help_lists_at_most_21_commands_in_sections() -> None:
    assert len(COMMANDS) <= 21
    shown = simgpu("--help").stdout
    assert [shown.index(f"\n{heading}:\n") for heading in SECTIONS] == sorted(
        shown.index(f"\n{heading}:\n") for heading in SECTIONS
    )


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_command_is_refused_with_its_new_name(old: str, new: str) -> None:
    done = simgpu(old)
    assert done.exit_code == 2
    assert f"no such command {old!r}; it is now `{new if '=' in new else f'simgpu {new}'}`" in done.stderr
    if "=" not in new:
        assert simgpu(*new.split(), "--help").exit_code == 0


def test_help_lists_every_command_with_its_summary() -> None:
    done = simgpu("--help")
    assert done.exit_code == 0
    for name, (home, line) in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert line in done.stdout
        module, _, attribute = home.partition(":")
        assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = simgpu(name, "--help")
    assert done.exit_code == 0
    assert f"simgpu {name}" in done.stdout or "simgpu run NAME" in done.stdout


@pytest.mark.parametrize("group", [[], ["zoo"], ["trace"]])
def test_help_loads_nothing_heavy(group: list[str]) -> None:
    words = [*group, "--help"]
    code = f"import sys; from simgpu.cli import main\ntry: main({words})\nexcept SystemExit: print(sorted(sys.modules))"
    done = _python(code)
    loaded = done.split("[", maxsplit=1)[1]
    assert not [name for name in HEAVY if f"'{name}'" in loaded]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "drawn"),
    [
        (["run", "quickstart", "--set", "outputs.plots=[run]", "-o"], True),
        (["run", "quickstart", "-o"], False),
        (["compare", "quickstart"], False),
        (["list", "nodes"], False),
    ],
)
def test_a_command_loads_only_what_it_uses(words: list[str], drawn: bool, tmp_path: Path) -> None:
    """Each of these modules takes 5 to 500 ms to load, and quickstart's simulation 60 ms."""
    words = [*words, str(tmp_path / "results")] if "-o" in words else words
    code = f"import sys; from simgpu.cli import main\ntry: main({words})\nexcept SystemExit: print(sorted(sys.modules))"
    loaded = set(ast.literal_eval("[" + _python(code).rpartition("[")[2]))
    unused = {*UNUSED} if drawn else {*UNUSED, "matplotlib"}
    assert "numpy" in loaded
    assert not loaded & unused
    assert drawn == ("matplotlib" in loaded)
    assert not {name for name in loaded if name.startswith("simgpu.workloads.networks.")}


@pytest.mark.slow
def test_the_package_imports_heavy_modules_lazily() -> None:
    loaded = _python("import sys, simgpu; print(sorted(sys.modules)); simgpu.simulate; simgpu.load_node")
    assert not [name for name in HEAVY if f"'{name}'" in loaded]
    names = _python("import simgpu; print(all(getattr(simgpu, name) is not None for name in simgpu.__all__))")
    assert names == "True\n"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = importlib.import_module("simgpu").nonsense


def test_the_printed_version_is_the_package_version() -> None:
    root = Path(__file__).resolve().parents[2]
    import tomllib

    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert simgpu("--version").stdout == f"simgpu {version}\n"


def test_list_nodes_shows_all_nodes_and_the_sources_of_one() -> None:
    listed = simgpu("list", "nodes").stdout
    for name in node_names():
        (row,) = (line for line in listed.splitlines() if line.startswith(f"{name} "))
        gpu = load_node(name).gpu.name
        assert " ".join(row.split()).rpartition(" ")[2] in gpu.split(), "every row names its GPU"
    shown = simgpu("list", "nodes", "k40").stdout
    assert "Microway" in shown
    (copy_d2h,) = (line for line in shown.splitlines() if line.strip().startswith("device-to-host"))
    assert copy_d2h.split()[1:4] == ["10.05", "GB/s", "not"], "a value stands next to its source"
    assert "GPU 0" in listed


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("list", "nodes", "v1oo"), "v100"),
        (("list", "nodes", "2O80Ti"), "2080ti"),
        (("zoo", "build", "vgg61", "--batch", 1, "--gpu", "v100"), "vgg16"),
        (("zoo", "build", "resnet05", "--batch", 1, "--gpu", "v100"), "resnet50"),
    ],
)
def test_a_misspelled_command_gets_a_suggestion(arguments: tuple[object, ...], meant: str) -> None:
    assert f"did you mean '{meant}'?" in simgpu(*arguments).stderr


@pytest.mark.parametrize("name", node_names())
def test_a_node_without_a_host_is_marked(name: str) -> None:
    shown, host = simgpu("list", "nodes", name).stdout, load_node(name).host
    rows = {" ".join(line.split()[:4]) for line in shown.splitlines() if line.startswith("host ")}
    silent = {"host memory not given", "host cores not given"}
    assert (silent <= rows) == (host.memory is None and host.cores is None)
    assert ("memory and cores are not given in this node's sources" in " ".join(shown.split())) == (silent <= rows)


def test_list_policies_shows_parameters_and_sources() -> None:
    listed = simgpu("list", "policies").stdout
    for name in policy_names():
        assert f"{name}\n" in listed
    assert "Rhu et al." in listed
    assert "default all" in " ".join(listed.split())
    assert simgpu("list", "policies", "ideal").stdout.splitlines()[0] == "ideal"


def test_schemas_are_json_with_keys_policies_and_parameters() -> None:
    scenario = json.loads(simgpu("list", "schema").stdout)
    assert scenario["additionalProperties"] is False
    assert set(scenario["required"]) == {"schema", "trace", "node", "policies"}
    names, with_parameters = scenario["properties"]["policies"]["items"]["anyOf"]
    assert names["enum"] == list(policy_names())
    vdnn = with_parameters["properties"]["vdnn"]["properties"]
    assert set(vdnn) == {parameter.name for parameter in describe("vdnn").parameters}
    node = json_schema("node")
    assert node["$defs"]["GpuSection"]["properties"]["memory"]["type"] == "string"
    assert "default" not in node["$defs"]["GpuSection"]["properties"]["alignment"]


def test_trace_show_check_and_stats_print_their_results(tmp_path: Path) -> None:
    trace = make_study(tmp_path).with_name("chain")
    shown = simgpu("trace", "show", trace).stdout
    message = " ".join(shown.split())
    assert "layers 3, as recorded" in message
    assert "compute format not stated model output not stated" in message  # a header without these keys
    assert [line.split() for line in shown.splitlines()][-2][:5] == ["L2", "2", "7", "us", "14"]
    assert simgpu("trace", "check", trace).stdout == f"{trace}: valid trace; 6 kernels, 7 blocks\n"
    stats = simgpu("trace", "stats", trace).stdout
    assert "activation" in stats
    assert "60 us" in stats


def test_trace_check_lists_every_problem(tmp_path: Path) -> None:
    trace = make_study(tmp_path).with_name("chain")
    kernels = trace / "kernels.csv"
    kernels.write_text(kernels.read_text().replace(",5000,", ",-5,").replace(",7000,", ",7.5,"), encoding="utf-8")
    done = simgpu("trace", "check", trace)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 2
    assert "row 2, column duration_ns" in done.stderr
    assert "row 3, column duration_ns" in done.stderr


@pytest.mark.parametrize(
    "names", [("a",), ("a", "b"), ("a", "b/c", "b/d", "e/f/g"), tuple("abcdefghijklmnopqrstu")], ids=len
)
def test_importing_a_folder_of_several_recordings_lists_them(tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "all").mkdir()
    for name in names:
        (tmp_path / "all" / name).mkdir(parents=True)
        written(tmp_path / "all" / name)
    (tmp_path / "all" / "notes.txt").write_text("not one of them")
    done = simgpu("trace", "import", tmp_path / "all", "-o", tmp_path / "out")
    assert done.exit_code == 2
    count = "a recording" if len(names) == 1 else f"{len(names)} recordings"
    message = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    assert done.stderr == (
        f"Error: {tmp_path / 'all'}: is not a recording but a folder that contains {count}: {message}; "
        f"name {'it' if len(names) == 1 else 'one of them'}: simgpu trace import {tmp_path / 'all' / 'a'}\n"
    )


def test_import_replaces_another_trace_only_with_force(tmp_path: Path) -> None:
    recording, out = written(tmp_path / "recording"), tmp_path / "out"
    assert simgpu("trace", "import", recording, "-o", out, "--model", "one").exit_code == 0
    same = simgpu("trace", "import", recording, "-o", out, "--model", "one")
    assert same.exit_code == 0, same.stderr
    refused = simgpu("trace", "import", recording, "-o", out, "--model", "two")
    assert refused.exit_code == 2
    message = (
        "contains a different trace, which would be overwritten; choose another folder, or replace it with --force"
    )
    assert refused.stderr == f"Error: {out}: {message}\n"
    assert read_trace(out).info.model == "one"
    (out / "kernels.csv").write_text("damaged", encoding="utf-8")
    assert simgpu("trace", "import", recording, "-o", out, "--model", "one").exit_code == 2
    assert simgpu("trace", "import", recording, "-o", out, "--model", "two", "--force").exit_code == 0
    assert read_trace(out).info.model == "two"


def test_an_import_without_a_device_prints_a_note(tmp_path: Path) -> None:
    done = simgpu("trace", "import", written(tmp_path / "recording"), "-o", tmp_path / "out")
    assert "origin    imported, device not recorded, by " in done.stdout


def test_record_refuses_to_replace_another_trace_before_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = make_study(tmp_path).with_name("chain")
    recorded: list[str] = []

    def record_one(model: str, **_: object) -> Trace:
        recorded.append(model)
        return chain([1], [1], [1])

    monkeypatch.setattr("simgpu.cli.record.record_model", record_one)
    before = read_trace(trace)
    refused = simgpu("record", "mlp", "--batch", "4", "-o", trace)
    assert refused.exit_code == 2
    assert "contains a different trace" in refused.stderr
    assert (recorded, read_trace(trace)) == ([], before)
    assert simgpu("record", "mlp", "--batch", "4", "-o", trace, "--force").exit_code == 0
    assert (recorded, read_trace(trace)) == (["mlp"], chain([1], [1], [1]))


@pytest.mark.parametrize("rough", [True, False])
def test_record_warns_about_widely_varying_times(rough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = chain([100], [100], [1])
    kernels = tuple(dataclasses.replace(kernel, iqr_ns=21 if rough else 20) for kernel in steady.kernels)
    trace = dataclasses.replace(steady, kernels=kernels)
    monkeypatch.setattr("simgpu.cli.record.record_model", lambda model, **_: trace)
    done = simgpu("record", "mlp", "--batch", "4", "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert done.stderr.startswith("\nWarning: the kernel times vary widely") is rough
    assert ("spread " in done.stdout) is rough


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the recordings in ../shared/data")
def test_import_writes_a_trace_that_reads_back(tmp_path: Path) -> None:
    options = ["--batch", "128", "--device", "NVIDIA H100", "--date", "2024-05-01"]
    done = simgpu("trace", "import", DATA / "h100-triosim" / "vgg13", "-o", tmp_path / "vgg13", *options)
    assert done.exit_code == 0, done.stderr
    assert "imported from a recording on NVIDIA H100, 2024-05-01" in " ".join(done.stdout.split())
    trace = read_trace(tmp_path / "vgg13")
    assert (trace.info.batch, trace.info.device, len(trace.kernels)) == (128, "NVIDIA H100", 77)


def test_record_writes_a_trace_or_names_the_package_to_install(tmp_path: Path) -> None:
    done = simgpu("record", "mlp", "--batch", "4", "--repetitions", "1", "-o", tmp_path / "mlp")
    if importlib.util.find_spec("torch") is None:
        assert done.exit_code == 2
        assert "install torch, or simgpu with its extra 'record'" in done.stderr
        assert not (tmp_path / "mlp").exists()
    else:
        assert done.exit_code == 0, done.stderr
        assert read_trace(tmp_path / "mlp").info.batch == 4


@pytest.mark.slow
def test_the_command_line_works_in_a_new_process() -> None:
    done = simgpu_process("list", "nodes")
    assert done.returncode == 0
    assert done.stdout == simgpu("list", "nodes").stdout


def _python(code: str) -> str:
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_trace_stats_list_unrecomputable_bytes(tmp_path: Path) -> None:
    """x2 to x4 are saved, 200, 300 and 0 bytes; an unknown operator writes x2."""
    built = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    first = dataclasses.replace(built.kernels[0], op="mine", pure=None)
    write_trace(dataclasses.replace(built, kernels=(first, *built.kernels[1:])), tmp_path / "t")
    shown = " ".join(simgpu("trace", "stats", str(tmp_path / "t")).stdout.split())
    assert "not recomputable 200 B of 500 B of saved activations: mine (purity unknown) 200 B" in shown
