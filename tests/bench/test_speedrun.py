"""The speed run: rules before compute, one measure for every objective, results and table from files."""

import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest
from scipy.stats import ttest_ind

from bertlab.bench import speedrun as module
from bertlab.bench.speedrun import FOLDER, TRACK, Entry, build_measure, check_rules, config_digest, entries, table, way
from bertlab.cli import main
from bertlab.config import load_config, set_key
from bertlab.errors import UserError
from bertlab.studies.text import p_text
from bertlab.train.build import build_pretraining
from bertlab.train.sharding import build_mesh
from tests.conftest import ROOT

SYNTHETIC = {"data.tokenizer.kind": "words", "data.tokenizer.vocab_size": 69, "data.synthetic.documents": 300, "mesh.data": 1}
SMALL = """
def get_config(arguments=None):
    config = base_config()
    config.data.update(format="full_sentences", seq_len=32, batch_size=8)
    config.model.update(layers=1, width=16, hidden=24)
    config.optimizer.learning_rate = 3e-2
    config.train.steps = 24
    train_on(config, "pydocs", "OBJECTIVES")
    return config
"""
IMPORT = "from bertlab.config import base_config, train_on\n"


@pytest.fixture
def folder(tmp_path, cache, monkeypatch):
    """A speed run on the synthetic language, whose target is near."""
    settings = SYNTHETIC | {"data.directory": cache, "data.workers": 1}
    track = dataclasses.replace(
        TRACK, settings=settings, text="", target=4.0, every=1024, batches=2, length=32, cores=len(os.sched_getaffinity(0))
    )
    monkeypatch.setattr(module, "TRACK", track)
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries/bert.py").write_text('"""As\npublished.\n\nMore."""\n' + IMPORT + SMALL.replace("OBJECTIVES", "mlm"))
    return tmp_path


@pytest.mark.nightly
def test_an_entry_is_timed_until_the_target_and_the_table_is_made_from_its_files(folder, monkeypatch, capsys):
    command = ["speedrun", "bert", "--corpus=synthetic", "--seeds=1,2", f"--folder={folder}"]
    assert main(command) == 0
    files = Entry(folder, "bert").results()
    first, second = (json.loads(file.read_text()) for file in files)
    losses = [loss for _, _, loss in first["curve"]]
    assert first["reached"] and losses[-1] == first["loss"] <= 4.0 and all(loss > 4.0 for loss in losses[:-1])
    assert [positions for _, positions, _ in first["curve"]] == [1024 * (i + 1) for i in range(len(losses))]
    assert first["positions"] == first["steps"] * 8 * 32 == first["curve"][-1][1] >= first["tokens"]
    assert 0 < first["seconds"] == pytest.approx(first["curve"][-1][0], abs=1e-3) and first["flops"] > 0
    assert first["loss"] != second["loss"] and first["config"] == second["config"] and first["environment"]["git_commit"]
    page = (folder / "README.md").read_text()
    assert "| bert |" in page and "| As published. |" in page
    written = [file.stat().st_mtime_ns for file in files]
    assert main(command) == 0 and [file.stat().st_mtime_ns for file in files] == written, "measured seeds are left"
    monkeypatch.setattr(module, "TRACK", dataclasses.replace(module.TRACK, target=3.0))
    assert main(["speedrun", "--table", f"--folder={folder}"]) == 2
    assert files[0].name in capsys.readouterr().err and (folder / "README.md").read_text() == page


def test_another_text_is_a_trial_and_an_entry_that_ends_before_the_target_has_not_reached_it(folder):
    track = dataclasses.replace(module.TRACK, text="another", target=0.1)
    file = folder / "entries/bert.py"
    file.write_text(file.read_text().replace("steps = 24", "steps = 5"))
    [found] = module.speedrun("bert", "synthetic", [1], folder, track)
    assert not found["reached"] and found["steps"] == 5 and len(found["curve"]) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["entries"]


def test_a_machine_of_another_class_is_refused(folder):
    with pytest.raises(UserError, match="taskset"):
        module.machine_class(dataclasses.replace(module.TRACK, cores=module.TRACK.cores + 1))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.tokenizer.vocab_size", 512),
        ("data.valid_fraction", 0.01),
        ("data.seed", 3),
        ("train.eval_every", 1),
        ("train.budget", "seconds=60"),
        ("init_from", "runs/x"),
        ("seed", 7),
        ("train.steps", 0),
        ("model.max_positions", 64),
    ],
)
def test_an_entry_may_not_change_what_the_command_decides(key, value):
    config = load_config("experiments/pretrain/bert.py")
    check_rules(config, TRACK)
    set_key(config, key, value)
    with pytest.raises(UserError, match=rf"config\.{key}="):
        check_rules(config, TRACK)


@pytest.mark.parametrize(
    ("objectives", "found"),
    [("mlm+nsp", "at the mask"), ("masked_next_token", "before the mask"), ("ltr", None), ("nsp", None)],
)
def test_an_entry_predicts_hidden_tokens(objectives, found):
    config = load_config(f"experiments/pretrain/bert.py:objectives={objectives}")
    if found:
        assert way(config) == (objectives.partition("+")[0], found)
    else:
        with pytest.raises(UserError, match=r"config\.objectives="):
            way(config)


@pytest.mark.parametrize(
    ("objective", "how"), [pytest.param("mlm", "at the mask", marks=pytest.mark.slow), ("masked_next_token", "before the mask")]
)
def test_the_measure_is_the_loss_of_the_hidden_tokens(small_config, objective, how):
    """Against NumPy, from the program's logits with 15 % of each row's tokens hidden."""
    experiment = build_pretraining(small_config(f"experiments/pretrain/bert.py:objectives={objective}", train__eval_batches=2))
    batches, program = experiment.evaluations["valid"], experiment.program
    params = program.init(jax.random.key(1), batches[0])
    params = jax.tree.map(lambda x: x * 3, params)  # logits that differ
    total = count = 0
    for index, batch in enumerate(batches):
        key = jax.random.fold_in(jax.random.key(0), index)
        view = jax.device_get(module.MASK.view(batch, key, program.vocabulary, 1.0))
        hidden = view["tokens"] != batch["tokens"]
        assert (view["tokens"][hidden] == program.vocabulary.mask_id).all()
        wanted = [max(1, round(0.15 * n)) for n in (batch["documents"] > 0).sum(axis=1)]
        assert (hidden.sum(axis=1) == np.where(batch["documents"].any(axis=1), wanted, 0)).all()
        logits = np.asarray(program.token_logits(params, view, objective, "both"), np.float64)
        nats = np.log(np.exp(logits).sum(-1))
        for row, place in zip(*np.nonzero(hidden)):
            at = place - (how == "before the mask")
            total += nats[row, at] - logits[row, at, batch["tokens"][row, place]]
            count += 1
    measured = build_measure(experiment, build_mesh(experiment.config.mesh), objective, how)(params, batches)
    assert measured == pytest.approx(total / count, rel=1e-5)  # float32 against float64


def result(entry, seed, seconds, folder, machine="A, 2 cores", date="2026-01-01", **more):
    """Writes a result file of an entry of the folder."""
    of = {"entry": entry, "seed": seed, "machine": machine, "date": date, "reached": True, "seconds": seconds, "steps": 10}
    of |= {"tokens": 10, "flops": 10.0, "test_loss": 4.1, "target": 4.0, "text": ""} | more
    of |= {"loss": 4.0 if of["reached"] else 4.5}
    of["curve"] = more.get("curve", [[1.0, 5, 5.0], [round(of["seconds"], 3), 10, of["loss"]]])
    of["config"] = config_digest(Entry(folder, entry).config())
    file = folder / "results" / entry / f"{machine[0]}-seed={seed}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(of))
    return file


def test_a_table_compares_with_the_record_before_on_the_same_machine(folder):
    for name in ("slow", "fast", "later", "near", "last", "fails", "new"):
        shutil.copy(folder / "entries/bert.py", folder / f"entries/{name}.py")
    for seed in (1, 2, 3):
        times = (("bert", 100, 1), ("fast", 25, 2), ("slow", 50, 3), ("later", 24, 4), ("near", 23.8, 5), ("last", 23.2, 6))
        for name, seconds, date in times:
            result(name, seed, seconds * (1 + 0.01 * seed), folder, date=f"2026-01-0{date}")
        result("fails", seed, 10, folder, date="2026-01-07", reached=seed != 3)
    result("bert", 1, 70.0, folder, machine="B, 2 cores", reached=False)
    result("fast", 1, 7.0, folder, machine="B, 2 cores")
    text = table(folder, module.TRACK)
    first, second, rest = text.split("\n\n**B, 2 cores**")[0], text.split("\n\n**B, 2 cores**")[1], text.split("\n\n")[-1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["bert", "fast", "slow", "later", "near", "last", "fails"]
    assert [row[2] for row in rows] == ["1.00", "4.00", "2.00", "4.17", "4.20", "4.31", "–"]
    logs = {seconds: np.log(seconds * np.array([1.01, 1.02, 1.03])) for _, seconds, _ in times}
    against = lambda seconds, record: p_text(ttest_ind(logs[seconds], logs[record], equal_var=False).pvalue)
    assert [row[4] for row in rows[1:4]] == [against(25, 100), against(50, 25), against(24, 25)]
    assert [row[4] for row in rows[4:6]] == [against(23.8, 24), against(23.2, 23.8)]
    assert [row[5] for row in rows] == ["yes", "yes", "", "yes", "", "yes", ""], "`near` is no record: chance explains it"
    assert 0.001 < float(rows[3][4]) < 0.05 and float(rows[4][4]) > 0.05 > float(rows[5][4])
    assert rows[0][4] == rows[6][4] == "–"
    assert "| bert | > 70.0 s | – |" in second and "| fast | 7.0 s | > 10.00 |" in second
    assert rows[6][1].startswith("> ") and "| new | not measured |" in rest


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"curve": [[12.0, 10, 4.0]]}, "seconds is not what"),
        ({"curve": [[10.0, 10, 4.5]]}, "loss is not what"),
        ({"curve": [[5.0, 5, 3.9], [10.0, 10, 4.0]]}, "reached is not what"),
        ({"target": 4.5}, "target is 4.5, and now it is 4.0"),
    ],
)
def test_a_result_that_its_evaluations_refute_is_refused(folder, more, said):
    result("bert", 1, 10.0, folder)
    result("bert", 2, 10.0, folder, **more)
    with pytest.raises(UserError, match=said):
        table(folder, module.TRACK)


def test_seeds_are_not_chosen(folder):
    for seed in (1, 3):
        result("bert", seed, 10.0, folder)
    with pytest.raises(UserError, match=r"bert on A, 2 cores has seeds \[1, 3\]; measure 1, 2, 3 and so on"):
        table(folder, module.TRACK)


def test_the_committed_entries_keep_the_rules_and_the_committed_table_is_that_of_the_committed_files(tmp_path):
    """If this fails: bertlab speedrun --table."""
    found = entries(ROOT / FOLDER)
    assert found[0].name == "bert"
    for entry in found:
        check_rules(entry.config(), TRACK)
        assert entry.why
    shutil.copytree(ROOT / FOLDER, tmp_path / "speedrun")
    module.write_table(tmp_path / "speedrun", TRACK)
    page = (ROOT / FOLDER / "README.md").read_text()
    assert (tmp_path / "speedrun/README.md").read_text() == page
    assert f"**{TRACK.target} nats**" in page and f"{TRACK.every:,} positions" in page
