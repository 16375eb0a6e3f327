"""Tokenizers: text to ids and back.

Four kinds are trained here: SentencePiece `unigram` and `bpe` (with byte fallback, so nothing is unknown), `wordpiece` (BERT's
rules) and `words`. The ids 0 to 4 of their vocabularies are `[PAD] [UNK] [CLS] [SEP] [MASK]`. Two more come with imported
models: `json` (Hugging Face's tokenizer.json, and the byte-level BPE of GPT-2 and RoBERTa) and `gpt1` (OpenAI's first GPT).

Names of specials are never recognised in text: "[MASK]" is tokenised like any other text, and only a caller puts special ids
into a sequence. A special that a vocabulary lacks has the id of its end of text, or else its start, or else its unknown piece:
GPT-2's `pad_id`, `unk_id`, `cls_id` and `sep_id` are all <|endoftext|>, GPT-1's <unk>. Only a missing mask has no stand-in.

Runs of white space in the text count as one space. Exceptions: `json` follows its file, and in `gpt1` a run with a line break
counts as a line break.
"""

import bisect
import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import sentencepiece
import tokenizers

from bertlab.data import gpt1_words
from bertlab.data.vocabularies import (
    SPECIALS,
    bert_tokenizer,
    bert_words,
    sample_texts,
    split_words,
    train_sentencepiece,
    train_wordpiece,
    train_words,
    wrong_size,
)
from bertlab.errors import UserError, code_of, reason_of
from bertlab.files import parse_json, write_bytes, write_json, write_text

_METADATA = "bertlab_tokenizer.json"

# A WordPiece tokenizer remembers this many words (they cover 95 % of a text), up to this length.
_KNOWN_WORDS, _LONGEST_KNOWN = 2**16, 30

# How SentencePiece writes the space before a word; byte-level BPE has "Ġ" for it, and "Ċĉč" for line ends and tabs.
_SPACE_MARK = "▁"

# Added to a serialised SentencePiece model (parts of a protocol buffer merge): its NormalizerSpec (3) sets no space before a
# text (3) and keeps one that is there (4).
_INSIDE_A_TEXT = b"\x1a\x04\x18\x00\x20\x00"

# What vocabularies call each special, the likeliest name first.
_ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<bos>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
}
# GPT-1's two files, as OpenAI and as Hugging Face name them; byte-level BPE has the latter names too.
_OPENAI_FILES = ("encoder_bpe_40000.json", "vocab_40000.bpe")
_BPE_FILES = ("vocab.json", "merges.txt")

# transformers' tokenizer of a model_type whose files name no tokenizer_class; names are without "Fast".
_USUAL_CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
}
# Classes with no rules beyond vocab.txt and tokenizer_config.json, and beyond vocab.json and merges.txt.
_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_BYTE_LEVEL_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer")
# Classes of encoders and decoders for text whose rules are in Python: they do not read tokenizer.json.
_PYTHON_CLASSES = (
    *("BertJapaneseTokenizer", "BertweetTokenizer", "BioGptTokenizer", "ByT5Tokenizer", "CanineTokenizer", "CTRLTokenizer"),
    *("EsmTokenizer", "FlaubertTokenizer", "GPTNeoXJapaneseTokenizer", "GPTSw3Tokenizer", "PhobertTokenizer"),
    *("ProphetNetTokenizer", "RoCBertTokenizer", "TapasTokenizer", "XLMTokenizer"),
)
# Keys of tokenizer_config.json that repeat what a part of tokenizer.json says, that part, and its key.
_REPEATED = (
    ("do_lower_case", "normalizer", "lowercase"),
    ("strip_accents", "normalizer", "strip_accents"),
    ("tokenize_chinese_chars", "normalizer", "handle_chinese_chars"),
    ("add_prefix_space", "pre_tokenizer", "add_prefix_space"),
)


class Tokenizer:
    """Text to ids and back.

    A kind also has `_decode`, `_save_vocabulary(directory)` and a class method `load(directory, metadata)` for what `save`
    wrote. One that can be trained has a class method `train(sample, vocab_size, lowercase)`; see `train_on_sample`.

    Attributes:
      kind: a name in `KINDS`.
      has_whole_words: each token is one word, known or not.
      settings: attributes of the kind that are saved too.
      pad_id, unk_id, cls_id, sep_id, mask_id: the special ids; `mask_id` is None without a piece to mask with.
      prefix_ids, suffix_ids: special ids around one text, as the model was pretrained: (cls,) and (sep,) for BERT.
    """

    kind: ClassVar[str]
    has_whole_words: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        pieces: Sequence[str],
        lowercase: bool,
        special_ids: Mapping[str, int | None],
        prefix_ids: Sequence[int],
        suffix_ids: Sequence[int],
    ):
        for role in _ROLES:
            index = special_ids[role]
            if index is not None and not (type(index) is int and 0 <= index < len(pieces)):
                raise UserError(f"The special piece {role} has the id {index!r}, but the ids are 0 to {len(pieces) - 1}.")
        self.lowercase = lowercase
        self.vocab_size = len(pieces)
        self._pieces = list(pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (special_ids[role] for role in _ROLES)
        self.prefix_ids, self.suffix_ids = tuple(prefix_ids), tuple(suffix_ids)
        self._special_ids = frozenset(special_ids.values()) - {None}

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`, without special ids around them."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""
        raise NotImplementedError

    def encode_parts(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Ids of each part of each text, as in the whole text. A part but the first begins with the white space before it."""
        encoded = iter(self.encode_batch([part for parts in texts for part in parts]))
        return [list(itertools.islice(encoded, len(parts))) for parts in texts]

    def _encode_spaced(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of each word of a text, in which spaces separate them."""
        return self.encode_batch(words)

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids of all words one after the other, and for each word the index of its first id (it has at least one)."""
        ids, starts = [], []
        for word_ids in self._encode_spaced(words):
            starts.append(len(ids))
            # A word of control characters only has no pieces, but labels need a position.
            ids.extend(word_ids or [self.unk_id])
        return ids, starts

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the pieces; special ids are dropped."""
        return self._decode([int(index) for index in ids if int(index) not in self._special_ids])

    def pieces(self) -> list[str]:
        """The string of every id; "" for an id that the vocabulary leaves out."""
        return list(self._pieces)

    def continues(self) -> tuple[bool, ...] | None:
        """By id, whether a piece continues the word of the piece before it; specials do not.

        White space separates words, and a word includes the punctuation at its end; in WordPiece and words each punctuation
        mark is a word. None if pieces do not show it: GPT-1's show only where a word ends.
        """
        return None

    def _continuing(self, goes_on, others: Iterable[int] = ()) -> tuple[bool, ...]:
        """`goes_on` of every piece, but not of the specials and `others`."""
        whole = self._special_ids | set(others)
        return tuple(index not in whole and goes_on(piece) for index, piece in enumerate(self._pieces))

    def save(self, directory: str | Path) -> None:
        """Writes the tokenizer to files; `load_tokenizer(directory)` restores the same tokenizer."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_vocabulary(directory)
        special_ids = {role: getattr(self, f"{role}_id") for role in _ROLES}
        metadata = {"kind": self.kind, "vocab_size": self.vocab_size, "lowercase": self.lowercase, "special_ids": special_ids}
        metadata |= {name: getattr(self, name) for name in self.settings}
        write_json(directory / _METADATA, metadata)


def _find_specials(ids: Mapping[str, int], names: Mapping[str, str], source: Any) -> dict[str, int | None]:
    """Special ids by role; `names` are those that the files give, tried before the usual ones. See the module."""
    known = lambda role: (name for name in (names.get(role), *_ROLES[role]) if isinstance(name, str) and name in ids)
    found = {role: next((ids[name] for name in known(role)), None) for role in _ROLES}
    stand_in = next((found[role] for role in ("sep", "cls", "unk") if found[role] is not None), None)
    if stand_in is None:
        usual = ", ".join(name for role in ("sep", "cls", "unk") for name in _ROLES[role])
        raise UserError(f"{source} has no special piece: at least one of {usual} must be in the vocabulary.")
    return {role: stand_in if index is None and role != "mask" else index for role, index in found.items()}


# Ids that a vocabulary may leave out; each costs memory, and a damaged file may name any number.
_MOST_GAPS = 1_000_000


def pieces_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    """The pieces of a vocabulary in the order of their ids, "" where there is none. Raises: UserError: an id is impossible."""
    possible = lambda index: type(index) is int and 0 <= index < len(vocabulary) + _MOST_GAPS
    wrong = next((f"{piece!r} has {index!r}" for piece, index in vocabulary.items() if not possible(index)), "")
    if wrong or not vocabulary:
        raise UserError(f"A vocabulary gives each piece a whole number from 0 on, but {wrong or 'this one is empty'}.")
    pieces = [""] * (max(vocabulary.values()) + 1)
    for piece, index in vocabulary.items():
        pieces[index] = piece
    return pieces


def _with_spaces(words: Sequence[str]) -> list[str]:
    return [f" {word}" if index and word else word for index, word in enumerate(words)]


def normalise(text: str, lowercase: bool) -> str:
    """The text with single spaces and none around it, lower-cased if `lowercase` is set."""
    text = " ".join(text.split())
    return text.lower() if lowercase else text


class SentencePieceTokenizer(Tokenizer):
    """Base of the two kinds of SentencePiece models.

    Characters outside the vocabulary become bytes, so decoding restores the text (lower-cased if you set `lowercase`). The
    character U+2581, SentencePiece's mark for a space, is read as a space. A model that was not trained here keeps its own
    rules (after ours for white space). If it names pieces for the begin and end of a text, they frame each text.
    """

    def __init__(self, model: bytes, lowercase: bool):
        """Args: model: serialised SentencePiece model; lowercase: lower-case text first."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._processor.id_to_piece(index) for index in range(self._processor.get_piece_size())]
        processor = self._processor
        ids = {piece: index for index, piece in enumerate(pieces)}
        first, last = processor.bos_id(), processor.eos_id()
        named = {"pad": processor.pad_id(), "unk": processor.unk_id(), "cls": first, "sep": last}
        names = {role: pieces[index] for role, index in named.items() if index >= 0}
        framing = [[index] if index >= 0 else [] for index in (first, last)]
        super().__init__(pieces, lowercase, _find_specials(ids, names, "The SentencePiece model"), *framing)

    @classmethod
    def train(cls, sample: list[str], vocab_size: int, lowercase: bool) -> Self:
        return cls(train_sentencepiece(cls.kind, sample, vocab_size), lowercase)

    @classmethod
    def load(cls, directory: Path, metadata: Mapping[str, Any]) -> Self:
        return cls((directory / "sentencepiece.model").read_bytes(), metadata["lowercase"])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([normalise(text, self.lowercase) for text in texts], num_threads=1)

    def encode_parts(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        first = iter(self.encode_batch([part for parts in texts for part in parts[:1]]))
        others = [" " * part[:1].isspace() + normalise(part, self.lowercase) for parts in texts for part in parts[1:]]
        others = iter(self._inside.encode(others, num_threads=1))
        return [[*itertools.islice(first, len(parts[:1])), *itertools.islice(others, len(parts[1:]))] for parts in texts]

    def _encode_spaced(self, words):
        return self.encode_parts([_with_spaces(words)])[0]

    @functools.cached_property
    def _inside(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model + _INSIDE_A_TEXT)

    def _decode(self, ids):
        return self._processor.decode(ids)

    def continues(self) -> tuple[bool, ...]:
        controls = (i for i in range(self.vocab_size) if self._processor.is_control(i) or self._processor.is_unknown(i))
        return self._continuing(lambda piece: not piece.startswith(_SPACE_MARK), controls)

    def _save_vocabulary(self, directory: Path) -> None:
        write_bytes(directory / "sentencepiece.model", self.model)


class UnigramTokenizer(SentencePieceTokenizer):
    """SentencePiece's unigram language model (Kudo 2018)."""

    kind = "unigram"


class BpeTokenizer(SentencePieceTokenizer):
    """SentencePiece's byte-pair encoding (Sennrich et al. 2016)."""

    kind = "bpe"


class _VocabularyTokenizer(Tokenizer):
    """A tokenizer that is saved as a vocab.txt; [CLS] and [SEP] go around a text."""

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        ids = {piece: index for index, piece in enumerate(pieces)}
        special_ids = {role: ids[special] for role, special in zip(_ROLES, SPECIALS)}
        super().__init__(pieces, lowercase, special_ids, [special_ids["cls"]], [special_ids["sep"]])

    @classmethod
    def load(cls, directory: Path, metadata: Mapping[str, Any]) -> Self:
        settings = {name: metadata[name] for name in cls.settings if name in metadata}
        return cls(_read_vocabulary(directory / "vocab.txt", as_google=False), metadata["lowercase"], **settings)

    def _save_vocabulary(self, directory: Path) -> None:
        # In bytes, like the reader: a text file would lose a piece's carriage return.
        write_bytes(directory / "vocab.txt", "".join(f"{piece}\n" for piece in self._pieces).encode())


class WordPieceTokenizer(_VocabularyTokenizer):
    """BERT's tokenizer: BasicTokenizer's cleaning and splitting, then greedy longest-match WordPiece (Wu et al. 2016).

    Same results as Google's tokenization.py (with the Unicode of this Python), including [UNK] for words of more than 200
    characters. With `lowercase`, accents are stripped too.
    """

    kind = "wordpiece"

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        """Args: pieces: vocabulary in the order of ids, with the five specials; lowercase: as in BERT's uncased models."""
        super().__init__(pieces, lowercase)
        self._tokenizer = bert_tokenizer({piece: index for index, piece in enumerate(pieces)})
        self._known: dict[str, list[int]] = {}  # the words met first: the frequent ones

    @classmethod
    def train(cls, sample: list[str], vocab_size: int, lowercase: bool) -> Self:
        return cls(train_wordpiece(sample, vocab_size, lowercase), lowercase)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        words = [bert_words(text, self.lowercase) for text in texts]
        different = {word for of_text in words for word in of_text}
        ids = {word: self._known[word] for word in different & self._known.keys()}
        new = list(different - ids.keys())
        found = (encoding.ids for encoding in self._tokenizer.encode_batch(new, add_special_tokens=False))
        ids |= zip(new, found)
        if len(self._known) + len(new) <= _KNOWN_WORDS:
            self._known |= {word: ids[word] for word in new if len(word) <= _LONGEST_KNOWN}
        return [list(itertools.chain.from_iterable(map(ids.__getitem__, of_text))) for of_text in words]

    def _decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def continues(self) -> tuple[bool, ...]:
        return self._continuing(lambda piece: piece.startswith("##"))


class WordsTokenizer(_VocabularyTokenizer):
    """Words and single punctuation marks, unchanged; others are [UNK]. Decoding puts spaces between them.

    A word that a caller gives is looked up whole, and split at punctuation only if the vocabulary lacks it. With
    `split="whitespace"` the same holds for the words between white space in a text. This is for vocabularies made elsewhere: if
    spaces separate the tokens that they expect ("n't", "10,000", "New-York"), text becomes these tokens.
    """

    kind = "words"
    has_whole_words = True
    settings = ("split",)
    SPLITS = ("punctuation", "whitespace")

    def __init__(self, pieces: Sequence[str], lowercase: bool, split: str = "punctuation"):
        """Args: pieces, lowercase: as for `WordPieceTokenizer`; split: where a text is split, one of `SPLITS`."""
        if split not in self.SPLITS:
            raise UserError(f'split="{split}" of a words tokenizer is unknown: use one of {", ".join(self.SPLITS)}.')
        super().__init__(pieces, lowercase)
        self.split = split
        self._ids = {piece: index for index, piece in enumerate(pieces) if index not in self._special_ids}

    @classmethod
    def train(cls, sample: list[str], vocab_size: int, lowercase: bool, split: str = "punctuation") -> Self:
        return cls(train_words(sample, vocab_size, split), lowercase, split)

    def words(self, text: str) -> list[str]:
        """The words of a text (lower-cased if so chosen), one for each id of `encode`."""
        text = normalise(text, self.lowercase)
        if self.split == "punctuation":
            return split_words(text)
        tokens = ([token] if token in self._ids else split_words(token) for token in text.split(" "))
        return list(itertools.chain.from_iterable(tokens))

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        ids, starts = [], []
        for word in words:
            whole = self._ids.get(word.lower() if self.lowercase else word)
            starts.append(len(ids))
            ids.extend([whole] if whole is not None else self.encode(word) or [self.unk_id])
        return ids, starts

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(word, self.unk_id) for word in self.words(text)] for text in texts]

    def _decode(self, ids):
        return " ".join(self._pieces[index] for index in ids)

    def continues(self) -> tuple[bool, ...]:
        return (False,) * self.vocab_size


class JsonTokenizer(Tokenizer):
    """A tokenizer of Hugging Face's `tokenizers` library with all its rules, from an imported model.

    It does not recognise the names of its special pieces in text (transformers' `split_special_tokens=True`), but it recognises
    added pieces that are not special. If a model has such a name among its text pieces (as words and unigram models do), the
    name becomes the unknown piece. In a byte-level BPE "word" and " word" are different pieces, so every word but the first
    gets its space.
    """

    kind = "json"

    def __init__(self, backend: str, special_ids: Mapping[str, int | None]):
        """Args: backend: contents of a tokenizer.json; special_ids: id by role (pad, unk, cls, sep, mask)."""
        self._backend = backend
        self._tokenizer = tokenizers.Tokenizer.from_str(backend)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        pieces = pieces_by_id(self._tokenizer.get_vocab(with_added_tokens=True))
        normalizer = self._tokenizer.normalizer
        lowercase = normalizer is not None and "A" not in normalizer.normalize_str("A")
        # The special ids around a text are not named in the file; they are found by encoding one.
        probe = next((text for text in ("a", *pieces) if self._ids([text])[0]), None)
        if probe is None:
            raise UserError("This tokenizer.json cannot tokenize even its own pieces; export it again.")
        framed = self._tokenizer.encode(probe)
        inside = [i for i, sequence in enumerate(framed.sequence_ids) if sequence is not None]
        framing = framed.ids[: inside[0]], framed.ids[inside[-1] + 1 :]
        super().__init__(pieces, lowercase, special_ids, *framing)
        # With a prefix "a": a tokenizer that starts every text as if after a space needs none.
        self._word_needs_space = self._ids(["a a"])[0] != 2 * self._ids(["a"])[0]

    @classmethod
    def load(cls, directory: Path, metadata: Mapping[str, Any]) -> Self:
        return cls(_text(directory / "tokenizer.json"), metadata["special_ids"])

    def __reduce__(self):
        return JsonTokenizer, (self._backend, {role: getattr(self, f"{role}_id") for role in _ROLES})

    def _encodings(self, texts):
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def _ids(self, texts):
        return [encoding.ids for encoding in self._encodings(texts)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._without_specials(ids) for ids in self._ids(texts)]

    def _without_specials(self, ids: list[int]) -> list[int]:
        hidden = self._special_ids - {self.unk_id}
        return ids if hidden.isdisjoint(ids) else [self.unk_id if index in hidden else index for index in ids]

    def encode_parts(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        found = []
        for parts, encoding in zip(texts, self._encodings(map("".join, texts)), strict=True):
            ids = self._without_specials(encoding.ids)
            # A piece belongs to the part of its last character. Some normalizers' offsets go back, so the furthest counts.
            ends = list(itertools.accumulate((end for _, end in encoding.offsets), max))
            cuts = [bisect.bisect_right(ends, begin) for begin in itertools.accumulate(map(len, parts[:-1]))]
            found.append([ids[first:end] for first, end in itertools.pairwise([0, *cuts, len(ids)])])
        return found

    def _encode_spaced(self, words):
        return self.encode_batch(_with_spaces(words) if self._word_needs_space else words)

    def _decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def continues(self) -> tuple[bool, ...] | None:
        description = json.loads(self._backend)
        model = description["model"]
        if model["type"] == "WordLevel":
            return (False,) * self.vocab_size
        if model.get("end_of_word_suffix"):
            return None
        added = self._tokenizer.get_added_tokens_decoder()
        if prefix := model.get("continuing_subword_prefix"):
            return self._continuing(lambda piece: piece.startswith(prefix), added)
        byte_level = '"ByteLevel"' in json.dumps([description["pre_tokenizer"], description["decoder"]])
        marks = tuple("ĠĊĉč") if byte_level else (_SPACE_MARK, "\n", "<0x0A>")  # a word's begin, or white space before it
        if not any(piece.startswith(marks[0]) for piece in self._pieces):
            return None
        return self._continuing(lambda piece: not piece.startswith(marks), added)

    def _save_vocabulary(self, directory: Path) -> None:
        write_text(directory / "tokenizer.json", self._backend)


class Gpt1Tokenizer(Tokenizer):
    """The tokenizer of OpenAI's first GPT: byte-pair encoding (Sennrich et al. 2016) of the words of `bertlab.data.gpt1_words`.

    A piece that is not in the vocabulary has id 0, <unk>. Needs the extra `openai`.
    """

    kind = "gpt1"

    def __init__(self, pieces: Sequence[str], merges: Sequence[tuple[str, str]]):
        """Args: pieces: vocabulary in the order of ids; merges: pairs of pieces, the first to be merged first."""
        ids = {piece: index for index, piece in enumerate(pieces)}
        super().__init__(pieces, True, _find_specials(ids, {}, "The vocabulary"), (), ())
        self._merges = [tuple(merge) for merge in merges]
        self._line_break = ids.get(f"\n{gpt1_words.END_OF_WORD}", 0)
        self._bpe = _bpe(ids, self._merges, unk_token=pieces[0], end_of_word_suffix=gpt1_words.END_OF_WORD)

    @classmethod
    def load(cls, directory: Path, metadata: Mapping[str, Any]) -> Self:
        del metadata
        return _load_bpe(directory, _OPENAI_FILES)

    def merges(self) -> list[tuple[str, str]]:
        """Pairs of pieces, the first to be merged first."""
        return list(self._merges)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(itertools.chain.from_iterable(map(self._encode_word, gpt1_words.words(text)))) for text in texts]

    def encode_parts(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        begins_line = lambda part: "\n" in part[: -len(part.lstrip())]
        return [
            [[self._line_break] * begins_line(part) + ids for part, ids in zip(parts, encoded)]
            for parts, encoded in zip(texts, super().encode_parts(texts))
        ]

    def _encode_word(self, word: str) -> list[int]:
        return [self._line_break] if word == gpt1_words.LINE_BREAK else [token.id for token in self._bpe.tokenize(word)]

    def _decode(self, ids):
        return "".join(self._pieces[index] for index in ids).replace(gpt1_words.END_OF_WORD, " ").strip()

    def _save_vocabulary(self, directory: Path) -> None:
        vocabulary = {piece: index for index, piece in enumerate(self._pieces)}
        lines = ["#version: 0.2", *map(" ".join, self._merges)]
        for name, text in zip(_OPENAI_FILES, (json.dumps(vocabulary), "\n".join(lines) + "\n")):
            write_text(directory / name, text)


KINDS: dict[str, type[Tokenizer]] = {
    kind.kind: kind
    for kind in (UnigramTokenizer, BpeTokenizer, WordPieceTokenizer, WordsTokenizer, JsonTokenizer, Gpt1Tokenizer)
}
TRAINED_KINDS = tuple(name for name, kind in KINDS.items() if hasattr(kind, "train"))


def has_whole_words(kind: str) -> bool:
    """Whether each token of this kind of tokenizer is one word."""
    return kind in KINDS and KINDS[kind].has_whole_words


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    seed: int,
    lowercase: bool = False,
    sample_sentences: int = 1_000_000,
) -> Tokenizer:
    """Trains a tokenizer on a sample of the texts. The same arguments give the same tokenizer.

    Args:
      kind: one of `TRAINED_KINDS`.
      texts: sentences, read once as a stream.
      vocab_size: number of pieces, the five specials (and for SentencePiece 256 bytes) included.
      seed: of the sample, if the texts do not all fit into it.
      lowercase: lower-case the text (for WordPiece: strip accents too).
      sample_sentences: number of sentences to train on at most (and at most `SAMPLE_CHARACTERS` characters).

    Raises:
      UserError: if the kind is unknown, there is no text, or the text does not support a vocabulary of this size.
    """
    check_training(kind, vocab_size)
    sample = sample_texts((normalise(text, lowercase) for text in texts), sample_sentences, seed)
    return train_on_sample(kind, sample, vocab_size, lowercase)


def check_training(kind: str, vocab_size: int) -> None:
    """Raises: UserError: if the kind is unknown or the vocabulary size is too small for any text."""
    if kind not in TRAINED_KINDS:
        known = ", ".join(TRAINED_KINDS)
        raise UserError(f'kind="{kind}" (config.data.tokenizer.kind, or --kind) is unknown: use one of {known}.')
    if vocab_size <= len(SPECIALS):
        raise wrong_size(vocab_size, f"must be more than the {len(SPECIALS)} special pieces")


def train_on_sample(kind: str, sample: list[str], vocab_size: int, lowercase: bool, split: str = "punctuation") -> Tokenizer:
    """Trains on a sample of normalised texts; the second half of `train_tokenizer`. `split` is only of words."""
    if not sample:
        raise UserError("The tokenizer was given no text to train on; check config.data.corpus and config.data.valid_fraction.")
    settings = {"split": split} if split != "punctuation" else {}
    return KINDS[kind].train(sample, vocab_size, lowercase, **settings)


def load_tokenizer(path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      path: a directory that `save` wrote; a BERT vocabulary (one piece a line, such as `vocab.txt`); Hugging Face's
        `tokenizer.json`; a SentencePiece `.model` file; or a directory that holds (looked for in this order) tokenizer.json,
        vocab.txt, vocab.json with merges.txt (byte-level BPE, or GPT-1's where its pieces end in </w>), or OpenAI's
        encoder_bpe_40000.json with vocab_40000.bpe. A tokenizer_config.json in the same folder is applied. A vocabulary alone
        has Google's rules; beside transformers' files it has transformers' (see `WordPieceTokenizer` and `_load_wordpiece`).
      lowercase: whether to lower-case text first; only for a vocabulary and for SentencePiece, whose files do not say. None:
        as tokenizer_config.json says; else a vocabulary is lower-cased if only its specials have capital letters.

    Raises:
      UserError: if there is no such file, it cannot be read, it lacks the special pieces, or its tokenizer has rules that are
        not in the files.
    """
    path = Path(path).expanduser()
    try:
        return _load(path, lowercase)
    except UserError as error:
        said = " ".join(str(error).split())  # some of it is the libraries'
        raise UserError(said if str(path) in said else f"{path}: {said}") from error
    except Exception as error:  # the libraries raise many kinds for a damaged file
        if code_of(error) is not None:  # the machine's
            raise
        raise UserError(f"{path} cannot be read as a tokenizer ({reason_of(error)}); restore it, or make it again") from error


def _load(path: Path, lowercase: bool | None) -> Tokenizer:
    if (path / _METADATA).is_file():
        metadata = _read_json(path / _METADATA)
        if (kind := metadata.get("kind")) not in [*KINDS]:
            raise UserError(f"{path / _METADATA}: kind={kind!r} is not one of {', '.join(KINDS)}; restore the file.")
        tokenizer = KINDS[kind].load(path, metadata)
        if (size := metadata.get("vocab_size", tokenizer.vocab_size)) != tokenizer.vocab_size:
            raise UserError(
                f"{path} holds a vocabulary of {tokenizer.vocab_size} pieces, but {_METADATA} says {size}; restore it, or"
                " make it again"
            )
        return tokenizer
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            path = path / "tokenizer.json"
        elif (path / "vocab.txt").is_file():
            path = path / "vocab.txt"
        for names in (_BPE_FILES, _OPENAI_FILES):
            if path.is_dir() and all((path / name).is_file() for name in names):
                return _load_bpe(path, names)
    elif path.name == "vocab.txt" and lowercase is None and path.with_name("tokenizer.json").is_file():
        path = path.with_name("tokenizer.json")
    settings = _read_settings(path.parent)
    if path.is_file() and path.suffix == ".txt":
        return _load_wordpiece(path, settings, lowercase)
    if path.is_file() and path.suffix == ".json":
        _refuse_other_rules(path, settings)
        tokenizer = _load_json(_text(path), settings, path)
        _refuse_contradictions(path, settings)
        return tokenizer
    if path.is_file() and path.suffix == ".model":
        return _load_sentencepiece(path, bool(lowercase))
    raise UserError(
        f'path="{path}" (config.data.tokenizer.path, or --tokenizer) is neither a folder with {_METADATA} (as bertlab '
        "tokenizer train writes it) nor a BERT vocab.txt, a tokenizer.json, a SentencePiece .model, or a folder with one of "
        f"the first two, with {' and '.join(_BPE_FILES)}, or with {' and '.join(_OPENAI_FILES)}."
    )


def _read_vocabulary(path: Path, as_google: bool, specials: Sequence[str] = SPECIALS) -> list[str]:
    pieces = _text(path, newline="").removesuffix("\n").split("\n")
    if as_google:  # who strips each line; a line of only white space is kept, or it would become a second "".
        pieces = [line.strip() or line.removesuffix("\r") for line in pieces]
    missing = [special for special in specials if special not in pieces]
    if missing:
        raise UserError(
            f"{path} lacks {' '.join(missing)}: a vocabulary has one piece per line, and includes {' '.join(specials)}."
        )
    return pieces


def _text(path: Path, newline: str | None = None) -> str:
    """A file's text; `newline` as for `open`."""
    try:
        with path.open(encoding="utf-8", newline=newline) as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte {error.start}: {error.reason}); convert it, or restore the original file."
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        contents = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(contents, dict):
        raise UserError(f"{path} holds JSON of type {type(contents).__name__}; expected an object: restore it")
    return contents


def _read_settings(directory: Path) -> dict[str, Any]:
    """What transformers' files beside a tokenizer say of it, without nulls; a token is a string there, or a record."""
    settings = {}
    if (directory / "config.json").is_file():
        model = _read_json(directory / "config.json")
        settings = {key: model.get(key) for key in ("model_type", "tokenizer_class")}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            settings |= {key: value for key, value in _read_json(directory / name).items() if value is not None}
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in settings.items()
        if value is not None
    }


def _class_of(settings: Mapping[str, Any]) -> str:
    """transformers' class for the tokenizer, without "Fast"; "" if the files name neither it nor a known model."""
    name = settings.get("tokenizer_class") or _USUAL_CLASSES.get(settings.get("model_type"), "")
    return str(name).removesuffix("Fast")


def _refuse_other_rules(path: Path, settings: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
    """Refuses a file whose tokenizer has rules beyond it; `classes` have none (none given: all but those in Python)."""
    name = _class_of(settings)
    known = name in classes if classes else name not in _PYTHON_CLASSES
    if settings.get("auto_map"):
        name, known = f"{settings['auto_map']} (auto_map)", False
    if name and not known:
        raise UserError(
            f"{path}: the published tokenizer is a {name}, and bertlab does not know whether this file holds all its rules; add"
            ' a tokenizer.json that does, and tokenizer_class="PreTrainedTokenizerFast" in tokenizer_config.json'
        )


def _refuse_contradictions(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuses a tokenizer.json beside settings that say otherwise: which counts depends on transformers' class and version."""
    backend = _read_json(path)
    for key, part, name in _REPEATED:
        rules = backend.get(part) or {}
        if name not in rules or key not in settings:
            continue
        value = rules["lowercase"] if rules[name] is None else rules[name]  # accents are stripped from lower-cased text
        if settings[key] != value:
            raise UserError(
                f"{path.parent / 'tokenizer_config.json'}: {key}={settings[key]!r}, but tokenizer.json has"
                f" {name}={rules[name]!r}; make them equal"
            )


def _load_wordpiece(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> Tokenizer:
    """A vocabulary by Google's rules, or beside transformers' files by those of the library that its BertTokenizer uses.

    The library has other Unicode tables and customs than Google (see `bert_words`), and [UNK] for words of more than 100
    characters.
    """
    names = {role: settings.get(f"{role}_token", special) for role, special in zip(_ROLES, SPECIALS)}
    pieces = _read_vocabulary(path, as_google=True, specials=[*names.values()])
    capitals = [piece for piece in pieces if piece != piece.lower() and not re.fullmatch(r"\[.*\]", piece)]
    lowercase = settings.get("do_lower_case") if lowercase is None else lowercase
    if lowercase is None and settings and capitals:
        raise UserError(
            f"{path} has pieces with capital letters, such as {capitals[0]!r}, but transformers lower-cases text unless told"
            ' otherwise; say "do_lower_case": false, or true, in tokenizer_config.json'
        )
    lowercase = not capitals if lowercase is None else lowercase
    if not settings:
        return WordPieceTokenizer(pieces, lowercase)
    _refuse_other_rules(path, settings, _BERT_CLASSES)
    for key, usual in (("do_basic_tokenize", True), ("never_split", [])):
        if settings.get(key, usual) != usual:
            raise UserError(f"{path}: bertlab has no {key}={settings[key]!r} of tokenizer_config.json; add a tokenizer.json")
    ids = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token=names["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens([*names.values()])
    sep, cls = ((names[role], ids[names[role]]) for role in ("sep", "cls"))
    tokenizer.post_processor = tokenizers.processors.BertProcessing(sep, cls)
    return _load_json(tokenizer.to_str(), settings, path)


def _load_json(backend: str, settings: Mapping[str, Any], path: Path) -> JsonTokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(backend)
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path} is not a tokenizer.json that the tokenizers library can read: {error}") from error
    _require_added(tokenizer, settings, path)
    names = {
        role: settings.get(f"{role}_token") or settings.get(f"{other}_token")
        for role, other in (("pad", "pad"), ("unk", "unk"), ("cls", "bos"), ("sep", "eos"), ("mask", "mask"))
    }
    return JsonTokenizer(backend, _find_specials(tokenizer.get_vocab(with_added_tokens=True), names, path))


def _require_added(tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """Refuses a tokenizer without a token that the files beside it add; a special one need not be known in text."""
    directory = path if path.is_dir() else path.parent
    added = {token["content"]: token.get("special", False) for token in settings.get("added_tokens_decoder", {}).values()}
    if (directory / "added_tokens.json").is_file():
        added = dict.fromkeys(_read_json(directory / "added_tokens.json"), False) | added
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for name, special in added.items():
        if name not in known and not (special and tokenizer.token_to_id(name) is not None):
            raise UserError(
                f"{path} lacks the added token {name!r} of the files beside it; add the tokenizer.json that"
                " AutoTokenizer.from_pretrained(...).save_pretrained(...) writes"
            )


def _bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **options: str) -> tokenizers.models.BPE:
    try:
        return tokenizers.models.BPE(dict(vocabulary), list(merges), **options)
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"The merges of a byte-pair encoding do not fit its vocabulary: {error}") from error


def _load_bpe(directory: Path, names: tuple[str, str]) -> Tokenizer:
    """Byte-level BPE as GPT-2's and RoBERTa's files describe it, or GPT-1's."""
    vocabulary = _read_json(directory / names[0])
    pieces = pieces_by_id(vocabulary)
    lines = _text(directory / names[1]).split("\n")
    # Merges may start with "#", but the first line with a version is none.
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [tuple(line.split(" ")) for line in lines if line]
    for number, merge in enumerate(merges):
        if len(merge) != 2:
            raise UserError(f"{directory / names[1]}: merge {number + 1} is {merge}, expected two pieces with a space between.")
    settings = _read_settings(directory)
    if any(piece.endswith(gpt1_words.END_OF_WORD) for piece in vocabulary):
        _refuse_other_rules(directory / names[0], settings, ("OpenAIGPTTokenizer",))
        return Gpt1Tokenizer(pieces, merges)
    _refuse_other_rules(directory / names[0], settings, _BYTE_LEVEL_CLASSES)
    space = bool(settings.get("add_prefix_space", False))
    tokenizer = tokenizers.Tokenizer(_bpe(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    specials = [name for names in _ROLES.values() for name in names if name in vocabulary]
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == "<mask>", special=True) for name in specials])
    if "<s>" in vocabulary and "</s>" in vocabulary and _class_of(settings) != "GPT2Tokenizer":
        sep, cls = (("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]))
        tokenizer.post_processor = tokenizers.processors.RobertaProcessing(sep, cls, True, space)
    else:
        tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    return _load_json(tokenizer.to_str(), settings, directory)


def _load_sentencepiece(path: Path, lowercase: bool) -> SentencePieceTokenizer:
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:
        # A warning of sentencepiece 0.2.3 with protobuf 6, the newest that Beam 2.77 supports.
        raise UserError(
            f"{path} needs a newer protobuf than the installed one; load it in an environment without bertlab[beam] ({error})"
        ) from error

    model = path.read_bytes()
    description = sentencepiece_model_pb2.ModelProto()
    try:
        description.ParseFromString(model)
    except Exception as error:
        raise UserError(f"{path} is not a SentencePiece model: {error}") from error
    kinds = {description.trainer_spec.UNIGRAM: UnigramTokenizer, description.trainer_spec.BPE: BpeTokenizer}
    if description.trainer_spec.model_type not in kinds:
        raise UserError(f"{path} is a SentencePiece model of words or characters; bertlab reads only unigram and bpe.")
    return kinds[description.trainer_spec.model_type](model, lowercase)
