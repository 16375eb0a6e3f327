"""Control tasks and selectivity on planted vectors, and `bertlab probe` from the shell."""

import collections
import json

import numpy as np
import pytest

from bertlab.cli import main
from bertlab.transfer.probes import control_labels, probe_layers
from tests.transfer.test_inspect import Planted


def test_a_control_label_is_that_of_its_word_type_in_training_and_test():
    words = [f"w{i % 500}" for i in range(2000)]
    labels = ["N"] * 1400 + ["V"] * 600
    train, test = control_labels(words, ["w3", "new", "w7", "new"], labels, seed=1)
    by_word = collections.defaultdict(set)
    for word, label in zip([*words, "w3", "new", "w7", "new"], [*train, *test]):
        by_word[word].add(label)
    assert len(train) == 2000 and len(by_word) == 501 and all(len(found) == 1 for found in by_word.values())
    share = np.mean([found == {"N"} for found in by_word.values()])
    assert abs(share - 0.7) < 3 * np.sqrt(0.7 * 0.3 / 501), "drawn with the labels' shares, whatever the word's own label is"
    assert control_labels(words, ["w3"], labels, seed=1)[0] != control_labels(words, ["w3"], labels, seed=2)[0]
    assert control_labels(words, ["new"], labels, seed=1) == control_labels(words, ["new"], labels, seed=1)


def test_selectivity_tells_a_layer_of_tags_from_a_layer_of_word_types():
    rng = np.random.default_rng(0)
    types = [f"{tag}{i}" for tag in "nv" for i in range(8)]
    tagged = [([types[i] for i in draw], [types[i][0] for i in draw]) for draw in rng.integers(0, 16, (120, 6))]

    def vector(words, at, layer):
        of_type = np.eye(16)[types.index(words[at])]
        of_tag = np.array([words[at][0] == "n", words[at][0] == "v"]) + rng.normal(scale=0.05, size=2)
        return np.concatenate([of_type if layer else np.zeros(16), of_tag])

    model = Planted(vector, layers=2)
    table = probe_layers(model, tagged[:80], tagged[80:], control=True, code=True, variational=True)
    assert table.accuracy.tolist() == [1.0, 1.0]
    assert table.control_accuracy[1] == 1.0 and table.selectivity[1] == 0.0, "types are learnt by heart"
    assert table.control_accuracy[0] < 0.8 and table.selectivity[0] == pytest.approx(1 - table.control_accuracy[0])
    words = table.train_words[0]
    assert table.uniform_bits.tolist() == [words, words] and (table.compression > 3).all()
    assert table.control_compression[0] < 1.3 < table.control_compression[1]
    assert table.control_variational_compression[0] < 1.3 < table.control_variational_compression[1]
    assert (table.variational_compression > 3).all() and (table.weight_bits < table.variational_bits).all()
    plain = probe_layers(model, tagged[:80], tagged[80:])
    assert plain.columns.tolist() == ["accuracy", "standard_error", "majority", "c", "train_words", "test_words"]


def conll(sentences):
    return "\n".join("".join(f"{word} X X {tag}\n" for word, tag in sentence) for sentence in sentences)


@pytest.mark.usefixtures("quick_compilation")
def test_the_command_probes_every_layer_and_keeps_other_tasks(bert_run, tmp_path, capsys):
    names = ("the", "value", "of", "object", "module")
    sentences = [[(names[(i + k) % 5], "B-X" if (i + k) % 5 in (1, 3) else "O") for k in range(4)] for i in range(40)]
    for file, part in (
        ("eng.train", sentences),
        ("eng.testa", sentences[:5]),
        ("eng.testb", [*sentences[:8], [("of", "O")] * 600]),
    ):
        (tmp_path / file).write_text(conll(part))
    (tmp_path / "probes.json").write_text(json.dumps({"probes": {"other": {"0": {"accuracy": 0.5}}}}))
    options = [f"--config.task_data.directory={tmp_path}", f"--out={tmp_path / 'probes.json'}"]
    ask = ["probe", f"--run={bert_run}", "--task=ner"]
    assert main([*ask, "--control", "--code", "--layers=0,1", *options]) == 0
    found = json.loads((tmp_path / "probes.json").read_text())["probes"]
    assert set(found) == {"ner", "other"} and set(found["ner"]) == {"0", "1"}
    entry = found["ner"]["1"]
    assert entry["train_words"] == 160 and entry["test_words"] == 32, "a sentence that is too long is left out"
    left_out = {"train": {"examples": 0, "of_examples": 40}, "test": {"examples": 1, "of_examples": 9}}
    assert entry["cut"] == left_out
    assert entry["uniform_bits"] == 160 and entry["accuracy"] == 1.0 and entry["seed"] == 0
    assert entry["selectivity"] == pytest.approx(entry["accuracy"] - entry["control_accuracy"])
    said = capsys.readouterr().out
    assert "1 of 9 sentences of test are longer than the model's" in said and "selectivity" in said
    for more, message in (
        (["--words=0"], "--words=0 must be at least 1"),
        (["--config.seed=1"], "--config.seed=1: bertlab probe has no such setting; it takes only --config.task_data.KEY"),
        (["--out=probes.txt"], "--out=probes.txt: the output is JSON"),
    ):
        assert main([*ask, *options, *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["probe", f"--run={bert_run}", "--task=sst2"]) == 2
    assert "--task=sst2 has kind classification, but a probe reads a tag for each word" in capsys.readouterr().err
