"""Generated files: what fits a format is read as it was written, and what does not fit gives one sentence that names the file.

hypothesis makes the files, the same ones every time; `make damage ROUNDS=1000` makes more of them.
"""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bertlab.data.corpora import open_corpus
from bertlab.data.vocabularies import SPECIALS
from bertlab.interop import glove, word2vec
from bertlab.interop.words import read_words
from bertlab.transfer.evaluate import read_pairs
from bertlab.transfer.load import read_lines
from bertlab.transfer.similarity import read_questions, read_ratings
from bertlab.transfer.tasks import find_task, load_task
from bertlab.transfer.tasks.table import read_rows
from tests.faults.damage import ROUNDS, complaint
from tests.faults.readers import PACKED, READERS
from tests.hostile_text import hostile_texts


def generated(share: float = 1.0):
    """The settings of a test, and its share of the usual number of files."""
    fixture = HealthCheck.function_scoped_fixture  # each file overwrites the one before
    return settings(
        max_examples=max(1, round(ROUNDS * share)),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def texts(without: str = "", empty: bool = True):
    """Any Unicode without these characters, and the texts at which tokenizers differ."""
    drawn = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(hostile_texts(60, seed=0))
    return drawn.map(lambda text: "".join(c for c in text if c not in without)).filter(lambda text: empty or text)


WORD = texts().map(lambda text: "".join(text.split())).filter(bool)
LINE = texts(without="\n")
FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
    max_leaves=5,
)
ENDING = st.sampled_from(["\n", "\r\n"])
MARK = st.sampled_from(["", "\ufeff"])


@pytest.mark.parametrize("packing", PACKED)
@generated(0.5)
@given(lines=st.lists(LINE, min_size=1), ending=ENDING, mark=MARK)
def test_a_corpus_keeps_every_character_but_white_space(tmp_path, packing, lines, ending, mark):
    content = (mark + ending.join(lines)).encode()
    (tmp_path / f"a.txt{packing.replace('__', '.')}").write_bytes(PACKED[packing](content))
    written, documents = content.decode("utf-8-sig").split("\n"), [""]
    for line in written:
        documents += [""] if not line.strip() else []
        documents[-1] += "".join(line.split())
    assume(any(documents))
    found = ["".join("".join(document.sentences).split()) for document in open_corpus(f"text:{tmp_path}/*").documents()]
    assert found == [document for document in documents if document]


@generated()
@given(records=st.lists(st.tuples(texts(), JSON), min_size=1), ascii=st.booleans())
def test_json_lines_of_a_corpus_keep_their_text(tmp_path, records, ascii):
    lines = [json.dumps({"text": text, "more": more}, ensure_ascii=ascii) for text, more in records]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), newline="")
    written = ["".join(text.split()) for text, _ in records]
    assume(any(written))
    found = ["".join("".join(document.sentences).split()) for document in open_corpus(f"text:{tmp_path}/*").documents()]
    assert found == [text for text in written if text]


@pytest.mark.parametrize("packing", ["", "__gz", "__xz"])
@generated(0.5)
@given(lines=st.lists(texts(without="\n\r"), min_size=1), ending=ENDING)
def test_lines_are_read_as_written(tmp_path, packing, lines, ending):
    path = tmp_path / f"a{packing.replace('__', '.')}"
    path.write_bytes(PACKED[packing]("".join(line + ending for line in ["first", *lines]).encode()))
    assert read_lines(path, "--text") == ["first", *lines]


@generated()
@given(rows=st.lists(st.tuples(*[texts(without="\t\n\r")] * 3), min_size=1), ending=ENDING, mark=MARK)
def test_a_tsv_table_is_read_as_written(tmp_path, rows, ending, mark):
    rows = [row for row in rows if "".join(row).strip()]  # a line of white space is no row
    table = mark + "".join("\t".join(row) + ending for row in [("a", "b", "c"), *rows])
    (tmp_path / "a.tsv").write_text(table, encoding="utf-8", newline="")
    found = [(row["a"], row["b"], row["c"]) for _, row in read_rows(tmp_path / "a.tsv", ("a", "b", "c"))]
    assert found == rows


@generated()
@given(rows=st.lists(st.tuples(*[texts(without="\r")] * 3), min_size=1), ending=ENDING, mark=MARK)
def test_a_csv_table_is_read_as_written(tmp_path, rows, ending, mark):
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=ending).writerows([("a", "b", "c"), *rows])
    (tmp_path / "a.csv").write_text(mark + written.getvalue(), encoding="utf-8", newline="")
    found = [(row["a"], row["b"], row["c"]) for _, row in read_rows(tmp_path / "a.csv", ("a", "b", "c"))]
    assert found == rows


@generated()
@given(
    number=st.integers(0, 7),
    rows=st.lists(st.lists(texts(without="\r"), max_size=5), max_size=5),
    separator=st.sampled_from(",\t"),
)
def test_a_table_with_any_number_of_columns_is_read_or_refused(tmp_path, number, rows, separator):
    path = tmp_path / ("a.csv" if separator == "," else "a.tsv")
    path.write_text("\n".join(separator.join(row) for row in [["a", "b", "c"][:number], *rows]), encoding="utf-8", newline="")
    assert complaint(lambda _: [*read_rows(path, ("a",))], tmp_path, path) is None


def of_task(name, folder, files):
    """The training examples of a task, in the order of their ids, whose splits have the same content."""
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8", newline="")
    data = load_task(find_task(name), {"directory": str(folder), "dev": "valid"})
    return data.labels, sorted(data.examples["train"], key=lambda example: int(example.id))


@generated()
@given(
    sentences=st.lists(st.lists(st.tuples(WORD, st.sampled_from(["O", "B-X", "B-Y"])), min_size=1), min_size=1),
    separator=st.sampled_from([" ", "\t"]),
    ending=ENDING,
)
def test_conll_is_read_as_written(tmp_path, sentences, separator, ending):
    assume(not any(word.startswith(("-DOCSTART-", "\ufeff")) for sentence in sentences for word, _ in sentence))
    content = ending.join(ending.join(map(separator.join, sentence)) + ending for sentence in sentences)
    labels, found = of_task("ner", tmp_path, {f"eng.{of}": content for of in ("train", "testa", "testb")})
    assert [[(word, labels[tag]) for word, tag in zip(of.words, of.label, strict=True)] for of in found] == sentences


@generated()
@given(sentences=st.lists(st.lists(texts(without="\t\r\n", empty=False), min_size=1), min_size=1), ending=ENDING)
def test_conllu_is_read_as_written(tmp_path, sentences, ending):
    line = lambda number, word: "\t".join([str(number), word, "_", "NOUN", *"______"])
    lines = [[line(number, word) for number, word in enumerate(words, 1)] + [""] for words in sentences]
    content = "".join(line + ending for sentence in lines for line in sentence)
    _, found = of_task("ud", tmp_path, {f"en-ud-{of}.conllu": content for of in ("train", "dev", "test")})
    assert [[*of.words] for of in found] == sentences


@generated()
@given(contexts=st.lists(st.tuples(texts(empty=False), texts(), st.data()), min_size=1, max_size=3), ascii=st.booleans())
def test_squad_is_read_as_written(tmp_path, contexts, ascii):
    questions = []
    for number, (context, question, data) in enumerate(contexts):
        start = data.draw(st.integers(0, len(context) - 1))
        end = data.draw(st.integers(start + 1, len(context)))
        answer = {"text": context[start:end], "answer_start": start}
        questions.append({"context": context, "qas": [{"id": str(number), "question": question, "answers": [answer]}]})
    assume(all(q["qas"][0]["answers"][0]["text"].strip() for q in questions))
    content = json.dumps({"data": [{"paragraphs": questions}]}, ensure_ascii=ascii)
    _, found = of_task("squad1", tmp_path, {"train-v1.1.json": content, "dev-v1.1.json": content})
    assert [(of.texts[1], of.texts[0]) for of in found] == [(q["context"], q["qas"][0]["question"]) for q in questions]
    answers = [q["qas"][0]["answers"][0] for q in questions]
    assert [[(a.text, a.start) for a in of.answers] for of in found] == [[(a["text"], a["answer_start"])] for a in answers]


@generated()
@given(
    pairs=st.lists(st.tuples(*[texts(empty=False)] * 3), min_size=1),
    words=st.lists(st.tuples(*[WORD] * 4), min_size=1),
    rating=FLOAT,
)
def test_pairs_ratings_and_analogies_are_read_as_written(tmp_path, pairs, words, rating):
    keys = ("sentence_good", "sentence_bad", "UID")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(dict(zip(keys, pair))) for pair in pairs))
    assert [(pair.good, pair.bad, pair.paradigm) for pair in read_pairs(tmp_path / "a.jsonl")] == pairs
    (tmp_path / "a.txt").write_text("\n".join(f"{a} {b} {rating!r}" for a, b, *_ in words), encoding="utf-8")
    assume(not words[0][0].startswith(("\ufeff", ":")))
    assert read_ratings(tmp_path / "a.txt") == [(a, b, rating) for a, b, *_ in words]
    assume(not any(line[0] == ":" for line in words))
    (tmp_path / "b.txt").write_text(": of all\n" + "\n".join(map(" ".join, words)), encoding="utf-8")
    assert read_questions(tmp_path / "b.txt") == [("of all", *line) for line in words]


@generated()
@given(words=st.lists(texts(without="\n"), min_size=1))
def test_lists_of_words_are_read_as_written(tmp_path, words):
    (tmp_path / "itos.json").write_text(json.dumps(words))
    assert read_words(tmp_path / "itos.json") == words
    (tmp_path / "itos.txt").write_text("".join(word + "\n" for word in words), encoding="utf-8", newline="")
    assert read_words(tmp_path / "itos.txt") == words


@generated()
@given(table=st.dictionaries(texts(without=" \t\r\n", empty=False), st.tuples(FLOAT, FLOAT, FLOAT), min_size=1), ending=ENDING)
def test_word_vectors_are_read_as_written(tmp_path, table, ending):
    assume(not next(iter(table)).startswith("\ufeff") and not {*SPECIALS} & {*table})
    header = f"{len(table)} 3\n"
    text = "".join(f"{word} {' '.join(map(repr, numbers))}{ending}" for word, numbers in table.items())
    packed = b"".join(word.encode() + b" " + np.array(numbers, "<f4").tobytes() + b"\n" for word, numbers in table.items())
    (tmp_path / "glove.txt").write_bytes(text.encode())
    (tmp_path / "a.txt").write_bytes(header.encode() + text.encode())
    (tmp_path / "a.bin").write_bytes(header.encode() + packed)
    for load, name in ((glove.load, "glove.txt"), (word2vec.load, "a.txt"), (word2vec.load, "a.bin")):
        model = load(tmp_path / name)
        assert model.tokenizer.pieces()[5:] == [*table], name
        np.testing.assert_array_equal(
            model.params["body"]["token_embedding"][5:], np.array([*table.values()], np.float32), name
        )


TEXT_ENDINGS = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".conllu", ".train", ".testa", ".all", ".bpe")
# What stands between, and inside, the lines of a text file.
PIECE = st.one_of(
    texts(),
    st.sampled_from(
        [*"\t,\"' \0:#_-([{", "\r\n", "\r", "\n", "\n\n", "\ufeff", "\t\t\t\t\t\t\t\t\t", "1\t2", "-1", "nan", "1e999"]
    ),
    st.sampled_from(["x" * 100_000, "\n" * 1000, "\t" * 10_000, "[" * 5000, '{"text": 1}', '{"text": "a"}', "null", "[]"]),
    JSON.map(json.dumps),
)
BY_TEXT = [reader for reader in READERS if reader.share == 1]


@pytest.mark.parametrize("reader", BY_TEXT, ids=lambda reader: reader.name)
def test_a_file_of_any_text_gives_a_result_or_a_sentence(reader, tmp_path):
    reader.make(tmp_path)
    names = reader.only or [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    names = [name for name in sorted(names) if name.endswith(TEXT_ENDINGS)]
    valid = {name: (tmp_path / name).read_bytes().decode().splitlines(keepends=True) for name in names}

    @generated(0.5)
    @given(data=st.data())
    def check(data):
        name = data.draw(st.sampled_from(names))
        kept = valid[name][: data.draw(st.integers(0, len(valid[name])))]
        content = "".join([*kept, *data.draw(st.lists(PIECE | st.sampled_from(valid[name]), max_size=6))])
        (tmp_path / name).write_text(content, encoding="utf-8", newline="")
        assert complaint(reader.read, tmp_path, tmp_path / name, reader.by_folder) is None
        (tmp_path / name).write_text("".join(valid[name]), encoding="utf-8", newline="")

    if names:
        check()


def changed(value, data):
    """A JSON value in which one of its parts is any other value."""
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 3)) == 0:
        return data.draw(JSON)
    key = data.draw(st.sampled_from([*value] if isinstance(value, dict) else range(len(value))))
    copy = value.copy()
    copy[key] = changed(value[key], data)
    return copy


def test_json_with_values_of_other_types_gives_a_result_or_a_sentence(tmp_path):
    """In every file of JSON, or of JSON lines, of every reader."""
    files = []
    for number, reader in enumerate(READERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        if reader.share and reader.share != 0.5:
            reader.make(folder)
            only = [folder / name for name in reader.only] or sorted(folder.rglob("*"))
            files += [
                (reader, folder, path, path.read_text(encoding="utf-8")) for path in only if path.suffix in (".json", ".jsonl")
            ]

    @generated(5)
    @given(data=st.data())
    def check(data):
        reader, folder, path, content = data.draw(st.sampled_from(files))
        lines = [json.loads(line) for line in (content.splitlines() if path.suffix == ".jsonl" else [content])]
        lines[-1] = changed(lines[-1], data)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert complaint(reader.read, folder, path, reader.by_folder) is None, reader.name
        path.write_text(content, encoding="utf-8")

    assert len(files) > 30
    check()
