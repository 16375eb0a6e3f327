"""Entities in a sentence's tags, as in seqeval's strict mode; the scheme of a task's tags is recognised."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from bertlab.errors import UserError, some
from bertlab.transfer.examples import Example

# An entity in a sentence of two characters a word: "=" if the word has the type of the one before, otherwise "|",
# and the letter of its tag. Each name has the letters of its scheme.
_ENTITIES = {
    "IOB2": re.compile(r".B(=I)*"),
    # B is only for an entity after one of the same type. As in seqeval, a single B before a B of another type is none.
    "IOB1": re.compile(r".I(=I)*|=B(?!\|B)(=I)*"),
    "IOE2": re.compile(r".I(=I)*=E|.E"),
    "IOBES": re.compile(r".B(=I)*=E|.S"),
    "BILOU": re.compile(r".B(=I)*=L|.U"),
}
_FORMS = {
    "B-PER": re.compile(r"(?P<letter>[BIELSU])(?:[\W_](?P<type>.*))?"),
    "PER-B": re.compile(r"(?:(?P<type>.*)[\W_])?(?P<letter>[BIELSU])"),
    "PER": re.compile(r"(?P<letter>)(?P<type>.+)"),
}
_OUTSIDE = ("O", "0")

_MOST_STRAY = 0.1  # share of a split's tags that may break the scheme, like slips of annotators


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How tags say where entities are.

    Attributes:
        name: a scheme with letters at an entity's beginning, inside it or at its end.
        form: where a tag has its letter: "B-PER" (also B_PER), "PER-B", or "PER" for tags without one, which are read like I in
            IOB1: neighbours of one type are one entity.
    """

    name: str
    form: str

    def entities(self, tags: Sequence[str]) -> list[tuple[str, int, int]]:
        """A sentence's entities: type, first word, end. What breaks the scheme is none, such as I after O in IOB2."""
        words = [_parts(tag, self.form) for tag in tags]
        marks = ["=" if of[1] == before[1] else "|" for of, before in zip(words, [("O", None), *words])]
        sentence = "".join(mark + letter for mark, (letter, _) in zip(marks, words))
        spans = [(match.start() // 2, match.end() // 2) for match in _ENTITIES[self.name].finditer(sentence)]
        return [(words[first][1], first, end) for first, end in spans]


@functools.cache
def _parts(tag: str, form: str) -> tuple[str, str | None]:
    """A tag's letter and type; the tag of a word without a prediction is ""."""
    if tag in ("", *_OUTSIDE):
        return "O", None
    match = _FORMS[form].fullmatch(tag)
    return match["letter"] or "I", match["type"] or ""


def find_scheme(task: str, names: Sequence[str], examples: Mapping[str, Sequence[Example]]) -> tuple[Scheme, list[str]]:
    """The scheme of the tags of all splits, and what to tell the user: its name, and which tags break it.

    Args:
        task: for messages.
        names: of the tags, by number.
        examples: by split.

    Raises:
        UserError: the tags, or too many of one split, are in no known scheme.
    """
    tagged = {
        split: [(example, [names[number] for number in example.label]) for example in of_split if example.label is not None]
        for split, of_split in examples.items()
    }
    seen = sorted({tag for of_split in tagged.values() for _, tags in of_split for tag in tags})
    inside = [tag for tag in seen if tag not in _OUTSIDE]
    form = next(form for form, pattern in _FORMS.items() if all(map(pattern.fullmatch, inside)))
    letters = {_parts(tag, form)[0] for tag in inside}
    possible = [Scheme(name, form) for name in _ENTITIES if letters <= set(name)]
    outside = len(seen) - len(inside)
    are_numbers = all(tag.isdecimal() for tag in inside)  # which letters they stand for is not in the files
    some_have_letters = any(_FORMS[of].fullmatch(tag) for of in ("B-PER", "PER-B") for tag in inside)
    if not possible or outside == 2 or (form == "PER" and (some_have_letters or are_numbers or not outside)):
        raise UserError(
            f"task '{task}': its tags {some(seen)} say no entities: all need a letter of {', '.join(_ENTITIES)} before or"
            " after the type, or none has one, and other words are O; correct them, or give the task other metrics (accuracy):"
            f" {examples['train'][0].where}"
        )
    breaks = {scheme: {split: _strays(scheme, of_split) for split, of_split in tagged.items()} for scheme in possible}
    scheme = min(possible, key=lambda scheme: sum(map(len, breaks[scheme].values())))
    said = [f"entities are tagged as {'types alone' if form == 'PER' else scheme.name} ({form})"]
    if strays := [stray for of_split in breaks[scheme].values() for stray in of_split]:
        tags = sum(tag not in _OUTSIDE for of_split in tagged.values() for _, tags in of_split for tag in tags)
        place, tag = strays[0]
        said.append(f"{len(strays):,} of {tags:,} tags in entities break {scheme.name} and are none: {place}: '{tag}'")
        if len(strays) > _MOST_STRAY * tags:
            raise UserError(f"task '{task}': {said[-1]}; write all tags in one scheme, or give the task other metrics")
    return scheme, said


def _strays(scheme: Scheme, tagged: Sequence[tuple[Example, Sequence[str]]]) -> list[tuple[str, str]]:
    """(FILE:LINE, tag) of each word that has a type but is in no entity."""
    found = []
    for example, tags in tagged:
        inside = {word for _, first, end in scheme.entities(tags) for word in range(first, end)}
        words = [word for word, tag in enumerate(tags) if tag not in _OUTSIDE and word not in inside]
        found += [(example.where_of(word), tags[word]) for word in words]
    return found
