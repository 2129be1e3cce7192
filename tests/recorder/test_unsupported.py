"""Compiled, scripted and distributed models, and flex attention, are refused by name; with a device and without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import record
from tests.recorder.small_models import named, summed

# PyTorch's own code behind torch.compile still uses torch.jit, which it has deprecated itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

_EAGER = "simgpu records eager iterations: "
_ONE_GPU = "simgpu records one GPU: "


def _refusal(factory: Callable[..., Any], **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        record(factory, batch=2, **more)
    return str(caught.value).partition(": ")[2]


def _compiled_in_place() -> nn.Module:
    module = named(fc=nn.Linear(4, 4), last=nn.Linear(4, 4))
    module.last.compile()
    return module


class FSDPModule(nn.Linear):
    """Stands in for what fully_shard makes of a layer: PyTorch's class by name."""

    __module__ = "torch.distributed.fsdp"


@pytest.mark.parametrize("where", [{}, {"gpu": "v100"}], ids=["cpu", "modelled"])
@pytest.mark.parametrize(
    ("module", "what"),
    [
        (
            lambda: torch.compile(nn.Linear(4, 4)),
            f"module: the model is wrapped by torch.compile (OptimizedModule); {_EAGER}pass the module before "
            "torch.compile (model._orig_mod), set TORCHDYNAMO_DISABLE=1, or use simgpu.record_step",
        ),
        (
            lambda: named(layers=nn.Sequential(nn.ReLU(), torch.compile(nn.Linear(4, 4)))),
            f"module: 'layers.1' is wrapped by torch.compile (OptimizedModule); {_EAGER}pass the module before "
            "torch.compile (model.layers.1._orig_mod), set TORCHDYNAMO_DISABLE=1, or use simgpu.record_step",
        ),
        (
            _compiled_in_place,
            f"module: 'last' is compiled in place, by module.compile(); {_EAGER}remove the call of compile(), set "
            "TORCHDYNAMO_DISABLE=1, or use simgpu.record_step",
        ),
        (
            lambda: named(fc=torch.jit.script(nn.Linear(4, 4))),
            f"module: 'fc' is compiled by torch.jit (ScriptModule); {_EAGER}pass the module before torch.jit.script "
            "or torch.jit.trace",
        ),
        (
            lambda: nn.DataParallel(nn.Linear(4, 4)),
            f"module: the model is wrapped by DataParallel; {_ONE_GPU}pass the module before it is wrapped "
            "(model.module)",
        ),
        (
            lambda: named(a=FSDPModule(4, 4), b=nn.ReLU(), c=FSDPModule(4, 4), d=FSDPModule(4, 4)),
            f"module: 'a', and 2 more, is sharded by fully_shard (FSDP2); {_ONE_GPU}pass the module before fully_shard",
        ),
    ],
)
def test_a_wrapper_in_the_tree_is_refused_with_its_path(module: Callable[[], nn.Module], what: str, where: Any) -> None:
    assert _refusal(lambda: (module(), torch.ones(2, 4), (), summed), **where) == what


def test_wrappers_of_several_kinds_are_refused_together() -> None:
    with pytest.raises(InputError) as caught:
        record(
            lambda: (named(a=torch.compile(nn.Linear(4, 4)), b=FSDPModule(4, 4)), torch.ones(2, 4), (), summed), batch=2
        )
    assert ["torch.compile" in str(problem) for problem in caught.value.problems] == [True, False]


def test_a_traced_graph_of_fx_is_recorded() -> None:
    trace = record(lambda: (torch.fx.symbolic_trace(named(fc=nn.Linear(4, 4))), torch.ones(2, 4), (), summed), batch=2)
    assert trace.kernels[0].op == "aten::addmm"


_COMPILED = """
import torch
from torch import nn
from simgpu.errors import InputError
from simgpu.recorder import record

@torch.compile
def function(x):
    return x.relu() * 2

@torch.compile(fullgraph=True, dynamic=True)
def whole(x):
    return x.relu() * 2

class Calls(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.fc, self.what = nn.Linear(4, 4), what
    def forward(self, x):
        return self.what(self.fc(x))

class CompilesAMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.go = torch.compile(self._go)
    def _go(self, x):
        return self.fc(x).relu()
    def forward(self, x):
        return self.go(x)

class CompilesInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return torch.compile(self.fc)(x)

def step(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.step = torch.compile(optimizer.step)
    return optimizer

def summed(y):
    return y.sum()

def refusal(model, loss=summed, optimizer="sgd"):
    for where in ({}, {"gpu": "v100"}):
        try:
            record(lambda: (model(), torch.ones(2, 4), (), loss), batch=2, optimizer=optimizer, **where)
        except InputError as error:
            print(str(error).partition(": ")[2])

refusal(lambda: Calls(function))
refusal(lambda: Calls(whole))
refusal(CompilesAMethod)
refusal(CompilesInForward)
refusal(lambda: nn.Linear(4, 4), torch.compile(summed))
refusal(lambda: nn.Linear(4, 4), optimizer=step)
print(function(torch.ones(1)).tolist())
"""


def _run(source: str, folder: Path) -> list[str]:
    """The lines that a script of its own process prints, which must end well: some of these once ended it."""
    script = folder / "script.py"
    script.write_text(source)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_compiled_function_is_refused_where_it_is_called_and_does_not_end_the_process(tmp_path: Path) -> None:
    """In forward, made in forward, a method, the loss and the optimizer's step; each with a device and without."""
    lines = _COMPILED.splitlines()
    place = {name: lines.index(f"        return {name}") + 1 for name in ("self.what(self.fc(x))", "self.go(x)")}
    place["in forward"] = lines.index("        return torch.compile(self.fc)(x)") + 1
    remedy = (
        f"which is compiled by torch.compile; {_EAGER}call it before torch.compile, set TORCHDYNAMO_DISABLE=1, or use "
        "simgpu.record_step"
    )
    expected = [
        f"model, script.py:{place['self.what(self.fc(x))']}: it calls function, {remedy}",
        f"model, script.py:{place['self.what(self.fc(x))']}: it calls whole, {remedy}",
        f"model, script.py:{place['self.go(x)']}: it calls CompilesAMethod._go, {remedy}",
        f"model, script.py:{place['in forward']}: it calls Linear, {remedy}",
        f"model: it calls summed, {remedy}",
        f"model: it calls SGD.step, {remedy}",
    ]
    *refused, after = _run(_COMPILED, tmp_path)
    assert refused == [line for line in expected for _ in range(2)]
    assert after == "[2.0]"  # and what is compiled runs as before afterwards


_DISTRIBUTED = """
import logging, warnings
warnings.simplefilter("ignore")
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from simgpu.errors import InputError
from simgpu.recorder import record

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))

def sharded():
    module = net()
    fully_shard(module[1])
    return fully_shard(module) or module

def refusal(model):
    for where in ({}, {"gpu": "v100"}):
        try:
            record(lambda: (model(), torch.ones(2, 4), (), lambda y: y.sum()), batch=2, **where)
        except InputError as error:
            print(str(error).partition(": ")[2])

refusal(lambda: DistributedDataParallel(net()))
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
refusal(lambda: DistributedDataParallel(net()))
refusal(lambda: nn.Sequential(FullyShardedDataParallel(net(), device_id=torch.device("cpu"))))
refusal(sharded)
refusal(lambda: parallelize_module(net(), mesh, {"0": ColwiseParallel()}))
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_models_of_several_processes_are_refused_by_the_name_of_what_spreads_them(tmp_path: Path) -> None:
    """Without a process group, and in one of a single process; each with a device and without."""
    lines = _DISTRIBUTED.splitlines()
    first, again = (n + 1 for n, line in enumerate(lines) if line == "refusal(lambda: DistributedDataParallel(net()))")
    ddp, before = "wrapped by DistributedDataParallel", f"{_ONE_GPU}pass the module before"
    tensor = f"{_ONE_GPU}give it as a plain tensor, before parallelize_module or distribute_tensor"
    assert _run(_DISTRIBUTED, tmp_path) == [
        *[f"model, script.py:{first}: it is {ddp}; {before} it is wrapped"] * 2,
        f"module: the model is {ddp}; {before} it is wrapped (model.module)",
        f"model, script.py:{again}: it is {ddp}; {before} it is wrapped",  # it looks at memory that is not there
        *[f"module: '0' is wrapped by FullyShardedDataParallel; {before} it is wrapped"] * 2,
        *[f"module: the model, and 1 module in it, is sharded by fully_shard (FSDP2); {before} fully_shard"] * 2,
        *[f"module: '0.weight', and 1 more, is a DTensor, one tensor on several GPUs; {tensor}"] * 2,
    ]


@pytest.mark.parametrize("where", [{}, {"gpu": "v100"}], ids=["cpu", "modelled"])
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_is_refused_by_its_name(compiled: bool, where: Any) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    attend = torch.compile(flex) if compiled else flex

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.fc(x)
            return attend(q, q, q)

    message = _refusal(lambda: (Attention(), torch.randn(2, 2, 128, 16), (), summed), **where)
    line = Attention.forward.__code__.co_firstlineno + 2
    place, _, what = message.partition(": ")
    assert place.startswith("model, ") and place.endswith(f"test_unsupported.py:{line}")
    assert what == (
        "it calls flex_attention of torch.nn.attention.flex_attention; simgpu does not support it; "
        "use torch.nn.functional.scaled_dot_product_attention, with a mask as a tensor"
    )
