"""What tests of batches share: documents in memory, iterators that are closed, and equality."""

import contextlib
import itertools
import random

import numpy as np

from bertlab.data.batches import train_batches

FIRST = 10
"""The first token of the documents."""


class Source(list):
    """Documents in memory; Grain compares sources by their text."""

    unknown = None

    def __repr__(self):
        return f"Source({len(self)})"


class Tokenizer:
    """The special ids of a tokenizer of words."""

    kind = "words"
    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)


def make_documents(*lengths, first=FIRST, step=1):
    """Prepared documents from lists of sentence lengths. Every token is another, so that it tells its document and place.

    `step`: between the documents' numbers, which have gaps in a split.
    """
    made = Source()
    for index, sentences in enumerate(lengths):
        tokens = np.arange(first, first + sum(sentences), dtype=np.int32)
        tokens.flags.writeable = False
        made.append({"tokens": tokens, "sentence_lengths": np.array(sentences, np.int32), "document": step * index})
        first += len(tokens)
    return made


def random_documents(count, sentences, longest, seed=0, **options):
    """So many documents of between `sentences[0]` and `sentences[1]` sentences of up to `longest` tokens."""
    generator = random.Random(seed)
    lengths = [[generator.randint(1, longest) for _ in range(generator.randint(*sentences))] for _ in range(count)]
    return make_documents(*lengths, **options)


class Places:
    """Where each token is from: its document's number and its sentence's number in it."""

    def __init__(self, documents):
        self.document, self.sentence = {}, {}
        for document in documents:
            numbers = np.repeat(np.arange(len(document["sentence_lengths"])), document["sentence_lengths"])
            for token, number in zip(document["tokens"].tolist(), numbers.tolist(), strict=True):
                self.document[token], self.sentence[token] = document["document"], number


class Prepared:
    """What batches need of a prepared corpus: the documents of each split, or of every split."""

    tokenizer = Tokenizer()

    def __init__(self, documents=None, **splits):
        self.documents, self.splits = documents, splits

    def source(self, split):
        return self.splits.get(split, self.documents)


@contextlib.contextmanager
def opened(*arguments, state=None):
    """An iterator of training batches that is closed in the end."""
    with contextlib.closing(iter(train_batches(*arguments))) as iterator:
        if state is not None:
            iterator.set_state(state)
        yield iterator


def take(number, *arguments, **options):
    """The first batches, as a list; arguments as for `opened`."""
    with opened(*arguments, **options) as iterator:
        return list(itertools.islice(iterator, number))


def assert_equal_batches(first, second):
    """As many of the same fields, values and dtypes, and at least one batch."""
    assert len(first) == len(second) > 0
    for x, y in zip(first, second):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], strict=True)
