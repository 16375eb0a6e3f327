"""Tasks with real labels from real text, Python's documentation: what they ask, and their examples split by document."""

import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bertlab.data.prepare import cache_directory, split_of
from bertlab.data.prose import paragraphs
from bertlab.data.pydocs import PydocsCorpus, modules
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Classification, Kind, Tagging
from bertlab.transfer.tasks.assemble import check_task
from bertlab.transfer.tasks.base import SPLITS, Task, TaskData

# Changed with every change of the code below that changes the examples.
VERSION = 5
PACKAGES = 8
EXAMPLES_PER_PACKAGE = 1000
CODE_SENTENCES = 8000
PAIRS = 8000
_CODE = re.compile(r"(``?)(.+?)\1")

Labelled = tuple[str, list[str], int | list[int]]
"""Document id, then the text or texts and a label; tagging: the words and a label for each."""


Split = Callable[[str], str]
"""Document id -> the split that it is in."""


def pydocs_task(
    name: str, kind: Kind, metrics: tuple[str, ...], collect: Callable[[Split], tuple[list[str], list[Labelled]]]
) -> Task:
    """A task whose examples are collected from the installed packages once, and kept beside the prepared corpora.

    A document is in the same split as in pretraining (`config.task_data.pretraining`), so that test examples were never read.

    Args:
        name, kind, metrics: the task's; kind is classification or tagging.
        collect: split -> (class names, labelled examples); what an example has of other documents is of the same split.
    """
    return check_task(Task(name, kind, metrics, functools.partial(_load, name, kind, collect)))


def _load(name: str, kind: Kind, collect: Callable, directory: Path | None, options: Mapping) -> TaskData:
    """Raises: UserError: a directory is given, or a split has no examples."""
    if directory is not None or options["directory"]:
        raise UserError(f"config.task_data.directory='{options['directory']}': task '{name}' reads no files; leave it empty")
    pretraining = options["pretraining"]
    fractions = (pretraining["valid_fraction"], pretraining["test_fraction"])
    key = f"{name}-{VERSION}-{PydocsCorpus().fingerprint()[:16]}-{fractions[0]}-{fractions[1]}"
    path = cache_directory(pretraining["directory"]) / "tasks" / f"{key}.json"
    if not path.exists():
        place = lambda document: split_of(document, *fractions)
        labels, collected = collect(place)
        examples = {split: [] for split in SPLITS}
        for labelled in collected:
            examples[place(labelled[0])].append(labelled)
        if empty := [split for split in SPLITS if not examples[split]]:
            raise UserError(
                f"task '{name}' has no {empty[0]} examples; raise the pretraining run's config.data.{empty[0]}_fraction"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps({"labels": labels, "examples": examples}))
        os.replace(partial, path)
    held = json.loads(path.read_text())
    examples = {
        split: [_example(kind, str(number), *labelled) for number, labelled in enumerate(held["examples"][split])]
        for split in SPLITS
    }
    return TaskData(tuple(held["labels"]), examples)


def _example(kind: Kind, id: str, document: str, texts: list[str], label: int | list[int]) -> Example:
    if kind.of_words:
        return Example(id=id, where=document, words=tuple(texts), label=tuple(label))
    return Example(id=id, where=document, texts=tuple(texts), label=label)


def collect_packages(_: Split) -> tuple[list[str], list[Labelled]]:
    """Docstrings of the eight packages that have most: the first paragraph, if no other module has a sentence of it."""
    prose, shared = read_prose()
    found = {}
    for module, package, docstring in prose:
        first = docstring[0] if docstring else ()
        words = " ".join(first).split()
        if 6 <= len(words) <= 60 and shared.isdisjoint(map(plain, first)):
            found.setdefault(package, {}).setdefault(" ".join(words), module)
    labels = sorted(sorted(found, key=lambda package: -len(found[package]))[:PACKAGES])
    return labels, [
        (module, [text], label)
        for label, package in enumerate(labels)
        for text, module in spread(list(found[package].items()), EXAMPLES_PER_PACKAGE)
    ]


def collect_code_spans(_: Split) -> tuple[list[str], list[Labelled]]:
    """Sentences of one module only in which some words, not all, are set as code (`x` or ``x``); the marks removed."""
    prose, shared = read_prose()
    found = {}
    for module, _, docstring in prose:
        for sentence in (sentence for paragraph in docstring for sentence in paragraph):
            words, labels = unmark(sentence)
            if 1 in labels and 0 in labels and 5 <= len(words) <= 60 and plain(sentence) not in shared:
                found.setdefault(" ".join(words), (module, words, labels))
    return ["prose", "code"], spread(list(found.values()), CODE_SENTENCES)


def collect_next_sentences(split: Split) -> tuple[list[str], list[Labelled]]:
    """Two sentences, of which the second follows the first or, every second time, is from another module of its split.

    That is the question of next-sentence prediction (Devlin et al. 2019, section 3.1), asked of held-out sentences.
    """
    of_split: dict[str, list[tuple[str, str, str]]] = {}
    for module, first, second in consecutive_sentences():
        of_split.setdefault(split(module), []).append((module, first, second))
    found = []
    for pairs in of_split.values():
        for i, (module, first, second) in enumerate(pairs):
            other, _, elsewhere = pairs[(i + len(pairs) // 2) % len(pairs)]
            if i % 2 == 0:
                found.append((module, [first, second], 1))
            elif other != module:
                found.append((module, [first, elsewhere], 0))
    return ["random", "next"], spread(found, PAIRS)


def collect_sentence_orders(_: Split) -> tuple[list[str], list[Labelled]]:
    """Two sentences that follow each other, every second pair with its sentences swapped (Lan et al. 2020, section 3.1)."""
    found = [
        (module, [second, first], 0) if i % 2 else (module, [first, second], 1)
        for i, (module, first, second) in enumerate(consecutive_sentences())
    ]
    return ["swapped", "in order"], spread(found, PAIRS)


def consecutive_sentences() -> list[tuple[str, str, str]]:
    """(Module, sentence, the next one of its paragraph), each of 4 to 20 words.

    No sentence of another module is among them, and no sentence is first, or second, twice.
    """
    prose, shared = read_prose()
    seen, found = (set(), set()), []
    for module, _, docstring in prose:
        for pair in itertools.chain.from_iterable(map(itertools.pairwise, docstring)):
            known = [plain(sentence) for sentence in pair]
            fits = all(4 <= len(sentence.split()) <= 20 for sentence in pair) and shared.isdisjoint(known)
            if fits and not any(sentence in before for sentence, before in zip(known, seen)):
                for sentence, before in zip(known, seen):
                    before.add(sentence)
                found.append((module, *(" ".join(sentence.split()) for sentence in pair)))
    return found


def read_prose() -> tuple[list[tuple[str, str, list[tuple[str, ...]]]], set[str]]:
    """(Module, package, paragraphs of sentences) of each docstring, and which sentences, `plain`, several modules have.

    Modules fall into different splits, so an example with such a sentence may be in the text that pretraining read.
    """
    prose = [(module.name, module.package, paragraphs(docstring)) for module in modules() for docstring in module.docstrings]
    first_module, shared = {}, set()
    for module, _, docstring in prose:
        for sentence in (plain(sentence) for paragraph in docstring for sentence in paragraph):
            if first_module.setdefault(sentence, module) != module:
                shared.add(sentence)
    return prose, shared


def plain(sentence: str) -> str:
    """The sentence by which copies are told: without code marks, which differ between copies, and extra white space."""
    return " ".join(_CODE.sub(r"\2", sentence).split())


def spread(items: list, most: int) -> list:
    """At most so many of the items, evenly spaced, so that no corner of the collection is left out."""
    if len(items) <= most:
        return items
    return [items[i * len(items) // most] for i in range(most)]


def unmark(sentence: str) -> tuple[list[str], list[int]]:
    """Words without their code marks, and 1 for each word that has a character inside marks."""
    words, labels = [], []
    characters, inside, last = "", [], 0
    for match in _CODE.finditer(sentence):
        plain = sentence[last : match.start()]
        characters += plain + match.group(2)
        inside += [0] * len(plain) + [1] * len(match.group(2))
        last = match.end()
    characters += sentence[last:]
    inside += [0] * (len(sentence) - last)
    for word in re.finditer(r"\S+", characters):
        words.append(word.group())
        labels.append(max(inside[word.start() : word.end()]))
    return words, labels


TASKS = (
    pydocs_task("package", Classification(), ("accuracy",), collect_packages),
    pydocs_task("code_spans", Tagging(), ("f1",), collect_code_spans),
    pydocs_task("next_sentence", Classification(), ("accuracy",), collect_next_sentences),
    pydocs_task("sentence_order", Classification(), ("accuracy",), collect_sentence_orders),
)
