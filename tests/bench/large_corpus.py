"""Prepares a made-up corpus of so many megabytes in a temporary folder, and prints the memory and disk that it took.

    python -m tests.bench.large_corpus 100 tokenizer.kind=words tokenizer.sample_sentences=70000

The text is words drawn by Zipf's law, in sentences of 15 words and documents of 2,000.
"""

import json
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from bertlab.config import base_config, parse_override, set_key
from bertlab.data.prepare import prepare

WORDS, SENTENCE, DOCUMENT = 50_000, 15, 2_000


def write_text(path: Path, size: int) -> None:
    """Writes so many bytes of made-up documents, a blank line between them."""
    generator = np.random.default_rng(0)
    letters = generator.integers(97, 123, (WORDS, 8), np.uint8)
    lengths = generator.integers(2, 9, WORDS)
    words = [row[:length].tobytes().decode() for row, length in zip(letters, lengths, strict=True)]
    written = 0
    with path.open("w") as file:
        while written < size:
            drawn = generator.zipf(1.2, DOCUMENT) % WORDS
            sentences = (" ".join(words[i] for i in drawn[at : at + SENTENCE]) for at in range(0, DOCUMENT, SENTENCE))
            written += file.write(". ".join(sentence.capitalize() for sentence in sentences) + ".\n\n")


def disk_of(folder: Path) -> int:
    """Bytes of the files below a folder, which others may change meanwhile."""
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file() and entry.exists())


def measure(megabytes: int, settings: dict[str, str]) -> dict:
    """Prepares such a corpus; sizes are in megabytes, of disk without the text itself."""
    with tempfile.TemporaryDirectory() as name:
        text, cache = Path(name, "text.txt"), Path(name, "cache")
        write_text(text, megabytes * 1_000_000)
        cache.mkdir()
        config = base_config()
        for key, value in {"corpus": f"text:{text}", "directory": str(cache), **settings}.items():
            set_key(config, f"data.{key}", parse_override(config, f"data.{key}", value))
        most, done = [0], threading.Event()

        def watch() -> None:
            while not done.wait(1):
                try:
                    most[0] = max(most[0], disk_of(cache))
                except FileNotFoundError:  # removed while it was counted
                    continue

        watcher = threading.Thread(target=watch)
        watcher.start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        began = os.times()
        prepared = prepare(config.data)
        ended = os.times()
        done.set()
        watcher.join()
        rss = {of: resource.getrusage(getattr(resource, f"RUSAGE_{of}")).ru_maxrss / 1000 for of in ("SELF", "CHILDREN")}
        return {
            "text_mb": megabytes,
            **settings,
            "sentences": sum(of["sentences"] for of in prepared.statistics.values()),
            "disk_mb": round(disk_of(cache) / 1e6, 1),
            "most_disk_mb": round(max(most[0], disk_of(cache)) / 1e6, 1),
            "memory_mb": round(rss["SELF"]),
            "memory_before_mb": round(before),
            "memory_of_a_worker_mb": round(rss["CHILDREN"]),
            "cpu_seconds": round(sum(ended[:4]) - sum(began[:4])),
            "seconds": round(ended.elapsed - began.elapsed),
            "date": time.strftime("%Y-%m-%d"),
        }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), dict(item.split("=", 1) for item in sys.argv[2:]))))
