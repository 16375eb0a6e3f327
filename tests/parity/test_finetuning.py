"""Fine-tuning equals transformers' on PyTorch for 20 steps: same weights, batches, schedule,
clipping and decay; no dropout.

Our side is the loop as `bertlab finetune` runs it. transformers' is the usual script: its class for
the task, AdamW without decay of norms and biases, its linear schedule with warm-up, clipping by the
global norm.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertlab.data.tokenizers import SPECIALS
from bertlab.interop.base import import_weights
from bertlab.train import loop
from bertlab.transfer.build import build_finetuning
from bertlab.transfer.finetune import configure

STEPS, WARMUP, LENGTH, RATE, DECAY, CLIP = 20, 4, 32, 5e-3, 0.1, 1.0
SYLLABLES = [consonant + vowel for consonant in "bdfgklmn" for vowel in "aeiou"]
PIECES = [*SPECIALS, *SYLLABLES, *(f"##{syllable}" for syllable in SYLLABLES[::2])]
SETTINGS = {
    "data.seq_len": LENGTH,
    "data.batch_size": 8,
    "mesh.data": 1,
    "model.dropout": 0.0,
    "head.dropout": 0.0,
    "optimizer.learning_rate": RATE,
    "optimizer.warmup_steps": WARMUP,
    "optimizer.decay_from_start": False,
    "optimizer.bias_correction": "moments",
    "optimizer.epsilon": 1e-8,
    "optimizer.weight_decay": DECAY,
    "optimizer.clip_norm": CLIP,
    "transfer.warmup": 0.0,
    "transfer.epochs": 0.0,
    "transfer.doc_stride": 8,
    "train.steps": STEPS,
    "train.log_every": 1,
}


def texts(rng, kind: int, least: int = 4, most: int = 12) -> str:
    """Words of one to three pieces; those of each kind begin with other syllables."""
    firsts = SYLLABLES[kind * 10 : kind * 10 + 10]

    def word():
        more = rng.choice(SYLLABLES[::2], rng.choice(3, p=[0.6, 0.3, 0.1]))
        return rng.choice(firsts) + "".join(more)

    return " ".join(word() for _ in range(rng.integers(least, most)))


def write_table(folder: Path, columns: tuple[str, ...], rows) -> None:
    lines = ["\t".join(map(str, row)) for row in [columns, *rows]]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")


def classification(folder: Path, rng) -> str:
    rows = [(texts(rng, i % 2), texts(rng, i % 3), f"class{i % 3}") for i in range(100)]
    write_table(folder, ("a", "b", "y"), rows)
    return 'table("classes", train="train.tsv", text="a", pair="b", label="y")'


def regression(folder: Path, rng) -> str:
    rows = [
        (texts(rng, i % 4), texts(rng, i % 3), i % 3 + rng.normal(scale=0.3)) for i in range(100)
    ]
    write_table(folder, ("a", "b", "y"), rows)
    columns = 'text="a", pair="b", label="y", kind="regression"'
    return f'table("values", train="train.tsv", {columns})'


def choice(folder: Path, rng) -> str:
    rows = []
    for i in range(100):
        right = int(rng.integers(3))
        choices = [texts(rng, (i + (n != right)) % 2, most=9) for n in range(3)]
        rows.append([texts(rng, i % 2, most=8), *choices, right])
    write_table(folder, ("a", "c0", "c1", "c2", "y"), rows)
    columns = 'text="a", choices=("c0", "c1", "c2"), label="y"'
    return f'multiple_choice("choices", train="train.tsv", {columns})'


def tagging(folder: Path, rng) -> str:
    sentences = [
        " ".join(texts(rng, kind, 2, 5) for kind in rng.permutation(4)[:2]).split()
        for _ in range(100)
    ]
    lines = ["".join(f"{word} {word[0].upper()}\n" for word in words) for words in sentences]
    (folder / "train.txt").write_text("\n".join(lines))
    return 'conll("tags", train="train.txt", metrics=("accuracy",))'


def span(folder: Path, rng) -> str:
    """Windows without padding: transformers' loss is over padding too, ours is not."""
    paragraphs = []
    for number in range(100):
        words = list(rng.choice(SYLLABLES, 27 + 8 * rng.integers(2), replace=False))
        place, size = rng.integers(len(words) - 3), rng.integers(1, 4)
        before = len(" ".join([*words[:place], ""]))
        answer = {"text": " ".join(words[place : place + size]), "answer_start": before}
        asked = f"{words[place]} {rng.choice(SYLLABLES)}xx"
        question = {"id": str(number), "question": asked, "answers": [answer]}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    (folder / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return 'squad("answers", train="train.json")'


def tensors(**arrays) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array, dtype=torch.long) for name, array in arrays.items()}


def rows_of(batch) -> dict[str, torch.Tensor]:
    rows = {"input_ids": batch["tokens"], "token_type_ids": batch["segments"]}
    return tensors(**rows, attention_mask=batch["documents"] > 0)


def labelled_rows(batch) -> dict[str, torch.Tensor]:
    return rows_of(batch) | tensors(labels=batch["label"])


def rows_with_targets(batch) -> dict[str, torch.Tensor]:
    return rows_of(batch) | {"labels": torch.tensor(batch["target"])}


def tagged_rows(batch) -> dict[str, torch.Tensor]:
    labels = np.full(batch["tokens"].shape, -100)
    rows, words = np.nonzero(batch["word_at"] >= 0)
    labels[rows, batch["word_at"][rows, words]] = batch["labels"][rows, words]
    return rows_of(batch) | tensors(labels=labels)


def windows(batch) -> dict[str, torch.Tensor]:
    return rows_of(batch) | tensors(start_positions=batch["start"], end_positions=batch["end"])


def choices(batch) -> dict[str, torch.Tensor]:
    """[B, 3, L] of rows that hold the choices one after the other."""
    names, size = ("tokens", "segments", "documents"), (len(batch["tokens"]), 3, LENGTH)
    apart = {name: np.zeros(size, int) for name in names}
    for row, document in np.ndindex(len(batch["tokens"]), 3):
        inside = batch["documents"][row] == document + 1
        for name, array in apart.items():
            array[row, document, : inside.sum()] = batch[name][row, inside]
    return rows_of(apart) | tensors(labels=batch["label"])


BERT = {
    name: getattr(transformers, f"BertFor{name}")
    for name in (
        "SequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
    )
}
CASES = {
    "classification": (
        *(classification, BERT["SequenceClassification"]),
        *({"num_labels": 3}, labelled_rows),
    ),
    "tagging": (tagging, BERT["TokenClassification"], {"num_labels": 8}, tagged_rows),
    "span": (span, BERT["QuestionAnswering"], {"num_labels": 2}, windows),
    "regression": (
        *(regression, BERT["SequenceClassification"]),
        *({"num_labels": 1}, rows_with_targets),
    ),
    "choice": (choice, BERT["MultipleChoice"], {}, choices),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A directory as transformers saves a pretrained BERT."""
    directory = tmp_path_factory.mktemp("source")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    model = transformers.BertModel(config)
    with torch.no_grad():  # no bias is 0 and no norm's scale 1, as after pretraining
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return directory


def torch_losses(model, batches) -> list[float]:
    """Of each step, before its update."""
    groups = {0.0: [], DECAY: []}
    for name, parameter in model.named_parameters():
        is_plain = "LayerNorm" in name or name.endswith("bias")
        groups[0.0 if is_plain else DECAY].append(parameter)
    groups = [{"params": group, "weight_decay": decay} for decay, group in groups.items()]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-8)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", CASES)
def test_twenty_steps_have_the_losses_of_transformers(kind, source, tmp_path):
    write, architecture, sizes, inputs = CASES[kind]
    definition = write(tmp_path, np.random.default_rng(1))
    task = f"from bertlab.transfer.tasks import *\n\nTASK = {definition}\n"
    (tmp_path / "task.py").write_text(task)
    import_weights("huggingface", source, tmp_path / "run")
    config, tasks = configure(tmp_path / "run", str(tmp_path / "task.py"), "bert", SETTINGS)
    experiment = build_finetuning(config, tasks, tmp_path / "finetuned")
    begin = {}

    def start(fresh):
        begin.update(experiment.start(fresh))
        return begin

    loop.run(dataclasses.replace(experiment, start=start), tmp_path / "finetuned")
    (name,) = tasks
    lines = (tmp_path / "finetuned" / "metrics.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, lines) if line["split"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))

    model = architecture.from_pretrained(source, attn_implementation="eager", **sizes)
    head = begin[f"heads_{name}"]["dense"]
    classifier = model.qa_outputs if kind == "span" else model.classifier
    weights = {"weight": np.asarray(head["kernel"]).T, "bias": np.asarray(head["bias"])}
    classifier.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    batches = [inputs(experiment.phases[0].batches(step)) for step in range(STEPS)]
    with torch.no_grad():
        untrained = [model(**batch).loss.item() for batch in batches]
    theirs = torch_losses(model, batches)
    ours = [line[f"{name}/loss"] for line in lines]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    moved = np.abs(np.divide(theirs, untrained) - 1)[STEPS // 2 :].mean()
    assert moved > 0.01, "what the steps change is a hundred times the tolerance"
