"""What every tokenizer offers, and its special pieces."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bertlab.errors import UserError
from bertlab.files import write_json

METADATA = "bertlab_tokenizer.json"
# Ids 0 to 4 in the vocabularies that are trained here.
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# What vocabularies call each special, the most likely name first.
ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
}


class Tokenizer:
    """Text to ids and back.

    Names of specials are never recognised in text: "[MASK]" is tokenised like any other text. A
    special that a vocabulary lacks takes the id of its end of text, else of its start, else of its
    unknown piece; only `mask_id` may be None. `prefix_ids` and `suffix_ids` are around one text:
    (cls,) and (sep,) for BERT. `save` writes the name and content in `vocabulary_file`, and in
    `metadata` what that does not state.
    """

    kind: str  # unigram, bpe, wordpiece, words or json
    has_whole_words: ClassVar[bool] = False  # each token is one word of the text

    def __init__(
        self,
        pieces: Sequence[str],
        lowercase: bool,
        special_ids: Mapping[str, int | None],
        prefix_ids: Sequence[int],
        suffix_ids: Sequence[int],
        vocabulary_file: tuple[str, bytes],
    ):
        self.lowercase, self.vocab_size = lowercase, len(pieces)
        self._pieces, self.vocabulary_file = list(pieces), vocabulary_file
        special_ids = {role: special_ids[role] for role in ROLES}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_ids.values()
        self.prefix_ids, self.suffix_ids = tuple(prefix_ids), tuple(suffix_ids)
        self.special_ids = frozenset(special_ids.values()) - {None}
        self.metadata = {"kind": self.kind, "lowercase": lowercase, "special_ids": special_ids}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the pieces of each text, without special ids around them."""
        raise NotImplementedError

    def decode_pieces(self, ids: Sequence[int]) -> str:
        """Text of pieces that are not special."""
        raise NotImplementedError

    def encode_spaced(self, words: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Of each word of a text in which spaces separate them: the ids of its pieces, and the
        characters [first, end) of `changed(word)` that these stand for. Where several pieces share
        one character, some may be empty."""
        raise NotImplementedError

    def save(self, directory: Path) -> None:
        """Writes the files from which `load_tokenizer(directory)` restores the tokenizer."""
        directory.mkdir(parents=True, exist_ok=True)
        name, content = self.vocabulary_file
        (directory / name).write_bytes(content)
        write_json(directory / METADATA, self.metadata)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_parts(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Ids of each part of each text, as in the whole text; each part but a text's first begins
        with the white space before it."""
        encoded = iter(self.encode_batch([part for parts in texts for part in parts]))
        return [list(itertools.islice(encoded, len(parts))) for parts in texts]

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids of all words, and for each word the index of its first id (it has at least one)."""
        ids, starts = [], []
        for word_ids, _ in self.encode_spaced(words):
            starts.append(len(ids))
            # A word of control characters has no pieces, but labels need a position.
            ids.extend(word_ids or [self.unk_id])
        return ids, starts

    def changed(self, text: str) -> str:
        """The text that is divided into pieces; a character may become any number of characters."""
        return text.lower() if self.lowercase else text

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the pieces; special ids are dropped."""
        return self.decode_pieces([int(i) for i in ids if int(i) not in self.special_ids])

    def pieces(self) -> list[str]:
        """The string of every id; "" for an id that the vocabulary leaves out."""
        return list(self._pieces)

    def continues(self) -> tuple[bool, ...] | None:
        """By id, whether a piece continues the word of the piece before it; specials do not.

        White space separates words, and a word includes the punctuation at its end; in WordPiece
        and words each mark is a word. None if the pieces do not tell.
        """
        return None

    def marked(self, is_marked, others: Iterable[int] = ()) -> tuple[bool, ...]:
        """`is_marked(piece)` by id, False for the specials and `others`."""
        whole = self.special_ids | set(others)
        return tuple(i not in whole and is_marked(piece) for i, piece in enumerate(self._pieces))


class VocabularyTokenizer(Tokenizer):
    """A tokenizer that is saved as a vocab.txt with the five specials."""

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        self.ids = {piece: index for index, piece in enumerate(pieces)}
        special_ids = {role: self.ids[name] for role, name in zip(ROLES, SPECIALS)}
        around = [special_ids["cls"]], [special_ids["sep"]]
        file = "vocab.txt", "".join(f"{piece}\n" for piece in pieces).encode()
        super().__init__(pieces, lowercase, special_ids, *around, file)


def find_specials(
    ids: Mapping[str, int], names: Mapping[str, str | None], source: str | Path
) -> dict[str, int | None]:
    """Special ids by role; `names`, as the files have them, are tried before the usual ones."""
    found = {}
    for role, usual in ROLES.items():
        candidates = (ids[name] for name in (names.get(role), *usual) if name in ids)
        found[role] = next(candidates, None)
    stand_ins = [found[role] for role in ("sep", "cls", "unk") if found[role] is not None]
    if not stand_ins:
        raise UserError(f"{source} has no special piece, such as [SEP], </s> or <unk>")
    defaults = dict.fromkeys(("pad", "unk", "cls", "sep"), stand_ins[0])
    return {role: defaults.get(role) if i is None else i for role, i in found.items()}


def normalise(text: str, lowercase: bool) -> str:
    """The text with single spaces and none around it, lower-cased if `lowercase` is set."""
    text = " ".join(text.split())
    return text.lower() if lowercase else text


def with_spaces(words: Sequence[str]) -> list[str]:
    """The words, each but the first with a space before it."""
    return [f" {word}" if index and word else word for index, word in enumerate(words)]
