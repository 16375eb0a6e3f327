"""Tasks with published files, except GLUE, SuperGLUE and BabyLM's: their names, layouts and metrics."""

import functools

from bertlab.transfer.tasks.conll import HEAD, XPOS, conll, conllu
from bertlab.transfer.tasks.folders import labelled_folders
from bertlab.transfer.tasks.multiple_choice import multiple_choice, race
from bertlab.transfer.tasks.pronouns import definite_pronouns
from bertlab.transfer.tasks.senses import all_words, coarse_senses
from bertlab.transfer.tasks.squad import squad
from bertlab.transfer.tasks.table import labelled_lines, table
from bertlab.transfer.tasks.trees import sentiment_trees
from bertlab.transfer.tasks.word_in_context import word_in_context

_TREEBANK = {"train": "*-ud-train*.conllu", "valid": "*-ud-dev*.conllu", "test": "*-ud-test*.conllu"}
_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")
# Movie reviews of 2005: curly quotes and dashes are in a Windows encoding.
_WINDOWS = "cp1252"
_TREES = {"train": "train.txt", "valid": "dev.txt", "test": "test.txt"}
_STORY = tuple(f"InputSentence{i}" for i in (1, 2, 3, 4))
_TITLED = ("title", "description")


def _zhang(name: str, columns: tuple[str, ...], classes: int, replace: tuple[str, str] = ("\\n", "\n")):
    """A data set of Zhang et al. 2015: csv without a header, classes from 1, "\\n" for a line end (its readme.txt)."""
    return table(
        name,
        train="train.csv",
        test="test.csv",
        columns=("class", *columns),
        text=columns,
        label="class",
        label_names=tuple(str(1 + i) for i in range(classes)),
        metrics=("accuracy",),
        replace=replace,
    )


_inference = functools.partial(table, text="sentence1", pair="sentence2", label="gold_label", metrics=("accuracy",))

HEADS = conllu("ud_heads", **_TREEBANK, tag=HEAD)
"""The heads of task `ud`'s words, for `bertlab probe --edges`; no task to fine-tune on."""

TASKS = (
    squad("squad1", train=("train-v1.1.json", "train-v1.1*.json"), valid=("dev-v1.1.json", "dev-v1.1*.json")),
    squad(
        "squad2",
        train=("train-v2.0.json", "train-v2.0*.json"),
        valid=("dev-v2.0.json", "dev-v2.0*.json"),
        may_lack_answer=True,
    ),
    # The files of utils/convert_to_squad_format.py in mandarjoshi90/triviaqa, whose names you choose in its later versions.
    squad("triviaqa", train=("train-v1.2.json", "*train*.json"), valid=("dev-v1.2.json", "*dev*.json"), matched=True),
    # The continuation begins with the subject of the second sentence (Devlin et al. 2018, section 4.4).
    multiple_choice(
        "swag", train="train.csv", valid="val.csv", text="sent1", stem="sent2", choices=_SWAG_ENDINGS, label="label"
    ),
    multiple_choice("codah", train="full_data.tsv", columns=_CODAH, text="prompt", choices=_CODAH[2:6], label="label"),
    race("race", train="train/", valid="dev/", test="test/"),
    # Trained on the published development set, as in openai/finetune-transformer-lm's datasets.py.
    multiple_choice(
        "story_cloze",
        train="cloze_test_val__spring2016*.csv",
        test="cloze_test_test__spring2016*.csv",
        text=_STORY,
        choices=("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
        label="AnswerRightEnding",
        first=1,
    ),
    definite_pronouns("dprd", train="train.c.txt", test="test.c.txt"),
    _inference(
        "snli",
        train="snli_1.0_train.jsonl",
        valid="snli_1.0_dev.jsonl",
        test="snli_1.0_test.jsonl",
        label_names=("contradiction", "entailment", "neutral"),
        unlabelled="-",
    ),
    # JSON lines in spite of their names.
    _inference(
        "scitail",
        train=("scitail_1.0_train.txt", "snli_format/scitail_1.0_train.txt"),
        valid=("scitail_1.0_dev.txt", "snli_format/scitail_1.0_dev.txt"),
        test=("scitail_1.0_test.txt", "snli_format/scitail_1.0_test.txt"),
        json_lines=True,
    ),
    labelled_folders("imdb", train="train/", test="test/", label_names=("neg", "pos")),
    # Its files have a lone backslash where the news agency broke a line.
    _zhang("ag_news", _TITLED, 4, replace=("\\", " ")),
    _zhang("dbpedia", _TITLED, 14),
    _zhang("yelp_polarity", ("text",), 2),
    _zhang("yelp_full", ("text",), 5),
    sentiment_trees("sst5", **_TREES),
    sentiment_trees("sst5_phrases", **_TREES, phrases=True),
    # CoNLL 2003's files under their own names and common ones, and WNUT 2017's (Derczynski et al. 2017).
    conll(
        "ner",
        train=("eng.train", "train.txt", "wnut17train.conll"),
        valid=("eng.testa", "valid.txt", "dev.txt", "emerging.dev.conll"),
        test=("eng.testb", "test.txt", "emerging.test.annotated"),
    ),
    conll("wnut17", train="wnut17train.conll", valid="emerging.dev.conll", test="emerging.test.annotated"),
    conll("wikiann", train="train", valid="dev", test="test", language_prefix=True),
    conllu("ud", **_TREEBANK),
    conllu("ud_xpos", **_TREEBANK, tag=XPOS),
    table("sms_spam", train="spam.csv", text="v2", label="v1", metrics=("accuracy", "f1"), encoding="latin-1"),
    labelled_lines(
        "trec",
        train=("TREC.train.all", "train_5500.label"),
        test=("TREC.test.all", "TREC_10.label"),
        metrics=("accuracy", "macro_f1"),
        encoding="latin-1",
    ),
    labelled_lines("mr", train="rt-polarity.all", encoding=_WINDOWS),
    labelled_lines("subj", train="subj.all", encoding=_WINDOWS),
    word_in_context(
        "wic",
        train=("train.data.txt", "train/train.data.txt", "train.jsonl"),
        valid=("dev.data.txt", "dev/dev.data.txt", "val.jsonl"),
        folder="WiC",
    ),
    all_words(
        "wsd",
        train=("Training_Corpora/SemCor/semcor.data.xml", "semcor.data.xml"),
        test=("Evaluation_Datasets/ALL/ALL.data.xml", "ALL.data.xml"),
    ),
    coarse_senses("coarse_wsd"),
)
