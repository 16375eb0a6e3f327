"""Each file of a run's directory and of a prepared corpus is cut, emptied, flipped in one bit, or gone: the next use says so.

Every use either names what is damaged in one sentence, or gives exactly what it gave before.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bertlab import results
from bertlab.data.prepare import prepare
from bertlab.data.prepared import load_prepared
from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError
from bertlab.interop.base import save_imported
from bertlab.run import Run
from bertlab.train.checkpoint import load_params
from tests.faults.readers import EVALUATION, FLOOR, TEXTS
from tests.interop import published
from tests.studies.conftest import write_run


def flipped(content: bytes) -> bytes:
    """With one bit of the middle half the other way round, always the same one."""
    at = random.Random(len(content)).randrange(len(content) // 4, max(1, 3 * len(content) // 4) + 1) if content else 0
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] if at < len(content) else content


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "flipped": flipped,
    "missing": lambda content: None,
}


def unnoticed(directory: Path, use: Callable[[], Any], damage: str, mends: str) -> tuple[list[str], int]:
    """What goes wrong as each file of a directory is damaged, and how many there are; the directory is as before afterwards.

    Args:
        directory: its files are damaged one after the other.
        use: what is done with it; its result is compared.
        damage: a key of DAMAGES.
        mends: what the sentence must contain: the remedy.
    """
    expected, wrong = use(), []
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
    for file in files:
        content, name = file.read_bytes(), file.relative_to(directory).as_posix()
        damaged = DAMAGES[damage](content)
        file.unlink() if damaged is None else file.write_bytes(damaged)
        try:
            found = use()
            if found != expected:
                wrong.append(f"{name}: nothing is said, and the result is another one")
        except UserError as error:
            said = str(error)
            if str(directory) not in said or "\n" in said or mends not in said:
                wrong.append(f"{name}: {said}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        file.write_bytes(content)
    return wrong, len(files)


@pytest.fixture(scope="module")
def corpus_settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("\n\n".join(f"{text} Once more, {text}" for text in TEXTS))
    settings = {"corpus": f"text:{folder}/a.txt", "directory": str(folder / "cache"), "workers": 1}
    return settings | {"tokenizer": {"kind": "words", "vocab_size": 20}, "valid_fraction": 0.2, "test_fraction": 0.2}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_prepared_corpus_is_named_and_can_be_prepared_again(damage, corpus_settings):
    prepared = prepare(corpus_settings)

    def use():
        again = load_prepared(prepared.directory)
        documents = {split: [again.source(split)[i] for i in range(len(again.source(split)))] for split in again.statistics}
        arrays = jax.tree.map(lambda value: value.tolist() if isinstance(value, np.ndarray) else value, documents)
        return arrays, again.counts.tolist(), again.tokenizer.pieces(), again.statistics, again.fingerprint

    wrong, number = unnoticed(prepared.directory, use, damage, f"delete {prepared.directory}")
    # A folder without its list is one of an earlier version.
    assert wrong == [] and number >= 3 + 2 + 2 + 3
    expected = use()
    shutil.rmtree(prepared.directory)
    assert prepare(corpus_settings).directory == prepared.directory and use() == expected


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """A run's directory with each kind of file that it may have."""
    place = tmp_path_factory.mktemp("run")
    run = Run(place / "run")
    save_imported(published.random_run(place / "source"), run.directory, "huggingface", "source")
    config = run.config.read()
    write_run(run.directory, "MLM", 1, steps=300)
    run.config.write(config)
    run.evaluation.write(EVALUATION)
    run.floor.write(FLOOR)
    run.costs.write({"300": {"tokens": 5, "supervised": 1, "flops": 2.0, "seconds": 3.0}})
    run.data.write({"corpus": {"splits": {}}, "batches": {}, "objectives": {"mlm": {"asks": "tokens"}}})
    run.measured.write({"evaluation": None, "floor": None})
    return run


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # TensorStore's threads, after the first error
@pytest.mark.parametrize("damage", ["cut", "emptied", "missing"])
def test_a_damaged_run_is_named(damage, run_directory):
    run = run_directory

    def use():
        tables = results.load(run.directory)
        params = jax.tree.map(lambda array: array.tolist(), load_params(run.directory))
        files = (run.costs, run.data, run.imported, run.measured, run.environment)
        known = [run.config.read(), *(file.get() for file in files)]
        tokenizer = load_tokenizer(run.tokenizer)
        return json.dumps([tables.measurements.to_json(), tables.metrics.to_json(), params, known, tokenizer.pieces()])

    wrong, number = unnoticed(run.directory, use, damage, "")
    wrong = [line for line in wrong if not line.startswith("metrics.jsonl: nothing")]  # a run that was killed has fewer lines
    if damage == "missing":  # of these, a reader cannot know that they were there
        free = {f"{name}.json" for name in ("costs", "data", "environment", "evaluation", "floor", "imported", "measured")}
        free |= {"metrics.jsonl", "result.json", "finetune/package/result.json", "finetune/code_spans/result.json"}
        wrong = [line for line in wrong if line.partition(":")[0] not in free]
    assert not wrong and number > 15, "\n".join(wrong)
