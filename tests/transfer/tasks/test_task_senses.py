"""Word senses: the published files, the official score, and a run's answers compared with nearest means worked out by hand."""

import functools
import json

import numpy as np
import pytest

import bertlab
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.finetune import finetune
from bertlab.transfer.inputs import Inputs, Layout
from bertlab.transfer.kinds.sense import Sense, SenseHead
from bertlab.transfer.scorers import sense_f1
from bertlab.transfer.tasks import OPTIONS, find_task, load_task
from bertlab.transfer.tasks.senses import read_first_senses
from tests.transfer.test_inputs import LetterTokenizer

HEAD = '<?xml version="1.0" encoding="UTF-8" ?>\n<corpus lang="en" source="x">\n<text id="d000">\n'
SENTENCE = """<sentence id="{id}">
<wf lemma="the" pos="DET">The</wf>
<instance id="{id}.t000" lemma="{lemma}" pos="NOUN">{word}</instance>
<wf lemma="is" pos="VERB">{verb}</wf>
<instance id="{id}.t001" lemma="Look_up" pos="VERB">looked up</instance>
</sentence>
"""
INDEX = """bank%1:14:00:: 08420278 1 20
bank%1:17:01:: 09213565 2 25
look_up%2:32:00:: 00877083 1 5
ship%1:06:00:: 04194289 1 30
good%5:00:00:near:00 00106277 1 3
good%3:00:01:: 01123148 2 190
"""


def framework(folder, train, test):
    """A corpus with the published layout: each sentence is (lemma, word, verb, senses of the noun)."""
    for name, sentences in (("Training_Corpora/SemCor/semcor", train), ("Evaluation_Datasets/ALL/ALL", test)):
        path = folder / f"{name}.data.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = [f"d000.s{number:03}" for number in range(len(sentences))]
        body = "".join(SENTENCE.format(id=i, lemma=s[0], word=s[1], verb=s[2]) for i, s in zip(ids, sentences))
        path.write_text(f"{HEAD}{body}</text>\n</corpus>\n")
        keys = "".join(f"{i}.t000 {s[3]}\n{i}.t001 look_up%2:32:00::\n" for i, s in zip(ids, sentences))
        (folder / f"{name}.gold.key.txt").write_text(keys)
    (folder / "index.sense").write_text(INDEX)
    return folder


@pytest.fixture
def data(tmp_path):
    money, river = "bank%1:14:00::", "bank%1:17:01::"
    train = [
        ("bank", "bank", "lends", money),
        ("bank", "bank", "floods", f"{river} {money}"),
        ("bank", "Banks", "lends", money),
    ]
    test = [("bank", "bank", "lends", money), ("ship", "ship", "sails", "ship%1:06:01:: ship%1:06:00::")]
    return framework(tmp_path / "WSD_Evaluation_Framework", train, test)


def loaded(name, directory):
    return load_task(find_task(name), {**OPTIONS, "directory": str(directory)}).examples


def test_the_framework_s_files(data):
    found = loaded("wsd", data)
    assert found["valid"] == found["train"] and [len(found[split]) for split in ("train", "test")] == [6, 4]
    bank, look_up, flooded, *_ = found["train"]
    assert bank.words == ("The", "bank", "lends", "looked", "up") and bank.targets == ((1, 2),)
    assert (bank.group, bank.label, bank.choices) == ("bank#NOUN", ("bank%1:14:00::",), ("bank%1:14:00::",))
    assert look_up.group == "look_up#VERB" and look_up.targets == ((3, 5),), "an expression of two words is one instance"
    assert flooded.label == ("bank%1:17:01::", "bank%1:14:00::"), "any of several senses is right"
    assert found["test"][2].group == "ship#NOUN" and find_task("wsd").is_in(data) and not find_task("wsd").is_in(data.parent)


def test_few_labels_are_few_in_valid_too(data):
    """`valid` decides the senses, so a limit of `train` alone would change nothing."""
    few = load_task(find_task("wsd"), {**OPTIONS, "directory": str(data), "limit": 2}).examples
    assert len(few["train"]) == 2 and few["valid"] == few["train"] and len(few["test"]) == 4


def test_first_senses_are_wordnets(tmp_path):
    (tmp_path / "index.sense").write_text(f"{INDEX}\n\n")
    found = read_first_senses(tmp_path / "index.sense")
    assert found["bank#NOUN"] == "bank%1:14:00::" and found["look_up#VERB"] == "look_up%2:32:00::"
    assert found["good#ADJ"] == "good%5:00:00:near:00", "a satellite is an adjective"


def test_the_folders_of_coarse_wsd_20(tmp_path):
    for word, classes in (("bank", ["bank_finance", "bank_river"]), ("apple", ["apple_inc", "apple_fruit"])):
        (tmp_path / word).mkdir()
        (tmp_path / word / "classes_map.txt").write_text(json.dumps(dict(zip("01", classes))))
        for split in ("train", "test"):
            (tmp_path / word / f"{split}.data.txt").write_text(f"1\tthe {word} here\n0\t{word} there\n")
            (tmp_path / word / f"{split}.gold.txt").write_text("0\n1\n\n")
    marked = tmp_path / "bank/classes_map.txt"
    marked.write_text(f"\ufeff{marked.read_text()}", encoding="utf-8")
    with (tmp_path / "apple/test.data.txt").open("a") as lines:
        lines.write("\n\n")
    found = loaded("coarse_wsd", tmp_path)
    assert [example.label for example in found["train"]] == [
        ("apple_inc",),
        ("apple_fruit",),
        ("bank_finance",),
        ("bank_river",),
    ]
    assert [(example.group, example.targets) for example in found["test"][1:3]] == [("apple", ((0, 1),)), ("bank", ((1, 2),))]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "Evaluation_Datasets/ALL/ALL.gold.key.txt",
            "d000.s000.t000 x\n",
            "instance d000.s000.t001: its gold file has no line",
        ),
        ("Evaluation_Datasets/ALL/ALL.gold.key.txt", "d000.s000.t000\n", r"key.txt:1: expected an instance and its senses"),
        (
            "Evaluation_Datasets/ALL/ALL.data.xml",
            '<?xml version="1.0" encoding="UTF-0"?><a/>',
            r"xml:1: unknown encoding: UTF-0",
        ),
        ("Evaluation_Datasets/ALL/ALL.gold.key.txt", None, "put its senses beside it"),
        ("Evaluation_Datasets/ALL/ALL.data.xml", "<corpus>\n<text>", r"ALL.data.xml:2: not valid XML \(no element found"),
        (
            "Training_Corpora/SemCor/semcor.data.xml",
            "<sentence><instance lemma='a' pos='NOUN'>a</instance></sentence>",
            "instance None: expected an id, a lemma",
        ),
        ("index.sense", "bank 1\n", r"index.sense:1: expected WordNet's"),
        ("index.sense", None, "task 'wsd' found no index.sense; put WordNet 3.0's dict/index.sense there"),
    ],
)
def test_files_that_are_not_as_published_are_refused(data, file, text, message):
    (data / file).unlink() if text is None else (data / file).write_text(text)
    with pytest.raises(UserError, match=message):
        loaded("wsd", data)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train.gold.txt", "0\n", r"train.gold.txt: 1 classes for the 2 sentences"),
        ("train.gold.txt", "0\n2\n", r"train.gold.txt:2: '2' is not one of the classes 0, 1"),
        ("train.data.txt", "1\tbank\n0\tbank\n", r"train.data.txt:1: expected a word's number"),
        ("train.data.txt", "²\tbank a\n0\tbank b\n", r"train.data.txt:1: expected a word's number"),
        ("classes_map.txt", '{"0": "a", "1": ["b"]}', r"classes_map.txt: 1 must be text, not \"\['b'\]\"; give"),
        ("test.data.txt", None, r"test.data.txt is missing"),
    ],
)
def test_folders_that_are_not_as_published_are_refused(tmp_path, file, text, message):
    (tmp_path / "bank").mkdir()
    for split in ("train", "test"):
        (tmp_path / "bank" / f"{split}.data.txt").write_text("0\tbank a\n0\tbank b\n")
        (tmp_path / "bank" / f"{split}.gold.txt").write_text("0\n1\n")
    (tmp_path / "bank/classes_map.txt").write_text('{"0": "a", "1": "b"}')
    path = tmp_path / "bank" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UserError, match=message):
        loaded("coarse_wsd", tmp_path)


def test_the_official_score():
    """Of five words four are answered and three right: P = 3/4, R = 3/5, F1 = 2/3."""
    gold = [("a",), ("b", "c"), ("d",), ("e",), ("f",)]
    predicted = ["a", "c", "x", "e", None]
    precision, recall = 3 / 4, 3 / 5
    assert sense_f1(gold, predicted) == pytest.approx(2 * precision * recall / (precision + recall)) == pytest.approx(2 / 3)
    assert sense_f1(gold, ["a", "b", "d", "e", "g"]) == 4 / 5, "the accuracy, if all are answered"
    assert sense_f1(gold, [None] * 5) == 0


def words(*group_label_first):
    return [
        Example(id=f"{n}", where="f", words=("a",), targets=((0, 1),), group=group, label=label, choices=first)
        for n, (group, label, first) in enumerate(group_label_first)
    ]


def test_the_nearest_mean_decides_and_the_first_sense_where_training_lacks_the_word():
    """Two senses with means (1, 0) and (0, 1), the second of two states; another word's sense is nearer but does not count."""
    kind = Sense()
    train = words(
        ("bank", ("money",), ()),
        ("bank", ("river",), ()),
        ("bank", ("river",), ()),
        ("ship", ("boat",), ()),
        ("bank", ("both", "money"), ()),
        ("bank", ("river",), ()),
    )
    states = np.float32([[1, 0], [0.2, 1], [-0.2, 1], [0.6, 0.8], [1, 0], [0, 1]])
    valid = kind.predict(train, (), {"state": states}, None, None)
    none, _ = kind.finish(valid, valid, None)
    assert {line["gold"] for line in none} == {None} and all("state" not in line for line in none)
    test = words(("bank", ("money",), ("money",)), ("bank", ("river",), ()), ("tree", ("oak",), ("oak",)))
    lines = kind.predict(test, (), {"state": np.float32([[2, 1.9], [0.1, 0.2], [1, 0]])}, None, None)
    found, _ = kind.finish(lines, valid, None)
    assert [line["predicted"] for line in found] == ["money", "river", "oak"]
    assert json.dumps(found) and [line["gold"] for line in found] == [["money"], ["river"], ["oak"]]
    answers = [line["predicted"] for line in kind.most_frequent(train, (), found)]
    assert answers == ["money", "river", "oak"], "the first sense, or the most frequent in training"


def test_a_long_sentence_is_shown_from_where_its_word_fits():
    example = Example(id="0", where="f:1", words=tuple("abcdefghij"), targets=((8, 9),), group="i", label=("x",))
    [row], _, cut = Sense().encode(Inputs(LetterTokenizer(), Layout("pair", 6)), [example])
    assert row["tokens"][row["word_at"]] == LetterTokenizer().encode("i")[0] and row["tokens"][0] == 2
    assert cut == {"examples": 1, "of_examples": 1, "words": 6, "of_words": 10}
    early = Example(id="0", where="f:1", words=("abc", "de", "f"), targets=((0, 2),), group="i", label=None)
    for first_piece, letter in ((True, "a"), (False, "e")):
        [row] = Sense().encode(Inputs(LetterTokenizer(), Layout("pair", 9, first_piece=first_piece)), [early])[0]
        assert row["tokens"][row["word_at"]] == LetterTokenizer().encode(letter)[0] and row["label"] == -1
    long = Example(id="0", where="f:1", words=("abcdefgh",), targets=((0, 1),), group="i", label=None)
    with pytest.raises(UserError, match=r"^f:1: 'abcdefgh' does not fit into 6 pieces"):
        Sense().encode(Inputs(LetterTokenizer(), Layout("pair", 6, first_piece=False)), [long])


def test_nothing_random_may_lie_between_a_layer_and_its_score():
    with pytest.raises(UserError, match="bilstm=1 would stay at random values"):
        SenseHead(bilstm=1)
    for recipe in ("elmo", "taglm", "bert_features"):
        assert Sense().recipe(recipe)["head.bilstm"] == 0


def state_of(model, layer, example):
    """Of its second word."""
    return model.encode([list(example.words)], [layer], pretokenized=True)[0].states[0, 1].astype(np.float64)


@pytest.mark.usefixtures("quick_compilation")
def test_a_run_answers_by_the_states_of_the_layer_that_it_is_asked_for(bert_run, data, tmp_path):
    """The answers are those of states that `bertlab.load` gives, compared here one by one."""
    money, river = "bank%1:14:00::", "bank%1:17:01::"
    train = [
        ("bank", "bank", verb, (money, river)[n % 2]) for n, verb in enumerate(("lends", "floods", "the", "a", "of", "value"))
    ]
    framework(data, train, [("bank", "bank", verb, money) for verb in ("lends", "floods", "module", "object")])
    overrides = {"task_data.directory": str(data), "data.batch_size": 4, "mesh.data": 1}
    model, scores = bertlab.load(bert_run), {}
    for layer in (0, 1):
        workdir = tmp_path / str(layer)
        result = finetune(bert_run, "wsd", workdir, overrides | {"head.layers": f"layer:{layer}"}, recipe="probe")
        assert result["step"] == 0 and result["metrics"]["valid"].keys() == {"loss", "wsd/loss"}
        lines = [json.loads(line) for line in (workdir / "predictions/test.jsonl").read_text().splitlines()]
        nouns = lambda split: [example for example in loaded("wsd", data)[split] if example.group == "bank#NOUN"]
        state = functools.partial(state_of, model, layer)
        means = {sense: np.mean([state(e) for e in nouns("train") if e.label == (sense,)], axis=0) for sense in (money, river)}
        cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        expected = [max(means, key=lambda sense: cosine(state(e), means[sense])) for e in nouns("test")]
        assert [line["predicted"] for line in lines if line["word"] == "bank#NOUN"] == expected
        right = sum(sense == money for sense in expected) + 4  # the other word of each sentence has one sense
        scores[layer] = result["metrics"]["test"]["wsd/sense_f1"]
        assert scores[layer] == pytest.approx(right / 8)
    assert json.loads((tmp_path / "1/most_frequent.json").read_text())["test"] == {"wsd/sense_f1": 1.0}
