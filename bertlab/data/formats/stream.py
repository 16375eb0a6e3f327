"""Streams: text for models that carry their state from batch to batch (truncated BPTT).

The documents of a plan lie end to end. Each of the batch's B lanes reads an equal share of them,
and a lane's row continues its row of the batch before. Rows have `next_tokens`, the token to
predict at each position (−1: none); `continues` (1: the row starts with its lane's state, 0: with
zeros); and `rate_scale`. With `config.data.stream.backward`, models that read right to left get a
second stream, `backward_...`, of the same documents in another order. Its rows are in text order.

How documents are joined (`config.data.stream.wrap`):

    document  w w w w [SEP]            predicted: all but the first
    sentence  [CLS] w w  [CLS] w w     predicted: w w [SEP]  w w [SEP], as in ELMo's training
                                       (bilm-tf, data.py); backward the reverse
    none      w w w w
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertlab.config.papers import VARIED_LENGTHS
from bertlab.data.plans import RowPlan, Text, bounds_of, ranges, special

MARGIN = 20  # by which a row of varying length may be longer than `seq_len`


@dataclass(frozen=True)
class Sequence:
    """The text of one direction, with one position of padding at both ends (all int64)."""

    starts: np.ndarray  # [N], see `RowPlan`
    bounds: np.ndarray  # [N + 1], the position of each span, from −1 on, and the end
    documents: np.ndarray  # [N], from 1 on; 0 for padding
    lanes: np.ndarray  # [B + 1], where each lane begins and the last ends

    @classmethod
    def from_text(cls, text, wrap, backward, tokenizer, lanes, whole_documents) -> "Sequence":
        units = np.arange(len(text.bounds)) if wrap == "sentence" else text.documents
        starts, lengths = text.starts[units[:-1]], np.diff(text.bounds[units])
        documents = text.document[units[:-1]] + 1
        if wrap != "none":
            is_before = wrap == "sentence" and not backward
            token = special(tokenizer.cls_id if is_before else tokenizer.sep_id)
            at = np.arange(len(starts)) + (not is_before)
            starts, lengths = np.insert(starts, at, token), np.insert(lengths, at, 1)
            documents = np.repeat(documents, 2)
        bounds = bounds_of(np.concatenate([[1], lengths, [1]])) - 1
        cuts = np.arange(lanes + 1) * bounds[-2] // lanes
        if whole_documents:  # each lane begins with one
            begins = bounds[1:-1][np.diff(documents, prepend=0, append=0) != 0]
            cuts = begins[np.searchsorted(begins, cuts)]
        return cls(np.pad(starts, 1, constant_values=-1), bounds, np.pad(documents, 1), cuts)

    def window(self, arrays, first, last, width, pad_id) -> dict[str, np.ndarray]:
        """The fields of positions first[r] .. last[r] of the text, one row each."""
        i = np.searchsorted(self.bounds, first, side="right") - 1
        counts = np.maximum(np.searchsorted(self.bounds, last) - i, 0)
        spans, row = ranges(i, counts), np.repeat(np.arange(len(i)), counts)
        begin = np.maximum(self.bounds[spans], first[row])
        lengths = np.minimum(self.bounds[spans + 1], last[row]) - begin
        starts = self.starts[spans] + begin - self.bounds[spans]
        documents = self.documents[spans]
        numbers = np.where(documents > 0, documents - self.documents[i][row] + 1, 0)
        rows = RowPlan(starts, lengths, np.zeros_like(numbers), numbers, bounds_of(counts), {})
        return rows.read(arrays, width, pad_id)


@dataclass(frozen=True)
class StreamPlan:
    """Rows of a stream. Row t·B + lane is a lane's row in batch t."""

    sequences: dict[str, Sequence]  # by the prefix of their fields: "" and perhaps "backward_"
    steps: np.ndarray  # int64 [n + 1], how far each lane has come before each batch
    data: Any
    tokenizer: Any
    is_ordered = True

    def __len__(self) -> int:
        return (len(self.steps) - 1) * (len(self.sequences[""].lanes) - 1)

    def gather(self, arrays, rows: np.ndarray, width: int, pad_id: int) -> dict[str, np.ndarray]:
        step, lane = np.divmod(rows, len(self.sequences[""].lanes) - 1)
        lengths = self.steps[step + 1] - self.steps[step]
        fields = {"rate_scale": (lengths / self.data.seq_len).astype(np.float32)}
        for prefix in self.sequences:
            found = self._side(arrays, prefix, step, lane, width, pad_id)
            fields |= {f"{prefix}{name}": values for name, values in found.items()}
        return fields

    def _side(self, arrays, prefix, step, lane, width, pad_id) -> dict[str, np.ndarray]:
        sequence, backward = self.sequences[prefix], int(prefix == "backward_")
        low, high = sequence.lanes[lane], sequence.lanes[lane + 1]
        near, far = self.steps[step], self.steps[step + 1]
        ends = [high - far, high - near] if backward else [low + near, low + far]
        first, last = np.clip(ends, low, high)
        # One position more than the row: the token that is predicted last.
        window = sequence.window(arrays, first - backward, last + 1 - backward, width + 1, pad_id)
        own = slice(backward, width + backward)
        predicted = slice(1 - backward, width + 1 - backward)
        fields = {name: values[:, own] for name, values in window.items()}
        is_text = np.arange(width) < (last - first)[:, None]
        documents, positions = fields["documents"], fields["positions"]
        across = self.data.stream.attend_across_documents
        follows, document = window["tokens"][:, predicted], window["documents"][:, predicted]
        if self.data.stream.wrap == "sentence":  # its end follows, not the next one's start
            start, end = self.tokenizer.cls_id, self.tokenizer.sep_id
            start, end = (end, start) if backward else (start, end)
            follows = np.where((follows == start) | (document == 0), end, follows)
            has_next = is_text
        else:
            has_next = is_text & (document > 0) & (across | (document == documents))
        fields["next_tokens"] = np.where(has_next, follows, -1).astype(np.int32)
        if across:
            documents, positions = np.ones_like(documents), np.arange(width, dtype=np.int32)
        else:  # from 1 and from 0 in the row, which may begin after the window
            documents = documents - documents[:, :1] + 1
            positions = positions - (documents == 1) * positions[:, :1]
        fields["documents"] = np.where(is_text, documents, 0).astype(np.int32)
        fields["positions"] = np.where(is_text, positions, 0).astype(np.int32)
        for name in arrays:
            fields[name] = np.where(is_text, fields[name], pad_id)
        edge = last if backward else first  # the row is read from here on
        spans = np.searchsorted(sequence.bounds, [edge - 1, edge], side="right") - 1
        before, after = sequence.documents[spans]
        fields["continues"] = ((step > 0) & (across | (before == after))).astype(np.int32)
        return fields


def stream(text: Text, data, tokenizer, rng: np.random.Generator) -> StreamPlan:
    """See the module. In evaluation (`whole_documents`) lanes are of different lengths."""
    settings = data.stream
    options = (tokenizer, data.batch_size, settings.get("whole_documents", False))
    sequences = {"": Sequence.from_text(text, settings.wrap, False, *options)}
    if settings.backward:
        other = text.take(rng.permutation(len(text.documents) - 1))
        sequences["backward_"] = Sequence.from_text(other, settings.wrap, True, *options)
    longest = max(int(np.diff(sequence.lanes).max()) for sequence in sequences.values())
    if settings.vary_length:
        draws = longest // VARIED_LENGTHS["shortest"] + 1
        is_half = rng.random(draws) < VARIED_LENGTHS["half_probability"]
        about = np.where(is_half, data.seq_len / 2, data.seq_len)
        lengths = rng.normal(about, VARIED_LENGTHS["stddev"]).astype(np.int64)
        lengths = np.clip(lengths, VARIED_LENGTHS["shortest"], data.seq_len + MARGIN)
    else:
        lengths = np.full(-(-longest // data.seq_len), data.seq_len)
    steps = bounds_of(lengths)
    steps = steps[: np.searchsorted(steps, longest) + 1]
    return StreamPlan(sequences, steps, data, tokenizer)
