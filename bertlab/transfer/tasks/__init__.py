"""Downstream tasks: `TASKS`, which have published files or come from the Python documentation, and
the functions that make your own (`table`, `conll`, ...; docs/own-task.md)."""

import dataclasses
import itertools
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.config.load import find_file, import_file
from bertlab.errors import UserError, require_choice
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import find_scheme
from bertlab.transfer.tasks import pydocs
from bertlab.transfer.tasks.base import SPLITS, TASK_DATA, Task, TaskData, draw
from bertlab.transfer.tasks.files import json_task as json_task
from bertlab.transfer.tasks.readers import (
    UPOS,
    XPOS,
    conll,
    conllu,
    labelled_folders,
    labelled_lines,
    multiple_choice,
    squad,
    table,
)

_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_THREE_WAY = ("contradiction", "entailment", "neutral")
_SENTENCES = {"text": "sentence1", "pair": "sentence2"}
_GOLD = {**_SENTENCES, "label": "gold_label"}
_STRINGS = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
_QUESTIONS = {"text": "question1", "pair": "question2", "label": "is_duplicate"}
_PARAPHRASE = {"metrics": ("accuracy", "f1"), "symmetric": True}
_SIMILARITY = {"kind": "regression", "label": "score", "metrics": (), "symmetric": True}
_COLA = ("source", "label", "star", "sentence")
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")
_STORY = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
_QUIZ = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")
# Devlin et al. 2019, section 4.3.
_SQUAD_2 = {"bert_paper": {"data.batch_size": 48, "transfer.epochs": 2.0}}
_SHORT = {"train": "train", "valid": "dev", "test": "test"}
_TREEBANK = {split: f"*-ud-{short}*.conllu" for split, short in _SHORT.items()}


def _glue(name: str, folder: str, classes: tuple[str, ...] = _BINARY, **options) -> Task:
    """One of GLUE's (Wang et al. 2019); its test sets have no labels, so they are not read."""
    options = {"label": "label", "valid": "dev.tsv", "metrics": "accuracy", **options}
    return table(name, label_names=classes, folder=folder, train="train.tsv", **options)


def _superglue(name: str, folder: str, text: str, pair: str, classes: tuple[str, ...], **options):
    """One of SuperGLUE's (Wang et al. 2019) that are tables."""
    options |= {"label_names": classes, "train": "train.jsonl", "valid": "val.jsonl"}
    return table(name, text, "label", pair=pair, folder=folder, **options)


def _inference(name: str, file: str, **options) -> Task:
    for split, short in _SHORT.items():
        options[split] = (file.format(short), f"snli_format/{file.format(short)}")
    return table(name, metrics="accuracy", **_GOLD, **options)


def _zhang(name: str, columns: tuple[str, ...], classes: int, replace=("\\n", "\n")) -> Task:
    """A data set of Zhang et al. 2015: csv without a header, classes from 1."""
    options = {"columns": ("class", *columns), "train": "train.csv", "test": "test.csv"}
    options["label_names"] = tuple(str(1 + i) for i in range(classes))
    return table(name, columns, "class", metrics="accuracy", replace=replace, **options)


_TASKS = (
    _glue("cola", "CoLA", text="sentence", metrics=("matthews", "accuracy"), columns=_COLA),
    _glue("sst2", "SST-2", text="sentence"),
    _glue("mrpc", "MRPC", **_STRINGS, **_PARAPHRASE),
    # The published train file has a few truncated rows; other readers skip them too.
    _glue("qqp", "QQP", skip_short_rows=True, **_QUESTIONS, **_PARAPHRASE),
    _glue("stsb", "STS-B", (), **_SENTENCES, **_SIMILARITY),
    _glue("mnli", "MNLI", _THREE_WAY, valid="dev_matched.tsv", **_GOLD),
    _glue("mnli_mismatched", "MNLI", _THREE_WAY, valid="dev_mismatched.tsv", **_GOLD),
    _glue("qnli", "QNLI", _ENTAILED, text="question", pair="sentence"),
    _glue("rte", "RTE", _ENTAILED, **_SENTENCES),
    _glue("wnli", "WNLI", **_SENTENCES),
    # RTE is GLUE's; others are in bertlab.contrib.readers.
    _superglue("boolq", "BoolQ", "question", "passage", ("false", "true"), metrics="accuracy"),
    _superglue("cb", "CB", "premise", "hypothesis", _THREE_WAY),
    squad("squad1", train="train-v1.1.json", valid="dev-v1.1.json"),
    squad("squad2", train="train-v2.0.json", valid="dev-v2.0.json", recipes=_SQUAD_2),
    # The continuation begins with the subject of the second sentence (Devlin et al., section 4.4).
    multiple_choice(
        "swag", "sent1", _ENDINGS, "label", stem="sent2", train="train.csv", valid="val.csv"
    ),
    multiple_choice("codah", "prompt", _CODAH[2:6], "label", columns=_CODAH, train="full_data.tsv"),
    # Trained on the published development set, as in openai/finetune-transformer-lm's datasets.py.
    multiple_choice(
        "story_cloze",
        _STORY,
        _QUIZ,
        "AnswerRightEnding",
        first=1,
        train="cloze_test_val__spring2016*.csv",
        test="cloze_test_test__spring2016*.csv",
    ),
    _inference("snli", "snli_1.0_{}.jsonl", label_names=_THREE_WAY, unlabelled="-"),
    _inference("scitail", "scitail_1.0_{}.txt"),
    labelled_folders("imdb", ("neg", "pos"), train="train/", test="test/", metrics="accuracy"),
    # A lone backslash stands where the news agency broke a line.
    _zhang("ag_news", ("title", "description"), 4, replace=("\\", " ")),
    _zhang("dbpedia", ("title", "description"), 14),
    _zhang("yelp_polarity", ("text",), 2),
    _zhang("yelp_full", ("text",), 5),
    table("sms_spam", "v2", "v1", metrics=("accuracy", "f1"), encoding="latin-1", train="spam.csv"),
    labelled_lines(
        "trec",
        encoding="latin-1",
        train=("TREC.train.all", "train_5500.label"),
        test=("TREC.test.all", "TREC_10.label"),
    ),
    # Curly quotes and dashes are in a Windows encoding.
    labelled_lines("mr", encoding="cp1252", metrics="accuracy", train="rt-polarity.all"),
    labelled_lines("subj", encoding="cp1252", metrics="accuracy", train="subj.all"),
    # CoNLL-2003's files under their own names and common ones.
    conll(
        "ner",
        train=("eng.train", "train.txt"),
        valid=("eng.testa", "valid.txt", "dev.txt"),
        test=("eng.testb", "test.txt"),
    ),
    conll(
        "wnut17",
        train="wnut17train.conll",
        valid="emerging.dev.conll",
        test="emerging.test.annotated",
    ),
    conll("wikiann", language_prefix=True, train="train", valid="dev", test="test"),
    conllu("ud", tag=UPOS, **_TREEBANK),
    conllu("ud_xpos", tag=XPOS, **_TREEBANK),
    *pydocs.TASKS,
)
TASKS = {task.name: task for task in _TASKS}


def find_task(name: str) -> Task:
    """The task of this name, the `TASK` of a .py file, or what "module:NAME" names. Paths in a .py
    file's task are relative to that file."""
    if name in TASKS:
        return TASKS[name]
    if ":" in name:
        return pkgutil.resolve_name(name)
    if not name.endswith(".py"):
        require_choice("config.task", name, [*sorted(TASKS), "FILE.py", "MODULE:NAME"])
    path = find_file(str(Path(name).expanduser()))
    task = getattr(import_file(str(path)), "TASK", None)
    if not isinstance(task, Task):
        raise UserError(f"{path}: the file defines no TASK, such as TASK = table(...)")
    folder = path.resolve().parent
    return dataclasses.replace(
        task, load=lambda directory, options: task.load(directory or folder, options)
    )


def load_tasks(names: str, options: Mapping) -> dict[str, tuple[Task, TaskData]]:
    """The tasks of "NAME+NAME" by their own names, with their examples. `options` as for
    `load_task`; `directory` is one for all, or one for each, joined by +."""
    tasks = [find_task(name) for name in names.split("+")]
    directory = options.get("directory", "")
    directories = directory.split("+") if len(tasks) > 1 else [directory]
    if len(directories) not in (1, len(tasks)):
        raise UserError(
            f"config.task_data.directory names {len(directories)} folders for {len(tasks)} tasks"
        )
    return {
        task.name: (task, load_task(task, {**options, "directory": directory}))
        for task, directory in zip(tasks, itertools.cycle(directories))
    }


def load_task(task: Task, options: Mapping) -> TaskData:
    """A task's examples, with `limit` applied to train; options: keys of `config.task_data`."""
    options = {**TASK_DATA, **options}
    require_choice("config.task_data.dev", options["dev"], ("test", "valid"))
    directory = Path(options["directory"]).expanduser() if options["directory"] else None
    data = task.load(directory, options)
    if "f1" in task.metrics and len(data.labels) != 2:
        raise UserError(
            f"task '{task.name}': f1 scores class 1 of two, and there are {len(data.labels)}; use"
            " macro_f1"
        )
    scheme, notes = None, []
    if "entity_f1" in task.metrics:
        scheme, notes = find_scheme(task.name, data.names, data.examples)
    notes += [
        f"{number:,} words of {split} have a tag that train lacks and count as wrong:"
        f" {', '.join(data.unseen)}"
        for split in data.examples
        if (number := data.count_unseen(split))
    ]
    train = draw(data.examples["train"], options["limit"], options["seed"])
    if (label := _constant_label(train, data.labels)) is not None:
        notes.append(f"the label never varies: it is {label!r} in all training examples")
    # A kind that trains nothing needs no valid split of its own.
    examples = {"valid": train, **data.examples, "train": train}
    examples = {split: examples[split] for split in SPLITS}
    return dataclasses.replace(data, examples=examples, scheme=scheme, notes=tuple(notes))


def _constant_label(train: Sequence[Example], names: Sequence[str]) -> Any:
    """The label of every example, word or target; None if labels differ."""
    labels = (x.label if isinstance(x.label, tuple) else (x.label,) for x in train)
    found = set(itertools.chain.from_iterable(labels))
    label = found.pop() if len(found) == 1 else None
    return names[label] if names and isinstance(label, int) else label
