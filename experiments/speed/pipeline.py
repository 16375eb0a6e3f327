"""How fast batches are made on one core, by format: the first table of "Batches" in README.md.

    python experiments/speed/pipeline.py experiments/speed/pipeline.json [--tokens=30000000]

makes up a corpus, plans an epoch of each format and makes its batches. Rates are in positions per second of CPU time of all
threads. "planned" counts the planning of the epoch, "batches" does not; "old" is the pipeline before, with planning.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from ml_collections import ConfigDict

from bertlab.spine.data.prepared import Prepared
from bertlab.spine.data.rows import Rows

PAIRS = {"random_next_probability": 0.5, "own_document_retries": 10, "negatives": "random"}
DATA = {
    "seq_len": 128,
    "batch_size": 256,
    "seed": 0,
    "dupe_factor": 0,
    "unique_tokens": 0,
    "pack_length": 0,
    "pack_examples": 8,
    "buckets": (),
    "characters": False,
    "shards": 1,  # this and the next: of the old pipeline
    "shuffle_window": 1024,
    "segment_pair": PAIRS | {"short_probability": 0.1, "force_random_if_single": True},
    "sentence_pair": PAIRS | {"force_random_if_single": False},
    "full_sentences": {"attend_across_documents": False, "document_separator": True},
    "stream": {
        "wrap": "document",
        "backward": False,
        "attend_across_documents": True,
        "vary_length": False,
    },
    "cooccurrence": {"window": 5},
}
ELMO = {"stream.wrap": "sentence", "stream.backward": True, "stream.attend_across_documents": False}
# Name -> format and settings.
CASES = {
    "segment_pair": ("segment_pair", {}),
    "segment_pair, packed": ("segment_pair", {"pack_length": 512}),
    "segment_pair, buckets": ("segment_pair", {"buckets": (32, 64)}),
    "segment_pair, 512": ("segment_pair", {"seq_len": 512, "batch_size": 64}),
    "sentence_pair": ("sentence_pair", {}),
    "full_sentences": ("full_sentences", {}),
    "full_sentences, 8 rows": ("full_sentences", {"batch_size": 8}),
    "doc_sentences": ("doc_sentences", {}),
    "stream": ("stream", {}),
    "stream, ELMo's": ("stream", ELMO),
    "cooccurrence": ("cooccurrence", {}),
}


def make_corpus(folder: Path, tokens: int) -> Prepared:
    """Sentences of 25 tokens and documents of 20 sentences on average."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / 25, tokens // 25)
    sentences = rng.geometric(1 / 20, len(lengths) // 20)
    documents = np.append(np.cumsum(sentences)[np.cumsum(sentences) < len(lengths)], len(lengths))
    arrays = {
        "tokens": rng.integers(5, 8192, lengths.sum()).astype(np.uint16),
        "sentences": np.append(0, np.cumsum(lengths)),
        "documents": np.append(0, documents),
        "bytes": np.zeros(len(documents), np.int64),
    }
    (folder / "train").mkdir()
    for name, array in arrays.items():
        np.save(folder / "train" / f"{name}.npy", array)
    ids = {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4, "vocab_size": 8192}
    return Prepared(folder, SimpleNamespace(**ids, kind="unigram"), "made", {})


def measure(prepared: Prepared, data) -> dict[str, float]:
    """M positions a second with planning and without, and the share of positions that are not padding."""
    rows = Rows(prepared, data, "train")
    start = time.process_time()
    group = rows.make_group(0)
    planning = time.process_time() - start
    positions = text = 0
    start = time.process_time()
    for first in range(0, len(group.order) - data.batch_size + 1, data.batch_size):
        batch = rows.fields(group, first, first + data.batch_size)
        sides = [batch["tokens"], batch.get("backward_tokens", batch["tokens"][:0])]
        positions += sum(side.size for side in sides)
        text += np.count_nonzero(batch["documents"])
    batches = time.process_time() - start
    return {
        "planned": positions / (planning + batches) / 1e6,
        "batches": positions / batches / 1e6,
        "planning": planning,
        "filled": text * (2 if sides[1].size else 1) / positions,
    }
