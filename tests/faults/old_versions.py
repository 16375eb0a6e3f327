"""Writes what this version of bertlab leaves on disk to tests/faults/fixtures/VERSION, for `test_old_versions.py`.

    python -m tests.faults.old_versions

Run it once for each released version, with that version, and commit the folder. Each archive holds one thing: a finished run
with one checkpoint, the corpus that it read, and a published study of it. expected.json says what they must give.
"""

import contextlib
import importlib.metadata
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import bertlab
from bertlab.config import load_config
from bertlab.data.prepared import load_prepared
from bertlab.run import Run, StudyDirectory
from bertlab.studies.measurements import load
from bertlab.studies.published import publish
from bertlab.transfer.pretrain import pretrain

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
CONFIG = f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm,corpus=text:text.txt"
SMALL = {
    "data.directory": "cache", "data.workers": 1, "data.tokenizer.kind": "words", "data.tokenizer.vocab_size": 25,
    "data.valid_fraction": 0.2, "data.test_fraction": 0.2, "data.seq_len": 16, "data.batch_size": 4, "data.shuffle_window": 4,
    "mesh.data": 1, "model.width": 8, "model.heads": 2, "model.layers": 1, "model.hidden": 16, "model.max_positions": 16,
    "train.steps": 4, "train.log_every": 2,
    "train.eval_every": 2, "train.eval_batches": 1, "train.checkpoint_every": 2, "train.keep_checkpoints": 1,
    "evaluate.sentences": 2,
}  # fmt: skip
TEXT = "\n\n".join(
    f"the {what} of module {i} is read here . it has {i % 3} lines ." for i in range(8) for what in ("name", "text", "type")
)
SENTENCE = "the name of module 1 is read here ."


def facts(run: Path, published: Path) -> dict:
    """What a finished run, its corpus and its published study give."""
    model = bertlab.load(run)
    (corpus,) = Path("cache").glob("text-*")
    prepared = load_prepared(corpus)
    measured = load(published).measurements
    return {
        "states": model.encode([SENTENCE])[0].states.ravel().tolist(),
        "score": model.score([SENTENCE])[0].log_probability,
        "result": Run(run).result.read(),
        "documents": [prepared.source("train")[i]["tokens"].tolist() for i in range(len(prepared.source("train")))],
        "counts": prepared.counts.tolist(),
        "measurements": measured[["stage", "split", "metric", "value"]].to_numpy().tolist(),
    }


def main() -> None:
    """Makes the three, and packs them."""
    target = FIXTURES / importlib.metadata.version("bertlab")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # paths in the files are relative
        Path("text.txt").write_text(TEXT)
        run = Path("study/a")
        pretrain(load_config(CONFIG, SMALL), run)
        environment = Run(run).environment.read()
        Run(run).environment.write({key: environment[key] for key in ("bertlab", "python", "packages")})
        described = {"title": "t", "question": "q", "command": "bertlab sweep", "axes": {}, "downstream": []}
        one = {"name": "a", "labels": {}, "config": "bert.py", "overrides": {}, "downstream": {}, "shares": {}}
        StudyDirectory("study").study.write({"name": "s", **described, "runs": [one]})
        Run(run).job.write({"run": one, "stages": {}})
        publish(Path("study"), Path("published"))
        shutil.rmtree("cache/held_out")  # texts for evaluations
        (target / "expected.json").write_text(json.dumps(facts(run, Path("published"))) + "\n")
        for name in ("study", "cache", "published"):
            with tarfile.open(target / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(name)


if __name__ == "__main__":
    main()
