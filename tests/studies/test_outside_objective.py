"""An objective in a file outside the package is swept in a worker process and reported; a mistake in one is named there too."""

import json

import pytest

from bertlab.cli import main
from bertlab.config import flatten
from tests.conftest import ROOT
from tests.objectives.test_own_objective import SOURCE

STUDY = """
from bertlab.studies.study import Study

BERT = "{root}/experiments/pretrain/bert.py:objectives="


def get_study(arguments=None):
    return Study(
        name="own",
        title="An objective of one's own",
        question="Does it run beside the others?",
        config=BERT + "mlm",
        axes={{
            "objective": {{
                "own": {{"config": BERT + "outside:Own"}},
                "mistaken": {{"config": BERT + "mistaken:Own"}},
            }},
        }},
        overrides={overrides},
    )
"""


@pytest.mark.slow
def test_it_trains_in_a_worker_beside_one_that_is_mistaken_and_is_reported(small_config, tmp_path, monkeypatch, capsys):
    (tmp_path / "outside.py").write_text(SOURCE)
    (tmp_path / "mistaken.py").write_text(SOURCE.replace('view["even"], view', 'view["odd"], view'))
    small = flatten(small_config("bert"))
    kept = ("data.corpus", "data.directory", "data.workers", "data.tokenizer.vocab_size", "data.seq_len", "data.batch_size")
    overrides = {key: small[key] for key in kept}
    overrides |= {"model.width": 16, "model.hidden": 24, "model.layers": 1, "train.steps": 2, "train.log_every": 2}
    overrides |= {"optimizer.warmup_steps": 1, "train.eval_every": 0, "train.eval_batches": 1, "evaluate.sentences": 0}
    (tmp_path / "study.py").write_text(STUDY.format(root=ROOT, overrides=overrides))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["sweep", "--study=study.py", "--workdir=runs"]) == 1
    printed, log = capsys.readouterr().out, (tmp_path / "runs/mistaken/log.txt").read_text()

    lines = [json.loads(line) for line in (tmp_path / "runs/own/metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "train"][-1]
    assert last["step"] == 2, printed
    assert "Own/loss" in last
    assert [*json.loads((tmp_path / "runs/own/environment.json").read_text())["code"]] == ["outside:Own"]

    path = tmp_path / "mistaken.py"
    number = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if 'view["odd"]' in text)
    said = f"objective Own: {path}, line {number}: there is no 'odd' (KeyError in loss())"
    assert said in printed and said in (tmp_path / "runs/mistaken/failed.txt").read_text()
    assert "Traceback" not in printed + log

    assert main(["report", "runs"]) in (0, None)
    page = (tmp_path / "runs/report.html").read_text()
    assert "Own/loss" in page
    assert "mistaken" in page, "as missing, not left out in silence"
