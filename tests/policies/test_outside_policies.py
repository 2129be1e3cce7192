"""Policies of other packages: one installed with pip, and broken ones."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.policies import registry
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.cli.cli_helpers import make_study
from tests.policies.contract import PLENTY, PolicyContract, node_of
from tests.policies.installed import EXAMPLE, build_wheel, command_with, pip_install, python_with, write_distribution

TRACE = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
NODE = node_of(PLENTY)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the example package is installed."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip to install the example package with")
    folder = tmp_path_factory.mktemp("example")
    pip_install(build_wheel(EXAMPLE, folder), folder / "site")
    return folder / "site"


@pytest.fixture(scope="class")
def registered(installed: Path):
    """The example policy as this process sees it when its package is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        registry._outside.cache_clear()
        yield
    registry._outside.cache_clear()


@pytest.mark.usefixtures("registered")
class TestExample(PolicyContract):
    policy = "largest"
    parameter_sets = ({}, {"count": 3})


@pytest.mark.slow
def test_the_policy_list_shows_an_installed_policy_and_its_parameters(installed, tmp_path):
    done = command_with(installed, arguments=["list", "policies"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert names == [*(name for name in registry.policy_names() if name != "largest"), "largest"]
    alone = command_with(installed, arguments=["list", "policies", "largest"], cwd=tmp_path).stdout
    assert "swap the largest feature maps out in their longest gap" in alone
    assert "how many feature maps are swapped" in alone and "default 1" in alone


@pytest.mark.slow
def test_a_scenario_runs_an_outside_policy(installed, tmp_path):
    study = make_study(tmp_path)
    arguments = ["run", str(study), "--json", "--set", "policies=[ideal, largest: {count: 2}]"]
    done = command_with(installed, arguments=arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = {run["policy"]: run for run in json.loads(done.stdout)["results"]}
    assert runs["largest"]["parameters"] == {"count": 2}
    metrics = runs["largest"]["metrics"]
    assert metrics["d2h_bytes"] == metrics["h2d_bytes"] == 200_000, "x2; nothing lies between the uses of x3"


@pytest.mark.slow
def test_simulate_runs_an_outside_policy(installed, tmp_path):
    make_study(tmp_path)
    script = """
import simgpu
trace = simgpu.load_trace("chain")
node = simgpu.load_node("node.yaml")
result = simgpu.simulate(trace, node, "largest")
print(result.policy, result.metrics.copied_bytes["d2h"], result.steady)
"""
    done = python_with(installed, arguments=["-c", script], cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("largest 200000 True\n", 0), done.stderr


@pytest.mark.slow
def test_input_errors_of_an_outside_policy_reach_the_user(installed, tmp_path):
    arguments = ["run", str(make_study(tmp_path)), "--set", "policies=[largest: {count: 0}]"]
    done = command_with(installed, arguments=arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "parameters.count: 0 is too few" in done.stderr and "Traceback" not in done.stderr


def test_an_outside_policy_is_unknown_without_its_package(tmp_path):
    done = command_with(arguments=["list", "policies", "largest"], cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown policy 'largest'" in done.stderr


POLICY = """
from dataclasses import dataclass
from simgpu.policies.base import Policy
"""
FROZEN = f"{POLICY}\n@dataclass(frozen=True)\nclass It(Policy):\n"
PLAN = "    def plan(self, context): raise NotImplementedError\n"
WORDS = "    summary = source = 'strange'\n"
#: By registered name: the object named in the module of that name, the module's text, and the error message.
STRANGE = {
    "nothing": ("It", "", "AttributeError: module 'nothing' has no attribute 'It'"),
    "raises": ("It", "raise RuntimeError('no GPU here')", "RuntimeError: no GPU here"),
    "syntax": ("It", "def (", "SyntaxError"),
    "function": ("plan", "def plan(context): ...", "is not a subclass of simgpu.policies.base.Policy"),
    "number": ("it", "it = 7", "is not a subclass of simgpu.policies.base.Policy"),
    "planless": ("It", f"{FROZEN}    name = 'planless'\n{WORDS}", "has no plan"),
    "nameless": ("It", f"{FROZEN}    summary = ''\n{PLAN}", "has no name and no source"),
    "other": ("It", f"{FROZEN}    name = 'vdnn'\n{WORDS}{PLAN}", "calls itself 'vdnn'"),
    "exits": ("It", "import sys; sys.exit(4)", "does not load: SystemExit: 4"),
    "untyped": (
        "It",
        f"from __future__ import annotations\n{FROZEN}    name = 'untyped'\n{WORDS}    count: Nowhere = 0\n{PLAN}",
        "has a parameter whose type cannot be read: NameError: name 'Nowhere' is not defined",
    ),
    "renamed": (
        "It",
        f"{FROZEN}    name = 'renamed'\n{WORDS}    @property\n    def parameters(self): return 1 // 0\n{PLAN}",
        "overrides parameters, which must be its fields",
    ),
    "plain": ("It", f"{POLICY}\nclass It(Policy):\n    name = 'plain'\n{WORDS}{PLAN}", "is not a dataclass"),
}
MISSING = "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all broken policies installed, and one with the name of a built-in policy."""
    points = {f"strange_{name}": f"strange_{name}:{attribute}" for name, (attribute, _, _) in STRANGE.items()}
    modules = {
        f"strange_{name}": text.replace(f"'{name}'", f"'strange_{name}'") for name, (_, text, _) in STRANGE.items()
    }
    taken = {"missing": "no_such_module:It", "none": "strange_raises:It"}
    return write_distribution(tmp_path_factory.mktemp("strange") / "site", points | taken, modules)


@pytest.fixture
def broken_with(strange: Path, monkeypatch: pytest.MonkeyPatch):
    """The registry of this process with the broken policies."""
    monkeypatch.syspath_prepend(str(strange))
    registry._outside.cache_clear()
    yield
    registry._outside.cache_clear()


@pytest.mark.usefixtures("broken_with")
@pytest.mark.parametrize("name", [*STRANGE, "missing"])
def test_a_broken_entry_point_is_one_clear_error(name):
    message = STRANGE[name][2].replace("'nothing'", "'strange_nothing'") if name in STRANGE else MISSING
    name = f"strange_{name}" if name in STRANGE else name
    for ask in (registry.describe, registry.make_policy, lambda policy: simulate(TRACE, NODE, policy)):
        with pytest.raises(InputError) as caught:
            ask(name)
        (problem,) = caught.value.problems
        assert message in problem.what and f"'{name}'" in problem.what
        assert problem.remedy.startswith("mend")


@pytest.mark.usefixtures("broken_with")
def test_broken_entry_points_do_not_affect_others():
    assert set(registry.policy_names()) >= {"ideal", "none", "vdnn", "missing", "strange_raises"}
    for name in ("ideal", "none", "vdnn"):
        assert registry.describe(name).summary
        assert simulate(TRACE, NODE, name).policy == name
    assert registry.policy_class("none").__module__ == "simgpu.policies.none", "a built-in name cannot be taken"


@pytest.mark.slow
def test_the_command_line_reports_broken_policies_and_runs_the_rest(strange, tmp_path):
    study = str(make_study(tmp_path))
    broken = command_with(strange, arguments=["run", study, "--set", "policies=[missing]"], cwd=tmp_path)
    assert broken.returncode == 2
    assert f"the package of policy 'missing' does not load: {MISSING}" in broken.stderr
    assert "Traceback" not in broken.stderr
    others = command_with(strange, arguments=["compare", study], cwd=tmp_path)
    assert others.returncode == 0, others.stderr
    shown = command_with(strange, arguments=["list", "policies", "vdnn"], cwd=tmp_path)
    assert shown.returncode == 0 and "Rhu et al." in shown.stdout


CHOOSY = """
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from simgpu.policies.base import Policy, parameter
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement

@dataclass(frozen=True)
class Choosy(Policy):
    name, summary, source = "choosy", "has parameters that JSON cannot hold", "a test"
    count: int = parameter(1, "1 or more")
    table: ModuleType = parameter(dataclass, "anything")
    folder: Path = parameter(Path("runs"), "where")
    limit: float = parameter(float("nan"), "of something")
    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count is {self.count}")
    def plan(self, context):
        return lower(context.graph, Placement())
"""


@pytest.fixture(scope="module")
def choosy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_distribution(
        tmp_path_factory.mktemp("choosy") / "site", {"choosy": "choosy:Choosy"}, {"choosy": CHOOSY}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("{count: 0}", "policy 'choosy' rejects its parameters: ValueError: count is 0"),
        ("{table: 3}", "is a module, which files cannot express; leave it out, or create the policy in Python"),
    ],
)
def test_parameters_refused_by_the_policy_are_input_errors(choosy: Path, parameters: str, words: str, tmp_path: Path):
    arguments = ["run", str(make_study(tmp_path)), "--set", f"policies=[choosy: {parameters}]"]
    refused = command_with(choosy, arguments=arguments, cwd=tmp_path)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert words in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_parameters_without_a_json_form_are_text_in_the_report(choosy: Path, tmp_path: Path):
    arguments = ["run", str(make_study(tmp_path)), "--set", "policies=[choosy]", "--json"]
    ran = command_with(choosy, arguments=arguments, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (run,) = json.loads(ran.stdout)["results"]
    assert run["parameters"] | {"table": ""} == {"count": 1, "table": "", "folder": "runs", "limit": "nan"}
