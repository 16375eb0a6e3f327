"""Word senses, in the files of Raganato et al. 2017 (WSD) and of CoarseWSD-20 (COARSE).

Raganato: NAME.data.xml has sentences of <wf> (a word) and <instance> (a word with a sense), with
lemma and part of speech; NAME.gold.key.txt has one instance per line: its id and senses. First
senses are from WordNet's `index.sense` (senseidx(5WN)): a key, an offset, a number, a count.
CoarseWSD-20 (Loureiro et al. 2021): a folder per word; SPLIT.data.txt has its number from 0, a tab,
the sentence; SPLIT.gold.txt a class per line; classes_map.txt {"0": "apple_inc", ...}.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks.base import file_task
from bertlab.transfer.tasks.readers import parse_each, read_lines

KIND = "bertlab.contrib.senses.kind:SENSE"
_INDEX = ("index.sense", "dict/index.sense", "WordNet-3.0/dict/index.sense")
# WordNet's ss_type in a sense's key; 5 is an adjective satellite.
_PARTS_OF_SPEECH = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}


def sense_f1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> float:
    """Harmonic mean of precision (words that got a sense) and recall (all words).

    Source: Raganato et al. 2017, section 4; Navigli 2009, section 5.
    """
    answered = sum(sense is not None for sense in predicted)
    right = sum(sense in senses for senses, sense in zip(gold, predicted, strict=True))
    return 2 * right / (answered + len(gold))


METRICS["sense_f1"] = sense_f1


def _read_xml(path: Path, split: str) -> Iterator[Example]:
    found = (folder / file for folder in path.parents for file in _INDEX)
    index = next((file for file in found if file.is_file()), None)
    if index is None:
        raise UserError(f"{path}: there is no index.sense of WordNet 3.0 in the folders above it")
    keys = (line.split() for _, line in read_lines(index) if line)
    first = {_lemma_and_part(key): key for key, _, number, _ in keys if number == "1"}
    gold = path.with_name(path.name.replace(".data.xml", ".gold.key.txt"))
    senses = {line.split()[0]: tuple(line.split()[1:]) for _, line in read_lines(gold) if line}

    def parse(sentence: ElementTree.Element, where: str) -> Iterator[Example]:
        words, targets = [], []
        for element in sentence:
            start = len(words)
            words += (element.text or "").split()  # an expression of several words is one element
            if element.tag == "instance":
                targets.append((element.attrib, (start, len(words))))
        for instance, target in targets:
            group = f"{instance['lemma'].lower()}#{instance['pos']}"
            yield Example(
                instance["id"],
                f"{path}, instance {instance['id']}",
                label=senses[instance["id"]],
                words=tuple(words),
                choices=(first[group],) if group in first else (),
                targets=(target,),
                group=group,
            )

    sentences = ElementTree.parse(path).iter("sentence")
    rows = ((f"{path}, sentence {one.get('id')}", one) for one in sentences)
    return parse_each(path, rows, parse)


def _lemma_and_part(key: str) -> str:
    lemma, _, rest = key.partition("%")
    return f"{lemma}#{_PARTS_OF_SPEECH[rest[0]]}"


def _read_folders(directory: Path, split: str) -> Iterator[Example]:
    for path in sorted(directory.glob("*/classes_map.txt")):
        word, classes = path.parent.name, json.loads(path.read_bytes())

        def parse(row: tuple[str, str], where: str, word=word, classes=classes):
            at, _, sentence = row[0].partition("\t")
            words, target = tuple(sentence.split()), (int(at), int(at) + 1)
            if target[1] > len(words):
                raise ValueError(f"the sentence has no word {at}")
            sense = (classes[row[1].strip()],)
            yield Example("", where, label=sense, words=words, targets=(target,), group=word)

        yield from parse_each(path, _with_gold(path.parent / f"{split}.data.txt"), parse)


def _with_gold(path: Path) -> list[tuple[str, tuple[str, str]]]:
    """("FILE:LINE", (line, answer)) of a *.data.txt file and the *.gold.txt next to it."""
    gold = path.with_name(path.name.replace(".data.", ".gold."))
    answers = [line.strip() for _, line in read_lines(gold) if line.strip()]
    lines = [(where, line) for where, line in read_lines(path) if line.strip()]
    if len(lines) != len(answers):
        raise UserError(f"{gold}: {len(answers)} labels for the {len(lines)} lines of {path.name}")
    return [(where, (line, answer)) for (where, line), answer in zip(lines, answers)]


WSD = file_task(
    "senses_wsd",
    KIND,
    _read_xml,  # WordNet's `index.sense` is in a folder above the files
    metrics="sense_f1",
    train=("Training_Corpora/SemCor/semcor.data.xml", "semcor.data.xml"),
    test=("Evaluation_Datasets/ALL/ALL.data.xml", "ALL.data.xml"),
)
COARSE = file_task(
    "senses_coarse",
    KIND,
    _read_folders,  # every word's senses are in its training data
    metrics="sense_f1",
    train="./",
    test="./",
)
