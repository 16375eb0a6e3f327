"""Tasks from Python's documentation: their labels, and their split by document."""

import itertools
import sys

import pytest

from bertlab.data.prose import paragraphs
from bertlab.data.pydocs import Section, sentences_of
from bertlab.data.splits import Splits
from bertlab.errors import UserError
from bertlab.transfer.kinds import Classification, Tagging
from bertlab.transfer.tasks import find_task, load_task, pydocs
from bertlab.transfer.tasks.pydocs import pydocs_task, spread, unmark

COLLECT = {"package": pydocs.collect_packages, "code_spans": pydocs.collect_code_spans}
PAIRS = ("next_sentence", "sentence_order")
# Of the supported versions of Python, some lack these.
ADDED_OR_REMOVED = set("_pydatetime _pylong _pyrepl cgi cgitb chunk mailcap nntplib telnetlib".split())


@pytest.mark.parametrize(
    ("sentence", "words", "labels"),
    [
        ("Return ``None`` now.", ["Return", "None", "now."], [0, 1, 0]),
        ("Call `f(x, y)`, then stop.", ["Call", "f(x,", "y),", "then", "stop."], [0, 1, 1, 0, 0]),
        ("No marks at all.", ["No", "marks", "at", "all."], [0, 0, 0, 0]),
        ("``a`` and `b`", ["a", "and", "b"], [1, 0, 1]),
        ("the (`x`)-axis", ["the", "(x)-axis"], [0, 1]),
        ("one `mark is open", ["one", "`mark", "is", "open"], [0, 0, 0, 0]),
        ("``a`b`` ends", ["a`b", "ends"], [1, 0]),
    ],
)
def test_unmark(sentence, words, labels):
    assert unmark(sentence) == (words, labels)


def test_spread_takes_evenly():
    assert spread(list(range(10)), 5) == [0, 2, 4, 6, 8] and spread([1, 2], 5) == [1, 2]


def section_of(name, docstrings):
    return Section(name, tuple(tuple(paragraphs(docstring)) for docstring in docstrings))


def stub_sections(monkeypatch, found):
    monkeypatch.setattr(pydocs, "sections", lambda directory: found)
    monkeypatch.setattr(pydocs.PydocsCorpus, "fingerprint", lambda self: "stub")


@pytest.fixture
def stub_task(monkeypatch):
    """A task whose words are the document's id, and the number of times it was collected."""
    stub_sections(monkeypatch, [])
    collected = []

    def collect(found, split):
        collected.append(1)
        return ["even", "odd"], [(f"document {i}", [f"document {i}"], i % 2) for i in range(300)]

    return pydocs_task("stub", Classification(), ("accuracy",), collect), collected


def options(directory, **changes):
    """As the pretraining run had them; the fractions beside `pretraining` are for tasks without published splits."""
    pretraining = {"directory": str(directory), "valid_fraction": 0.2, "test_fraction": 0.1, **changes}
    return {"pretraining": pretraining, "valid_fraction": 0.4, "test_fraction": 0.4}


def test_a_document_is_in_the_split_that_pretraining_gave_it(stub_task, tmp_path):
    task, collected = stub_task
    loaded = load_task(task, options(tmp_path))
    assert loaded.labels == ("even", "odd")
    assert sum(map(len, loaded.examples.values())) == 300
    for split, examples in loaded.examples.items():
        assert examples
        assert len({example.id for example in examples}) == len(examples)
        for example in examples:
            assert example.texts == (example.where,) and Splits(0.2, 0.3).of(example.where) == split
            assert example.label == int(example.where.split()[1]) % 2
    assert load_task(task, options(tmp_path)).examples == loaded.examples and len(collected) == 1, "kept"
    other = load_task(task, options(tmp_path, test_fraction=0.4))
    assert len(other.examples["test"]) > len(loaded.examples["test"]) and len(collected) == 2


def test_a_split_without_examples_is_refused_and_nothing_is_kept(stub_task, tmp_path):
    for _ in range(2):
        with pytest.raises(UserError, match=r"task 'stub' has no test examples; raise .*config.data.test_fraction"):
            load_task(stub_task[0], options(tmp_path, test_fraction=0.0))


@pytest.mark.parametrize("name", COLLECT)
def test_examples_share_no_sentence_with_another_section(name, monkeypatch, tmp_path):
    """Pretraining reads whole sections, so a sentence that two of them have can be in train and in test."""
    words = "zero one two three four five six seven eight nine ten".split()
    stubs = []
    for number in range(40):
        own = f"This sentence of the number {words[number % 10]} has `code` in module {'x' * (number + 1)} alone."
        repeated = f"A line with `code` that module {'y' * (number + 1)} says of two of its functions."
        marks = "`" * (1 + number % 2)
        # The fourth repeats inside its module, and the shared ones across modules, some with other marks or spaces.
        docstrings = (
            own,
            "The `first` of all things is shared by every module. " + own.replace("This", "Another"),
            f"Return the {marks}value{marks} that every class has of this name.",
            repeated,
            f"{repeated}\n\nParameters follow in the `second` paragraph of this one {words[number // 4]}.",
            f"A `line` is wrapped{chr(10) if number % 2 else ' '}where it was long enough for it.",
        )
        stubs.append(section_of(f"{('json', 'ast')[number % 2]}.module{number}", docstrings))
    stub_sections(monkeypatch, stubs)

    def bare(text):
        return " ".join(text.replace("`", "").split())

    documents = {section.name: set(map(bare, sentences_of(section))) for section in stubs}
    _, collected = COLLECT[name](stubs, lambda section: "train")
    texts = [" ".join(example) for _, example, _ in collected]  # the words of one, or one text
    assert len(texts) == len(set(map(bare, texts))), "no example twice"
    for module, example, _ in collected:
        others = set().union(*(sentences for other, sentences in documents.items() if other != module))
        assert not [sentence for sentence in others if sentence in bare(" ".join(example))]
    # What is a module's own stays: the first, of the second the own sentence, and the fourth once.
    assert len(texts) == 40 * {"package": 2, "code_spans": 3}[name]

    examples = load_task(find_task(name), options(tmp_path)).examples
    train = [s for module, sentences in documents.items() if Splits(0.2, 0.3).of(module) == "train" for s in sentences]
    assert examples["test"]
    assert not [s for example in examples["test"] for s in train if s in bare(" ".join(example.words or example.texts))]


@pytest.fixture
def paragraphs_of_three():
    """Twelve modules of four docstrings, each of three sentences in a row; the second of every last one is in all modules."""
    said = lambda *numbers: "This is the sentence of the number " + " ".join("abcdefghijklmnop"[n] * 4 for n in numbers) + "."
    modules = []
    for m in range(12):
        docstrings = [[said(m, d, i) for i in range(3)] for d in range(4)]
        docstrings[3][1] = "This one is a sentence of every module."
        modules.append(section_of(f"package.module{m}", list(map(" ".join, docstrings))))
    return modules


def place(module):
    return ("train", "train", "test")[int(module.removeprefix("package.module")) % 3]


def follows(docstrings, texts):
    return any(texts == [*pair] for docstring in docstrings for pair in itertools.pairwise(itertools.chain(*docstring)))


def test_next_sentences_are_next_or_of_another_module_of_the_split(paragraphs_of_three):
    labels, found = pydocs.collect_next_sentences(paragraphs_of_three, place)
    # Three docstrings of two pairs each; the shared sentence leaves none of the fourth.
    assert labels == ["random", "next"] and len(found) == 12 * 6
    docstrings_of = {section.name: section.docstrings for section in paragraphs_of_three}
    of = {sentence: section.name for section in paragraphs_of_three for sentence in sentences_of(section)}
    for module, texts, label in found:
        assert of[texts[0]] == module and place(of[texts[1]]) == place(module)
        assert follows(docstrings_of[module], texts) == (of[texts[1]] == module) == (label == 1)
    assert sum(label for _, _, label in found) == 12 * 3


def test_sentence_orders_are_of_two_in_a_row(paragraphs_of_three):
    labels, found = pydocs.collect_sentence_orders(paragraphs_of_three, place)
    assert labels == ["swapped", "in order"] and len(found) == 12 * 6
    assert [label for _, _, label in found].count(0) == 12 * 3
    docstrings_of = {section.name: section.docstrings for section in paragraphs_of_three}
    for module, texts, label in found:
        assert follows(docstrings_of[module], texts if label else texts[::-1])


def test_packages_are_of_parts_of_the_standard_library(monkeypatch):
    packages = [package for part in pydocs.PARTS.values() for package in part.split()]
    assert len(packages) == len(set(packages)) and len(pydocs.PARTS) == 7
    assert "pydoc_data" in packages and not set(packages) - sys.stdlib_module_names - ADDED_OR_REMOVED
    said = [f"The paragraph of the letters {'abcdefgh'[i] * 3} is about this." for i in range(8)]
    found = [
        section_of("json#1", said[:2]),
        section_of("email.message", ["\n\n".join(said[2:4])]),
        section_of("pydoc_data.topics:assert", [said[4]]),
        section_of("this", [said[5]]),
    ]
    labels, collected = pydocs.collect_packages(found, place)
    assert [(name, labels[label], text) for name, [text], label in collected] == [
        ("pydoc_data.topics:assert", "language", said[4]),
        ("json#1", "files", said[0]),
        ("json#1", "files", said[1]),
        ("email.message", "internet", said[2]),
        ("email.message", "internet", said[3]),
    ]
    monkeypatch.setattr(pydocs, "EXAMPLES_PER_PART", 1)
    assert len(pydocs.collect_packages(found, place)[1]) == 3


def test_a_tagging_example_has_a_label_a_word(monkeypatch, tmp_path):
    stub_sections(monkeypatch, [])
    task = pydocs_task(
        "stub", Tagging(), ("f1",), lambda *_: (["o", "x"], [(f"d{i}", ["a", "b"], [0, i % 2]) for i in range(99)])
    )
    examples = load_task(task, options(tmp_path)).examples["train"]
    assert {(example.words, example.label, example.texts) for example in examples} == {(("a", "b"), (0, i), ()) for i in (0, 1)}


def test_these_tasks_read_no_files(tmp_path):
    for name in (*COLLECT, *PAIRS):
        with pytest.raises(UserError, match=rf"config.task_data.directory='.*': task '{name}' reads no files; leave it empty"):
            load_task(find_task(name), {"directory": str(tmp_path)})
