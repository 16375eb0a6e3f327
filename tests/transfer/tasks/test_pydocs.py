"""Tasks from Python's documentation: their labels, and what they share with other documents."""

import itertools
import sys

import pytest

from bertlab.data.corpora.pydocs import PydocsCorpus, Section
from bertlab.transfer.tasks import find_task, load_task, pydocs
from bertlab.transfer.tasks.pydocs import split_marks

# Some of the supported versions of Python lack these.
CHANGED = set("_pydatetime _pylong _pyrepl cgi cgitb chunk mailcap nntplib telnetlib".split())


@pytest.mark.parametrize(
    ("sentence", "words", "labels"),
    [
        ("Return ``None`` now.", "Return None now.", "010"),
        ("Call `f(x, y)`, then stop.", "Call f(x, y), then stop.", "01100"),
        ("No marks at all.", "No marks at all.", "0000"),
        ("the (`x`)-axis", "the (x)-axis", "01"),
        ("``a`` and `b`", "a and b", "101"),
    ],
)
def test_words_inside_marks_are_code(sentence, words, labels):
    assert split_marks(sentence) == (tuple(words.split()), tuple(map(int, labels)))


def section(name, *docstrings):
    """Docstrings of one paragraph each, in sentences."""
    return Section(name, tuple((tuple(sentences),) for sentences in docstrings))


@pytest.fixture
def sections():
    """Twelve modules of four docstrings of three sentences; every last one's second is shared."""

    def sentence(*numbers):
        return f"This is the `sentence` of {' '.join('abcdefghijklmnop'[n] * 4 for n in numbers)}."

    found = []
    for module in range(12):
        docstrings = [[sentence(module, d, i) for i in range(3)] for d in range(4)]
        docstrings[3][1] = "This one is a ``sentence`` of every `module`."
        name = ("json", "email", "ast")[module % 3]
        found.append(section(f"{name}.m{module}", *docstrings))
    return found


def split_of(sections):
    splits = ("train", "test")
    return {one.name: splits[i % 2] for i, one in enumerate(sections)}


def follows(section, texts):
    pairs = (itertools.pairwise(itertools.chain(*d)) for d in section.docstrings)
    return tuple(texts) in itertools.chain(*pairs)


def test_next_sentences_are_next_or_of_another_section_of_the_split(sections):
    splits, by_name = split_of(sections), {one.name: one for one in sections}
    source = {text: one.name for one in sections for text in one.sentences}
    found = list(pydocs.collect_next_sentences(sections, splits))
    # Three docstrings of two pairs each; the shared sentence leaves none of the fourth.
    assert len(found) == 12 * 6 and sum(label for _, _, label in found) == 12 * 3
    for name, (first, second), label in found:
        assert source[first] == name and splits[source[second]] == splits[name]
        assert follows(by_name[name], (first, second)) == (source[second] == name) == bool(label)
    orders = list(pydocs.collect_sentence_orders(sections, splits))
    assert len(orders) == 12 * 6 and sum(label for _, _, label in orders) == 12 * 3
    assert all(follows(by_name[name], ts if label else ts[::-1]) for name, ts, label in orders)


def test_examples_have_no_sentence_of_another_section(sections):
    for collect in (pydocs.collect_packages, pydocs.collect_code_spans):
        found = list(collect(sections, split_of(sections)))
        texts = [" ".join(texts) for _, texts, _ in found]
        assert len(texts) == len(set(texts)) and not any("every" in text for text in texts)
        assert {name for name, _, _ in found} == {one.name for one in sections}
    _, words, labels = found[0]
    assert words[3] == "sentence" and labels == (0, 0, 0, 1, *[0] * (len(words) - 4))


def test_packages_have_a_chapter(sections, monkeypatch):
    packages = [package for of in pydocs.CHAPTERS.values() for package in of.split()]
    assert len(packages) == len(set(packages)) and len(pydocs.CHAPTERS) == 7
    assert not set(packages) - sys.stdlib_module_names - CHANGED
    found = pydocs.collect_packages(
        [*sections, section("this", ["Not in any chapter here at all."])], {}
    )
    chapters = {name.split(".")[0]: tuple(pydocs.CHAPTERS)[label] for name, _, label in found}
    assert chapters == {"json": "files", "email": "internet", "ast": "development"}
    monkeypatch.setattr(pydocs, "CHAPTER_EXAMPLES", 2)
    assert len(list(pydocs.collect_packages(sections, {}))) == 3 * 2


def test_examples_are_in_the_splits_of_their_documents(sections, monkeypatch, tmp_path):
    monkeypatch.setattr(PydocsCorpus, "sections", sections)
    pretraining = {"directory": str(tmp_path), "valid_fraction": 0.2, "test_fraction": 0.3}
    for name in ("package", "code_spans", "next_sentence", "sentence_order"):
        data = load_task(find_task(name), {"pretraining": pretraining})
        documents = [{one.where for one in data.examples[s]} for s in ("train", "valid", "test")]
        assert all(documents) and sum(map(len, documents)) == 12
