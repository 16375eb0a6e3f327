"""How fast text becomes token ids, beside `datasets.map` of Hugging Face.

    pip install datasets transformers
    python experiments/speed/preparing.py FILE.jsonl experiments/speed/preparing.json

Both read the records' `text` and write the ids of the same uncased WordPiece vocabulary, in one
process per core: bertlab by Google's rules, `datasets` by a fast tokenizer of transformers. bertlab
also divides the text into sentences and draws the splits.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tokenizers

BERTLAB = """
import sys
from bertlab.config import base_config
from bertlab.data.prepare import prepare
if __name__ == "__main__":
    config = base_config()
    config.data.update(corpus=f"text:{sys.argv[1]}", directory=sys.argv[3])
    config.data.tokenizer.path = f"{sys.argv[2]}/vocab.txt"
    statistics = prepare(config.data).statistics
    print(sum(split["tokens"] for split in statistics.values()))
"""
DATASETS = """
import os, sys
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{sys.argv[2]}/tokenizer.json")
def encode(batch):
    return {"ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]}
if __name__ == "__main__":
    records = load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3])
    workers, columns = len(os.sched_getaffinity(0)), records.column_names
    found = records.map(encode, batched=True, num_proc=workers, remove_columns=columns)
    print(sum(map(len, found.with_format("arrow")["ids"])))
"""


def train_wordpiece(text: Path, folder: Path) -> None:
    """An uncased WordPiece of 8,192 pieces from the first 20 MB: vocab.txt and tokenizer.json."""
    with text.open() as file:
        sample = [json.loads(line)["text"] for line in file.readlines(20 << 20)]
    tokenizer = tokenizers.BertWordPieceTokenizer()
    tokenizer.train_from_iterator(sample, vocab_size=8192, show_progress=False)
    folder.mkdir()
    tokenizer.save_model(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))


def measure(script: str, text: Path, tokenizer: Path, folder: str) -> dict[str, float]:
    """Time, CPU time of all processes, and the memory of the largest."""
    start = time.monotonic()
    command = [sys.executable, "-c", script, str(text), str(tokenizer), folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    tokens = int(process.stdout.read().split()[-1])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return {
        "megabytes": round(text.stat().st_size / 1e6, 1),
        "tokens": tokens,
        "seconds": round(time.monotonic() - start, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "largest_process_megabytes": round(usage.ru_maxrss / 1e3),
    }


if __name__ == "__main__":
    text, output = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        train_wordpiece(text, tokenizer := Path(folder, "tokenizer"))
        found = {
            name: measure(script, text, tokenizer, f"{folder}/{name}")
            for name, script in {"datasets.map": DATASETS, "bertlab": BERTLAB}.items()
        }
    output.write_text(json.dumps(found, indent=1) + "\n")
    print(output.read_text())
