"""Tasks with published files: their names, layouts, columns and metrics."""

from collections.abc import Iterator

from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.columns import XPOS, conll, conllu
from bertlab.transfer.tasks.questions import (
    json_task,
    parse_copa,
    parse_multirc,
    parse_record,
    parse_wsc,
    race,
    squad,
)
from bertlab.transfer.tasks.senses import all_words, coarse_senses, word_in_context
from bertlab.transfer.tasks.sentences import definite_pronouns, sentiment_trees
from bertlab.transfer.tasks.tables import labelled_folders, labelled_lines, multiple_choice, table

_BINARY = ("0", "1")
_FALSE_TRUE = ("false", "true")
_ENTAILED = ("entailment", "not_entailment")
_THREE_WAY = ("contradiction", "entailment", "neutral")
_SENTENCES = ("sentence1", "sentence2")
_PREMISE = ("premise", "hypothesis")
_JSON_LINES = {"train": "train.jsonl", "valid": "val.jsonl"}
_FOLDERS = {"train": "train/", "test": "test/"}
_TEXT_FILES = {"train": "train.txt", "valid": "dev.txt", "test": "test.txt"}
_TREEBANK = {
    split: f"*-ud-{file}*.conllu"
    for split, file in {"train": "train", "valid": "dev", "test": "test"}.items()
}
_WNUT = {
    "train": "wnut17train.conll",
    "valid": "emerging.dev.conll",
    "test": "emerging.test.annotated",
}
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")


def _glue(
    name: str,
    folder: str,
    texts: tuple[str, ...],
    label: str,
    classes: tuple[str, ...] = _BINARY,
    metrics: tuple[str, ...] = ("accuracy",),
    *,
    dev: tuple[str, str] = ("dev.tsv", "validation"),
    features: tuple[str, ...] = (),
    **options,
) -> Task:
    """One of GLUE's (Wang et al. 2019); its test sets have no labels, so they are not read.

    Args:
        name, folder: of the task, and of its files in GLUE.
        texts, label, classes, metrics: its columns, classes and metrics.
        dev: the development set's file and its split in TFDS.
        features: names of the texts in TFDS, if they are not `texts`.
        options: of `table`.
    """

    def stored(split: str) -> Iterator[tuple[str, dict[str, str]]]:
        from bertlab.data.corpora.tfds import open_dataset  # half a second

        dataset = f"glue/{folder.lower().replace('-', '')}"
        tfds_split = dev[1] if split == "valid" else split
        builder, examples = open_dataset(dataset, tfds_split, "TFDS")
        number_to_name = getattr(builder.info.features["label"], "int2str", str)
        for number in range(len(examples)):
            record = examples[number]
            value = number_to_name(record["label"])
            # TFDS has the files' names, or others in the order of their 0 and 1.
            row = {label: value if not classes or value in classes else str(record["label"])}
            row |= {text: record[key].decode() for text, key in zip(texts, features or texts)}
            yield f"{dataset}/{tfds_split}:{number}", row

    return table(
        name,
        text=texts[0],
        pair="".join(texts[1:]),
        label=label,
        label_names=classes,
        metrics=metrics,
        train="train.tsv",
        valid=dev[0],
        folder=folder,
        stored=stored,
        **options,
    )


def _mnli(name: str, kind: str) -> Task:
    dev = (f"dev_{kind}.tsv", f"validation_{kind}")
    return _glue(name, "MNLI", _SENTENCES, "gold_label", _THREE_WAY, dev=dev, features=_PREMISE)


_GLUE = (
    _glue(
        "cola",
        "CoLA",
        ("sentence",),
        "label",
        metrics=("matthews", "accuracy"),
        columns=("source", "label", "star", "sentence"),
    ),
    _glue("sst2", "SST-2", ("sentence",), "label"),
    _glue(
        "mrpc",
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        metrics=("accuracy", "f1"),
        features=_SENTENCES,
        symmetric=True,
    ),
    # The published train file has a few truncated rows; other readers skip them too.
    _glue(
        "qqp",
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        metrics=("accuracy", "f1"),
        skip_short_rows=True,
        symmetric=True,
    ),
    _glue(
        "stsb",
        "STS-B",
        _SENTENCES,
        "score",
        (),
        ("pearson", "spearman"),
        kind="regression",
        symmetric=True,
    ),
    _mnli("mnli", "matched"),
    _mnli("mnli_mismatched", "mismatched"),
    _glue("qnli", "QNLI", ("question", "sentence"), "label", _ENTAILED),
    _glue("rte", "RTE", _SENTENCES, "label", _ENTAILED),
    _glue("wnli", "WNLI", _SENTENCES, "label"),
)
# SuperGLUE (Wang et al. 2019) in JSON lines; RTE is GLUE's, and `wic` reads both its forms.
_SUPERGLUE = (
    table(
        "boolq",
        text="question",
        pair="passage",
        label="label",
        label_names=_FALSE_TRUE,
        metrics="accuracy",
        folder="BoolQ",
        **_JSON_LINES,
    ),
    table(
        "cb",
        text=_PREMISE[0],
        pair=_PREMISE[1],
        label="label",
        label_names=_THREE_WAY,
        folder="CB",
        **_JSON_LINES,
    ),
    json_task("copa", "choice", parse_copa, folder="COPA", **_JSON_LINES),
    # Its F1 is over all answers; its exact match counts questions whose answers are all right.
    json_task(
        "multirc",
        "classification",
        parse_multirc,
        label_names=_BINARY,
        metrics=("f1", "group_exact_match"),
        folder="MultiRC",
        **_JSON_LINES,
    ),
    json_task(
        "record", "candidate", parse_record, label_names=_FALSE_TRUE, folder="ReCoRD", **_JSON_LINES
    ),
    json_task(
        "wsc",
        "classification",
        parse_wsc,
        label_names=_FALSE_TRUE,
        metrics="accuracy",
        folder="WSC",
        **_JSON_LINES,
    ),
    word_in_context(
        "wic",
        train=("train.data.txt", "train/train.data.txt", "train.jsonl"),
        valid=("dev.data.txt", "dev/dev.data.txt", "val.jsonl"),
        folder="WiC",
    ),
)

_QUESTIONS = (
    squad(
        "squad1",
        train=("train-v1.1.json", "train-v1.1*.json"),
        valid=("dev-v1.1.json", "dev-v1.1*.json"),
    ),
    squad(
        "squad2",
        train=("train-v2.0.json", "train-v2.0*.json"),
        valid=("dev-v2.0.json", "dev-v2.0*.json"),
        may_lack_answer=True,
    ),
    squad(
        "triviaqa",
        train=("train-v1.2.json", "*train*.json"),
        valid=("dev-v1.2.json", "*dev*.json"),
        matched=True,
    ),
    race("race", train="train/", valid="dev/", test="test/"),
    # The continuation begins with the subject of the second sentence (Devlin et al., section 4.4).
    multiple_choice(
        "swag",
        text="sent1",
        stem="sent2",
        choices=("ending0", "ending1", "ending2", "ending3"),
        label="label",
        train="train.csv",
        valid="val.csv",
    ),
    multiple_choice(
        "codah",
        text="prompt",
        choices=_CODAH[2:6],
        label="label",
        columns=_CODAH,
        train="full_data.tsv",
    ),
    # Trained on the published development set, as in openai/finetune-transformer-lm's datasets.py.
    multiple_choice(
        "story_cloze",
        text=("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4"),
        choices=("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
        label="AnswerRightEnding",
        first=1,
        train="cloze_test_val__spring2016*.csv",
        test="cloze_test_test__spring2016*.csv",
    ),
    definite_pronouns("dprd", train="train.c.txt", test="test.c.txt", folder="DPRD"),
)


def _inference(name: str, file: str, **options) -> Task:
    files = {split: file.format(short) for split, short in
             {"train": "train", "valid": "dev", "test": "test"}.items()}  # fmt: skip
    files = {split: (path, f"snli_format/{path}") for split, path in files.items()}
    options |= {"metrics": "accuracy", "json_lines": True}
    return table(name, text="sentence1", pair="sentence2", label="gold_label", **files, **options)


def _zhang(name: str, columns: tuple[str, ...], classes: int, replace=("\\n", "\n")) -> Task:
    """A data set of Zhang et al. 2015: csv without a header, classes from 1."""
    return table(
        name,
        text=columns,
        label="class",
        label_names=tuple(str(1 + number) for number in range(classes)),
        metrics="accuracy",
        columns=("class", *columns),
        replace=replace,
        train="train.csv",
        test="test.csv",
    )


_TEXTS = (
    _inference("snli", "snli_1.0_{}.jsonl", label_names=_THREE_WAY, unlabelled="-"),
    # JSON lines in spite of their names.
    _inference("scitail", "scitail_1.0_{}.txt"),
    labelled_folders("imdb", label_names=("neg", "pos"), metrics="accuracy", **_FOLDERS),
    # A lone backslash is where the news agency broke a line.
    _zhang("ag_news", ("title", "description"), 4, replace=("\\", " ")),
    _zhang("dbpedia", ("title", "description"), 14),
    _zhang("yelp_polarity", ("text",), 2),
    _zhang("yelp_full", ("text",), 5),
    sentiment_trees("sst5", metrics="accuracy", **_TEXT_FILES),
    sentiment_trees("sst5_phrases", phrases=True, metrics="accuracy", **_TEXT_FILES),
    table(
        "sms_spam",
        text="v2",
        label="v1",
        metrics=("accuracy", "f1"),
        encoding="latin-1",
        train="spam.csv",
    ),
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
        train=("eng.train", "train.txt", _WNUT["train"]),
        valid=("eng.testa", "valid.txt", "dev.txt", _WNUT["valid"]),
        test=("eng.testb", "test.txt", _WNUT["test"]),
    ),
    conll("wnut17", **_WNUT),
    conll("wikiann", language_prefix=True, train="train", valid="dev", test="test"),
    conllu("ud", **_TREEBANK),
    conllu("ud_xpos", tag=XPOS, **_TREEBANK),
    all_words(
        "wsd",
        train=("Training_Corpora/SemCor/semcor.data.xml", "semcor.data.xml"),
        test=("Evaluation_Datasets/ALL/ALL.data.xml", "ALL.data.xml"),
    ),
    coarse_senses("coarse_wsd"),
)

TASKS = (*_GLUE, *_SUPERGLUE, *_QUESTIONS, *_TEXTS, *_WORDS)
