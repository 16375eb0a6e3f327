"""GLUE in its published layout: each task's columns, classes and metrics; a quote is a character; test files are not read."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bertlab.errors import UserError
from bertlab.transfer.tasks import TASKS, find_task, load_task

_MNLI = "index\tpromptID\tpairID\tgenre\tp1\tp2\tp3\tp4\tsentence1\tsentence2\tlabel1\tgold_label"
_PAIRS = "index\tsentence1\tsentence2\tlabel"
# Folder, header (CoLA has none), row with {} for a number and a label, labels, texts.
PUBLISHED = {
    "cola": ("CoLA", "", "gj04\t{1}\t*\tSaid \"{0}.", "01", ('Said "{0}.',)),
    "sst2": ("SST-2", "sentence\tlabel", "a film {0} \t{1}", "01", ("a film {0} ",)),
    "mrpc": (
        "MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{1}\t7\t8\tHe \"{0}\tShe {0}", "01", ('He "{0}', "She {0}")
    ),
    "qqp": (
        "QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "{0}\t1\t2\tWhy {0}?\tHow?\t{1}", "01",
        ("Why {0}?", "How?"),
    ),
    "mnli": (
        "MNLI", _MNLI, "{0}\t1\t1n\tfiction\ta\tb\tc\td\tP {0}\tH\tneutral\t{1}",
        ("contradiction", "entailment", "neutral"), ("P {0}", "H"),
    ),
    "qnli": (
        "QNLI", "index\tquestion\tsentence\tlabel", "{0}\tWho {0}?\tHe.\t{1}", ("entailment", "not_entailment"),
        ("Who {0}?", "He."),
    ),
    "rte": ("RTE", _PAIRS, "{0}\tText {0}\tHyp\t{1}", ("entailment", "not_entailment"), ("Text {0}", "Hyp")),
    "wnli": ("WNLI", _PAIRS, "{0}\tText {0}\tHyp\t{1}", "01", ("Text {0}", "Hyp")),
}  # fmt: skip


def publish(folder, name, dev=("dev.tsv",), numbers=12):
    under, header, row, labels, _ = PUBLISHED[name]
    (folder / under).mkdir()
    rows = [row.format(i, labels[i % len(labels)]) for i in range(numbers)]
    text = "".join(f"{line}\n" for line in ([header] if header else []) + rows)
    for file in ("train.tsv", *dev):
        (folder / under / file).write_text(text)
    # GLUE's test files have other columns and no labels.
    (folder / under / "test.tsv").write_text("index\tsentence\n0\tnot to be read\n")
    return folder / under


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layout(tmp_path, name):
    own = publish(tmp_path, name, ("dev_matched.tsv",) if name == "mnli" else ("dev.tsv",))
    _, _, _, labels, texts = PUBLISHED[name]
    data = load_task(find_task(name), {"directory": str(tmp_path), "dev": "valid"})
    assert data.labels == tuple(labels)
    for split in ("train", "valid", "test"):
        assert [example.texts for example in data.examples[split]] == [
            tuple(text.format(i) for text in texts) for i in range(12)
        ]
        assert [example.label for example in data.examples[split]] == [i % len(labels) for i in range(12)]
    assert load_task(find_task(name), {"directory": str(own), "dev": "valid"}) == data, "the task's own folder does too"


def test_both_development_sets_of_mnli(tmp_path):
    own = publish(tmp_path, "mnli", ("dev_matched.tsv", "dev_mismatched.tsv"))
    for name, other in (("mnli", "dev_mismatched.tsv"), ("mnli_mismatched", "dev_matched.tsv")):
        examples = load_task(find_task(name), {"directory": str(own)}).examples
        assert {example.where.rpartition("/")[2].partition(":")[0] for example in examples["test"]}.isdisjoint({other})
        assert {example.where.rpartition("/")[2].partition(":")[0] for example in examples["valid"]} == {"train.tsv"}


def test_stsb_asks_for_a_score(tmp_path):
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    rows = [f'{i}\tg\tf\t2012\t0001\tn\tn\tA {i}\tB "{i}\t{i / 4:.3f}' for i in range(20)]
    for file in ("train.tsv", "dev.tsv"):
        (tmp_path / file).write_text("\n".join([header, *rows]))
    data = load_task(find_task("stsb"), {"directory": str(tmp_path), "dev": "valid"})
    assert data.labels == () and [example.label for example in data.examples["test"]] == [i / 4 for i in range(20)]
    assert data.examples["test"][3].texts == ("A 3", 'B "3')


def test_rows_that_were_cut_off_are_left_out_of_qqp_alone(tmp_path):
    for name in ("qqp", "rte"):
        own = publish(tmp_path, name)
        with (own / "train.tsv").open("a") as file:
            file.write("12\tcut\n")
    assert len(load_task(find_task("qqp"), {"directory": str(tmp_path), "dev": "valid"}).examples["train"]) == 12
    with pytest.raises(UserError, match=r"RTE/train\.tsv:14: the row has 2 fields, but the table has 4 columns"):
        load_task(find_task("rte"), {"directory": str(tmp_path)})


def test_metrics_are_the_benchmarks_and_similarity_and_paraphrase_alone_have_no_order():
    metrics = {name: TASKS[name].metrics for name in (*PUBLISHED, "stsb", "mnli_mismatched")}
    assert metrics.pop("cola")[0] == "matthews" and metrics.pop("stsb") == ("pearson", "spearman")
    assert metrics.pop("mrpc") == metrics.pop("qqp") == ("accuracy", "f1")
    assert set(metrics.values()) == {("accuracy",)}
    symmetric = {name.removeprefix("babylm_") for name, task in TASKS.items() if task.kind.symmetric}
    assert symmetric == {"stsb", "mrpc", "qqp"}


# Not registered: what is read is found by the registered builder of that name.
with tfds.core.registered.skip_registration():

    class Glue(tfds.core.GeneratorBasedBuilder):
        """As TFDS prepares them: names of classes, other names of columns."""

        VERSION = tfds.core.Version("2.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("cola", "stsb", "mnli")]  # noqa: RUF012

        def _info(self):
            texts, label = {
                "cola": (("sentence",), tfds.features.ClassLabel(names=["unacceptable", "acceptable"])),
                "stsb": (("sentence1", "sentence2"), np.float32),
                "mnli": (("premise", "hypothesis"), tfds.features.ClassLabel(names=["entailment", "neutral", "contradiction"])),
            }[self.builder_config.name]
            features = {text: tfds.features.Text() for text in texts} | {"label": label, "idx": np.int32}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            dev = "validation_matched" if self.builder_config.name == "mnli" else "validation"
            return {"train": self._generate_examples(6), dev: self._generate_examples(3)}

        def _generate_examples(self, number):
            for i in range(number):
                texts = {name: f"{name} {i}" for name in self.info.features if name not in ("label", "idx")}
                label = i / 5 if self.builder_config.name == "stsb" else i % len(self.info.features["label"].names)
                yield i, texts | {"label": label, "idx": i}


def test_glue_from_tfds(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    for name in ("cola", "stsb", "mnli"):
        Glue(config=name, data_dir=tmp_path, file_format="array_record").download_and_prepare()
    options = {"directory": "tfds", "dev": "valid"}

    def by_text(name):
        data = load_task(find_task(name), options)
        assert len(data.examples["train"]) == 6 and len(data.examples["valid"]) == 3
        return data.labels, {example.texts: example.label for example in data.examples["train"]}

    labels, found = by_text("cola")
    assert labels == ("0", "1") and found == {(f"sentence {i}",): i % 2 for i in range(6)}
    # In files the classes are sorted: TFDS' order (entailment, neutral, contradiction) is another.
    labels, found = by_text("mnli")
    assert labels == ("contradiction", "entailment", "neutral")
    assert found == {(f"premise {i}", f"hypothesis {i}"): (1, 2, 0)[i % 3] for i in range(6)}
    _, found = by_text("stsb")
    assert found == {(f"sentence1 {i}", f"sentence2 {i}"): i / 5 for i in range(6)}, "decimals, not the nearest float32"


def test_tfds_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r'task_data\.directory=tfds: .*"glue/rte" is not prepared .*download_and_prepare'):
        load_task(find_task("rte"), {"directory": "tfds"})
    with pytest.raises(UserError, match=r"task 'trec' is read from files only; give their folder"):
        load_task(find_task("trec"), {"directory": "tfds"})
