"""Tasks with published files: their names, layouts, columns and metrics."""

from collections.abc import Callable

from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.columns import XPOS, conll, conllu
from bertlab.transfer.tasks.questions import (
    json_task,
    parse_copa,
    parse_multirc,
    parse_record,
    parse_wic,
    parse_wsc,
    race,
    squad,
)
from bertlab.transfer.tasks.sentences import definite_pronouns, sentiment_trees
from bertlab.transfer.tasks.tables import labelled_folders, labelled_lines, multiple_choice, table

_BINARY = ("0", "1")
_FALSE_TRUE = ("false", "true")
_ENTAILED = ("entailment", "not_entailment")
_THREE_WAY = ("contradiction", "entailment", "neutral")
_SENTENCES = ("sentence1", "sentence2")
_QUESTION_PAIR = ("question1", "question2")
_STRINGS = ("#1 String", "#2 String")
_SIMILARITY = {"kind": "regression", "metrics": (), "symmetric": True}
_PARAPHRASE = {"metrics": ("accuracy", "f1"), "symmetric": True}
_JSON_LINES = {"train": "train.jsonl", "valid": "val.jsonl"}
_TREES = {"train": "train.txt", "valid": "dev.txt", "test": "test.txt", "metrics": "accuracy"}
_SHORT = {"train": "train", "valid": "dev", "test": "test"}
_TREEBANK = {split: f"*-ud-{short}*.conllu" for split, short in _SHORT.items()}
_COLA = ("source", "label", "star", "sentence")
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_STORY = ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4")
_QUIZ = ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2")


def _glue(
    name: str,
    folder: str,
    texts: tuple[str, ...],
    label: str = "label",
    classes: tuple[str, ...] = _BINARY,
    *,
    dev: str = "dev.tsv",
    **options,
) -> Task:
    """One of GLUE's (Wang et al. 2019); its test sets have no labels, so they are not read."""

    options |= {"label_names": classes, "folder": folder, "train": "train.tsv", "valid": dev}
    options.setdefault("metrics", "accuracy")
    pair = "".join(texts[1:])
    return table(name, text=texts[0], pair=pair, label=label, **options)


def _mnli(name: str, kind: str) -> Task:
    return _glue(name, "MNLI", _SENTENCES, "gold_label", _THREE_WAY, dev=f"dev_{kind}.tsv")


_GLUE = (
    _glue("cola", "CoLA", ("sentence",), metrics=("matthews", "accuracy"), columns=_COLA),
    _glue("sst2", "SST-2", ("sentence",)),
    _glue("mrpc", "MRPC", _STRINGS, "Quality", **_PARAPHRASE),
    # The published train file has a few truncated rows; other readers skip them too.
    _glue("qqp", "QQP", _QUESTION_PAIR, "is_duplicate", skip_short_rows=True, **_PARAPHRASE),
    _glue("stsb", "STS-B", _SENTENCES, "score", (), **_SIMILARITY),
    _mnli("mnli", "matched"),
    _mnli("mnli_mismatched", "mismatched"),
    _glue("qnli", "QNLI", ("question", "sentence"), classes=_ENTAILED),
    _glue("rte", "RTE", _SENTENCES, classes=_ENTAILED),
    _glue("wnli", "WNLI", _SENTENCES),
)


def _superglue(name: str, folder: str, parse: Callable, metrics="", classes=(), kind="") -> Task:
    options = {"label_names": classes, "metrics": metrics or (), "folder": folder, **_JSON_LINES}
    return json_task(name, kind or "classification", parse, **options)


_BOOLQ = {"label_names": _FALSE_TRUE, "metrics": "accuracy", "folder": "BoolQ"}
_CB = {"label_names": _THREE_WAY, "folder": "CB"}

# SuperGLUE (Wang et al. 2019); RTE is GLUE's. MultiRC's F1 is over
# all answers; its exact match counts questions whose answers are all right.
_SUPERGLUE = (
    table("boolq", "question", "label", pair="passage", **_BOOLQ, **_JSON_LINES),
    table("cb", "premise", "label", pair="hypothesis", **_CB, **_JSON_LINES),
    _superglue("copa", "COPA", parse_copa, kind="choice"),
    _superglue("multirc", "MultiRC", parse_multirc, ("f1", "group_exact_match"), _BINARY),
    _superglue("record", "ReCoRD", parse_record, "", _FALSE_TRUE, "candidate"),
    _superglue("wsc", "WSC", parse_wsc, "accuracy", _FALSE_TRUE),
    _superglue("wic", "WiC", parse_wic, "", ("F", "T"), "word_pair"),
)


def _squad(name: str, version: str, **options) -> Task:
    files = {
        split: (f"{short}-v{version}.json", f"{short}-v{version}*.json")
        for split, short in (("train", "train"), ("valid", "dev"))
    }
    return squad(name, **files | options)


_QUESTIONS = (
    _squad("squad1", "1.1"),
    _squad("squad2", "2.0", may_lack_answer=True),
    _squad(
        "triviaqa",
        "1.2",
        train=("train-v1.2.json", "*train*.json"),
        valid=("dev-v1.2.json", "*dev*.json"),
        matched=True,
    ),
    race("race", train="train/", valid="dev/", test="test/"),
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
    definite_pronouns("dprd", train="train.c.txt", test="test.c.txt", folder="DPRD"),
)


def _inference(name: str, file: str, **options) -> Task:
    for split, short in _SHORT.items():
        options[split] = (file.format(short), f"snli_format/{file.format(short)}")
    options |= {"metrics": "accuracy", "json_lines": True}
    return table(name, text=_SENTENCES[0], pair=_SENTENCES[1], label="gold_label", **options)


def _zhang(name: str, columns: tuple[str, ...], classes: int, replace=("\\n", "\n")) -> Task:
    """A data set of Zhang et al. 2015: csv without a header, classes from 1."""
    labels = {"label": "class", "label_names": tuple(str(1 + i) for i in range(classes))}
    files = {"columns": ("class", *columns), "train": "train.csv", "test": "test.csv"}
    return table(name, text=columns, metrics="accuracy", replace=replace, **labels, **files)


_TEXTS = (
    _inference("snli", "snli_1.0_{}.jsonl", label_names=_THREE_WAY, unlabelled="-"),
    # JSON lines in spite of their names.
    _inference("scitail", "scitail_1.0_{}.txt"),
    labelled_folders("imdb", ("neg", "pos"), train="train/", test="test/", metrics="accuracy"),
    # A lone backslash is where the news agency broke a line.
    _zhang("ag_news", ("title", "description"), 4, replace=("\\", " ")),
    _zhang("dbpedia", ("title", "description"), 14),
    _zhang("yelp_polarity", ("text",), 2),
    _zhang("yelp_full", ("text",), 5),
    sentiment_trees("sst5", **_TREES),
    sentiment_trees("sst5_phrases", phrases=True, **_TREES),
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
)

_WORDS = (
    # CoNLL-2003's files under their own names and common ones, and WNUT-17's.
    conll(
        "ner",
        train=("eng.train", "train.txt", "wnut17train.conll"),
        valid=("eng.testa", "valid.txt", "dev.txt", "emerging.dev.conll"),
        test=("eng.testb", "test.txt", "emerging.test.annotated"),
    ),
    conll(
        "wnut17",
        train="wnut17train.conll",
        valid="emerging.dev.conll",
        test="emerging.test.annotated",
    ),
    conll("wikiann", language_prefix=True, train="train", valid="dev", test="test"),
    conllu("ud", **_TREEBANK),
    conllu("ud_xpos", tag=XPOS, **_TREEBANK),
)

TASKS = (*_GLUE, *_SUPERGLUE, *_QUESTIONS, *_TEXTS, *_WORDS)
