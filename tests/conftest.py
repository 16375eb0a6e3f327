"""Shared set-up: eight virtual CPU devices, and a small prepared corpus of real text."""

import gzip
import os
import shutil
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import numpy as np
import pytest

from bertlab.config import load_config
from bertlab.models.presets import FAMILIES
from bertlab.train import loop

jax.config.update("jax_num_cpu_devices", 8)

ROOT = Path(__file__).parent.parent
RECIPES = {
    "bert": "experiments/pretrain/bert.py:objectives=mlm+nsp",
    "gpt": "experiments/pretrain/gpt.py",
    "modern": "experiments/pretrain/modern.py",
    "elmo": "experiments/pretrain/elmo.py",
    "elmo on characters": "experiments/pretrain/elmo.py:tokens=characters",
    "awd_lstm": "experiments/pretrain/awd_lstm.py",
    "awd_lstm backward": "experiments/pretrain/awd_lstm.py:direction=backward",
    "skip_gram": "experiments/pretrain/static.py:objectives=skip_gram",
    "cbow": "experiments/pretrain/static.py:objectives=cbow",
    "glove": "experiments/pretrain/static.py:objectives=glove",
}


def pytest_configure(config):
    """All tests and worker processes of one run of the suite share a compilation cache.

    Several runs do not: a program for several CPU devices may hang when loaded from a cache (jax 0.10). Within one run no two
    tests compile the same such program.
    """
    if hasattr(config, "workerinput"):
        return
    directory = tempfile.mkdtemp(prefix="bertlab-tests-")
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    for name, value in (("compilation_cache_dir", directory), ("persistent_cache_min_compile_time_secs", 0)):
        os.environ.setdefault(f"JAX_{name.upper()}", str(value))
        jax.config.update(f"jax_{name}", value)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What only a night runs is slow too."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    """The spec of a text corpus: part of Python's language reference, one document per topic."""
    folder = tmp_path_factory.mktemp("corpus")
    chosen = [" ".join(topics[name].split()) for name in sorted(topics)[:60]]
    with gzip.open(folder / "topics.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n\n".join(chosen))
    return f"text:{folder}/*.txt.gz"


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> str:
    """A cache directory for prepared corpora, shared by the tests of this process."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def quick_compilation():
    """Quick compilation for modules that need it in `make parity` too (`usefixtures`); `make test` has it everywhere."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def small_overrides(corpus, cache) -> dict[str, Any]:
    """Dotted names of `data` and `mesh` for a very small run on one device."""
    return {
        "data.corpus": corpus,
        "data.directory": cache,
        "data.workers": 1,
        "data.tokenizer.vocab_size": 400,
        "data.valid_fraction": 0.1,
        "data.test_fraction": 0.1,
        "data.seq_len": 32,
        "data.batch_size": 8,
        "mesh.data": 1,
    }


@pytest.fixture(scope="session")
def small_config(small_overrides):
    """A function (recipe, **overrides) -> config of a very small run on one device; write `__` for a dot in names."""

    def make(recipe: str = "bert", **overrides):
        small = small_overrides | {
            "data.shuffle_window": 16,
            "model.width": 16,
            "train.steps": 20,
            "train.log_every": 4,
            "train.eval_every": 10,
            "train.eval_batches": 2,
            "train.checkpoint_every": 5,
        }
        path = str(ROOT / RECIPES.get(recipe, recipe))
        defaults = load_config(path)
        if "hidden" in FAMILIES[defaults.model.family].sizes[defaults.model.size]:
            small["model.hidden"] = 24
        return load_config(path, small | {k.replace("__", "."): v for k, v in overrides.items()})

    return make


@pytest.fixture(scope="session")
def bert_run(small_config, tmp_path_factory) -> Path:
    """The directory of a BERT pretrained for two steps, for all tests that fine-tune one; do not write to it."""
    directory = tmp_path_factory.mktemp("bert") / "pretrained"
    settings = {"model__layers": 1, "optimizer__warmup_steps": 0, "optimizer__learning_rate": 0.01, "train__steps": 2}
    loop.train(small_config("bert", **settings, train__eval_batches=1), directory)
    return directory


@pytest.fixture
def words_task(tmp_path) -> str:
    """A user's own task, a table that is easy to learn: its FILE.py."""
    lines = [f"the value of object {i} is here\tgood" if i % 2 else f"not a module {i} to import\tbad" for i in range(200)]
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    own = 'from bertlab.transfer.tasks import table\n\nTASK = table("words", train="table.tsv", text="text", label="label")\n'
    (tmp_path / "words.py").write_text(own)
    return str(tmp_path / "words.py")


@pytest.fixture(scope="session")
def packed_batch():
    """A function (rows, length, vocabulary) -> a random batch with two documents and some padding in each row."""

    def make(rows: int = 4, length: int = 12, vocab_size: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        documents = np.zeros((rows, length), np.int32)
        positions = np.zeros((rows, length), np.int32)
        for row in range(rows):
            first, second = rng.integers(3, length // 2, size=2)
            documents[row, :first], documents[row, first : first + second] = 1, 2
            positions[row, :first], positions[row, first : first + second] = np.arange(first), np.arange(second)
        tokens = np.where(documents > 0, rng.integers(5, vocab_size, size=(rows, length)), 0).astype(np.int32)
        return {
            "tokens": tokens,
            "segments": np.where(documents == 2, 1, 0).astype(np.int32),
            "documents": documents,
            "positions": positions,
            "pair_label": rng.integers(-1, 2, size=rows).astype(np.int32),
            "example_id": np.stack([np.arange(rows), np.zeros(rows)], 1).astype(np.int32),
            "contexts": np.where(documents > 0, rng.integers(5, vocab_size, size=(rows, length)), 0).astype(np.int32),
            "counts": np.where(documents > 0, rng.gamma(2.0, 5.0, (rows, length)), 1.0).astype(np.float32),
            "order_label": rng.integers(-1, 2, size=rows).astype(np.int32),
            "visit": np.zeros(rows, np.int32),
        }

    return make
