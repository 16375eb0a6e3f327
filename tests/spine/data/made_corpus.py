"""A small prepared corpus whose tokens say where they are from, and `config.data` for it."""

from types import SimpleNamespace

import numpy as np
from ml_collections import ConfigDict

from bertlab.spine.data.prepared import Prepared

PAD, UNK, CLS, SEP, MASK = range(5)


def write_split(folder, documents):
    """Writes documents (lists of sentences, lists of ids) as the arrays of a split."""
    folder.mkdir(parents=True)
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.array([token for sentence in sentences for token in sentence], np.uint32)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "sentences.npy", np.cumsum([0, *map(len, sentences)]))
    np.save(folder / "documents.npy", np.cumsum([0, *map(len, documents)]))
    np.save(folder / "bytes.npy", np.array([sum(map(len, document)) for document in documents]))
    return tokens


def random_documents(count, seed=0, sentences=12, words=20, first=5):
    """Documents whose tokens are first, first + 1, ...: each token of the corpus is another."""
    rng, documents = np.random.default_rng(seed), []
    for _ in range(count):
        document = []
        for length in rng.integers(1, words, rng.integers(1, sentences)):
            document.append(list(range(first, first + length)))
            first += length
        documents.append(document)
    return documents


def prepared(folder, documents=None, held_out=None, vocab_size=1 << 20):
    documents = random_documents(60) if documents is None else documents
    write_split(folder / "train", documents)
    write_split(folder / "valid", held_out or documents)
    tokenizer = SimpleNamespace(
        pad_id=PAD, unk_id=UNK, cls_id=CLS, sep_id=SEP, mask_id=MASK, vocab_size=vocab_size
    )
    return Prepared(folder, tokenizer, "made", {})


def config(**changes):
    """`config.data` with `full_sentences` and short rows; "stream.wrap" and its like are one key."""
    pairs = {
        "random_next_probability": 0.5,
        "force_random_if_single": True,
        "own_document_retries": 10,
        "negatives": "random",
    }
    data = ConfigDict(
        {
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
            "segment_pair": {"short_probability": 0.1, **pairs},
            "sentence_pair": {**pairs, "force_random_if_single": False},
            "full_sentences": {"attend_across_documents": False, "document_separator": True},
            "stream": {
                "wrap": "document",
                "backward": False,
                "attend_across_documents": True,
                "vary_length": False,
            },
            "cooccurrence": {"window": 5},
        }
    )
    data.update_from_flattened_dict(
        {name.replace("__", "."): value for name, value in changes.items()}
    )
    return data
