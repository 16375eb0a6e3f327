"""What the loop waits for, and what it makes of an optimiser that averages its parameters."""

import contextlib
import json
import re
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest

from bertlab.cli import main
from bertlab.data.batches import TrainingBatches
from bertlab.run import Run
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params
from bertlab.train.cost import body_flops
from bertlab.train.made_up import made_up_experiment
from bertlab.train.plan import distinct_phases
from tests.conftest import ROOT
from tests.references import quick_jit

# NT-ASGD.

STEPS, EVERY = 10, 2


@pytest.fixture
def averaging(small_config, tmp_path):
    """(experiment, run directory) at a rate so high that the held-out loss rises."""
    config = small_config(
        "awd_lstm",
        data__seq_len=16,
        model__hidden=16,
        optimizer__learning_rate=60.0,
        optimizer__average_after=1,
        train__steps=STEPS,
        train__eval_every=EVERY,
        train__checkpoint_every=1,
        train__keep_checkpoints=0,
    )
    loop.train(config, tmp_path / "run")
    return build_pretraining(config), tmp_path / "run"


def valid_losses(run, name: str = "ltr") -> dict[int, float]:
    """Step to an objective's held-out loss that the run wrote; the evaluation before training left out."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[f"{name}/loss"] for line in lines if line["split"] == "valid" and line["step"] > 0}


def trigger_of(losses: dict[int, float]) -> int | None:
    """The first step whose loss is more than the least of all before but the last one."""
    values = list(losses.values())
    return next((step for i, step in enumerate(losses) if i > 1 and values[i] > min(values[: i - 1])), None)


def upto(run, step: int, folder):
    """A copy of a run as it was when it had reached a step."""
    shutil.copytree(run, folder)
    Run(folder).result.delete()
    for checkpoint in (folder / "checkpoints").iterdir():
        if int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)
    return folder


def last_state(experiment, run):
    """The training state of the last checkpoint; its `params` are those that the optimiser works on."""
    session = loop.Session(experiment, run)
    state = jax.device_get(session.state)
    session.close()
    return state


def held_out_loss(experiment, params) -> float:
    """The mean over the `valid` batches, states carried through them."""
    program, total = experiment.program, np.zeros(2)
    carry = program.initial_carry(experiment.config.data.batch_size)
    evaluate = quick_jit(
        lambda params, batch, carry: program.metrics_and_carry(params, program.views(batch, jax.random.key(0)), carry)
    )
    for batch in experiment.evaluations["valid"]:
        metrics, carry = evaluate(params, batch, carry)
        total += np.array(metrics["ltr/loss"], np.float64)
    return total[0] / total[1]


@pytest.mark.slow
def test_held_out_losses_and_loaded_parameters_are_the_averaged_ones_once_there_are_any(averaging, tmp_path):
    experiment, run = averaging
    losses = valid_losses(run)
    began = trigger_of(losses)
    assert list(losses) == list(range(EVERY, STEPS + 1, EVERY)) and began + 4 <= STEPS, "else there is no average to see"
    # What is watched is the language model's loss, not a penalty beside it such as AR (salesforce/awd-lstm-lm main.py).
    assert trigger_of(valid_losses(run, "ar")) != began, "else the two would look the same"
    copies = {step: upto(run, step, tmp_path / str(step)) for step in (began - EVERY, *range(began - 1, STEPS + 1))}
    states = {step: last_state(experiment, copy) for step, copy in copies.items()}
    trained = {step: state.params for step, state in states.items()}
    for step, state in states.items():
        assert bool(state.opt_state[-1].averaging) == (step >= began)
        # torch.optim.ASGD's average, which salesforce/awd-lstm-lm begins with: its first two steps copy the parameters.
        since = [trained[s] for s in range(min(step, began + 2), step + 1)]
        expected = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0, dtype=np.float64), *since)
        loaded = load_params(copies[step])
        # Float32 rounds each of at most two steps of the running mean.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), loaded, expected)
        if step <= began:  # until the next update there is no average yet
            jax.tree.map(np.testing.assert_array_equal, loaded, trained[step])
        if step in losses:
            # The loop's own compilation adds in another order.
            np.testing.assert_allclose(losses[step], held_out_loss(experiment, loaded), rtol=1e-5)
    assert abs(held_out_loss(experiment, trained[STEPS]) - losses[STEPS]) > 0.01, "else the losses would not tell"
    result = json.loads((run / "result.json").read_text())
    assert result["metrics"]["valid"]["ltr/loss"] == losses[STEPS]


def test_flops_are_those_of_the_directions_that_are_read(small_config):
    """A stream asks each direction in a pass of its own, packed rows both in one; a direction nobody asks costs nothing."""
    stream = dict(data__format="stream", data__stream__backward=True, model__stateful=True)
    one = f"{ROOT}/experiments/pretrain/elmo.py:objectives=ltr"
    packed, streamed, forward = (
        body_flops(build_pretraining(config).phases[0])
        for config in (small_config("elmo"), small_config("elmo", **stream), small_config(one))
    )
    # 6 FLOPs for each of the 9·D·F weights of two layers' products.
    assert forward == 8 * 32 * 6 * 2 * 9 * 16 * 24
    assert packed == streamed == 2 * forward


# What a config asks for reaches the loss.


@pytest.mark.nightly
def test_logits_in_parts_or_all_at_once_train_the_same(small_config, tmp_path):
    found, shapes = {}, {}
    for rows in (0, 8):
        settings = {"train__steps": 4, "train__log_every": 1, "train__eval_every": 0, "model__output_rows": rows}
        config = small_config("bert", **settings)
        loop.train(config, tmp_path / str(rows))
        lines = (tmp_path / str(rows) / "metrics.jsonl").read_text().splitlines()
        found[rows] = [json.loads(line)["mlm/loss"] for line in lines]
        with contextlib.closing(loop.Session(build_pretraining(config), tmp_path / f"{rows}-again")) as session:
            [step] = session.compile_training().values()
            shapes[rows] = bool(re.search(r"\[(8,400|400,8)\]", step.as_text()))
    assert shapes == {0: False, 8: True}, "the program has logits of eight rows"
    np.testing.assert_allclose(found[0], found[8], rtol=1e-5)


@pytest.mark.parametrize(
    "recipe", ["modern", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("awd_lstm", "elmo"))]
)
def test_bfloat16_trains_float32_parameters_and_moments_to_the_same_losses(recipe, small_config, tmp_path):
    losses = {}
    for dtype in ("float32", "bfloat16"):
        config = small_config(recipe, train__steps=8, train__log_every=8, train__checkpoint_every=0, model__dtype=dtype)
        experiment = build_pretraining(config)
        losses[dtype] = loop.run(experiment, tmp_path / dtype)["metrics"]["valid"]["loss"]
        state = last_state(experiment, tmp_path / dtype)
        kept = jax.tree.leaves((state.params, state.opt_state))
        assert {str(leaf.dtype) for leaf in kept} <= {"float32", "int32", "bool"}
    # Parameters in bfloat16 would be rounded to 0.4 % at each step, and small updates lost.
    changed = [np.asarray(x, ml_dtypes.bfloat16).astype(np.float32) != x for x in jax.tree.leaves(state.params) if x.ndim > 1]
    assert np.mean(np.concatenate([x.ravel() for x in changed])) > 0.9
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["bfloat16"] != losses["float32"]


def test_a_step_reuses_the_memory_of_the_state_that_it_is_given(small_config, tmp_path):
    with contextlib.closing(loop.Session(build_pretraining(small_config("bert")), tmp_path)) as session:
        [step] = session.compile_training().values()
        state = sum(leaf.nbytes for leaf in jax.tree.leaves(session.state))
        assert step.memory_analysis().alias_size_in_bytes >= state


# What the host waits for.


def test_a_step_is_begun_before_the_one_before_it_has_ended(small_config, tmp_path):
    experiment = build_pretraining(small_config("bert", model__layers=1))
    matrix = np.full((600, 600), 1e-3, np.float32)
    long = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ x, x).sum()).lower(matrix).compile()
    with contextlib.closing(loop.Session(experiment, tmp_path / "run")) as session:
        session.start_clock()
        steps = {session.example["documents"].shape[1]: lambda state, batch, seed: (state, {"tokens": long(matrix)})}
        for _ in range(3):
            session.advance(steps)
        assert not session.waiting[-1][1]["tokens"].is_ready()
        jax.block_until_ready([metrics for _, metrics, *_ in session.waiting])


def test_the_loop_waits_for_the_device_only_where_something_is_due(small_config, tmp_path, monkeypatch):
    config = small_config("bert", model__layers=1)  # 20 steps; a log line every 4, an evaluation every 10, a checkpoint every 5
    fetched, fetch = [], loop.Session.fetch
    monkeypatch.setattr(loop.Session, "fetch", lambda session: (fetched.append(session.step), fetch(session)))
    loop.train(config, tmp_path / "run")
    assert fetched == [4, 5, 8, 10, 12, 15, 16, 20]


def test_all_rows_that_phases_train_on_say_whether_every_process_reads_all(small_config):
    config = small_config("bert", data__tokenizer__vocab_size=400)
    kinds = [build_pretraining(config), made_up_experiment(config)]
    rows = [experiment.phases[0].train for experiment in kinds] + [phase.train for phase, *_ in distinct_phases(config)]
    assert [type(of).__name__ for of in rows] == ["Shards", "RepeatedRows", "MadeUpRows"]
    assert all(isinstance(of, TrainingBatches) for of in rows)
    assert [of.whole for of in rows] == [False, True, True]


@pytest.mark.parametrize(
    ("objectives", "between", "said"),
    [
        ("mlm+nsp", "\n\n", r"nsp's label never varies: each of 1,000 pairs has a random B, as no document has two sentences"),
        ("mlm+sop", "\n\n", r"sop's label never varies: no pair has a label, as no document has two sentences"),
        ("mlm+nsp", "\n", None),
    ],
)
def test_a_label_of_pairs_that_never_varies_is_said_before_training(objectives, between, said, small_config, tmp_path, capsys):
    sentences = [f"the value of object {i} is in module {i % 7}" for i in range(400)]
    documents = [between.join(sentences[i : i + 5]) for i in range(0, 400, 5)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n")
    recipe = f"experiments/pretrain/bert.py:objectives={objectives},corpus=text:{tmp_path / 'text.txt'}"
    small = {"data__seq_len": 64, "data__tokenizer__vocab_size": 300, "model__layers": 1, "train__steps": 0}
    loop.train(small_config(recipe, data__corpus=f"text:{tmp_path / 'text.txt'}", **small), tmp_path / "run")
    before = capsys.readouterr().out.partition("on 1 cpu")[0]
    assert re.search(said, before) if said else "never varies" not in before
    main(["doctor", str(tmp_path / "run")])
    assert ("label never varies" in capsys.readouterr().out) == bool(said)
