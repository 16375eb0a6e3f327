"""Entities in a sentence's tags, as in seqeval's strict mode; the scheme is detected."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

from bertlab.errors import UserError
from bertlab.transfer.examples import Example

# A sentence is two characters per word: "=" if the word has the type of the one before, otherwise
# "|", and the letter of its tag. Each name consists of its scheme's letters.
_ENTITIES = {
    "IOB2": re.compile(r".B(=I)*"),
    # B is only for an entity after one of the same type. As in seqeval, a single B before a B of
    # another type is not an entity.
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
_MOST_STRAY = 0.1  # share of the tags that may break the scheme, as annotators' slips do


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How tags mark entities.

    Attributes:
        name: IOB1, IOB2, IOE2, IOBES or BILOU.
        form: where a tag has its letter: "B-PER" (also B_PER), "PER-B", or "PER" for tags without
            one, which are read as I in IOB1: neighbours of one type are one entity.
    """

    name: str
    form: str

    def entities(self, tags: Sequence[str]) -> list[tuple[str, int, int]]:
        """(Type, first word, end) of each entity; a tag that breaks the scheme is in none."""
        words = [_split(tag, self.form) for tag in tags]
        sentence = "".join(
            ("=" if word[1] == before[1] else "|") + word[0]
            for word, before in zip(words, [("O", None), *words])
        )
        spans = [match.span() for match in _ENTITIES[self.name].finditer(sentence)]
        return [(words[first // 2][1], first // 2, end // 2) for first, end in spans]


@functools.cache
def _split(tag: str, form: str) -> tuple[str, str | None]:
    """A tag's letter and type; a word without a prediction has the tag ""."""
    if tag in ("", *_OUTSIDE):
        return "O", None
    match = _FORMS[form].fullmatch(tag)
    return match["letter"] or "I", match["type"] or ""


def find_scheme(
    task: str, names: Sequence[str], examples: Mapping[str, Sequence[Example]]
) -> tuple[Scheme, list[str]]:
    """The scheme that the fewest tags of all splits break, and notes for the user."""
    labelled = [one for split in examples.values() for one in split if one.label is not None]
    sentences = [(one.where, [names[number] for number in one.label]) for one in labelled]
    tags = sorted({tag for _, sentence in sentences for tag in sentence})
    inside = [tag for tag in tags if tag not in _OUTSIDE]
    form = next(form for form, pattern in _FORMS.items() if all(map(pattern.fullmatch, inside)))
    letters = {_split(tag, form)[0] for tag in inside}
    possible = [Scheme(name, form) for name in _ENTITIES if letters <= set(name)]
    outside = len(tags) - len(inside)
    mixed = any(_FORMS[other].fullmatch(tag) for other in ("B-PER", "PER-B") for tag in inside)
    numbers = all(tag.isdecimal() for tag in inside)  # no file says which tags these are
    if not possible or outside == 2 or (form == "PER" and (mixed or numbers or not outside)):
        raise UserError(
            f"task '{task}': the tags {', '.join(tags)} mark no entities in any of"
            f" {', '.join(_ENTITIES)}; correct them, or give the task the metric accuracy"
        )
    strays = {
        scheme: [(*one, word) for one in sentences for word in _strays(scheme, one[1])]
        for scheme in possible
    }
    scheme = min(possible, key=lambda scheme: len(strays[scheme]))
    notes = [f"entities are tagged as {'types' if form == 'PER' else scheme.name} ({form})"]
    if found := strays[scheme]:
        total = sum(tag not in _OUTSIDE for _, sentence in sentences for tag in sentence)
        where, sentence, word = found[0]
        notes.append(
            f"{len(found):,} of {total:,} tags break {scheme.name}, the first '{sentence[word]}' of"
            f" word {word + 1} of the sentence at {where}"
        )
        if len(found) > _MOST_STRAY * total:
            raise UserError(f"task '{task}': {notes[-1]}; write all tags in one scheme")
    return scheme, notes


def _strays(scheme: Scheme, tags: Sequence[str]) -> list[int]:
    """The words that have a type but are in no entity."""
    words = {word for word, tag in enumerate(tags) if tag not in _OUTSIDE}
    entities = scheme.entities(tags) if words else []
    return sorted(words.difference(*(range(first, end) for _, first, end in entities)))
