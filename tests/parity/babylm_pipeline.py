"""Runs the code of BabyLM's evaluation pipeline of 2025 on exports of random models, beside `bertlab evaluate --suite=babylm`.

    git clone https://github.com/babylm/evaluation-pipeline-2025 PIPELINE
    make parity                                          # makes the two environments
    JAX_PLATFORMS=cpu .venv-parity/bin/python -m tests.parity.babylm_pipeline PIPELINE

It exits with 1 if a score differs in the two decimals that the pipeline prints. Where our rule is another one by design (see
`bertlab/transfer/babylm.py`), the questions leave no room for it, or our numbers take the pipeline's rule: no answers are
tied, a WUG preference becomes a softmax in float32, and words to be read are one piece each (byte-level: of several). With
the unigram tokenizer reading is left out. The questions are made up. The pipeline runs in the version of transformers that it
pins; its imports `datasets` and `aiohttp`, which only load data from a network, are empty.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.stats
import torch

import bertlab
from bertlab.transfer.babylm import TASKS, answer_scores, evaluate_babylm, read_items
from tests.parity.test_babylm import BACKENDS, WORDS, random_model, write_questions
from tests.parity.test_transformers4 import FOLDER

# Runs (module, arguments) in one process.
RUN = """
import json, runpy, sys, types
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoProcessor  # they look for datasets, so they come first
sys.modules["aiohttp"], sys.modules["datasets"] = types.ModuleType("aiohttp"), types.ModuleType("datasets")
sys.modules["datasets"].load_dataset = None
for module, arguments in json.load(sys.stdin):
    sys.argv = [module, *arguments]
    runpy.run_module(f"evaluation_pipeline.{module}.run", run_name="__main__")
"""
SUPPLEMENT = "blimp_supplement"  # which the pipeline scores as BLiMP
READING = ("reading_eye_tracking", "reading_self_paced")


def theirs(pipeline: Path, export: Path, backend: str, data: Path, out: Path) -> dict[str, float]:
    """The pipeline's printed score of each task, in percent."""
    of_model = ["--model_path_or_name", str(export), "--backend", backend, "--output_dir", str(out)]
    jobs = [["reading", ["--data_path", str(data / "reading/reading_data.csv"), *of_model]]]
    for name, task in TASKS.items():
        asked = ["--task", "blimp" if name == SUPPLEMENT else name, "--data_path", str(data / task.folders[0])]
        jobs.append(["sentence_zero_shot", [*asked, *of_model]])
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}:{pipeline}", "HF_HUB_OFFLINE": "1", "USE_TF": "0"}
    environment["HF_MODULES_CACHE"] = str(out / "modules")
    subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(jobs), text=True, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    of_backend = out / export.name / "main/zero_shot" / backend
    eyes, self_paced = re.findall(r"SCORE: (\S+)", (of_backend / "reading/report.txt").read_text())
    found = {READING[0]: float(eyes), READING[1]: float(self_paced)}
    for name, task in TASKS.items():
        report = of_backend / ("blimp" if name == SUPPLEMENT else name) / task.folders[0] / "best_temperature_report.txt"
        [score] = re.findall(r"### AVERAGE [A-Z' ]+\n(\S+)", report.read_text())
        found[name] = float(score) * (100 if name.startswith("wug") else 1)
    return found


def ours(directory: Path, kind: str, data: Path) -> dict[str, float]:
    """Our score of each task, in percent; WUG's by the pipeline's softmax."""
    found = evaluate_babylm(directory / "run", data, [kind], out=directory / "ours.json")
    scores = {task: entry[kind]["score"] * 100 for task, entry in found.items()}
    assert not any(entry[kind].get("ties") for entry in found.values()), "of a tie, the pipeline's answer is the first"
    for name in ("wug_adj", "wug_past"):
        items = read_items(data, TASKS[name])
        values, _ = answer_scores(bertlab.load(directory / "run"), items, kind, 4, "pipeline")
        chosen = torch.softmax(torch.tensor(np.array(values, np.float32)), 1)[:, 0]
        scores[name] = 100 * scipy.stats.spearmanr(chosen, [item.ratio for item in items])[0]
    return scores


def main(pipeline: Path) -> int:
    """Prints a line per model and task; returns how many differ."""
    wrong = 0
    rows = [f"{'model':<26}{'task':<22}{'pipeline':>10}{'bertlab':>10}"]
    with tempfile.TemporaryDirectory() as place:
        for name, kind in BACKENDS.items():
            directory = Path(place) / name.replace(" ", "-")
            directory.mkdir()
            write_questions(
                data := directory / "full_eval", 5, WORDS if "byte-level" in name else ["a", "b", "c", "d", "e", "f"]
            )
            backend = random_model(name, directory)
            mine = ours(directory, kind, data)
            for task, score in theirs(pipeline, directory / "out", backend, data, directory / "theirs").items():
                half = 0.5 if task.startswith("wug") else 0.005  # a correlation is printed as a share
                if task in READING and "unigram" in name:
                    continue
                differs = abs(mine[task] - score) > half + 1e-3
                rows.append(f"{name:<26}{task:<22}{score:>10.2f}{mine[task]:>10.2f}{'  differs' if differs else ''}")
                wrong += differs
    print("\n".join([*rows, f"{len(rows) - 1} scores, {wrong} differ"]))
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]).resolve())))
