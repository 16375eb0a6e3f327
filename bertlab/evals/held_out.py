"""The held-out texts that a model is scored on: parts of the test split's documents."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from bertlab.data.prepared import Prepared, Split
from bertlab.evals.questions import Text
from bertlab.transfer.load import Pretrained

LONGEST = 480
"""Most bytes of a held-out sentence: every tokenizer's pieces then fit into 512 positions."""


class Spans(NamedTuple):
    """Where N texts begin and end among a split's tokens, and the document of each."""

    begins: Int[np.ndarray, "N"]
    ends: Int[np.ndarray, "N"]
    documents: Int[np.ndarray, "N"]


def whole_documents(split: Split, settings: ConfigDict, model: Pretrained) -> Spans:
    """Random documents of `settings.bytes` in total, each cut where a training row would end."""
    order = np.random.default_rng(0).permutation(len(split.bytes))
    number = np.searchsorted(np.cumsum(split.bytes[order]), settings.bytes) + 1
    bounds, width = split.token_bounds(), longest(model, model.config.data.seq_len)
    pairs = [bounds[[document, document + 1]] for document in np.sort(order[:number])]
    begins = np.concatenate([np.arange(begin, end, width) for begin, end in pairs])
    documents = np.searchsorted(bounds, begins, side="right") - 1
    return Spans(begins, np.minimum(begins + width, bounds[documents + 1]), documents)


def short_sentences(split: Split, settings: ConfigDict, model: Pretrained) -> Spans:
    """`settings.sentences` random ones."""
    begins, lengths, bounds = split.sentences[:-1], np.diff(split.sentences), split.token_bounds()
    documents = np.searchsorted(bounds, begins, side="right") - 1
    sizes = split.bytes[documents] * lengths / np.diff(bounds)[documents]
    fit = (sizes <= LONGEST) & (lengths <= longest(model))
    order = np.random.default_rng(0).permutation(len(lengths))
    chosen = order[fit[order]][: settings.sentences]
    return Spans(begins[chosen], begins[chosen] + lengths[chosen], documents[chosen])


def longest(model: Pretrained, seq_len: int | None = None) -> int:
    """The most pieces that a text may have."""
    special = len(model.tokenizer.prefix_ids) + len(model.tokenizer.suffix_ids)
    return min(model.longest, seq_len or model.longest) - special


def texts_between(prepared: Prepared, model: Pretrained, spans: Spans) -> list[Text]:
    """Texts of the test split, the same for all models of one tokenizer (whole documents: and one
    row length).

    Only the bytes of documents are known, so a text gets a share in proportion to its
    tokens: the sum estimates the text's bytes without bias, is exact for whole documents, and is
    one factor for all objectives.
    """
    split, tokenizer = prepared.split("test"), prepared.tokenizer
    before, after = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    table = prepared.characters if model.config.model.token_encoder == "characters" else None
    bytes_a_token, texts = split.bytes / np.diff(split.token_bounds()), []
    for begin, end, document in zip(*spans):
        tokens = np.array([*before, *split.tokens[begin:end], *after], np.int32)
        pieces = len(before) + np.arange(end - begin)
        size = float((end - begin) * bytes_a_token[document])
        characters = None if table is None else table[[*before, *split.words[begin:end], *after]]
        texts.append(Text(tokens, pieces, size, characters))
    return texts
