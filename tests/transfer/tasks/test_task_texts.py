"""Texts and pairs with a class, in their published files: texts, labels, order, splits, and the place that an error names."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.tasks import TASKS, find_task, labelled_folders, load_task, table


def publish(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return {"directory": str(folder)}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def inference(pair, label, premise, hypothesis):
    """A record of SNLI: the parses and the annotators' labels are not read."""
    parses = {"sentence1_parse": "(ROOT (X x))", "sentence2_binary_parse": "( x )", "annotator_labels": [label, "neutral"]}
    return {"gold_label": label, "sentence1": premise, "sentence2": hypothesis, "pairID": pair, **parses}


SNLI = lines(
    inference("1r", "neutral", 'A "dog" runs.', "It is late."),
    inference("2r", "-", "Nobody agrees.", "On this."),
    inference("3r", "contradiction", "A dog runs.\u2028", "It sleeps."),
    inference("4r", "entailment", "A dog runs.", ""),
)
# A line end is written as \n, and any other backslash stays.
AG_NEWS = r'''
"3","Short ""Sellers""","Dwindling\band of\newcomers"
"1","Title","World \ news; x"
"4","","Sci/Tech"
"2","T","Sports"
'''.lstrip()
YELP = '"{1}","Good, ""really"".\\n\\nCame back."\n"{0}","Don\'t.\\tOK \\""so\\"" "\n'
TREES = (
    "(3 (2 It) (4 (2 's) (4 (3 good) (2 -LRB-))))\n\n"
    "(0 (1 Bad) (2 (2 and\\/or) (2 (2 É) (2 ``))))\n(1 x)\n(4 (2 y) (2 z))\n(2 w)\n"
)

# Files, classes, and (texts, label) of each split.
PUBLISHED = {
    "snli": (
        {f"snli_1.0_{split}.jsonl": SNLI for split in ("train", "dev", "test")},
        ("contradiction", "entailment", "neutral"),
        [(('A "dog" runs.', "It is late."), 2), (("A dog runs.\u2028", "It sleeps."), 0), (("A dog runs.", ""), 1)],
    ),
    "scitail": (
        {
            f"snli_format/scitail_1.0_{split}.txt": lines(
                inference("1", "neutral", 'Pluto "rotates".', "Earth rotates."), inference("2", "entails", "A\tb.", "C.")
            )
            for split in ("train", "dev", "test")
        },
        ("entails", "neutral"),
        [(('Pluto "rotates".', "Earth rotates."), 1), (("A\tb.", "C."), 0)],
    ),
    "sst5": (
        {f"{split}.txt": TREES for split in ("train", "dev", "test")},
        tuple("01234"),
        [
            (("It 's good -LRB-",), 3),
            (("Bad and\\/or É ``",), 0),
            (("x",), 1),
            (("y z",), 4),
            (("w",), 2),
        ],
    ),
}
# Without a development set: files of one split, classes, and its (texts, label).
WITHOUT_DEV = {
    "ag_news": (
        AG_NEWS,
        tuple("1234"),
        [
            (('Short "Sellers" Dwindling band of newcomers',), 2),  # a lone backslash is a line end of the news agency
            (("Title World   news; x",), 0),
            ((" Sci/Tech",), 3),
            (("T Sports",), 1),
        ],
    ),
    "dbpedia": (
        '14,"E. D. Abbott Ltd"," A book, ""so"" called"\n1,"X"," A company"\n10,"Y"," An animal"\n',
        tuple(str(i) for i in range(1, 15)),
        [(('E. D. Abbott Ltd  A book, "so" called',), 13), (("X  A company",), 0), (("Y  An animal",), 9)],
    ),
    "yelp_polarity": (
        YELP.format(1, 2),
        tuple("12"),
        [(('Good, "really".\n\nCame back.',), 1), (('Don\'t.\\tOK \\"so\\" ',), 0)],
    ),
    "yelp_full": (
        YELP.format(2, 5),
        tuple("12345"),
        [(('Good, "really".\n\nCame back.',), 4), (('Don\'t.\\tOK \\"so\\" ',), 1)],
    ),
}


def found(examples):
    return [(example.texts, example.label) for example in examples]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_splits(name, tmp_path):
    files, labels, expected = PUBLISHED[name]
    data = load_task(find_task(name), publish(tmp_path, files))
    assert data.labels == labels
    for split, examples in data.examples.items():
        assert found(examples) == expected
        file = "dev" if split == "valid" else split
        assert all(f"{file}." in example.where for example in examples)
    assert TASKS[name].metrics == ("accuracy",) and not TASKS[name].kind.symmetric


@pytest.mark.parametrize("name", WITHOUT_DEV)
def test_published_test_sets_are_reported_and_valid_is_a_part_of_train(name, tmp_path):
    text, labels, expected = WITHOUT_DEV[name]
    data = load_task(find_task(name), publish(tmp_path, {"train.csv": text, "test.csv": text}))
    assert data.labels == labels and found(data.examples["test"]) == expected
    together = sorted(data.examples["train"] + data.examples["valid"], key=lambda example: int(example.id))
    assert found(together) == expected and len(data.examples["valid"]) == 1
    assert all("train.csv:" in example.where for example in together)
    assert TASKS[name].metrics == ("accuracy",)


def test_pairs_without_a_majority_are_left_out_of_snli_and_lines_still_count(tmp_path):
    data = load_task(find_task("snli"), publish(tmp_path, PUBLISHED["snli"][0]))
    assert [(example.id, example.where.rpartition(":")[2]) for example in data.examples["train"]] == [
        ("0", "1"), ("2", "3"), ("3", "4")
    ]  # fmt: skip


IMDB = {
    "train/pos/10_9.txt": "Great!<br /><br />\"So\"",
    "train/pos/0_7.txt": "Fine\nfilm",
    "train/neg/0_3.txt": "Bad",
    "train/neg/2_1.txt": "Worse",
    "train/unsup/0_0.txt": "not read",
    "train/urls_pos.txt": "not read",
    "test/pos/0_10.txt": "É",
    "test/neg/1_2.txt": "No",
}  # fmt: skip


def test_imdb_is_a_file_per_review_in_folders(tmp_path):
    data = load_task(find_task("imdb"), publish(tmp_path, IMDB))
    assert data.labels == ("neg", "pos") and found(data.examples["test"]) == [(("No",), 0), (("É",), 1)]
    together = sorted(data.examples["train"] + data.examples["valid"], key=lambda example: example.where)
    assert [(example.id, example.texts[0], example.label) for example in together] == [
        ("neg/0_3", "Bad", 0),
        ("neg/2_1", "Worse", 0),
        ("pos/0_7", "Fine\nfilm", 1),
        ("pos/10_9", 'Great!<br /><br />"So"', 1),
    ]
    assert together[0].where == f"{tmp_path}/train/neg/0_3.txt:1"
    # Another folder by its name, with a slash or without one.
    for given in ("train", "train/", str(tmp_path / "train")):
        examples = load_task(find_task("imdb"), {"directory": str(tmp_path), "test_file": given}).examples
        assert [example.texts[0] for example in examples["test"]] == ["Bad", "Worse", "Fine\nfilm", 'Great!<br /><br />"So"']


def test_phrases_of_the_trees_are_trained_on_and_sentences_are_tested(tmp_path):
    data = load_task(find_task("sst5_phrases"), publish(tmp_path, PUBLISHED["sst5"][0]))
    assert found(data.examples["valid"]) == found(data.examples["test"]) == PUBLISHED["sst5"][2]
    first = [example for example in data.examples["train"] if example.where.endswith(":1")]
    assert [(example.id, *example.texts, example.label) for example in first] == [
        ("0", "It 's good -LRB-", 3),
        ("0-1", "It", 2),
        ("0-2", "'s", 2),
        ("0-3", "good", 3),
        ("0-4", "-LRB-", 2),
        ("0-5", "good -LRB-", 4),
        ("0-6", "'s good -LRB-", 4),
    ]
    # Every bracket of the file is a phrase.
    assert len(data.examples["train"]) == TREES.count("(")


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("snli", "snli_1.0_dev.jsonl", SNLI + "{", r"dev\.jsonl:5: not valid JSON"),
        ("snli", "snli_1.0_dev.jsonl", SNLI + "\n[]\n", r"dev\.jsonl:6: JSON of type list, but each line must be one object"),
        ("snli", "snli_1.0_dev.jsonl", '{"sentence1": "a", "gold_label": "-"}', r"dev\.jsonl:1: the field 'sentence2' is miss"),
        ("snli", "snli_1.0_dev.jsonl", SNLI.replace('"4r"', "4").replace('""', "[1]"), r":4: the field 'sentence2' is missing"),
        ("snli", "snli_1.0_dev.jsonl", SNLI.replace("entailment", "entails"), r"dev\.jsonl:4: .* label 'entails', but"),
        ("scitail", "snli_format/scitail_1.0_dev.txt", "a\tb\tneutral\n", r"dev\.txt:1: not valid JSON"),
        ("sst5", "dev.txt", "(3 (2 It) (2 a)\n", r"dev\.txt:1: a bracket is not closed; expected one tree"),
        ("sst5", "dev.txt", "(3 x)\n(3 (2 It)) (2 a)\n", r"dev\.txt:2: unexpected ' \(2 a\)'; expected one tree"),
        ("sst5", "dev.txt", "(3 x)\n(5 x)\n", r"dev\.txt:2: unexpected '\(5 x\)'"),
        ("sst5", "dev.txt", "(3 x)\n(3 )\n", r"dev\.txt:2: a phrase has no words"),
        ("sst5", "dev.txt", "(3 x)\nIt works\n", r"dev\.txt:2: 'It' is in no phrase"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(name, file, text, message, tmp_path):
    options = publish(tmp_path, PUBLISHED[name][0] | {file: text})
    with pytest.raises(UserError, match=message) as error:
        load_task(find_task(name), options)
    assert str(error.value).startswith(str(tmp_path / file))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ag_news", AG_NEWS + '"5","a","b"\n', r"train\.csv:5: the example has the label '5', but label_names are 1, 2, 3, 4"),
        ("ag_news", AG_NEWS + '"1","a b"\n', r"train\.csv:5: the row has 2 fields, but the table has 3 columns"),
        ("ag_news", AG_NEWS + '"1","a" b","c"\n', r"train\.csv:5: the row that starts here is badly quoted"),
        ("yelp_full", YELP.format(0, 5), r"train\.csv:2: the example has the label '0', but label_names are 1, 2, 3, 4, 5"),
    ],
)
def test_what_is_wrong_in_csv_is_said_with_file_and_line(name, text, message, tmp_path):
    options = publish(tmp_path, {"train.csv": text, "test.csv": WITHOUT_DEV[name][0]})
    with pytest.raises(UserError, match=message):
        load_task(find_task(name), options)


def test_what_is_wrong_in_folders(tmp_path):
    with pytest.raises(UserError, match=r"task 'imdb' found no file train/; put it there"):
        load_task(find_task("imdb"), {"directory": str(tmp_path)})
    options = publish(tmp_path, {name: text for name, text in IMDB.items() if not name.startswith("test/neg")})
    with pytest.raises(UserError, match=r"test/neg: there is no \.txt file; task 'imdb' has one per text"):
        load_task(find_task("imdb"), options)
    publish(tmp_path, IMDB)
    (tmp_path / "test/pos/0_10.txt").write_bytes(b"a\ncaf\xe9")
    with pytest.raises(UserError, match=r"test/pos/0_10\.txt:2: byte 5 \(0xe9\) is not utf-8 text"):
        load_task(find_task("imdb"), options)


def test_your_own_folders_and_json_lines(tmp_path):
    own = labelled_folders("own", train="a/", test="b/", label_names=("no", "yes"), metrics=("accuracy", "f1"))
    files = {f"{split}/{label}/{i}.txt": f"{label} {i}" for split in "ab" for label in ("no", "yes") for i in range(5)}
    data = load_task(own, publish(tmp_path, files))
    assert [example.texts[0] for example in data.examples["test"]] == [
        f"{label} {i}" for label in data.labels for i in range(5)
    ]
    rows = lines(*({"t": f"text {i}", "u": i, "y": i % 2 == 1, "more": [None]} for i in range(10)))
    own = table("own", train="a.jsonl", valid="b.jsonl", text=("u", "t"), label="y", label_names=("false", "true"))
    data = load_task(own, publish(tmp_path, {"a.jsonl": rows, "b.jsonl": rows}) | {"dev": "valid"})
    assert found(data.examples["train"]) == [((f"{i} text {i}",), i % 2) for i in range(10)]
