"""What a run is said to cost before it runs, beside what it did cost."""

import itertools
import json
from types import SimpleNamespace

import pytest

from bertlab.studies import estimate
from bertlab.studies.checks import check_transfers, load_checked
from bertlab.studies.launchers import Local
from bertlab.studies.study import RunSpec
from bertlab.train import loop

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("bert.py:objectives=mlm+nsp", {"model__layers": 1}),
        ("awd_lstm.py", {}),
        pytest.param("bert.py:objectives=electra", {"data__format": "full_sentences"}, marks=pytest.mark.nightly),
    ],
)
def test_an_estimate_is_near_what_training_counts(recipe, settings, small_config, tmp_path):
    shared = {"train__steps": 3, "train__eval_batches": 1, "evaluate__sentences": 0}
    config = small_config(f"experiments/pretrain/{recipe}", **shared, **settings)
    result = loop.train(config, tmp_path / "run")
    cost = estimate.pretraining_cost(config)
    assert cost.tokens == 3 * config.data.batch_size * config.data.seq_len
    assert result["tokens"] <= cost.tokens
    # Rows are not quite full, and how many positions are asked is drawn.
    assert cost.flops == pytest.approx(result["flops"], rel=0.3)


@pytest.mark.slow
def test_an_estimate_of_word_vectors_is_an_upper_bound(small_config, tmp_path):
    """Made-up rows are full of words: unknown, special and frequent ones, which training drops, are counted."""
    shared = {"train__steps": 3, "train__eval_batches": 1, "evaluate__sentences": 0}
    config = small_config("experiments/pretrain/static.py:objectives=skip_gram", **shared)
    result = loop.train(config, tmp_path / "run")
    assert 0 < result["flops"] <= estimate.pretraining_cost(config).flops


def test_nothing_is_counted_for_no_steps_and_each_phase_for_its_share(small_config):
    assert estimate.pretraining_cost(small_config("bert", train__steps=0)) == estimate.Cost()
    whole = {steps: estimate.pretraining_cost(small_config("bert", train__steps=steps)) for steps in (6, 4)}
    assert whole[6].flops == pytest.approx(1.5 * whole[4].flops)
    half = estimate.pretraining_cost(
        small_config("bert", train__steps=4, train__phases="0.5 data.seq_len=16; 0.5 data.seq_len=32")
    )
    assert half.tokens == pytest.approx(0.75 * whole[4].tokens)


@pytest.mark.slow
def test_a_fine_tuning_costs_what_its_steps_or_passes_read(bert_run, words_task):
    def cost(**settings):
        run = RunSpec("r", {}, f"run:{bert_run}", {}, {"words": {"task": words_task, "optimizer.warmup_steps": 1, **settings}})
        configs = {run.name: load_checked(run.config, {})}
        return estimate.transfer_cost(run, check_transfers([run], configs)[run.name])

    by_steps = cost(**{"train.steps": 10, "data.batch_size": 4, "data.seq_len": 16})
    assert by_steps.tokens == 10 * 4 * 16
    frozen = cost(**{"train.steps": "10", "data.batch_size": 4, "data.seq_len": 16, "recipe": "probe"})
    assert frozen.flops == pytest.approx(by_steps.flops / 3), "no backward pass"
    result = json.loads((bert_run / "result.json").read_text())
    assert by_steps.flops < result["flops"]
    examples = cost(**{"train.steps": 0, "transfer.epochs": 2.0, "data.batch_size": 4, "data.seq_len": 16}).tokens / (2 * 16)
    assert 100 < examples < 200, "the training part of the table's 200 lines"


def test_time_comes_from_finished_runs_where_there_are_any(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result.json").write_text(json.dumps({"flops": 6e9, "seconds": 3.0}))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "result.json").write_text(json.dumps({"flops": 0, "seconds": 0.0}))
    paths = [tmp_path / name for name in "abc"]
    assert estimate.flops_per_second(paths, Local(1)) == (2e9, "at the rate of the finished runs")
    rate, source = estimate.flops_per_second([tmp_path / "c"], Local(1))
    assert rate > 1e9 and "30 % of this machine (cpu: " in source


def test_other_work_on_the_cores_slows_no_estimate(monkeypatch):
    """A CPU's rate counts the process's own time, once for each core."""
    times = itertools.count(0, 0.25)
    clock = SimpleNamespace(process_time=lambda: next(times), perf_counter=lambda: pytest.fail("the wall clock"))
    monkeypatch.setattr(estimate, "time", clock)
    monkeypatch.setattr(estimate, "available_cores", lambda: 3)
    assert estimate.machine_rate() == pytest.approx(3 * 2 * 1024**3 / 0.25)


def test_runs_at_a_time_share_the_rate_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "machine_rate", lambda: 100e9)
    rate = lambda launcher: estimate.flops_per_second([tmp_path], launcher)[0]
    assert rate(Local(1)) == 30e9
    assert rate(Local(64)) == 30e9, "for a run that is alone"
    (tmp_path / "result.json").write_text(json.dumps({"flops": 6e9, "seconds": 3.0}))
    (tmp_path / "job.json").write_text(json.dumps({"jobs": 2}))
    assert rate(Local(1)) == 4e9, "it had half of the machine"
    cluster = SimpleNamespace(jobs=8, is_here=False, share=lambda workers: None)
    assert estimate.flops_per_second([tmp_path], cluster) == (
        2e9,
        "at the rate of the finished runs, if each had a machine like this one to itself",
    )


@pytest.mark.parametrize(
    ("jobs", "waits", "together"),
    [
        (1, {}, 60.0),
        (2, {}, 30.0),  # 30 beside 20 and 10
        (3, {}, 30.0),
        (3, {"b": {"a"}, "c": {"a"}}, 50.0),  # then 20 beside 10
        (3, {"b": {"a"}, "c": {"b"}}, 60.0),
        (2, {"b": {"done before"}}, 30.0),
    ],
)
def test_runs_take_their_turns_and_wait_for_what_they_share(jobs, waits, together):
    seconds = {"a": 30.0, "b": 20.0, "c": 10.0}
    assert estimate.schedule(seconds, {name: waits.get(name, set()) for name in seconds}, jobs) == together


def test_more_runs_at_a_time_on_the_same_cores_take_no_longer():
    seconds = {"a": 30.0, "b": 20.0, "c": 10.0}
    together = lambda jobs, share, waits={}: estimate.schedule(
        seconds, {name: waits.get(name, set()) for name in seconds}, jobs, share
    )
    assert together(20, lambda running: 1 / running) == pytest.approx(60.0), "what one leaves free the others use"
    assert together(20, lambda running: 1 / running, {"b": {"a"}, "c": {"a"}}) == pytest.approx(60.0)
    assert together(2, lambda running: 1 / 2) == pytest.approx(60.0), "each on its own half of the cores"
    assert together(3, lambda running: 1 / 3) == pytest.approx(90.0), "the others' cores stay idle"
