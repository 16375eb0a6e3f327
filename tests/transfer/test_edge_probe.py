"""Heads of words: what a bilinear probe finds and what it cannot, the control task, and `bertlab probe --edges`."""

import collections
import json

import numpy as np
import pytest

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.transfer.edge_probe import NO_HEAD, control_heads, edge_accuracy, read_heads

PLACES = 6


def planted(sentences, seed):
    """(States, heads): a state has a code of its place and one of its head's place, both turned at random."""
    rng, turn = np.random.default_rng(seed), np.random.default_rng(99)
    codes, pointers = (np.linalg.qr(turn.normal(size=(8, 8)))[0][:PLACES] for _ in range(2))
    states, heads = [], []
    for _ in range(sentences):
        size = int(rng.integers(3, PLACES + 1))
        of = rng.integers(0, size, size)
        states.append(np.concatenate([codes[:size], pointers[of]], 1) + rng.normal(scale=0.02, size=(size, 16)))
        heads.append(of.tolist())
    return states, heads


def test_a_bilinear_probe_finds_heads_that_two_states_tell_together_and_no_others():
    (states, heads), (test, of_test) = planted(300, 0), planted(60, 1)
    accuracy, count = edge_accuracy(states, heads, test, of_test)
    assert accuracy > 0.98 and count == sum(map(len, of_test))
    # Sentences differ in length: what pads the shorter ones is never a head. And one in W words is right by chance.
    rng = np.random.default_rng(2)
    drawn = lambda of: [rng.integers(0, len(heads), len(heads)).tolist() for heads in of]
    assert edge_accuracy(states, drawn(heads), test, drawn(of_test))[0] < 0.4
    alone = [x[:, :8] for x in states], heads, [x[:, :8] for x in test], of_test
    assert edge_accuracy(*alone)[0] < 0.5, "places alone do not tell heads"
    assert edge_accuracy(states, heads, test, of_test, rank=1)[0] < 0.8, "the rank is a limit"


def test_words_that_are_not_asked_do_not_count():
    (states, heads), (test, of_test) = planted(200, 0), planted(40, 1)
    wrong = [[0, *of[1:]] if place % 2 else [NO_HEAD, *of[1:]] for place, of in enumerate(of_test)]
    accuracy, count = edge_accuracy(states, heads, test, [[NO_HEAD, *of[1:]] for of in of_test])
    assert accuracy > 0.98 and count == sum(map(len, of_test)) - 40
    assert edge_accuracy(states, heads, test, wrong)[1] == count + 20
    with pytest.raises(UserError, match="4 training sentences"):
        edge_accuracy(states[:4], heads[:4], test, of_test)
    with pytest.raises(UserError, match="0 test words"):
        edge_accuracy(states, heads, test[:1], [[NO_HEAD] * len(of_test[0])])


def test_a_control_head_is_the_word_itself_the_first_or_the_last_by_its_type():
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in rng.integers(0, 90, 7)] for _ in range(200)]
    true = [(of, [NO_HEAD, 3, 1, NO_HEAD, 0, 2, 6]) for of in words]
    train, test = control_heads(true[:150], true[150:], seed=1)
    behaviour = collections.defaultdict(set)
    for (of, heads), (_, before) in zip([*train, *test], true):
        assert [head == NO_HEAD for head in heads] == [head == NO_HEAD for head in before]
        for place, (word, head) in enumerate(zip(of, heads)):
            if head != NO_HEAD and 0 < place < 6:
                behaviour[word].add({place: "itself", 0: "first", 6: "last"}[head])
    assert len(behaviour) == 90 and all(len(found) == 1 for found in behaviour.values())
    counts = collections.Counter(kind for found in behaviour.values() for kind in found)
    assert set(counts) == {"itself", "first", "last"} and min(counts.values()) > 30 - 4 * np.sqrt(90 * 2 / 9)


def test_heads_are_read_from_their_numbers_and_punctuation_is_not_asked():
    words = ("Dogs", "bark", ",", "he", "said", ".")
    assert read_heads(words, ["2", "5", "2", "5", "0", "5"], "x") == (words, [1, 4, NO_HEAD, 4, NO_HEAD, NO_HEAD])
    for head in ("7", "_", "-1"):
        with pytest.raises(UserError, match=rf"^x: '{head}' is no head in a sentence of 6 words"):
            read_heads(words, [head, *"22222"], "x")


@pytest.mark.usefixtures("quick_compilation")
def test_the_command_writes_each_layer_s_edges(bert_run, tmp_path, capsys):
    names = ("the", "value", "of", "object")
    for file, number in (("train", 40), ("dev", 8), ("test", 8)):
        sentences = [[names[(i + k) % 4] for k in range(3)] for i in range(number)]
        rows = ["".join(f"{k + 1}\t{w}\t_\tX\t_\t_\t{k}\t_\t_\t_\n" for k, w in enumerate(words)) for words in sentences]
        (tmp_path / f"en-ud-{file}.conllu").write_text("\n".join(rows) + "\n")
    ask = ["probe", f"--run={bert_run}", "--edges", f"--config.task_data.directory={tmp_path}", f"--out={tmp_path / 'p.json'}"]
    assert main([*ask, "--task=ud", "--control", "--layers=1"]) == 0
    entry = json.loads((tmp_path / "p.json").read_text())["probes"]["ud_heads"]["1"]
    assert entry["accuracy"] > 0.9 and entry["train_words"] == 80 and entry["test_words"] == 16, "the root is not asked"
    assert entry["selectivity"] == pytest.approx(entry["accuracy"] - entry["control_accuracy"])
    assert "a bilinear probe on each layer" in capsys.readouterr().out
    for more in (["--task=ud", "--code"], ["--task=ner"]):
        assert main([*ask, *more]) == 2 and "--edges reads the heads of --task=ud" in capsys.readouterr().err
