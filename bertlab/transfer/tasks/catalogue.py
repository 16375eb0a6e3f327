"""Tasks with published files, except GLUE: their names, layouts and metrics."""

from bertlab.transfer.tasks.conll import XPOS, conll, conllu
from bertlab.transfer.tasks.multiple_choice import multiple_choice
from bertlab.transfer.tasks.squad import squad
from bertlab.transfer.tasks.table import labelled_lines, table
from bertlab.transfer.tasks.word_in_context import word_in_context

_TREEBANK = {"train": "*-ud-train*.conllu", "valid": "*-ud-dev*.conllu", "test": "*-ud-test*.conllu"}
_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")
# Movie reviews of 2005: curly quotes and dashes are in a Windows encoding.
_WINDOWS = "cp1252"

TASKS = (
    squad("squad1", train=("train-v1.1.json", "train-v1.1*.json"), valid=("dev-v1.1.json", "dev-v1.1*.json")),
    squad(
        "squad2",
        train=("train-v2.0.json", "train-v2.0*.json"),
        valid=("dev-v2.0.json", "dev-v2.0*.json"),
        may_lack_answer=True,
    ),
    # The continuation begins with the subject of the second sentence (Devlin et al. 2018, section 4.4).
    multiple_choice(
        "swag", train="train.csv", valid="val.csv", text="sent1", stem="sent2", choices=_SWAG_ENDINGS, label="label"
    ),
    multiple_choice("codah", train="full_data.tsv", columns=_CODAH, text="prompt", choices=_CODAH[2:6], label="label"),
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
    word_in_context("wic", train=("train.data.txt", "train/train.data.txt"), valid=("dev.data.txt", "dev/dev.data.txt")),
)
