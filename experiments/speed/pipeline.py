"""How fast batches are made on one core, by format.

    python experiments/speed/pipeline.py experiments/speed/pipeline.json

makes up a corpus, plans an epoch of each format and makes its batches. Rates are in M positions per
second of CPU time of all threads: "batches" of the gathers, "planned" with the planning of the
epoch. "filled": the share that is not padding.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from bertlab.config import base_config
from bertlab.data.batches import Batches
from bertlab.data.prepared import Prepared

FORMATS = ("segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "stream")
CASES = {name: (name, {}) for name in FORMATS} | {
    "cooccurrence": ("cooccurrence", {"cooccurrence.window": 5}),
    "segment_pair, packed": ("segment_pair", {"pack_length": 512}),
    "segment_pair, buckets": ("segment_pair", {"buckets": (32, 64)}),
    "segment_pair, 512": ("segment_pair", {"seq_len": 512, "batch_size": 64}),
    "full_sentences, 8 rows": ("full_sentences", {"batch_size": 8}),
    "stream, both sides": ("stream", {"stream.wrap": "sentence", "stream.backward": True}),
}


def make_corpus(folder: Path, tokens: int) -> Prepared:
    """Sentences of 25 tokens and documents of 20 sentences on average."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / 25, tokens // 25)
    sentences = rng.geometric(1 / 20, len(lengths) // 20)
    documents = np.cumsum(sentences)
    documents = np.append(documents[documents < len(lengths)], len(lengths))
    (folder / "train").mkdir()
    tokens = rng.integers(5, 8192, lengths.sum()).astype(np.uint16)
    np.save(folder / "train/tokens.npy", tokens)
    np.save(folder / "train/sentences.npy", np.append(0, np.cumsum(lengths)))
    np.save(folder / "train/documents.npy", np.append(0, documents))
    np.save(folder / "train/bytes.npy", np.zeros(len(documents), np.int64))
    ids = {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4, "vocab_size": 8192}
    tokenizer = SimpleNamespace(**ids, special_ids=frozenset(range(5)), kind="unigram")
    return Prepared(folder, tokenizer, "made", {})


def measure(prepared: Prepared, data) -> dict[str, float]:
    """Rates with planning and without, and the share of positions that are not padding."""
    batches, size = Batches(prepared, data), data.batch_size
    batches.make_group(0)  # counts pairs of words, once for all epochs
    start = time.process_time()
    group = batches.make_group(0)
    planning = time.process_time() - start
    steps = range(0, len(group.order) - size + 1, size)
    positions, seconds, filled = count(batches.fields(group, step, step + size) for step in steps)
    planned = positions / (seconds + planning)
    rates = {"planned": planned, "batches": positions / seconds, "filled": filled}
    return {name: round(float(rate), 3) for name, rate in rates.items()}


def count(batches) -> tuple[float, float, float]:
    """Million positions of batches, seconds of CPU time, and the share that is not padding."""
    start, positions, text = time.process_time(), 0, 0
    for batch in batches:
        for name in {"documents", "backward_documents"} & set(batch):
            positions += batch[name].size
            text += np.count_nonzero(batch[name])
    return positions / 1e6, time.process_time() - start, text / positions


def main():
    """Measures all cases, prints a table and writes the JSON."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = make_corpus(Path(folder), 30_000_000)
        # The limit: a batch's rows of 128 in a random order, and nothing else.
        tokens, ramp = prepared.split("train").tokens, np.arange(128)
        starts = np.random.default_rng(0).integers(0, len(tokens), (2000, 256, 1))
        gathers = ({"documents": tokens.take(s + ramp, mode="clip").astype("i4")} for s in starts)
        positions, seconds, _ = count(gathers)
        results = {"gather of tokens": {"batches": round(positions / seconds, 3)}}
        for name, (kind, settings) in CASES.items():
            data = base_config().data
            data.update_from_flattened_dict({"batch_size": 256, "format": kind, **settings})
            results[name] = measure(prepared, data)
    print(pd.DataFrame(results).T.to_string())
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
