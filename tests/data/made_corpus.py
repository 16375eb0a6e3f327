"""A small prepared corpus whose tokens say where they are from, and `config.data` for it."""

from types import SimpleNamespace

import numpy as np
from ml_collections import ConfigDict

from bertlab.data.prepared import Prepared

PAD, UNK, CLS, SEP, MASK = range(5)
TOKENIZER = SimpleNamespace(
    pad_id=PAD, unk_id=UNK, cls_id=CLS, sep_id=SEP, mask_id=MASK, vocab_size=1 << 20, kind="words"
)
TOKENIZER.special_ids = frozenset(range(5))
PAIRS = {
    "random_next_probability": 0.5,
    "force_random_if_single": True,
    "own_document_retries": 10,
    "negatives": "random",
}
DATA = {
    "format": "full_sentences",
    "seq_len": 32,
    "batch_size": 8,
    "seed": 0,
    "dupe_factor": 0,
    "unique_tokens": 0,
    "pack_length": 0,
    "pack_examples": 8,
    "buckets": (),
    "characters": False,
    "segment_pair": {"short_probability": 0.1, **PAIRS},
    "sentence_pair": {**PAIRS, "force_random_if_single": False},
    "full_sentences": {"attend_across_documents": False, "document_separator": True},
    "stream": {
        "wrap": "document",
        "backward": False,
        "attend_across_documents": True,
        "vary_length": False,
    },
    "cooccurrence": {"window": 5},
}


def config(**changes):
    """`config.data`; `stream__wrap` is the key "stream.wrap"."""
    data = ConfigDict(DATA)
    data.update_from_flattened_dict({key.replace("__", "."): changes[key] for key in changes})
    return data


def random_documents(count, sentences=12, words=20):
    """Documents (lists of sentences, lists of ids) in which no token occurs twice."""
    rng, documents, token = np.random.default_rng(0), [], 5
    for _ in range(count):
        documents.append([])
        for length in rng.integers(1, words, rng.integers(1, sentences)):
            documents[-1].append(list(range(token, token + length)))
            token += length
    return documents


def make(folder, documents):
    """A prepared corpus whose train and valid split both have these documents."""
    sentences = [sentence for document in documents for sentence in document]
    for split in ("train", "valid"):
        (folder / split).mkdir(parents=True)
        np.save(folder / split / "tokens.npy", np.concatenate(sentences).astype(np.uint32))
        np.save(folder / split / "sentences.npy", np.cumsum([0, *map(len, sentences)]))
        np.save(folder / split / "documents.npy", np.cumsum([0, *map(len, documents)]))
        np.save(folder / split / "bytes.npy", np.ones(len(documents), np.int64))
    return Prepared(folder, TOKENIZER, "made", {})


def epoch_rows(batches, epoch=0):
    """The rows of an epoch as dicts of fields, from batches that may begin or end in another."""
    rows, step = [], 0
    while True:
        batch = batches(step)
        for i, visit in enumerate(batch["visit"].reshape(len(batch["visit"]), -1)[:, 0]):
            if visit == epoch:
                rows.append({name: values[i] for name, values in batch.items()})
            elif visit > epoch:
                return rows
        step += 1
