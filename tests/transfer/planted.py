"""Tiny runs, and tasks whose answer is planted in the words."""

import json

import numpy as np

from bertlab.cli.main import main
from bertlab.config import base_config
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.recipes import add_objectives

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "nr"]
HALVES = WORDS[::2], WORDS[1::2]  # end in n, end in r
CLASSES = ("even", "odd")

SMALL = {"layers": 2, "width": 16}
TRANSFORMER = {**SMALL, "heads": 2, "hidden": 32, "dropout": 0.0}
STILL = {f"{name}_dropout": 0.0 for name in ("embedding", "input", "hidden", "weight")}
MODELS = {
    "bert": ("mlm", TRANSFORMER),
    "gpt": ("ltr", TRANSFORMER),
    "elmo": ("bilm", {**SMALL, "hidden": 32, "dropout": 0.0}),
    "awd_lstm": ("ltr", {**SMALL, "hidden": 24, "dropout": 0.0, **STILL}),
}


def pretrained(folder, family, steps=0, **keys):
    """The directory of a tiny run on a text of which nine words in ten end in n."""
    corpus, rng = folder / "corpus.txt", np.random.default_rng(0)
    if not corpus.exists():
        rare = rng.random((600, 7)) < 0.1
        words = np.where(rare, rng.choice(HALVES[1], (600, 7)), rng.choice(HALVES[0], (600, 7)))
        lines = [" ".join(line) + ("\n" if n % 6 == 5 else "") for n, line in enumerate(words)]
        corpus.write_text("\n".join(lines) + "\n")
    config, (names, shape) = base_config(), MODELS[family]
    config.model.update({"family": family, "size": "tiny", **shape})
    config.data.corpus, config.data.directory = f"text:{corpus}", str(folder / "cache")
    config.data.tokenizer.update(kind="words", vocab_size=len(WORDS) + 5)
    config.data.update(format="full_sentences", seq_len=16, batch_size=16)
    config.data.update(valid_fraction=0.1, test_fraction=0.1, workers=1)
    config.train.update(steps=steps, eval_every=0, eval_batches=2)
    config.optimizer.learning_rate, config.mesh.data = 0.01, 1
    add_objectives(config, names)
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in keys.items()})
    run = folder / f"{family}-{steps}"
    loop.run(build_pretraining(config), run)
    return run


def write_task(folder, name="half", classes=CLASSES, kind="text", sizes=(96, 16, 40)):
    """FILE.py of a task: by which letter a text's words end, or each word's ("tags")."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for split, size in zip(("train", "valid", "test"), sizes):
        text = "" if kind == "tags" else "text\tlabel\n"
        for number in range(size):
            labels = rng.integers(2, size=6) if kind == "tags" else [number % 2] * 6
            words = [str(rng.choice(HALVES[label])) for label in labels]
            if kind == "tags":
                text += "".join(f"{w} {CLASSES[n]}\n" for w, n in zip(words, labels)) + "\n"
            else:
                text += f"{' '.join(words)}\t{CLASSES[number % 2]}\n"
        (folder / f"{name}-{split}.txt").write_text(text)
    files = ", ".join(f'{split}="{name}-{split}.txt"' for split in ("train", "valid", "test"))
    made = f"table({name!r}, {files}, text='text', label='label', label_names={classes})"
    if kind == "tags":
        made = f"conll({name!r}, {files}, label_names={classes}, metrics=('accuracy',))"
    source = f"from bertlab.transfer.tasks import conll, table\n\nTASK = {made}\n"
    (folder / f"{name}.py").write_text(source)
    return folder / f"{name}.py"


FEW = {
    "data.seq_len": 12,
    "data.batch_size": 16,
    "mesh.data": 1,
    "train.steps": 30,
    "train.eval_every": 0,
    "optimizer.learning_rate": 0.01,
    "optimizer.warmup_steps": 0,
}


def finetune(run, task, workdir, recipe="small", status=0, **keys):
    """The result of `bertlab finetune`."""
    settings = FEW | {name.replace("__", "."): value for name, value in keys.items()}
    given = [f"--config.{name}={value}" for name, value in settings.items()]
    command = ["finetune", f"--run={run}", f"--task={task}", f"--workdir={workdir}"]
    assert main([*command, f"--recipe={recipe}", *given]) == status
    return json.loads((workdir / "result.json").read_text()) if not status else None


def predictions(workdir, split="test"):
    """The lines of a run's predictions."""
    lines = (workdir / "predictions" / f"{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
