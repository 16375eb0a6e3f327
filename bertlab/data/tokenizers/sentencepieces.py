"""SentencePiece's unigram language model (Kudo 2018) and byte-pair encoding (Sennrich et al. 2016).

Characters outside the vocabulary become bytes, so decoding restores the text. Runs of white space
count as one space, and U+2581, SentencePiece's mark for a space, is read as one.
"""

import functools
import io
from collections.abc import Sequence

import sentencepiece

from bertlab.data.tokenizers.base import SPECIALS, Tokenizer, find_specials, normalise, with_spaces
from bertlab.errors import UserError

SPACE_MARK = "▁"
# SentencePiece ignores longer sentences while training; its own default is 4,192 bytes.
_LONGEST_SENTENCE = 1 << 16
# Added to a serialised model (parts of a protocol buffer merge): its NormalizerSpec (3) sets no
# space before a text (3) and keeps one that is there (4).
_INSIDE_A_TEXT = b"\x1a\x04\x18\x00\x20\x00"


class SentencePieceTokenizer(Tokenizer):
    """A serialised SentencePiece model of the kind unigram or bpe.

    One that was trained elsewhere keeps its own rules, after ours for white space; pieces for the
    beginning and end of a text frame each text.
    """

    def __init__(self, model: bytes, kind: str, lowercase: bool):
        self.model, self.kind = model, kind
        self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
        ids = {piece: index for index, piece in enumerate(pieces)}
        first, last = processor.bos_id(), processor.eos_id()
        roles = {"pad": processor.pad_id(), "unk": processor.unk_id(), "cls": first, "sep": last}
        names = {role: pieces[index] for role, index in roles.items() if index >= 0}
        around = [[index] if index >= 0 else [] for index in (first, last)]
        specials = find_specials(ids, names, "the SentencePiece model")
        super().__init__(pieces, lowercase, specials, *around, ("sentencepiece.model", model))

    def encode_batch(self, texts):
        texts = [normalise(text, self.lowercase) for text in texts]
        return self._processor.encode(texts, num_threads=1)

    def encode_parts(self, texts, **settings):
        first = [normalise(part, self.lowercase) for parts in texts for part in parts[:1]]
        others = [
            " " * part[:1].isspace() + normalise(part, self.lowercase)
            for parts in texts
            for part in parts[1:]
        ]
        first = iter(self._processor.encode(first, num_threads=1, **settings))
        others = iter(self._inside.encode(others, num_threads=1, **settings))
        return [[next(others if i else first) for i in range(len(parts))] for parts in texts]

    def encode_spaced(self, words):
        (encoded,) = self.encode_parts([with_spaces(words)], return_type="offset_mapping")
        found = []
        for number, word in enumerate(encoded):
            space = min(number, 1)  # before all words but the first; not part of the word
            spans = [(max(first - space, 0), end - space) for first, end in word["offsets"]]
            found.append((word["ids"], spans))
        return found

    @functools.cached_property
    def _inside(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model + _INSIDE_A_TEXT)

    def decode_pieces(self, ids):
        return self._processor.decode(ids)

    def continues(self):
        is_control, is_unknown = self._processor.is_control, self._processor.is_unknown
        controls = (i for i in range(self.vocab_size) if is_control(i) or is_unknown(i))
        return self.marked(lambda piece: not piece.startswith(SPACE_MARK), controls)


def model_kind(model: bytes) -> str:
    """unigram or bpe; models of words or characters are a KeyError."""
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf, which may be too old

    trained = sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec
    return {trained.UNIGRAM: "unigram", trained.BPE: "bpe"}[trained.model_type]


def train_sentencepiece(
    sample: Sequence[str], kind: str, vocab_size: int, lowercase: bool
) -> SentencePieceTokenizer:
    """Trains on normalised sentences."""
    roles, model = ("pad", "unk", "bos", "eos"), io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            max_sentence_length=_LONGEST_SENTENCE,
            control_symbols=[SPECIALS[-1]],
            **{f"{role}_id": index for index, role in enumerate(roles)},
            **{f"{role}_piece": piece for role, piece in zip(roles, SPECIALS)},
            minloglevel=2,
        )
    except RuntimeError as error:  # too large or too small for the text
        raise UserError(f"config.data.tokenizer.vocab_size={vocab_size}: {error}") from error
    return SentencePieceTokenizer(model.getvalue(), kind, lowercase)
