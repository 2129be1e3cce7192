"""What a model is given: inputs by name, position or keyword, nested; and the loss of one that computes its own."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.trace.model import Block, BlockKind, Trace
from tests.cli.cli_helpers import simgpu
from tests.recorder.small_models import kernels, summed

_WORDS = 50


@dataclass
class _Output:
    """What a model of Hugging Face's returns."""

    loss: torch.Tensor | None
    logits: torch.Tensor


class LanguageModel(nn.Module):
    """Called as Hugging Face's are: by keyword, with a loss of its own where it is given labels."""

    def __init__(self, as_mapping: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(_WORDS, 16), nn.Linear(16, _WORDS)
        self.as_mapping = as_mapping

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> Any:
        logits, loss = self.head(self.embed(input_ids)), None
        if attention_mask is not None:
            logits = logits * attention_mask.unsqueeze(-1)
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return OrderedDict(loss=loss, logits=logits) if self.as_mapping else _Output(loss, logits)


class Scores(LanguageModel):
    """Returns its scores alone."""

    def forward(self, idx: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.head(self.embed(idx)) * scale


def _record(factory: Any, **more: Any) -> Trace:
    return record(factory, **{"batch": 4, "repetitions": 1, "warmup": 1} | more)


def _problems(factory: Any, **more: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        _record(factory, **more)
    return [str(problem).partition(": ")[2] for problem in caught.value.problems]


def _batch_of(trace: Trace) -> dict[str, tuple[tuple[int, ...] | None, str | None]]:
    batch = [block for block in trace.blocks if block.kind in (BlockKind.INPUT, BlockKind.LABEL)]
    return {block.id: (block.shape, block.dtype) for block in batch}


@pytest.mark.parametrize("more", [{"repetitions": 1}, {"gpu": "v100"}], ids=["cpu", "modelled"])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_model_that_computes_its_loss_is_recorded_from_inputs_by_name(as_mapping: bool, more: Any) -> None:
    trace = record(
        lambda: LanguageModel(as_mapping),
        batch=4,
        inputs={"input_ids": "Bx8:int64:50", "labels": "Bx8:int64:50", "attention_mask": "Bx8:bool"},
        **more,
    )
    assert _batch_of(trace) == {
        "input.input_ids": ((4, 8), "int64"),
        "input.labels": ((4, 8), "int64"),
        "input.attention_mask": ((4, 8), "bool"),
    }
    assert len(kernels(trace, "nll_loss_forward")) == len(kernels(trace, "nll_loss_backward")) == 1


def test_scores_without_a_loss_are_compared_with_random_labels() -> None:
    trace = _record(Scores, inputs={"idx": "Bx8:int64:50"})
    assert _batch_of(trace) == {"input.idx": ((4, 8), "int64"), "label": ((4, 8), "int64")}
    assert "Ran on random inputs (idx=Bx8:int64:50) and random labels" in trace.info.notes


def test_a_factory_gives_inputs_by_keyword_or_nested() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: dict[str, torch.Tensor], scale: float, more: list[tuple[torch.Tensor, None]]) -> Any:
            return self.fc(x["a"] + more[0][0]) * scale

    one, other = torch.ones(4, 4), torch.ones(4, 4)
    batch = {"x": {"a": one}, "scale": 2.0, "more": [(other, None)]}
    by_position = _record(lambda: (Nested(), tuple(batch.values()), (), summed))
    assert list(_batch_of(by_position)) == ["input.a", "input.2.0.0"]
    by_keyword = _record(lambda: (Nested(), UserDict(batch), torch.ones(4, 2), nn.functional.mse_loss))
    assert list(_batch_of(by_keyword)) == ["input.x.a", "input.more.0.0", "label"]


def test_batches_of_keywords_train_a_model_with_its_own_loss() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        words = torch.randint(_WORDS, (batch, 8))
        inputs = {"input_ids": words, "labels": words}
        return LanguageModel(), inputs, (), None, [inputs, {**inputs, "attention_mask": torch.ones(batch, 8)}]

    trace = _record(factory, epochs=2)
    assert "Trained for 2 epochs of 2 steps" in trace.info.notes


def test_a_module_alone_asks_for_its_inputs_by_name() -> None:
    (requested,) = _problems(LanguageModel)
    assert requested == (
        "inputs: the factory returned only LanguageModel, without the inputs of forward(input_ids, "
        "attention_mask=None, labels=None); name its inputs, --input input_ids=Bx... (inputs={...} in Python), each as "
        "SHAPE[:TYPE[:BELOW]]: Bx3x224x224 is B images, Bx128:int64:50257 is rows of 128 tokens below 50257; or return "
        "(module, inputs), or (module, inputs, labels, loss), from the factory"
    )


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        (
            {"ids": "Bx8:int64:50"},
            [
                "input ids: forward(idx, *, scale=1.0) has no such parameter; did you mean 'idx'? known: idx, scale",
                "inputs: forward(idx, *, scale=1.0) needs idx too; give --input idx=Bx...",
            ],
        ),
        (
            {"idx": "Bx8:int64:60"},
            [
                "inputs: Scores raised IndexError on idx=Bx8:int64:60: index out of range in self; give inputs with "
                "the shapes, types and (for integers) bounds that forward(idx, *, scale=1.0) expects"
            ],
        ),
        (
            {"idx": "8:int64:50"},
            ["inputs: the first one's shape (8,) is not of batch 4; give a first input whose first dimension is 4"],
        ),
        (
            {"idx": "Bx8:int64", "x": "Bx", "y": "B:int46:2", "z": "B:int8:300", "w": "Bx2:float16:3", "v": 7},
            [
                "input idx: 'Bx8:int64' lacks the bound of its values; give the lowest excluded value, as in "
                "Bx8:int64:50257 for a vocabulary of 50257",
                "input x: 'Bx' is not a shape",
                "input y: 'int46' is not a type; did you mean 'int64'?",
                "input z: 300 exceeds the range of int8; give at most 128",
                "input w: '3' is a bound, but float16 values have none",
                "input v: 7 is not text",
            ],
        ),
    ],
)
def test_inputs_that_are_wrong_are_refused_together(inputs: dict[str, Any], what: list[str]) -> None:
    torch.manual_seed(0)
    result = _problems(Scores, inputs=inputs)
    assert len(result) == len(what)
    assert all(said.startswith(expected) for said, expected in zip(result, what, strict=True)), result


def test_inputs_that_forward_takes_by_position_only_are_refused_by_name() -> None:
    class Positional(nn.Linear):
        def forward(self, x: torch.Tensor, /) -> torch.Tensor:
            return super().forward(x)

    (said,) = _problems(lambda: Positional(4, 3), inputs={"x": "Bx4"})
    assert said == (
        "input x: forward(x, /) takes it by position only; return (module, inputs) from the factory, with a tuple of "
        "inputs"
    )


def test_an_operator_that_refuses_its_shapes_on_fake_tensors_is_one_message_without_a_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(InputError, match="Linear raised RuntimeError on input=Bx5:float32"):
        record(lambda: nn.Linear(4, 3), batch=4, gpu="v100", inputs={"input": "Bx5"})
    assert caplog.records == []


def test_inputs_are_refused_where_the_factory_has_its_own() -> None:
    (said,) = _problems("mlp", inputs={"input": "Bx3072"})
    assert said.startswith("inputs: the factory already returns inputs; leave out --input (inputs in Python)")


def test_a_module_without_labels_receives_the_inputs_of_its_loss() -> None:
    (said,) = _problems(lambda: LanguageModel(as_mapping=True), inputs={"input_ids": "Bx8:int64:50"})
    assert said == (
        "loss: the module returned OrderedDict of loss, logits on input_ids=Bx8:int64:50, neither a loss nor a row of "
        "scores per sample; return (module, inputs, labels, loss) from the factory, where loss(module(*inputs), "
        "*labels) is a scalar, or give forward(input_ids, attention_mask=None, labels=None) the inputs from which it "
        "computes its own loss"
    )
    (said,) = _problems(lambda: (Scores(), torch.zeros(4, 8, dtype=torch.int64), (), None))
    assert said.startswith("loss: the module returned a tensor (4, 8, 50) of float32, which contains no scalar loss")


def test_the_command_takes_inputs_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recorder_test_inputs.py").write_text("from tests.recorder.test_inputs import LanguageModel as lm\n")
    monkeypatch.chdir(tmp_path)
    given = ("--input", "input_ids=Bx8:int64:50", "--input", "labels=Bx8:int64:50")
    done = simgpu("record", "recorder_test_inputs:lm", "--batch", "4", *given, "--gpu", "v100", "-o", "lm")
    assert done.exit_code == 0, done.stderr
    refused = simgpu("record", "recorder_test_inputs:lm", "--batch", "4", "--input", "x", "-o", "never")
    assert refused.exit_code == 2
    assert "record: input: 'x' is not NAME=SHAPE[:TYPE[:BELOW]]" in refused.stderr


def test_built_in_models_name_their_batch_as_before() -> None:
    blocks: dict[str, Block] = _record("mlp").block_by_id
    assert blocks["input"].shape == (4, 3, 32, 32) and blocks["label"].shape == (4,)
