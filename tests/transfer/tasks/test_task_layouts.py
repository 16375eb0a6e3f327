"""CoNLL columns, CoNLL-U, SQuAD and word in context: what is read, and the place that an error names."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer
from bertlab.transfer.tasks import conll, find_task, load_task

AS_PUBLISHED = {"dev": "valid"}


def write_splits(folder, names, train, *others):
    """The same text as every split, unless others are given."""
    for name, text in zip(names, (train, *others, *[train] * 2)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return {"directory": str(folder)}


CONLL = ("eng.train", "eng.testa", "eng.testb")
ENGLISH = "-DOCSTART- -X- O O\n\nU.N. NNP I-NP I-ORG\nofficial NN I-NP O\n\n\nBonn NNP I-NP I-LOC\n. . O O\n"


def test_conll_columns(tmp_path):
    data = load_task(find_task("ner"), write_splits(tmp_path, CONLL, ENGLISH))
    assert data.labels == ("I-LOC", "I-ORG", "O")
    for split in ("train", "valid", "test"):
        first, second = data.examples[split]
        assert (first.words, first.label) == (("U.N.", "official"), (1, 2))
        assert (second.words, second.label) == (("Bonn", "."), (0, 2))
        assert (first.id, second.id) == ("0", "1")
        assert first.where.endswith(":3") and second.where.endswith(":7") and first.texts == ()


def test_columns_by_tabs_hold_spaces_and_a_blank_line_may_hold_a_tab(tmp_path):
    text = "a b\tB-x\nc\tO\n\t\n\u00a0\tO\n"
    names = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    options = write_splits(tmp_path, names, text)
    (tmp_path / "emerging.test.conll").write_text("a\tB-x,B-y\n")
    for name in ("wnut17", "ner"):
        data = load_task(find_task(name), options)
        assert [example.words for example in data.examples["test"]] == [("a b", "c"), ("\u00a0",)]
        assert data.labels == ("B-x", "O")


@pytest.mark.parametrize("separator", "\t ")
@pytest.mark.parametrize("end", [" ", "\t", " \t ", "\t\t"])
def test_white_space_at_the_end_of_a_line_is_no_part_of_a_tag(separator, end, tmp_path):
    lines = [separator.join(row) for row in (("a", "B-x"), ("b", "I-x"), ("c", "O"))]
    text = "".join(f"{line}{end if i == at else ''}\n" for at in range(3) for i, line in enumerate([*lines, ""]))
    own = conll("own", train="a", valid="a", test="a")
    (tmp_path / "a").write_text(text)
    data = load_task(own, {"directory": str(tmp_path)})
    assert data.labels == ("B-x", "I-x", "O")
    assert [(of.words, of.label) for of in data.examples["train"]] == [(("a", "b", "c"), (0, 1, 2))] * 3
    # A word that has lost its tag, and one whose tag is not among those that are asked for, are named by their own lines.
    for change, names, message in (
        (("I-x", ""), (), "a:2: 1 columns, expected 2"),
        (("I-x", "I-y"), data.labels, "a:2: word 2 of the sentence, 'b', has the tag 'I-y', but label_names are B-x, I-x, O"),
    ):
        (tmp_path / "a").write_text(text.replace(*change))
        with pytest.raises(UserError, match=message):
            load_task(conll("own", train="a", valid="a", test="a", label_names=names), {"directory": str(tmp_path)})


def test_wikiann_words_begin_with_their_language(tmp_path):
    data = load_task(find_task("wikiann"), write_splits(tmp_path, ("train", "dev", "test"), "en:Sioux\tB-ORG\nen::\tO\n\n"))
    assert data.examples["train"][0].words == ("Sioux", ":")


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ("", r"eng\.testa: .*no examples"),
        ("-DOCSTART- -X- O O\n\n", r"eng\.testa: .*no examples"),
        ("a A B O\nb A O\n", r"eng\.testa:2: 3 columns, expected 4; every line needs a word and a tag"),
        ("a\n", r"eng\.testa:1: 1 columns, expected 2; every line needs a word and a tag"),
    ],
)
def test_what_is_wrong_in_columns_is_said_with_its_line(tmp_path, dev, message):
    options = write_splits(tmp_path, CONLL, ENGLISH, dev)
    with pytest.raises(UserError, match=message):
        load_task(find_task("ner"), options)


def test_a_development_set_may_lack_a_tag(tmp_path):
    data = load_task(find_task("ner"), write_splits(tmp_path, CONLL, ENGLISH, "a X X O\n", "b X X O\n"))
    assert data.examples["valid"][0].label == (2,)


def test_other_columns(tmp_path):
    own = conll("own", train="a", word=1, tag=0)
    (tmp_path / "a").write_text("O\tx\n\nB\ty\n\nO\tz\n")
    examples = load_task(own, {"directory": str(tmp_path)}).examples
    found = {example.words + example.label for split in examples.values() for example in split}
    assert found == {("x", 1), ("y", 0), ("z", 1)}
    (tmp_path / "a").write_text("\tx\n\nB\ty\n")
    (tmp_path / "b").write_text("B\t\n\nB\ty\n")
    with pytest.raises(UserError, match=r"b:1: 1 columns, expected 2; every line needs a word and a tag"):
        load_task(own, {"directory": str(tmp_path), "train_file": "b"})


TREE = """# newdoc id = d
# sent_id = {}-1
# text = Don't stop #
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tstop\tstop\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tstop\tstop\tVERB\tVB\t_\t_\t_\t0:x\t_
4\t#\t#\tSYM\tNFP\t_\t3\tpunct\t_\t_

# sent_id = {}-2
1\tBy the way\tby\tADV\tRB\t_\t0\troot\t_\t_

"""
UD = ("en_x-ud-train.a.conllu", "en_x-ud-dev.conllu", "en_x-ud-test.conllu")


def test_conllu_has_syntactic_words_alone(tmp_path):
    options = write_splits(tmp_path, UD, TREE)
    data = load_task(find_task("ud"), options)
    first, second = data.examples["test"]
    assert data.labels == ("ADV", "AUX", "PART", "SYM", "VERB")
    assert (first.words, first.label) == (("Do", "n't", "stop", "#"), (1, 2, 4, 3))
    assert second.words == ("By the way",) and (first.id, second.id) == ("{}-1", "{}-2")
    assert first.where.endswith(":1") and second.where.endswith(":11")
    xpos = load_task(find_task("ud_xpos"), options)
    assert xpos.labels == ("NFP", "RB", "VB") and xpos.examples["train"][0].label == (2, 1, 2, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4\t#\t#", "4\t#", r"dev\.conllu:9: 9 columns, but CoNLL-U has 10"),
        ("4\t#\t#", "x\t#\t#", r"dev\.conllu:9: 'x' is not a word id"),
        ("SYM", "_", r"dev\.conllu:9: the word '#' has the tag '';"),
        ("{}-2", "{}-1", r"dev\.conllu:11: .*dev\.conllu:1 also has the sent_id '{}-1'"),
    ],
)
def test_what_is_wrong_in_conllu_is_said_with_its_line(tmp_path, old, new, message):
    options = write_splits(tmp_path, UD, TREE, TREE.replace(old, new))
    with pytest.raises(UserError, match=message):
        load_task(find_task("ud"), options)


def question(id, text, *answers, **more):
    return {"id": id, "question": text, "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


def write_squad(folder, *paragraphs, file="train-v1.1.json", indent=None):
    held = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": c, "qas": q} for c, q in paragraphs]}]}
    (folder / file).write_text(json.dumps(held, ensure_ascii=False, indent=indent), encoding="utf-8")


CONTEXT = "É\u0301 naïve 🐍 Snake. Snake eats 🐍"


def test_squad_answers_are_at_their_characters(tmp_path):
    questions = [question("a", "What? ", ("Snake", 18), ("Snake", 11)), question("b", "Which?", ("🐍", 29))]
    assert CONTEXT[29] == "🐍", "astral characters are one"
    write_squad(tmp_path, (CONTEXT, questions), ("", []))
    write_squad(tmp_path, (CONTEXT, questions[:1]), file="dev-v1.1.json")
    data = load_task(find_task("squad1"), {"directory": str(tmp_path), **AS_PUBLISHED})
    first, second = data.examples["train"]
    assert data.labels == () and first.texts == ("What? ", CONTEXT) and first.label is None
    assert first.answers == (Answer("Snake", 18), Answer("Snake", 11)) and second.answers == (Answer("🐍", 29),)
    assert (first.id, second.id) == ("a", "b") and first.where.endswith("train-v1.1.json: question a")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (question("a", "?", ("Snake", 12)), r"question a: .*'Snake' is not at character 12 .* at 11, 18;"),
        (question("a", "?", ("🐍", -1)), r"question a: the answer '🐍' is not at character -1"),
        (question("a", "?", (" ", 1)), r"question a: an answer is empty"),
        (question("a", "?"), r"question a has no answer; "),
        (question("a", "?", is_impossible=True), r"question a has no answer .*; read the file as task 'squad2'"),
        (question("b", "?", ("Snake", 11)), r"question b: the id occurs twice"),
        ({"id": "a", "question": "?"}, r"question a: 'answers' is missing, or its type is not list"),
        (question('"\\', "id: b?"), r'question "\\ has no answer'),
        ({"question": "?", "answers": []}, r"a question: 'id' is missing, or its type is not str"),
        (
            {"id": "a", "answers": [{"text": "Snake", "answer_start": "11"}]},
            r"question a: 'answer_start' is missing, or its type is not int",
        ),
        ([], r"a question: 'id' is missing"),
    ],
)
def test_what_is_wrong_in_squad_is_said_with_its_question(tmp_path, bad, message):
    write_squad(tmp_path, (CONTEXT, [question("b", "?", ("Snake", 11))]), file="dev-v1.1.json")
    for indent in (None, 1):
        write_squad(tmp_path, (CONTEXT, [question("b", "?", ("Snake", 11)), bad]), indent=indent)
        lines = (tmp_path / "train-v1.1.json").read_text(encoding="utf-8").splitlines()
        # Of an id that occurs twice it is the second.
        line = "" if "id" not in bad else f":{max(i for i, text in enumerate(lines, 1) if json.dumps(bad['id']) in text)}"
        with pytest.raises(UserError, match=rf"train-v1\.1\.json{line}: {message}"):
            load_task(find_task("squad1"), {"directory": str(tmp_path)})


def test_squad_files_that_are_none(tmp_path):
    write_squad(tmp_path, (CONTEXT, [question("b", "?", ("Snake", 11))]), file="dev-v1.1.json")
    for text, message in (
        ('{"data": [\n}', r"train-v1\.1\.json:2: not valid JSON"),
        ("[]", r"'data' is missing, or its type is not list"),
        ("[" * 100_000, r"train-v1\.1\.json: not valid JSON \(its brackets nest too deeply\)"),
    ):
        (tmp_path / "train-v1.1.json").write_text(text)
        with pytest.raises(UserError, match=message):
            load_task(find_task("squad1"), {"directory": str(tmp_path)})


def test_squad2_questions_may_lack_an_answer(tmp_path):
    none = question("a", "?", is_impossible=True, plausible_answers=[{"text": "no such", "answer_start": 0}])
    for file in ("train-v2.0.json", "dev-v2.0.json"):
        write_squad(tmp_path, (CONTEXT, [none, question("b", "?", ("Snake", 11), is_impossible=False)]), file=file)
    task = find_task("squad2")
    data = load_task(task, {"directory": str(tmp_path), **AS_PUBLISHED})
    assert task.kind.may_lack_answer and not find_task("squad1").kind.may_lack_answer
    assert [len(example.answers) for example in data.examples["train"]] == [0, 1]
    for bad in (question("c", "?", is_impossible=False), question("c", "?", ("Snake", 11), is_impossible=True)):
        write_squad(tmp_path, (CONTEXT, [bad]), file="train-v2.0.json")
        with pytest.raises(UserError, match=r"question c has (no answer|answers and is_impossible); "):
            load_task(task, {"directory": str(tmp_path)})


def test_triviaqas_answers_are_matched_in_lower_case_and_get_the_words_of_the_context(tmp_path):
    context = "The İstanbul RIVER is the Nile ."
    lower = context.lower()
    assert len(lower) == len(context) + 1, "a place in the lower case is not that in the context"
    found = lambda id, text: question(id, "?", (text, lower.find(text)), qid=id)
    train = [found("a--x.txt", "nile"), found("b--x.txt", "river"), question("c--x.txt", "?"), found("d--x.txt", "the")]
    write_squad(tmp_path, (context, train), ("Nothing .", [question("e--y.txt", "?")]), file="train-v1.2.json")
    write_squad(tmp_path, (context, train[2:]), file="dev-v1.2.json")
    data = load_task(task := find_task("triviaqa"), {"directory": str(tmp_path), **AS_PUBLISHED})
    answers = {example.id: example.answers for example in data.examples["train"]}
    assert answers == {"a--x.txt": (Answer("Nile", 26),), "b--x.txt": (Answer("RIVER", 13),), "d--x.txt": (Answer("The", 0),)}
    assert context[26:30] == "Nile" and [example.id for example in data.examples["test"]] == ["d--x.txt"]
    assert task.metrics == ("span_f1", "exact_match") and task.kind == find_task("squad1").kind
    # An answer that is not there is a mistake, as in SQuAD.
    write_squad(tmp_path, (context, [question("f--x.txt", "?", ("nile", 3))]), file="train-v1.2.json")
    with pytest.raises(UserError, match=r"question f--x.txt: the answer 'nile' is not at character 3 of its context"):
        load_task(task, {"directory": str(tmp_path)})
    # SQuAD's own files need their answers, in their own letters.
    write_squad(tmp_path, (context, []), file="dev-v1.1.json")
    write_squad(tmp_path, (context, [question("g", "?", ("nile", 26))]))
    with pytest.raises(UserError, match=r"question g: the answer 'nile' is not at character 26"):
        load_task(find_task("squad1"), {"directory": str(tmp_path)})


WIC = "place\tN\t1-2\tThe place .\tNo  other place !\nrun\tV\t0-0\tRun on\tRuns\n"


def test_word_in_context(tmp_path):
    write_splits(tmp_path, ("train/train.data.txt", "dev/dev.data.txt"), WIC)
    write_splits(tmp_path, ("train/train.gold.txt", "dev/dev.gold.txt"), "F\nT\n", "T\nT\n")
    data = load_task(find_task("wic"), {"directory": str(tmp_path), **AS_PUBLISHED})
    assert data.labels == ("F", "T") and [example.label for example in data.examples["train"]] == [0, 1]
    assert [example.label for example in data.examples["test"]] == [1, 1]
    cut = [[text[slice(*target)] for text, target in zip(e.texts, e.targets)] for e in data.examples["train"]]
    assert cut == [["place", "place"], ["Run", "Runs"]]


@pytest.mark.parametrize(
    ("data", "gold", "message"),
    [
        (WIC, "F\n", r"train\.gold\.txt: 1 labels for the 2 examples of train\.data\.txt"),
        (WIC, "F\n\nX\n", r"train\.gold\.txt:3: 'X' must be T if"),
        (WIC.replace("0-0", "0-1"), "F\nT\n", r"train\.data\.txt:2: .*'Runs' has 1 words and no word 1"),
        (WIC.replace("0-0", "0"), "F\nT\n", r"train\.data\.txt:2: '0' must be the positions of the word"),
        (WIC + "a\tN\t0-0\tb\n", "F\nT\nF\n", r"train\.data\.txt:3: 4 fields, expected 5"),
        (WIC, None, r"train\.data\.txt: put its labels in train\.gold\.txt"),
    ],
)
def test_what_is_wrong_in_word_in_context(tmp_path, data, gold, message):
    write_splits(tmp_path, ("train.data.txt", "dev.data.txt"), data, WIC)
    (tmp_path / "dev.gold.txt").write_text("F\nT\n")
    if gold is not None:
        (tmp_path / "train.gold.txt").write_text(gold)
    with pytest.raises(UserError, match=message):
        load_task(find_task("wic"), {"directory": str(tmp_path)})
