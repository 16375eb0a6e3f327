"""Downstream tasks: `TASKS`, which have published files or come from the Python documentation, and
the functions that make your own (`table`, `conll`, ...; docs/own-task.md)."""

import dataclasses
import itertools
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from bertlab.config.load import find_file, import_file
from bertlab.errors import UserError, require_choice
from bertlab.transfer.tasks import pydocs
from bertlab.transfer.tasks.base import SPLITS, Task, TaskData, load_task
from bertlab.transfer.tasks.base import TASK_DATA as TASK_DATA
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
from bertlab.transfer.tasks.readers import json_task as json_task

_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_THREE_WAY = ("contradiction", "entailment", "neutral")
_SENTENCES = ("sentence1", "sentence2")
_GOLD = (*_SENTENCES, "gold_label")
_QUESTIONS = ("question1", "question2", "is_duplicate")
_PARAPHRASE = {"metrics": ("accuracy", "f1"), "symmetric": True}
_SUPERGLUE = {"train": "train.jsonl", "valid": "val.jsonl"}
_WNUT_17 = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
_COLA = ("source", "label", "star", "sentence")
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_SWAG = {"train": "train.csv", "valid": "val.csv"}
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")
_STORY = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
_QUIZ = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")
_CLOZE = {"train": "cloze_test_val__spring2016*.csv", "test": "cloze_test_test__spring2016*.csv"}
# Devlin et al. 2019, section 4.3.
_SQUAD_2 = {"bert_paper": {"data.batch_size": 48, "transfer.epochs": 2.0}}


def _files(pattern: str) -> dict[str, str]:
    """The pattern's file of each split, with "dev" for valid."""
    return {split: pattern.format(name) for split, name in zip(SPLITS, ("train", "dev", "test"))}


def _glue(name: str, folder: str, text: str, pair="", label="label", classes=_BINARY, **options):
    """A table like GLUE's (Wang et al. 2019), whose test sets have no labels and are not read."""
    options = {"train": "train.tsv", "valid": "dev.tsv", "metrics": "accuracy", **options}
    return table(name, text, label, pair=pair, folder=folder, label_names=classes, **options)


def _zhang(name: str, columns: tuple[str, ...], classes: int, replace=("\\n", "\n")) -> Task:
    """A data set of Zhang et al. 2015: csv without a header, classes from 1."""
    options = {"columns": ("class", *columns), "train": "train.csv", "test": "test.csv"}
    options["label_names"] = tuple(str(1 + i) for i in range(classes))
    return table(name, columns, "class", metrics="accuracy", replace=replace, **options)


_TASKS = (
    _glue("cola", "CoLA", "sentence", columns=_COLA, metrics=("matthews", "accuracy")),
    _glue("sst2", "SST-2", "sentence"),
    _glue("mrpc", "MRPC", "#1 String", "#2 String", "Quality", **_PARAPHRASE),
    # The published train file has a few truncated rows; other readers skip them too.
    _glue("qqp", "QQP", *_QUESTIONS, skip_short_rows=True, **_PARAPHRASE),
    _glue("stsb", "STS-B", *_SENTENCES, "score", (), kind="regression", metrics=(), symmetric=True),
    _glue("mnli", "MNLI", *_GOLD, _THREE_WAY, valid="dev_matched.tsv"),
    _glue("mnli_mismatched", "MNLI", *_GOLD, _THREE_WAY, valid="dev_mismatched.tsv"),
    _glue("qnli", "QNLI", "question", "sentence", classes=_ENTAILED),
    _glue("rte", "RTE", *_SENTENCES, classes=_ENTAILED),
    _glue("wnli", "WNLI", *_SENTENCES),
    # SuperGLUE's tables (Wang et al. 2019); RTE is GLUE's, others are in bertlab.contrib.readers.
    _glue("boolq", "BoolQ", "question", "passage", classes=("false", "true"), **_SUPERGLUE),
    _glue("cb", "CB", "premise", "hypothesis", classes=_THREE_WAY, metrics=(), **_SUPERGLUE),
    squad("squad1", train="train-v1.1.json", valid="dev-v1.1.json"),
    squad("squad2", train="train-v2.0.json", valid="dev-v2.0.json", recipes=_SQUAD_2),
    # The continuation begins with the subject of the second sentence (Devlin et al., section 4.4).
    multiple_choice("swag", "sent1", _ENDINGS, "label", stem="sent2", **_SWAG),
    multiple_choice("codah", "prompt", _CODAH[2:6], "label", columns=_CODAH, train="full_data.tsv"),
    # Trained on the published development set, as in openai/finetune-transformer-lm's datasets.py.
    multiple_choice("story_cloze", _STORY, _QUIZ, "AnswerRightEnding", first=1, **_CLOZE),
    _glue("snli", "snli_format", *_GOLD, _THREE_WAY, unlabelled="-", **_files("snli_1.0_{}.jsonl")),
    _glue("scitail", "snli_format", *_GOLD, (), **_files("scitail_1.0_{}.txt")),
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
    conll("wnut17", **dict(zip(SPLITS, _WNUT_17))),
    conll("wikiann", language_prefix=True, **_files("{}")),
    conllu("ud", tag=UPOS, **_files("*-ud-{}*.conllu")),
    conllu("ud_xpos", tag=XPOS, **_files("*-ud-{}*.conllu")),
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
        raise UserError(f"config.task_data.directory names {len(directories)} folders for {names}")
    return {
        task.name: (task, load_task(task, {**options, "directory": directory}))
        for task, directory in zip(tasks, itertools.cycle(directories))
    }
