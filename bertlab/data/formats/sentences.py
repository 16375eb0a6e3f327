"""Rows of whole sentences in reading order."""

import itertools

import numpy as np

from bertlab.data.formats.row_format import RowFormat, RowIterator
from bertlab.data.rows import Row, make_row, sentence_bounds


class FullSentences(RowFormat):
    """Rows of whole sentences in reading order, across document borders (RoBERTa, Liu et al. 2019, section 4.2).

    A row is [CLS] and sentences until the next does not fit, with a [SEP] where a document ends (`document_separator`) and
    at the row's end. By default the documents of a row do not see each other: each has its own number and positions. With
    `attend_across_documents`, as in RoBERTa, all tokens of a row are one document.
    """

    name = "full_sentences"
    crosses_documents = True

    def cut(self, document: dict, rng: np.random.Generator) -> list[tuple]:
        """(sentence ids, document index, number in the document); a sentence longer than a row is cut into pieces."""
        del rng
        room = self.data.seq_len - 2
        bounds = sentence_bounds(document).tolist()
        cuts = [(i, min(i + room, end)) for start, end in itertools.pairwise(bounds) for i in range(start, end, room)]
        return [(document["tokens"][start:end], document["document"], number) for number, (start, end) in enumerate(cuts)]

    def assemble(self, units: RowIterator) -> Row | None:
        """Whole sentences while they fit."""
        first = units.peek()
        if first is None:
            return None
        seq_len, tokenizer = self.data.seq_len, self.tokenizer
        separators = [tokenizer.sep_id] if self.settings.document_separator else []
        tokens, documents, number = [tokenizer.cls_id], [1], 1
        while (unit := units.peek()) is not None:
            piece, _, place = unit
            # Not by the document's index: in a small corpus a document may follow itself, an epoch later.
            crosses = place == 0 and len(tokens) > 1
            if crosses and not self.crosses_documents:
                break
            between = separators if crosses else []
            if len(tokens) + len(between) + len(piece) + 1 > seq_len:
                break
            tokens += [*between, *piece.tolist()]
            documents += [number] * len(between)
            number += crosses
            documents += [number] * len(piece)
            units.take()
        tokens.append(tokenizer.sep_id)
        documents = np.ones(len(tokens)) if self.settings.attend_across_documents else [*documents, number]
        return make_row(seq_len, tokenizer.pad_id, tokens, 0, documents, -1, first[1:])


class DocSentences(FullSentences):
    """`FullSentences` that end where their document ends (RoBERTa's DOC-SENTENCES, Liu et al. 2019, section 4.2).

    The last row of a document is padded. RoBERTa enlarged the batches to make up for it; this format does not.
    """

    name = "doc_sentences"
    crosses_documents = False

    def __init__(self, data, prepared=None, split: str = "train"):
        super().__init__(data, prepared, split)
        self.settings.attend_across_documents, self.settings.document_separator = False, True
