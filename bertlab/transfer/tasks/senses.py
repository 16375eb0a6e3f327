"""Word senses, as published by two sources.

The framework of Raganato et al. 2017: NAME.data.xml has sentences of <wf> (a word) and <instance> (a word with a sense), with
lemma and part of speech; NAME.gold.key.txt has on each line an instance's id and its WordNet senses. First senses are those of
WordNet's own file `index.sense` (senseidx(5WN)): a sense's key, an offset, its number, a count.

CoarseWSD-20 (Loureiro et al. 2021): a folder a word, with SPLIT.data.txt (the word's number from 0, a tab, the sentence),
SPLIT.gold.txt (a class a line) and classes_map.txt ({"0": "apple_inc", ...}).
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path

from bertlab.errors import UserError
from bertlab.files import misfit, read_json
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds.sense import Sense
from bertlab.transfer.tasks.assemble import check_task
from bertlab.transfer.tasks.base import Task, TaskData
from bertlab.transfer.tasks.files import find_file, matches, read_lines

_PARTS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""WordNet's ss_type in a sense's key; 5 is an adjective satellite."""

_INDEX = ("index.sense", "dict/index.sense", "WordNet-3.0/dict/index.sense")


def all_words(name: str, *, train: tuple[str, ...], test: tuple[str, ...]) -> Task:
    """A task of words with WordNet's senses, in the files of Raganato et al. 2017.

    Args:
        name: letters, digits, "_" and "-".
        train, test: names or patterns of the *.data.xml files, in order of preference. WordNet's `index.sense` is in the same
            directory, or in its folder `dict`.

    Raises:
        UserError: when loading: a file is missing, is not in this format, or an instance has no sense.
    """
    wanted = {"train": train, "test": test}

    def load(directory: Path | None, options: Mapping) -> TaskData:
        directory = _required(name, directory)
        given = {split: (options[f"{split}_file"],) for split in wanted if options[f"{split}_file"]}
        paths = {split: find_file(name, split, directory, names) for split, names in (wanted | given).items()}
        index = next(matches([directory], _INDEX), None)
        if index is None:
            raise UserError(f"{directory}: task '{name}' found no {_INDEX[0]}; put WordNet 3.0's dict/index.sense there")
        first = read_first_senses(index[-1][0])
        return TaskData((), {split: list(read_instances(path, first)) for split, path in paths.items()})

    is_in = lambda directory: all(any(matches([directory], names)) for names in (*wanted.values(), _INDEX))
    return check_task(Task(name, Sense(), Sense.default_metrics, load, is_in))


def coarse_senses(name: str) -> Task:
    """A task of the folders of CoarseWSD-20; every word's senses are in its training data.

    Raises:
        UserError: as for `check_task`; when loading: there is no such folder, or a file is not in this format.
    """
    folders = lambda directory: [path.parent for path in sorted(directory.glob("*/classes_map.txt"))]

    def load(directory: Path | None, options: Mapping) -> TaskData:
        if not (words := folders(_required(name, directory))):
            raise UserError(f"{directory}: task '{name}' found no WORD/classes_map.txt; give the folder CoarseWSD-20")
        read = lambda split: [example for word in words for example in read_word(word, split)]
        return TaskData((), {split: read(split) for split in ("train", "test")})

    return check_task(Task(name, Sense(), Sense.default_metrics, load, lambda directory: bool(folders(directory))))


def _required(name: str, directory: Path | None) -> Path:
    if directory is None:
        raise UserError(f"task '{name}' is read from files: config.task_data.directory is empty or tfds; give their folder")
    return directory


def read_instances(path: Path, first: Mapping[str, str]) -> Iterator[Example]:
    """The instances of a *.data.xml file and the *.gold.key.txt beside it.

    Args:
        path: the file.
        first: the first sense of "lemma#POS".

    Raises:
        UserError: a file is missing or not in this format; names file, line or instance.
    """
    gold = path.with_name(path.name.replace(".data.xml", ".gold.key.txt"))
    if gold == path or not gold.is_file():
        raise UserError(f"{path}: put its senses beside it, NAME.gold.key.txt for NAME.data.xml")
    senses = _read_gold(gold)
    try:
        for _, element in ElementTree.iterparse(path):
            if element.tag == "sentence":
                yield from _instances(path, element, senses, first)
                element.clear()
    except ElementTree.ParseError as error:
        said = str(error).partition(":")[0]
        raise UserError(f"{path}:{error.position[0]}: not valid XML ({said}); give the file as published") from None
    except UserError:
        raise
    except (LookupError, ValueError) as error:  # the encoding that its first line names
        raise UserError(f"{path}:1: {error}; give the file as published") from None


def _instances(path: Path, sentence, senses: Mapping[str, tuple[str, ...]], first: Mapping[str, str]) -> Iterator[Example]:
    words, targets = [], []
    for element in sentence:
        begin = len(words)
        words += (element.text or "").split()  # an expression of several words is one element
        if element.tag == "instance":
            targets.append((element, (begin, len(words))))
    shown = tuple(words)  # one for all instances of the sentence
    for element, (begin, end) in targets:
        name, lemma, part = (element.get(key) for key in ("id", "lemma", "pos"))
        where = f"{path}, instance {name}"
        if not name or not lemma or not part or begin == end:
            raise UserError(f"{where}: expected an id, a lemma, a pos and a word; give the file as published")
        if name not in senses:
            raise UserError(f"{where}: its gold file has no line for it; give both files as published")
        word = f"{lemma.lower()}#{part}"
        of = {"label": senses[name], "group": word, "choices": (first[word],) if word in first else ()}
        yield Example(id=name, where=where, words=shown, targets=((begin, end),), **of)


def _read_gold(path: Path) -> dict[str, tuple[str, ...]]:
    found = {}
    for number, line in read_lines(path):
        if not (fields := line.split()):
            continue
        if len(fields) < 2:
            raise UserError(f"{path}:{number}: expected an instance and its senses, found {line[:60]!r}")
        found[fields[0]] = tuple(fields[1:])
    return found


def read_first_senses(path: Path) -> dict[str, str]:
    """ "lemma#POS" -> the key of its first sense, from WordNet's `index.sense`.

    Raises:
        UserError: a line is not in this format, or none is; names file and line.
    """
    found = {}
    for number, line in read_lines(path):
        if not (fields := line.split()):
            continue
        key = re.fullmatch(r"(\S+)%([1-5]):\S*", fields[0]) if len(fields) == 4 else None
        if not key or not fields[2].isdigit():
            raise UserError(f"{path}:{number}: expected WordNet's 'lemma%1:00:00:: offset number count', found {line[:60]!r}")
        if fields[2] == "1":
            found[f"{key[1]}#{_PARTS[key[2]]}"] = fields[0]
    if not found:
        raise UserError(f"{path} has no senses; give WordNet's dict/index.sense")
    return found


def read_word(folder: Path, split: str) -> Iterator[Example]:
    """The sentences of one word's folder.

    Raises:
        UserError: a file is missing or not in this format; names file and line.
    """
    data, gold = folder / f"{split}.data.txt", folder / f"{split}.gold.txt"
    if missing := [path for path in (data, gold) if not path.is_file()]:
        raise UserError(f"{missing[0]} is missing; give the folder as published")
    classes = read_json(folder / "classes_map.txt")
    if wrong := misfit(classes, {str: str}):
        raise UserError(f"{folder / 'classes_map.txt'}: {wrong}; give the file as published")
    answers = [(number, line.strip()) for number, line in read_lines(gold) if line.strip()]
    lines = [(number, line) for number, line in read_lines(data) if line.strip()]
    if len(answers) != len(lines):
        raise UserError(f"{gold}: {len(answers)} classes for the {len(lines)} sentences of {data.name}; give one per line")
    for (number, line), (asked, answer) in zip(lines, answers):
        where = f"{data}:{number}"
        place, _, sentence = line.partition("\t")
        words = sentence.split()
        if not re.fullmatch(r"[0-9]{1,9}", place.strip()) or int(place) >= len(words):
            raise UserError(f"{where}: expected a word's number, a tab and the sentence, found {line[:60]!r}")
        if answer not in classes:
            raise UserError(f"{gold}:{asked}: {answer!r} is not one of the classes {', '.join(classes)}")
        at = int(place)
        of = {"label": (classes[answer],), "group": folder.name}
        yield Example(id=f"{folder.name}.{number}", where=where, words=tuple(words), targets=((at, at + 1),), **of)
