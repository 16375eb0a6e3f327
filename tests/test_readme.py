"""The README's example is complete: written to a file outside the package, it trains. Its tables are the results'."""

import importlib
import json
import os
import re
import subprocess
import sys

from bertlab.bench.table import markdown
from bertlab.cli import build_parser, main
from bertlab.config import base_config, flatten
from bertlab.files import read_json
from bertlab.studies.checks import load_checked
from bertlab.studies.study import load_study
from bertlab.transfer.finetune import KEYS as TRANSFER
from bertlab.transfer.tasks import OPTIONS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_objective_of_the_readme_trains_from_a_file_of_ones_own(small_config, tmp_path, capsys):
    """In a process of its own, from the shell; the run's directory is what the README says, and it has a report."""
    [example] = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if '"""my_module.py"""' in block]
    (tmp_path / "my_module.py").write_text(example)
    config = small_config("bert")
    shared = {"data.corpus": config.data.corpus, "data.directory": config.data.directory, "data.workers": 1}
    shared |= {"data.tokenizer.vocab_size": 400, "data.seq_len": 32, "data.batch_size": 8, "data.valid_fraction": 0.1}
    shared |= {"data.test_fraction": 0.1, "model.width": 16, "model.hidden": 24, "train.steps": 30, "train.log_every": 10}
    shared |= {
        "optimizer.warmup_steps": 2,
        "train.eval_batches": 2,
        "evaluate.sentences": 2,
        "objectives.MyObjective.rate": 0.3,
    }
    command = re.search(r"^bertlab (train .*objectives=my_module:MyObjective.*)$", README, re.M).group(1).split()
    command[1] = command[1].replace("experiments/", f"{ROOT}/experiments/")
    command += [f"--config.{key}={value}" for key, value in shared.items()]
    python = [sys.executable, "-W", "error::DeprecationWarning:bertlab", "-m", "bertlab.cli"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*python, *command], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert "step 30/30  train" in done.stdout and "runs/mine/result.json" in done.stdout.splitlines()[-1]
    names = {
        "config.json",
        "environment.json",
        "data.json",
        "metrics.jsonl",
        "checkpoints",
        "costs.json",
        "result.json",
        "tokenizer",
    }
    assert {path.name for path in (tmp_path / "runs/mine").iterdir()} == names | {"measured.json", "files.json"}
    lines = [json.loads(line) for line in (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert train[-1]["MyObjective/loss"] < train[0]["MyObjective/loss"]
    assert json.loads((tmp_path / "runs/mine/config.json").read_text())["objectives"]["MyObjective"]["rate"] == 0.3

    assert main(["report", str(tmp_path / "runs/mine")]) == 0
    assert "MyObjective" in capsys.readouterr().out
    page = (tmp_path / "runs/mine/report.html").read_text()
    assert "<html" in page and "http://" not in page.replace("http://www.w3.org", "")


def test_readme_names_commands_and_keys_that_exist():
    commands = set(re.findall(r"^\| `bertlab (\w+)", README, re.M))
    known = next(action for action in build_parser()._actions if action.dest == "command").choices
    assert commands == set(known)
    keys = flatten(base_config()) | {f"task_data.{name}": default for name, default in OPTIONS.items()}
    keys |= {key.name: key.default for key in TRANSFER}
    groups = {".".join(key.split(".")[:n]) for key in keys for n in range(1, 4)}
    for name in re.findall(r"--config\.([a-z_.]+)=", README):
        assert name in keys or name.startswith("objectives."), name
    for name in re.findall(r"^\| `config\.([a-z_.]+?)(?:\.\{[a-z_,]+\}|\.NAME\.weight)?`", README, re.M):
        assert name in groups or name in keys, name


def test_the_study_of_the_readme_shares_its_pretrainings(tmp_path, monkeypatch):
    [example] = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if '"""my_study.py' in block]
    (tmp_path / "my_study.py").write_text(example)
    monkeypatch.chdir(ROOT)
    runs = load_study(f"{tmp_path}/my_study.py:seeds=2,steps=200").runs()
    for run in runs:
        load_checked(run.config, run.overrides | {"mesh.data": 1})
    shared = {run.name: run.shares.get("pretrain") for run in runs}
    assert len(runs) == 6
    assert {name: of for name, of in shared.items() if of} == {f"40-frozen-seed={s}": f"40-seed={s}" for s in (1, 2)}


def test_the_tables_of_speed_are_of_the_results(monkeypatch):
    folder = ROOT / "experiments/speed"
    monkeypatch.syspath_prepend(str(folder))
    plans = importlib.import_module("plans")
    shown = (folder / "README.md").read_text()
    assert plans.table(read_json(plans.RESULTS)) in shown
    for names in (["steps", "wholes"], ["epyc-steps", "epyc-wholes"], ["epyc-small"]):
        files = [folder / f"results/{name}.json" for name in names]
        assert markdown([found for file in files for found in read_json(file)["workloads"]]).strip() in shown
