"""Tokenizers of Hugging Face's `tokenizers` library, with all the rules of a tokenizer.json."""

import bisect
import itertools
import json
from collections.abc import Mapping, Sequence

import tokenizers

from bertlab.data.tokenizers.base import Tokenizer, with_spaces
from bertlab.data.tokenizers.sentencepieces import SPACE_MARK


class JsonTokenizer(Tokenizer):
    """A published tokenizer, such as the byte-level BPE of GPT-2 and RoBERTa.

    It does not recognise the names of its special pieces in text (transformers'
    `split_special_tokens=True`), only other added pieces. A special's name that is also
    a text piece of the model becomes the unknown piece. `backend` is a tokenizer.json's content.
    """

    kind = "json"

    def __init__(self, backend: str, special_ids: Mapping[str, int | None]):
        self.backend = backend
        self._tokenizer = tokenizers.Tokenizer.from_str(backend)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values()) + 1
        pieces = [self._tokenizer.id_to_token(index) or "" for index in range(size)]
        normalizer = self._tokenizer.normalizer
        lowercase = normalizer is not None and "A" not in normalizer.normalize_str("A")
        # The file does not name the special ids around a text; they are found by encoding one.
        probe = next(text for text in ("a", *pieces) if self._encodings([text])[0].ids)
        framed = self._tokenizer.encode(probe)
        inside = [i for i, sequence in enumerate(framed.sequence_ids) if sequence is not None]
        around = framed.ids[: inside[0]], framed.ids[inside[-1] + 1 :]
        file = "tokenizer.json", backend.encode()
        super().__init__(pieces, lowercase, special_ids, *around, file)
        # A tokenizer that treats every text as if it followed a space needs none before a word.
        one, two = (encoding.ids for encoding in self._encodings(["a", "a a"]))
        self._word_needs_space = two != 2 * one

    def _encodings(self, texts) -> list[tokenizers.Encoding]:
        return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def _without_specials(self, ids: list[int]) -> list[int]:
        if self.special_ids.isdisjoint(ids):
            return ids
        return [self.unk_id if index in self.special_ids else index for index in ids]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._without_specials(encoding.ids) for encoding in self._encodings(texts)]

    def encode_parts(self, texts):
        found = []
        for parts, encoding in zip(texts, self._encodings(map("".join, texts)), strict=True):
            ids = self._without_specials(encoding.ids)
            # A piece belongs to the part of its last character. Some normalizers' offsets go
            # backwards, so the furthest counts.
            ends = list(itertools.accumulate((end for _, end in encoding.offsets), max))
            begins = itertools.accumulate(map(len, parts[:-1]))
            cuts = [0, *(bisect.bisect_right(ends, begin) for begin in begins), len(ids)]
            found.append([ids[first:last] for first, last in itertools.pairwise(cuts)])
        return found

    def encode_spaced(self, words):
        spaced, found = with_spaces(words) if self._word_needs_space else words, []
        for word, text, encoding in zip(words, spaced, self._encodings(spaced), strict=True):
            shift = len(text) - len(word)
            spans = [(max(first - shift, 0), end - shift) for first, end in encoding.offsets]
            found.append((self._without_specials(encoding.ids), spans))
        return found

    def changed(self, text):
        return text  # the library's offsets refer to the unchanged text

    def decode_pieces(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def continues(self):
        description = json.loads(self.backend)
        model = description["model"]
        if model["type"] == "WordLevel":
            return (False,) * self.vocab_size
        added = self._tokenizer.get_added_tokens_decoder()
        if prefix := model.get("continuing_subword_prefix"):
            return self.marked(lambda piece: piece.startswith(prefix), added)
        rules = json.dumps([description["pre_tokenizer"], description["decoder"]])
        # How a word begins, or the white space before it.
        marks = tuple("ĠĊĉč") if '"ByteLevel"' in rules else (SPACE_MARK, "\n", "<0x0A>")
        if not any(piece.startswith(marks[0]) for piece in self._pieces):
            return None
        return self.marked(lambda piece: not piece.startswith(marks), added)
