"""Rows [CLS] sentences [SEP] of whole sentences in reading order; too long ones are cut."""

import numpy as np

from bertlab.data.plans import RowPlan, Text, bounds_of, chain, special


def full_sentences(text: Text, data, tokenizer, _) -> RowPlan:
    """As many sentences as a row holds, across document borders (Liu et al. 2019, section 4.2).

    A [SEP] stands where a document ends in a row (`document_separator`) and at the row's end. By
    default the documents of a row do not see each other: each has its own number and positions.
    With `attend_across_documents`, as in RoBERTa, all tokens of a row are one document.
    """
    settings = data.full_sentences
    text = text.cut(data.seq_len - 2)
    following = _full(text, data.seq_len - 2, settings.document_separator)
    across = settings.attend_across_documents
    return _rows(text, following, tokenizer, settings.document_separator, across)


def doc_sentences(text: Text, data, tokenizer, _) -> RowPlan:
    """`full_sentences` whose rows end where a document ends (RoBERTa's DOC-SENTENCES). Unlike
    RoBERTa's, batches are not enlarged to make up for the padding."""
    text = text.cut(data.seq_len - 2)
    end = text.documents[text.document + 1]
    return _rows(text, np.minimum(_full(text, data.seq_len - 2, 0), end), tokenizer)


def sentences(text: Text, data, tokenizer, _) -> RowPlan:
    """One sentence per row."""
    text = text.cut(data.seq_len - 2)
    return _rows(text, np.arange(1, len(text.starts) + 1), tokenizer)


def _full(text: Text, room: int, separator: int) -> np.ndarray:
    """[S]: the sentence after a full row that begins with this one. `room` is for tokens without
    [CLS] and the last [SEP]; crossing a border costs `separator`."""
    borders = bounds_of(np.diff(text.document, prepend=-1) > 0)
    used = text.bounds + separator * borders
    limit = text.bounds[:-1] + separator * borders[1:] + room
    return np.searchsorted(used, limit, side="right") - 1


def _rows(text, following, tokenizer, separator=True, across=False) -> RowPlan:
    """The rows; `following` [S] is the sentence after a row that begins with this one.

    [SEP] ends each document of a row with `separator`, else only the last. They are one `across`.
    """
    # A run is the part of a row from one document. [CLS] stands before the first run of a row.
    begins_row, begins_run = np.zeros((2, len(text.starts) + 1), bool)
    begins_row[chain(following)] = begins_row[-1] = True
    begins_run[text.documents] = True
    run = np.flatnonzero(begins_run | begins_row)
    is_first, is_last = begins_row[run[:-1]], begins_row[run[1:]]
    first = np.flatnonzero(is_first)
    one = np.ones(len(is_first), np.int64)
    number = np.arange(len(one)) - np.repeat(first, np.diff(first, append=len(one)))
    cls, sep = special(tokenizer.cls_id) * one, special(tokenizer.sep_id) * one
    return RowPlan.from_groups(
        starts=np.stack([cls, text.starts[run[:-1]], sep], axis=1),
        lengths=np.stack([is_first, np.diff(text.bounds[run]), is_last | separator], axis=1),
        documents=one if across else number + 1,
        segments=(0, 0, 0),
        first=first,
    )
