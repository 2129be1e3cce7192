"""`simgpu.fit`: every answer is a run of a scenario, and searches find what trying every size finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.fit.candidates import candidates, changed
from simgpu.experiments.fit.question import Question, sizes
from simgpu.experiments.fit.result import Fit
from simgpu.experiments.fit.rows import FitRow, FitRun
from simgpu.experiments.fit.section_search import spared_by
from simgpu.experiments.fit.workloads import workload_of
from simgpu.hardware.spec import HostSpec
from simgpu.planning.search.bisection import largest_by_guess
from simgpu.simulation.config import RunConfig
from simgpu.units import format_bytes, format_time
from simgpu.workloads.configured.config import read_decoder, read_model
from simgpu.workloads.configured.diffusion import DiffusionTransformer
from simgpu.workloads.configured.encoder_decoder import EncoderDecoder
from simgpu.workloads.configured.entry import SampleSizes, model_iteration, options_of
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.modelled_diffusion import diffusion_iteration
from simgpu.workloads.configured.modelled_t5 import encoder_decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.workloads.configured.test_unet import SMALL as UNET

NODE = simgpu.load_node("rtx4090")
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}

_OF_TORCHTUNE = ("checkpoint", "checkpoint + async offload")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of 4,096 positions."""
    folder = tmp_path_factory.mktemp("models") / "small-llama"
    folder.mkdir()
    values = {"model_type": "llama", **SIZES, "vocab_size": 1000, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def run_of(row: FitRow) -> FitRun:
    assert row.run is not None
    return row.run


@pytest.fixture(scope="module")
def result(model: Path) -> Fit:
    """An answer for one sequence, with options that fit and others that do not."""
    return simgpu.fit(model, NODE, batch=1, length=2048, budget="70 MiB")


@pytest.fixture(scope="module")
def ample(model: Path) -> Fit:
    """An answer in more memory than all options need, and than the GPU has."""
    return simgpu.fit(model, NODE, batch=1, length=128, budget="900 GB")


def test_the_verdict_of_each_option_is_that_of_a_scenario(model: Path, result: Fit) -> None:
    assert {row.fits for row in result} == {True, False}
    for row in result:
        trace = decoder_iteration(
            read_decoder(model), batch=1, length=2048, gpu=NODE.gpu, options=TrainingOptions.of(row.candidate.build)
        ).trace
        policy, parameters = row.candidate.policy, row.candidate.parameters
        config = RunConfig(pool="caching", budget="70 MiB", allocator=run_of(row).allocator or None)
        if not row.fits:
            with pytest.raises(OutOfMemoryError):
                simgpu.simulate(trace, NODE, policy, config, parameters=parameters)
            continue
        same = simgpu.simulate(trace, NODE, policy, config, parameters=parameters)
        assert (run_of(row).step_ns, run_of(row).reserved) == (same.iteration_ns, same.high_water), row.candidate.label


@pytest.mark.slow
def test_a_divided_batch_takes_the_time_of_all_its_micro_batches(model: Path) -> None:
    question = Question(workload_of(model, {}), NODE, 8, 1024, 120 * 2**20)
    row = question.row(candidates(question.workload.options)[1])
    count = run_of(row).micro_batches
    assert count > 2
    trace = decoder_iteration(
        read_decoder(model), batch=8, length=1024, gpu=NODE.gpu, options=TrainingOptions.of(row.candidate.build)
    ).trace

    def in_parts(count: int) -> simgpu.Result:
        config = RunConfig(pool="caching", budget="120 MiB", allocator=run_of(row).allocator or None)
        return simgpu.simulate(trace, NODE, "accumulate", config, parameters={"micro_batches": count})

    assert run_of(row).step_ns == pytest.approx(in_parts(count).iteration_ns, rel=1e-4)
    with pytest.raises(OutOfMemoryError):
        in_parts(count // 2)


@pytest.mark.parametrize(
    ("searched", "given"),
    [("length", {"batch": 2}), pytest.param("batch", {"length": 512}, marks=pytest.mark.slow)],
)
def test_the_search_ends_where_the_next_larger_size_does_not_fit(
    model: Path, searched: str, given: dict[str, int]
) -> None:
    question = Question(workload_of(model, {}), NODE, given.get("batch"), given.get("length"), 120 * 2**20, 2**20)
    assert question.searched == searched
    places = sizes(128, 4096) if searched == "length" else sizes(1, 2**16)
    for candidate in candidates(question.workload.options)[1:5:3]:
        row = question.row(candidate)
        at = places.index(row.size(searched))
        assert run_of(row).reserved <= 119 * 2**20
        above = {searched: places[at + 1]}
        sizes_above = {"batch": given.get("batch"), "length": given.get("length"), **above}
        assert not question.run(candidate, **sizes_above).fits, candidate.label


def test_the_answer_is_the_fastest_option_that_fits_or_a_safer_one_of_equal_speed(result: Fit) -> None:
    assert result.best is not None
    fastest = max((row for row in result.fitting if not row.candidate.on_host), key=lambda row: run_of(row).speed)
    assert run_of(result.best).speed >= 0.995 * run_of(fastest).speed
    if result.best is not fastest:
        assert result.margin(result.best) >= result.question.margin
    assert result.answer.startswith("In 70 MiB: train small-llama on 1 sequence of 2,048 tokens")
    assert result.best.candidate.label in result.answer


def test_no_row_beats_the_front_in_both_memory_and_speed(result: Fit) -> None:
    front = {row.candidate.label for row in result.front}
    for row in result:
        beaten = any(
            run_of(other).reserved <= run_of(row).reserved
            and run_of(other).speed >= run_of(row).speed
            and (run_of(other).reserved, run_of(other).speed) != (run_of(row).reserved, run_of(row).speed)
            for other in result
        )
        assert (
            beaten
            or row.candidate.label in front
            or any(
                (run_of(each).reserved, run_of(each).speed) == (run_of(row).reserved, run_of(row).speed)
                for each in result.front
            )
        )
    figure = result.plot()
    assert figure.axes[0].get_ylabel() == "tokens/s"
    assert list(result.frame()["fits"]) == [row.fits for row in result]


def test_a_budget_far_above_all_peaks_does_not_squeeze_the_figure(result: Fit, ample: Fit) -> None:
    near, far = result.plot().axes[0], ample.plot().axes[0]
    peak = max(run_of(row).reserved for row in result) / 2**30
    assert near.get_xlim()[1] >= result.question.budget / 2**30
    assert "budget" in [text.get_text() for text in near.texts]
    assert "budget: 838.2 GiB" in [text.get_text() for text in far.texts]
    assert far.get_xlim()[1] < 2 * peak


def test_options_of_the_front_are_numbered_in_the_figure_and_all_others_are_alike(result: Fit) -> None:
    figure = result.plot()
    [ax], count = figure.axes, len(result.front)
    numbers = [number for text in ax.texts for number in text.get_text().split(", ") if number.isdigit()]
    assert numbers == [str(number) for number in range(1, count + 1)]
    markers = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert len({(line.get_marker(), line.get_color()) for line in markers}) == len(markers) == count + 1
    assert sum(len(line.get_xdata()) for line in markers) == len(result)
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    expected = [f"{number}  {row.candidate.short}" for number, row in enumerate(result.front, 1)]
    assert names == [*expected, "Pareto front", "other options"]


def test_cells_of_the_frame_are_numbers_and_texts(result: Fit) -> None:
    frame = result.frame()
    assert all(isinstance(cell, str | int | float | None) for column in frame for cell in frame[column].tolist())
    row = frame.loc["fused AdamW + selective checkpoint"]
    assert row["parameters"] == "keep: [torchtitan], early_stop: false"
    assert (row["optimizer"], row["attention"]) == ("adamw-fused", "sdpa")
    assert row["switches"].startswith("fused AdamW: torch.optim.AdamW(fused=True);")


def test_the_answer_says_what_costs_are_relative_to(result: Fit) -> None:
    plain = run_of(result["as it is"])
    time = format_time(plain.plain_ns)
    baseline = f"Costs are relative to the step time as it is (unfused AdamW, unlimited memory): {time}."
    assert result.answer.endswith(baseline)


def test_the_optimizer_on_the_host_takes_its_state_off_the_gpu(result: Fit) -> None:
    """What is persistent shrinks to half with the state on the host, and to a quarter without gradients."""
    whole, host, bare = (
        run_of(result[f"fused AdamW + {name}"])
        for name in ("checkpoint", "checkpoint + host optimizer", "checkpoint + host gradients")
    )
    weights = whole.persistent.weights
    assert host.persistent.total == 2 * weights
    assert bare.persistent.total == weights
    assert 0 <= whole.peak - host.peak - whole.persistent.optimizer_state < 0.02 * whole.peak
    assert bare.link_bytes == host.link_bytes == 2 * weights
    assert bare.peak == host.peak  # at the loss, before any gradient exists


def test_updates_in_backward_leave_no_gradients_and_are_not_divided(ample: Fit, model: Path) -> None:
    """At 128 tokens checkpoints leave the peak to the gradients at the end of backward."""
    updating = [row for row in ample if row.candidate.build["optimizer_in_backward"]]
    assert [row.candidate.short for row in updating] == [
        "+ updates in backward",
        "+ loss + updates in backward",
        *(f"+ {loss}updates + {policy}" for policy in _OF_TORCHTUNE for loss in ("", "loss + ")),
    ]
    whole, freed = (run_of(ample[f"fused AdamW + {more}checkpoint"]) for more in ("", "updates in backward + "))
    gradients = whole.persistent.gradients
    assert freed.persistent == replace(whole.persistent, gradients=0)
    assert gradients / 2 < whole.peak - freed.peak <= gradients
    question = Question(workload_of(model, {}), NODE, 8, 1024, 60 * 2**20)
    row = question.row(updating[2].candidate)
    assert (row.fits, run_of(row).micro_batches) == (False, 1)
    assert row.note == "not in micro-batches: an update needs the gradient of the whole batch"
    assert any(note.startswith("updates: each weight is updated in backward") for note in ample.notes())


def test_what_another_training_cannot_do_in_backward_it_does_afterwards(model: Path) -> None:
    """torchtune's recipes of LoRA have no such option; those of all weights have it with bitsandbytes' AdamW too."""
    base = workload_of(model, {}).options
    like = next(each for each in candidates(base) if "in backward + checkpoint" in each.label)
    labels = [each.label for each in changed(base, like)]
    assert "AdamW in 8 bits + updates in backward + checkpoint" in labels
    assert "LoRA of rank 16 + fused AdamW + checkpoint" in labels
    assert not any("in backward" in label for label in labels if "LoRA" in label)


def test_a_host_of_unknown_bandwidth_refuses_its_options(model: Path) -> None:
    question = Question(workload_of(model, {}), replace(NODE, host=HostSpec()), 1, 128, 2**30)
    options = [each for each in candidates(question.workload.options) if each.on_host]
    assert len(options) == 5
    for each in options:
        row = question.row(each)
        assert row.run is None
        assert "node.host.memory_bandwidth: is not set" in row.note


def test_what_does_not_fit_names_the_persistent_part_and_gpus(model: Path) -> None:
    on_gpu = replace(NODE, host=HostSpec())
    result = simgpu.fit(model, on_gpu, batch=1, length=128, budget="8 MiB")
    smallest = result.smallest
    assert result.best is None
    assert smallest is not None
    persistent = run_of(smallest).persistent
    assert persistent == replace(run_of(result.rows[1]).persistent, gradients=0), "updates in backward"
    decoder = decoder_iteration(read_decoder(model), batch=1, length=128, gpu=NODE.gpu)
    # Two bytes each: weights, gradients, two averages; and a float32 count of steps for each weight.
    assert persistent.weights == run_of(result.rows[0]).persistent.gradients == 2 * decoder.parameters
    assert 0 <= persistent.optimizer_state - 4 * decoder.parameters < 1000
    assert "does not fit" in result.answer
    assert f"weights and optimizer state are {format_bytes(persistent.total)} of it" in result.answer
    assert "No batch, length or activation policy changes these" in result.answer
    least = min(run_of(row).reserved for row in result if row.run is not None and not row.candidate.changes)
    about = "about " if least < run_of(smallest).reserved else ""
    assert f"The least is {about}{format_bytes(run_of(smallest).reserved)}, " in result.answer
    assert result.larger_gpus
    assert dict(result.facts())["persistent"].startswith(format_bytes(persistent.total))
    changed = dict.fromkeys(row.candidate.label.split(" + ")[0] for row in result if row.candidate.changes)
    assert list(changed) == ["AdamW in 8 bits", "LoRA of rank 16", "QLoRA of rank 16", "plain SGD"]


def test_sizes_that_no_iteration_has_are_refused_together(model: Path) -> None:
    with pytest.raises(InputError) as error:
        simgpu.fit(model, NODE, batch=0, length=-1)
    assert [problem.place for problem in error.value.problems] == ["batch", "length"]
    with pytest.raises(InputError, match="samples of resnet50 have no length"):
        simgpu.fit("resnet50", NODE, batch=1, length=128)
    with pytest.raises(InputError, match="there is no model 'resnet51'; did you mean 'resnet56'"):
        simgpu.fit("resnet51", NODE)


@pytest.mark.slow
def test_the_training_that_was_requested_is_the_base_of_all_options(model: Path) -> None:
    """LoRA and autocast are run as a scenario would run them, and eager attention is replaced by a fused one."""
    training = {"lora": 8, "lora_targets": ("all-linear",), "autocast": "bfloat16", "attention": "eager"}
    result = simgpu.fit(model, NODE, batch=1, length=256, **training)
    iteration = decoder_iteration(
        read_decoder(model), batch=1, length=256, gpu=NODE.gpu, options=TrainingOptions.of(training)
    )
    same = simgpu.simulate(iteration.trace, NODE, "none", RunConfig(pool="caching"))
    assert run_of(result.rows[0]).step_ns == same.iteration_ns
    assert [row.candidate.label for row in result][1:3] == ["fused AdamW", "fused AdamW + fused attention"]
    assert run_of(result.rows[2]).reserved < run_of(result.rows[1]).reserved
    assert result.question.workload.options["dtype"] == "float32"
    assert "options below fused attention include fused AdamW and fused attention" in result.notes()


@pytest.mark.slow
def test_float8_is_the_base_of_all_options_and_names_gpus_that_have_it(model: Path) -> None:
    """Smaller boards with enough memory, such as the RTX 3060, have no float8. LoRA next to it is not modelled."""
    result = simgpu.fit(model, NODE, batch=1, length=256, float8="tensorwise", budget="8 MiB")
    assert {row.candidate.build["float8"] for row in result} == {"tensorwise"}
    assert result.larger_gpus[0].startswith("rtx4060")
    assert [row.candidate.label[:5] for row in result if row.run is None] == ["LoRA ", "QLoRA"]


def test_float8_is_refused_on_a_gpu_without_it(model: Path) -> None:
    with pytest.raises(InputError, match=r"float8: A100 PCIe 40GB \(ampere\) has no .* float8"):
        simgpu.fit(model, "a100", batch=1, length=256, float8="tensorwise")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of 6 layers."""
    file = tmp_path_factory.mktemp("models") / "deep.json"
    values = {"model_type": "llama", **SIZES, "num_hidden_layers": 6, "vocab_size": 1000}
    file.write_text(json.dumps(values))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("parameter", ["every", "count", "num_layers"])
def test_the_search_spares_as_many_layers_as_trying_every_value_does(deep: Path, parameter: str) -> None:
    workload = workload_of(deep, {})
    unlimited = Question(workload, NODE, 1, 512, 2**40)
    template = next(each for each in candidates(workload.options) if each.searched == parameter)
    spared = spared_by(parameter, 6)
    assert len(spared) == {"every": 2, "count": 5, "num_layers": 5}[parameter]
    peaks = {n: unlimited.run(template.valued(n), 1, 512).reserved for n in spared.values()}
    for budget in (min(peaks.values()) - 2**20, sorted(peaks.values())[1]):
        question = Question(workload, NODE, 1, 512, budget)
        row = question.row(template)
        fits = {left: question.run(template.valued(n), 1, 512).fits for left, n in spared.items()}
        best = max((left for left, fit in fits.items() if fit), default=min(spared))
        assert row.candidate.parameters[parameter] == spared[best], (budget, fits)
        assert row.fits == any(fits.values())


@pytest.mark.slow
def test_groups_of_layers_are_the_smallest_that_fit_or_have_the_smallest_peak(deep: Path) -> None:
    workload = workload_of(deep, {})
    template = next(each for each in candidates(workload.options) if each.searched == "group")
    unlimited = Question(workload, NODE, 1, 512, 2**40)
    peaks = {n: unlimited.run(template.valued(n), 1, 512).peak for n in range(1, 7)}
    row = Question(workload, NODE, 1, 512, 2**20).row(template)
    assert not row.fits
    assert run_of(row).peak == min(peak for n, peak in peaks.items() if n > 1)
    assert row.candidate.parameters["group"] == min(n for n, peak in peaks.items() if peak == run_of(row).peak)
    assert unlimited.row(template).candidate.label.endswith("checkpoint groups of 2")


@pytest.mark.slow
def test_t5_and_dit_are_run_from_their_configurations(tmp_path: Path) -> None:
    t5, dit = tmp_path / "t5.json", tmp_path / "dit.json"
    t5.write_text(json.dumps({"model_type": "t5", "d_model": 64, "num_layers": 2, "d_kv": 16, "num_heads": 4}))
    sizes = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 32}
    dit.write_text(json.dumps({"_class_name": "DiTTransformer2DModel", **sizes}))
    text, images = simgpu.fit(t5, NODE, batch=2, length=128), simgpu.fit(dit, NODE, batch=4)
    models = read_model(t5), read_model(dit)
    assert isinstance(models[0], EncoderDecoder)
    assert isinstance(models[1], DiffusionTransformer)
    traces = (
        encoder_decoder_iteration(models[0], batch=2, length=128, gpu=NODE.gpu).trace,
        diffusion_iteration(models[1], batch=4, gpu=NODE.gpu).trace,
    )
    for result, trace in zip((text, images), traces, strict=True):
        same = simgpu.simulate(trace, NODE, "none", RunConfig(pool="caching"))
        run = run_of(result.rows[0])
        assert (run.step_ns, run.reserved) == (same.iteration_ns, same.high_water)
        assert all(row.run is not None for row in result), result.notes()
    assert (text.speed_unit, images.speed_unit) == ("tokens/s", "samples/s")
    named = {row.candidate.label: row.candidate.switches for row in images}
    assert named["fused AdamW"] == ("fused AdamW: torch.optim.AdamW(fused=True)",)
    assert named["fused AdamW + checkpoint"][1] == "checkpoint: diffusers model.enable_gradient_checkpointing()"
    assert not any(name in str(list(named.values())) for name in ("Transformers", "TRL", "torchtune", "Megatron"))
    with pytest.raises(InputError, match="samples of dit have no length"):
        simgpu.fit(dit, NODE, batch=1, length=128)


@pytest.mark.slow
def test_sizes_of_labels_and_of_latent_images_are_those_of_the_iteration(tmp_path: Path) -> None:
    t5, unet = tmp_path / "t5.json", tmp_path / "unet.json"
    t5.write_text(json.dumps({"model_type": "t5", "d_model": 64, "num_layers": 1, "d_kv": 16, "num_heads": 4}))
    unet.write_text(json.dumps(UNET))
    for path, given in ((t5, SampleSizes(128, target_length=16)), (unet, SampleSizes(sample_size=16))):
        workload = workload_of(path, {"target_length": given.target_length, "sample_size": given.sample_size})
        model = read_model(path)
        options = options_of(model, workload.options)
        same = model_iteration(model, given, batch=2, gpu=NODE.gpu, options=options).trace
        assert workload.trace(2, given.length, NODE.gpu, workload.options) == same
    result = simgpu.fit(t5, NODE, batch=2, length=128, target_length=16)
    assert "128 tokens per sample, 16 tokens of labels" in result.caption
    assert result.to_dict()["question"]["target_length"] == 16
    with pytest.raises(InputError, match="sample_size: applies to configurations, not to a network of the zoo"):
        simgpu.fit("resnet50", NODE, batch=1, sample_size=16)


def test_a_recording_keeps_its_batch_and_its_options() -> None:
    result = simgpu.fit("digits-cnn-cpu", "rtx3060")
    assert run_of(result.rows[0]).batch == simgpu.load_trace("digits-cnn-cpu").info.batch
    with pytest.raises(InputError, match="applies to modelled iterations"):
        simgpu.fit("digits-cnn-cpu", "rtx3060", optimizer="sgd")


def test_largest_by_guess_is_bounded_whatever_is_guessed() -> None:
    for limit in range(-1, 12):
        for wrong in (-5, 0, 3, 100):
            found = largest_by_guess(lambda n, limit=limit: n <= limit, 10, lambda fit, over, wrong=wrong: wrong)
            assert found == (None if limit < 0 else min(limit, 10))


@pytest.mark.slow
def test_an_8b_model_answers_within_a_minute_at_128k(tmp_path: Path) -> None:
    from time import monotonic

    large = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    values = {"model_type": "llama", **large, "num_key_value_heads": 8, "vocab_size": 128256}
    (tmp_path / "config.json").write_text(json.dumps({**values, "max_position_embeddings": 131072}))
    started = monotonic()
    result = simgpu.fit(tmp_path, "gb300", batch=1, length=131072, jobs=2)
    assert monotonic() - started < 60
    assert result.best is not None


def test_a_configuration_is_named_by_its_folder_or_by_its_own_name(model: Path) -> None:
    other = model / "another.json"
    other.write_text((model / "config.json").read_text())
    try:
        names = [workload_of(path, {}).name for path in (model, model / "config.json", other)]
    finally:
        other.unlink()
    assert names == ["small-llama", "small-llama", "another"]


def test_a_budget_above_the_memory_of_the_gpu_is_reported(ample: Fit) -> None:
    assert dict(ample.facts())["budget"].endswith("as given, more than the GPU has")


@pytest.mark.slow
def test_a_search_marks_what_fits_without_the_margin_as_tight(model: Path) -> None:
    """A search leaves a margin, so that what needs less than the budget alone is not out of memory."""
    question = Question(workload_of(model, {}), NODE, None, 128, 2**40)
    need = min(question.run(each, 1, 128).reserved for each in candidates(question.workload.options))
    result = simgpu.fit(model, NODE, length=128, budget=need + 1024)
    assert result.best is None
    smallest = min((row for row in result if row.run is not None), key=lambda row: run_of(row).reserved)
    assert result.marks(smallest) == ["tight"]
    assert "It leaves less than" in result.answer
    assert ["OOM"] in [result.marks(row) for row in result if row.run is not None]


def test_more_gpus_than_the_node_has_are_refused() -> None:
    with pytest.raises(InputError, match="node rtx4090 has one GPU, not 8; choose rtx4090-x8"):
        simgpu.fit("resnet50", "rtx4090", batch=1, gpus=8)


def test_a_model_that_is_compiled_as_a_whole_is_tried_without_policies_for_its_modules() -> None:
    forms = {form: [each.policy for each in candidates({"compile": form})] for form in ("layers", "model")}
    assert {"checkpoint", "offload_groups"} <= set(forms["layers"])
    assert {"checkpoint", "offload_groups"}.isdisjoint(forms["model"]) and "save_on_cpu" in forms["model"]
