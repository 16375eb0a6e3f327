"""Measures the memory needed to extract the hidden states of 1,000,000 tokens: peak before and after, in megabytes.

    python experiments/transfer/extract.py RUN TEXT DIRECTORY [TOKENS]

RUN is a run directory, TEXT a file with one paragraph per line (read again from the start if it is too short); the script makes
DIRECTORY. If you kill and restart it, it resumes after the last complete shard.
"""

import resource
import sys
import time
from pathlib import Path

import bertlab
from bertlab.transfer.features import extract


def peak() -> float:
    """Highest resident memory so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def paragraphs(model, text: Path, tokens: int):
    """Lines of the text, cut to 60 words, up to the given number of tokens."""
    while tokens > 0:
        with text.open(encoding="utf-8") as lines:
            for line in lines:
                if words := line.split()[:60]:
                    tokens -= len(model.tokenizer.encode(" ".join(words)))
                    yield " ".join(words)
                if tokens <= 0:
                    return


def main(run: str, text: str, directory: str, tokens: str = "1000000") -> None:
    model = bertlab.load(run)
    model.encode(["One text, so that the model is on the device and compiled."])
    before, began = peak(), time.perf_counter()
    features = extract(model, paragraphs(model, Path(text), int(tokens)), directory)
    size = sum(path.stat().st_size for path in Path(directory).glob("*.safetensors")) / 2**20
    tokens = int(features.lengths.sum())
    print(f"{len(features):,} texts, {tokens:,} tokens, layers {list(features.widths)}, {size:,.0f} MB on disk")
    print(f"peak {before:,.0f} MB with the model loaded, {peak():,.0f} MB at the end; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
