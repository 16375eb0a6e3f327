"""Each task's examples from small files in its published layout."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer
from bertlab.transfer.tasks import TASKS, conll, find_task, load_task


def publish(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return {"directory": str(folder), "dev": "valid"}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def every_split(names, text):
    return dict.fromkeys(names, text)


def pair(label, premise, hypothesis):
    return {"gold_label": label, "sentence1": premise, "sentence2": hypothesis, "labels": [label]}


COLA = "gj04\t1\t\tHe \"ran.\ngj05\t0\t*\tHim ran's.\n"
MNLI = "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA\tB\tneutral\tentailment\n"
MRPC = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA said.\tB "said".\n'
SENTENCES = "index\tsentence1\tsentence2\tlabel\n"
QQP = "id\tquestion1\tquestion2\tis_duplicate\n1\tWhy?\tHow?\t0\n2\tshort\n3\tA?\tB?\t1\n"
SNLI = lines(
    pair("neutral", 'A "dog" runs.', "It is late."),
    pair("-", "Nobody agrees.", "On this."),
    pair("contradiction", "A dog runs.\u2028", "It sleeps."),
)
# A line end is written as \n in most of these tables, and any other backslash stays.
AG_NEWS = '"3","Short ""Sellers""","Dwindling\\band of\\newcomers"\n"1","World \\ news",x\n'
YELP = '"2","Good, ""really"".\\n\\nBack."\n"1","Don\'t.\\tOK \\""so\\"" "\n'
SWAG = (
    ",video-id,startphrase,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    '0,v,"A, b. He","A, b.",He,sits.,stands.,"runs, far.",,2\n'
)
STORY = (
    "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
    "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n"
    'i,Rick.,"He, too.","He said ""no"".",The end.,He left.,"Happy, now.",2\n'
)
INFERENCE = [f"snli_1.0_{split}.jsonl" for split in ("train", "dev", "test")]
SCITAIL = [f"snli_format/scitail_1.0_{split}.txt" for split in ("train", "dev", "test")]
STORY_FILES = [f"cloze_test_{s}__spring2016 - cloze_test_ALL_{s}.csv" for s in ("val", "test")]

# Task: files, classes, and (texts, label) of each example; of a choice: (texts + choices, label).
PUBLISHED = {
    "cola": (
        every_split(["CoLA/train.tsv", "CoLA/dev.tsv"], COLA),
        ("0", "1"),
        [(('He "ran.',), 1), (("Him ran's.",), 0)],
    ),
    "sst2": (
        every_split(["SST-2/train.tsv", "SST-2/dev.tsv"], 'sentence\tlabel\nnot "bad" \t1\n'),
        ("0", "1"),
        [(('not "bad" ',), 1)],
    ),
    "mrpc": (
        every_split(["MRPC/train.tsv", "MRPC/dev.tsv"], MRPC),
        ("0", "1"),
        [(("A said.", 'B "said".'), 1)],
    ),
    "mnli": (
        every_split(["MNLI/train.tsv", "MNLI/dev_matched.tsv"], MNLI),
        ("contradiction", "entailment", "neutral"),
        [(("A", "B"), 1)],
    ),
    "qnli": (
        every_split(
            ["QNLI/train.tsv", "QNLI/dev.tsv"],
            "index\tquestion\tsentence\tlabel\n0\tWhy?\tSo.\tnot_entailment\n",
        ),
        ("entailment", "not_entailment"),
        [(("Why?", "So."), 1)],
    ),
    "rte": (
        every_split(["RTE/train.tsv", "RTE/dev.tsv"], f"{SENTENCES}0\tA.\tB.\tentailment\n"),
        ("entailment", "not_entailment"),
        [(("A.", "B."), 0)],
    ),
    "wnli": (
        every_split(["WNLI/train.tsv", "WNLI/dev.tsv"], f"{SENTENCES}0\tA.\tB.\t1\n"),
        ("0", "1"),
        [(("A.", "B."), 1)],
    ),
    "cb": (
        every_split(
            ["CB/train.jsonl", "CB/val.jsonl"],
            lines({"premise": "A.", "hypothesis": "B", "label": "neutral", "idx": 0}),
        ),
        ("contradiction", "entailment", "neutral"),
        [(("A.", "B"), 2)],
    ),
    "mnli_mismatched": (
        every_split(["train.tsv", "dev_mismatched.tsv"], MNLI),
        ("contradiction", "entailment", "neutral"),
        [(("A", "B"), 1)],
    ),
    "qqp": (
        every_split(["QQP/train.tsv", "QQP/dev.tsv"], QQP),
        ("0", "1"),
        [(("Why?", "How?"), 0), (("A?", "B?"), 1)],
    ),
    "stsb": (
        every_split(["STS-B/train.tsv", "STS-B/dev.tsv"], "sentence1\tsentence2\tscore\na\tb\t2.5"),
        (),
        [(("a", "b"), 2.5)],
    ),
    "boolq": (
        every_split(
            ["BoolQ/train.jsonl", "BoolQ/val.jsonl"],
            lines({"question": "is it", "passage": "It is.", "label": True}),
        ),
        ("false", "true"),
        [(("is it", "It is."), 1)],
    ),
    "snli": (
        every_split(INFERENCE, SNLI),
        ("contradiction", "entailment", "neutral"),
        [(('A "dog" runs.', "It is late."), 2), (("A dog runs.\u2028", "It sleeps."), 0)],
    ),
    "scitail": (
        every_split(SCITAIL, lines(pair("neutral", "A", "B"), pair("entails", "A\tb.", "C."))),
        ("entails", "neutral"),
        [(("A", "B"), 1), (("A\tb.", "C."), 0)],
    ),
    "ag_news": (
        every_split(["train.csv", "test.csv"], AG_NEWS),
        tuple("1234"),
        # A lone backslash is a line end of the news agency.
        [(('Short "Sellers" Dwindling band of newcomers',), 2), (("World   news x",), 0)],
    ),
    "dbpedia": (
        every_split(["train.csv", "test.csv"], '14,"A, Ltd"," A ""b"" c"\n10,Y," An animal"\n'),
        tuple(str(i) for i in range(1, 15)),
        [(('A, Ltd  A "b" c',), 13), (("Y  An animal",), 9)],
    ),
    "yelp_polarity": (
        every_split(["train.csv", "test.csv"], YELP),
        ("1", "2"),
        [(('Good, "really".\n\nBack.',), 1), (('Don\'t.\\tOK \\"so\\" ',), 0)],
    ),
    "yelp_full": (
        every_split(["train.csv", "test.csv"], '"5","Good."\n"3","So, so."\n'),
        tuple("12345"),
        [(("Good.",), 4), (("So, so.",), 2)],
    ),
    "imdb": (
        {f"{split}/{name}": name for split in ("train", "test")
         for name in ("pos/0_7.txt", "neg/2_1.txt", "unsup/0_0.txt")},
        ("neg", "pos"),
        [(("neg/2_1.txt",), 0), (("pos/0_7.txt",), 1)],
    ),
    "trec": (
        every_split(["TREC.train.all", "TREC.test.all"], "HUM:ind Who is it ?\nLOC:city Where ?\n"),
        ("HUM", "LOC"),
        [(("Who is it ?",), 0), (("Where ?",), 1)],
    ),
    "swag": (
        every_split(["train.csv", "val.csv"], SWAG),
        (),
        [(("A, b.", "He sits.", "He stands.", "He runs, far.", "He "), 2)],
    ),
    "story_cloze": (
        every_split(STORY_FILES, STORY + STORY.split("\n")[1].replace("Rick", "Ann")),
        (),
        [
            ((f'{name}. He, too. He said "no". The end.', "He left.", "Happy, now."), 1)
            for name in ("Rick", "Ann")
        ],
    ),
}  # fmt: skip


def check(task, folder, files, labels, expected):
    """Asserts a task's examples in test, and that train and valid have the same together."""
    data = load_task(find_task(task), publish(folder, files))
    assert data.labels == labels
    found = [(one.texts + one.choices, one.label) for one in data.examples["test"]]
    assert found == expected
    train, valid = data.examples["train"], data.examples["valid"]
    together = train if valid == data.examples["test"] else [*train, *valid]
    assert {one.texts + one.choices for one in together} == {texts for texts, _ in expected}


# Of one published file each: train and test are made of it.
ONE_FILE = {
    "codah": ("full_data.tsv", "{0}\tHe {0}\ta.\tb.\tc.\td.\t2\n", "He {0}|a.|b.|c.|d.", 2),
    "sms_spam": ("spam.csv", 'ham,"Hi, {0}",,,\nspam,"Buy {0} \xa3",,,\n', "Buy {0} \xa3", 1),
    "mr": ("rt-polarity.all", "0 dull {0}\n1 na\xefve {0}\n", "na\xefve {0}", 1),
    "subj": ("subj.all", "0 it is {0}\n1 we feel {0}\n", "we feel {0}", 1),
}


@pytest.mark.parametrize("name", ONE_FILE)
def test_tasks_of_one_file(name, tmp_path):
    file, rows, text, label = ONE_FILE[name]
    head = "v1,v2,,,\n" if name == "sms_spam" else ""
    rows = "".join(rows.format(number) for number in range(50))
    (tmp_path / file).write_bytes((head + rows).encode("latin-1"))
    data = load_task(find_task(name), {"directory": str(tmp_path)})
    found = {
        one.texts + one.choices: one.label for split in data.examples.values() for one in split
    }
    assert len(found) == rows.count("\n")
    assert all(found[tuple(text.format(number).split("|"))] == label for number in range(50))


@pytest.mark.parametrize("name", PUBLISHED)
def test_texts_and_labels_as_published(name, tmp_path):
    check(name, tmp_path, *PUBLISHED[name])


def test_every_task_has_its_name():
    assert all(find_task(name).name == name for name in TASKS)


@pytest.mark.parametrize("separator", "\t ")
@pytest.mark.parametrize("end", ["", " ", "\t", " \t "])
def test_white_space_at_the_end_of_a_line_is_no_part_of_a_tag(separator, end, tmp_path):
    rows = [separator.join(row) + end for row in (("a", "B-x"), ("b", "I-x"), ("c", "O"))]
    options = publish(tmp_path, {"a": "\n".join([*rows, "", *rows, ""])})
    task = conll("own", train="a", valid="a", test="a")
    data = load_task(task, options)
    assert data.labels == ("B-x", "I-x", "O") and data.scheme.name == "IOB2"
    assert [one.label for one in data.examples["train"]] == [(0, 1, 2)] * 2
    publish(tmp_path, {"a": "\n".join(rows).replace("I-x", "")})
    with pytest.raises(UserError, match="a:2: 1 columns in place of 2"):
        load_task(task, options)


CONLL = ("eng.train", "eng.testa", "eng.testb")
NEWS = (
    "-DOCSTART- -X- O O\n\nU.N. NNP I-NP I-ORG\nofficial NN I-NP O\n\n\nBonn NNP I-NP I-LOC\n\n"
    "-DOCSTART- -X- O O\n\nx . O O\n"
)


def test_conll_has_documents_and_counts_tags_that_train_lacks(tmp_path):
    files = every_split(CONLL, NEWS) | {"eng.testb": NEWS + "\ny Z O I-MISC\n"}
    data = load_task(find_task("ner"), publish(tmp_path, files))
    first, second, third = data.examples["train"]
    assert data.labels == ("I-LOC", "I-ORG", "O") and data.scheme.name == "IOB1"
    assert (first.words, first.label, first.where[-2:]) == (("U.N.", "official"), (1, 2), ":3")
    assert first.document == second.document == ("U.N.", "official", "Bonn")
    assert (second.document_at, third.document, third.document_at) == (2, ("x",), 0)
    assert data.unseen == ("I-MISC",)
    assert data.examples["test"][-1].label == (3,)
    assert data.notes[-1] == "train lacks tags, whose words count as wrong: I-MISC"


def test_wnut_words_may_hold_spaces_and_wikianns_begin_with_a_language(tmp_path):
    names = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    options = publish(tmp_path, every_split(names, "a b\tB-x\nc\tO\n\t\n\u00a0\tO\n"))
    data = load_task(find_task("wnut17"), options)
    assert [one.words for one in data.examples["test"]] == [("a b", "c"), ("\u00a0",)]
    options = publish(tmp_path, every_split(["train", "dev", "test"], "en:Sioux\tB-ORG\nen::\tO\n"))
    assert load_task(find_task("wikiann"), options).examples["test"][0].words == ("Sioux", ":")


TREEBANK = """# sent_id = {}-1
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3.1\tstop\tstop\tVERB\tVB\t_\t_\t_\t0:x\t_
4\t#\t#\tSYM\tNFP\t_\t3\tpunct\t_\t_

# sent_id = {}-2
1\tBy the way\tby\tADV\tRB\t_\t0\troot\t_\t_
"""
UD = ("en_x-ud-train.a.conllu", "en_x-ud-dev.conllu", "en_x-ud-test.conllu")


def test_conllu_has_syntactic_words(tmp_path):
    options = publish(tmp_path, every_split(UD, TREEBANK))
    data = load_task(find_task("ud"), options)
    first, second = data.examples["test"]
    assert data.labels == ("ADV", "AUX", "PART", "SYM")
    assert (first.words, first.label) == (("Do", "n't", "#"), (1, 2, 3))
    assert second.words == ("By the way",) and (first.id, second.id) == ("{}-1", "{}-2")
    assert load_task(find_task("ud_xpos"), options).labels == ("NFP", "RB", "VB")


CONTEXT = "É\u0301 naïve 🐍 Snake. Snake eats 🐍"


def question(id, *answers, **more):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": "What?", "answers": answers, **more}


def squad(context, *questions):
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]})


def test_squad_answers_are_at_their_characters(tmp_path):
    text = squad(CONTEXT, question("a", ("Snake", 18), ("Snake", 11)), question("b", ("🐍", 29)))
    options = publish(tmp_path, every_split(["train-v1.1.json", "dev-v1.1.json"], text))
    first, second = load_task(find_task("squad1"), options).examples["train"]
    assert first.texts == ("What?", CONTEXT) and first.label is None
    assert first.answers == (Answer("Snake", 18), Answer("Snake", 11))
    assert second.answers == (Answer("🐍", 29),) and (first.id, second.id) == ("a", "b")


def test_squad2_questions_may_lack_an_answer(tmp_path):
    text = squad(CONTEXT, question("a", is_impossible=True), question("b", ("Snake", 11)))
    options = publish(tmp_path, every_split(["train-v2.0.json", "dev-v2.0.json"], text))
    task = find_task("squad2")
    assert task.recipes and not find_task("squad1").recipes
    answers = [one.answers for one in load_task(task, options).examples["train"]]
    assert answers == [(), (Answer("Snake", 11),)]


GOOD, TRAIN = question("b", ("Snake", 11)), "train-v1.1.json"
FILES = {name: files for name, (files, *_) in PUBLISHED.items()}
FILES |= {"ner": every_split(CONLL, NEWS), "ud": every_split(UD, TREEBANK)}
FILES["squad1"] = every_split([TRAIN, "dev-v1.1.json"], squad(CONTEXT, GOOD))
# Task, file, what replaces its text as published above, what is in the message.
REFUSALS = [
    ("cola", "CoLA/dev.tsv", COLA + "x\t1\n", r"dev\.tsv:3: 2 columns in place of 4"),
    ("cola", "CoLA/dev.tsv", COLA.replace("\t0\t", "\t2\t"), r"dev\.tsv:2: the label '2' is not"),
    ("stsb", "STS-B/dev.tsv", "sentence1\tsentence2\tscore\na\tb\tnan", r"dev\.tsv:2: .*nan"),
    ("boolq", "BoolQ/val.jsonl", '{"question": "a"}', r"jsonl:1: .*'passage'"),
    ("snli", "snli_1.0_dev.jsonl", SNLI + "{", r"dev\.jsonl:4: not a JSON object"),
    ("ag_news", "train.csv", AG_NEWS + '"1","a" b","c"\n', r"csv:3: the row is badly quoted"),
    ("swag", "val.csv", SWAG.replace(",2\n", ",4\n"), r"val\.csv:2: .*'4' is not in list"),
    ("trec", "TREC.test.all", "HUM:ind\n", r"TREC\.test\.all:1: "),
    ("boolq", "BoolQ/train.jsonl", '{"question": "a", "passage": "b"}', r"jsonl:1: the label is"),
    ("trec", "TREC.test.all", "\n", r"TREC\.test\.all: there are no examples"),
    ("ner", CONLL[0], "a A B O\nb A O\n", r"eng\.train:2: 3 columns in place of 4"),
    ("ner", CONLL[0], "-DOCSTART- -X- O O\n\n", r"eng\.train: there are no examples"),
    ("ud", UD[0], TREEBANK.replace("SYM", "_"), r"conllu:6: the word '#' has the tag ''"),
    ("ud", UD[0], TREEBANK.replace("4\t#\t#", "4\t#"), r"conllu:6: 9 columns in place of"),
    ("ud", UD[0], TREEBANK.replace("-2", "-1"), r"conllu:9: .*:3 has the same id"),
    *(
        ("squad1", TRAIN, squad(CONTEXT, GOOD, bad), rf"train-v1\.1\.json: article 1.*{message}")
        for bad, message in [
            (question("a", ("Snake", 12)), "question a has an answer that is not at"),
            (question("a", ("🐍", -1)), "question a has an answer that is not at"),
            (question("a"), "question a has 0 answers"),
            (question("a", ("Snake", 11), is_impossible=True), "question a has 1 answers"),
            (GOOD, "has the same id 'b'"),
            ({"question": "?", "answers": []}, "'id'"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "text", "message"), REFUSALS)
def test_files_that_are_not_as_published(name, file, text, message, tmp_path):
    options = publish(tmp_path, FILES[name] | {file: text})
    with pytest.raises(UserError, match=message):
        load_task(find_task(name), options)
