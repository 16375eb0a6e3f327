"""An objective in a file outside the package is swept in worker processes and reported; a mistake in one is named there too."""

import json
import os
import subprocess
import sys

import pytest

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
                "own and mlm": {{"config": BERT + "mlm+outside:Own"}},
                "mistaken": {{"config": BERT + "mistaken:Own"}},
            }},
        }},
        overrides={overrides},
    )
"""


@pytest.fixture(scope="module")
def swept(small_config, tmp_path_factory):
    """The directory in which a sweep and a report have run, and what each of them did."""
    place = tmp_path_factory.mktemp("outside")
    (place / "outside.py").write_text(SOURCE)
    (place / "mistaken.py").write_text(SOURCE.replace('view["even"], view', 'view["odd"], view'))
    small = flatten(small_config("bert"))
    kept = ("data.corpus", "data.directory", "data.workers", "data.tokenizer.vocab_size", "data.seq_len", "data.batch_size")
    overrides = {key: small[key] for key in kept}
    overrides |= {"model.width": 16, "model.hidden": 24, "train.steps": 6, "train.log_every": 2, "train.eval_batches": 2}
    overrides |= {"optimizer.warmup_steps": 2, "train.eval_every": 0, "evaluate.sentences": 0}
    (place / "study.py").write_text(STUDY.format(root=ROOT, overrides=overrides))

    def bertlab(*command):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "300"}
        command = [sys.executable, "-m", "bertlab.cli", *command]
        return subprocess.run(command, cwd=place, capture_output=True, text=True, env=environment)

    return place, bertlab("sweep", "--study=study.py", "--workdir=runs"), bertlab("report", "runs")


def test_it_trains_in_a_worker_process_beside_another(swept):
    place, done, _ = swept
    lines = [json.loads(line) for line in (place / "runs/own-and-mlm/metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "train"][-1]
    assert last["step"] == 6, done.stdout + done.stderr
    assert {"Own/loss", "mlm/loss"} <= set(last)


def test_a_mistake_fails_its_own_run_alone_and_is_named_in_one_line(swept):
    place, done, _ = swept
    path = place / "mistaken.py"
    number = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if 'view["odd"]' in text)
    said = f"objective Own: {path}, line {number}: there is no 'odd' (KeyError in loss())"
    assert done.returncode == 1
    assert said in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert said in (place / "runs/mistaken/failed.txt").read_text()


def test_it_is_reported(swept):
    place, _, done = swept
    assert done.returncode == 0, done.stderr
    page = (place / "runs/report.html").read_text()
    assert "Own" in page and "own and mlm" in page
    assert "mistaken" in page  # as missing, not left out in silence
