"""What is measured after training, once, and what is said where it cannot be."""

import json
import re

import pytest

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import load
from bertlab.studies.report import report
from bertlab.studies.selection import has_ended
from bertlab.train.record import Diverged
from bertlab.transfer import pretrain as pretrain_module
from bertlab.transfer.evaluations import MEASURES
from bertlab.transfer.pretrain import measure, pretrain
from tests.transfer.runs import fresh_run

SYNTHETIC = dict(
    data__corpus="synthetic",
    data__format="doc_sentences",
    data__seq_len=18,
    data__tokenizer__kind="words",
    data__tokenizer__vocab_size=13,
    train__steps=3,
    train__eval_every=0,
    evaluate__sentences=3,
)


@pytest.fixture
def synthetic_config(small_config):
    def make(names="mlm", **overrides):
        config = small_config(f"experiments/pretrain/bert.py:objectives={names}", **(SYNTHETIC | overrides))
        config.data.synthetic.update(documents=60, vocab_size=8, topics=2, states=3)
        config.data.synthetic.update(sentence_words=(8, 8), document_sentences=(4, 4))
        return config

    return make


@pytest.mark.slow
def test_bits_per_byte_and_nats_above_the_floor_are_written_once_and_reported(synthetic_config, tmp_path, capsys):
    config, run = synthetic_config("mlm+nsp", data__format="sentence_pair", data__seq_len=19), tmp_path / "run"
    result = pretrain(config, run)
    floor = json.loads((run / "floor.json").read_text())
    assert list(floor) == ["mlm", "nsp"] and 0.5 < floor["nsp"]["value"] < 0.694
    for name, found in floor.items():  # on the very rows of the final evaluation
        assert found["value"] + found["above"] == pytest.approx(result["metrics"]["test"][f"{name}/loss"], rel=1e-5)
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert list(evaluation["bits_per_byte"]) == ["test split"]
    assert set(evaluation["bits_per_byte"]["test split"]) == {"pseudo", "pseudo-within-word", "any-order"}
    assert "nats above its floor" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert pretrain(config, run) == result
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    config.evaluate.sentences = 5
    with pytest.raises(UserError, match=r"config\.evaluate\.sentences=5 .*bertlab evaluate --run="):
        pretrain(config, run)
    config.evaluate.sentences, config.mesh.fsdp = 3, 2  # how it is computed may differ
    assert pretrain(config, run) == result

    (run / "floor.json").unlink()
    for name in ("measured.json", "files.json"):  # as after a kill between the two, which leaves neither in the list
        (run / name).unlink()
    evaluated = (run / "evaluation.json").stat().st_mtime_ns
    pretrain(config, run)
    assert json.loads((run / "floor.json").read_text()) == floor
    assert (run / "evaluation.json").stat().st_mtime_ns == evaluated
    assert json.loads((run / "measured.json").read_text()) == {"evaluation": None, "floor": None}

    row = load(run).wide("bits_per_byte/pseudo", "mlm/above", "nsp/floor").iloc[0]
    assert row["bits_per_byte/pseudo"] == evaluation["bits_per_byte"]["test split"]["pseudo"]["value"]
    assert row["mlm/above"] == floor["mlm"]["above"] and row["nsp/floor"] == floor["nsp"]["value"]
    report(run)
    printed, page = capsys.readouterr().out, (run / "report.html").read_text()
    assert "One scale for all (test)" in printed and "code lengths" in " ".join(printed.split())
    assert all(text in page for text in ("Compared with the exact floors (test)", "bits/byte, pseudo", "code lengths"))
    for name, found in floor.items():
        line = f"{found['above']:.4f} s.e. {found['above_standard_error']:.4f}"
        assert line in page and re.search(rf"{name} +{found['value']:.4f} .*{line}", printed), name


def test_what_cannot_be_measured_is_said(synthetic_config, tmp_path, capsys):
    def measured(name, **overrides):
        fresh_run(synthetic_config(name, **overrides), tmp_path / name)
        measure(tmp_path / name)
        return json.loads((tmp_path / name / "measured.json").read_text()), capsys.readouterr().out

    found, said = measured("mlm", model__max_positions=18, data__format="segment_pair", evaluate__sentences=0)
    assert "mlm: no floor: " in said and found["floor"] is None
    assert json.loads((tmp_path / "mlm" / "floor.json").read_text()) == {}
    pieces = {"data__tokenizer__kind": "wordpiece", "data__tokenizer__vocab_size": 30}
    found, said = measured("nsp", data__format="sentence_pair", data__seq_len=19, **pieces)
    assert "tokenizer.kind='words'" in found["floor"] and "cannot be scored" in found["evaluation"]
    assert "no floor: " in said and not any((tmp_path / "nsp" / name).exists() for name in ("floor.json", "evaluation.json"))


def test_mistakes_of_floors_are_recorded_with_their_traceback_and_failures_of_the_machine_are_tried_again(
    synthetic_config, tmp_path, monkeypatch, capsys
):
    (tmp_path / "config.json").write_text(synthetic_config(evaluate__sentences=0).to_json())
    monkeypatch.setattr(pretrain_module, "load_params", lambda run: None)

    def fails(error):
        def floors(config, params):
            raise error

        monkeypatch.setattr(pretrain_module, "floors", floors)

    fails(OSError("no space left on device"))
    with pytest.raises(OSError, match="no space left"):
        measure(tmp_path)
    assert not (tmp_path / "measured.json").exists()
    fails(TypeError("operands could not be broadcast\ntogether"))
    measure(tmp_path)
    reason = "TypeError: operands could not be broadcast together"
    assert json.loads((tmp_path / "measured.json").read_text()) == {"evaluation": None, "floor": reason}
    printed = capsys.readouterr()
    assert f"no floor: {reason}" in printed.out and "Traceback" in printed.err and "in floors" in printed.err


def test_what_was_evaluated_of_another_text_does_not_stand_for_the_test_split(synthetic_config, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(synthetic_config(evaluate__minimal_pairs="a.jsonl", data__corpus="pydocs").to_json())
    typed = {"text_hash": "", "lowercase": False}
    entries = {name: {"pseudo": dict.fromkeys(parts, 0) | typed} for name, parts in MEASURES.items()}
    found = {"bits_per_byte": {"b.txt": entries["bits_per_byte"]}, "minimal_pairs": {"a.jsonl": entries["minimal_pairs"]}}
    (tmp_path / "evaluation.json").write_text(json.dumps(found))
    asked = []
    monkeypatch.setattr(pretrain_module, "evaluate", lambda run, **options: asked.append(options))
    measure(tmp_path)
    assert asked == [{"limit": 3}]


def test_minimal_pairs_that_cannot_be_read_are_refused_before_the_first_step(synthetic_config, tmp_path):
    config, run = synthetic_config(evaluate__minimal_pairs=str(tmp_path / "none.jsonl")), tmp_path / "run"
    with pytest.raises(UserError, match=r"^config.evaluate.minimal_pairs=.*none.jsonl"):
        pretrain(config, run)
    assert not run.exists()


def test_a_training_that_diverges_says_so_in_a_file(small_config, tmp_path):
    """So that a search for rates neither tries it again nor takes it for a failure of the machine."""
    overflow = {"optimizer__learning_rate": 1e38, "optimizer__decay": "constant", "optimizer__clip_norm": 0.0}
    with pytest.raises(Diverged):
        pretrain(small_config("gpt", optimizer__warmup_steps=0, train__steps=4, **overflow), tmp_path)
    assert has_ended(Run(tmp_path)) and "not finite at step" in (tmp_path / "diverged.txt").read_text()
    Run(tmp_path).delete_pretraining()
    assert not has_ended(Run(tmp_path))
