"""Pretrains, then takes the measurements that make models with different objectives comparable."""

import dataclasses
import os
import traceback
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.config import split_list
from bertlab.errors import UserError, reason_of
from bertlab.floors import Floor, floors
from bertlab.run import Run
from bertlab.train.checkpoint import load_params
from bertlab.train.loop import train
from bertlab.train.processes import alone, is_first
from bertlab.train.record import Diverged
from bertlab.transfer.evaluate import evaluate, read_pairs
from bertlab.transfer.evaluations import TEST_SPLIT, read_evaluations
from bertlab.transfer.load import read_lines


def pretrain(config: ConfigDict, workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """Trains (`bertlab.train.loop.train`), then writes evaluation.json and, on the synthetic language, floor.json.

    Args:
        config: a whole experiment config; its `evaluate` keys set on how much text.
        workdir: the run directory.

    Returns:
        The result of the training.

    Raises:
        UserError: as `train`, or a file of `config.evaluate` cannot be read; diverged.txt is written where training diverged.
    """
    check_files(config, workdir)
    with alone(workdir):
        try:
            result = train(config, workdir)
        except Diverged as error:
            if is_first():
                Run(workdir).diverged.write(f"{error}\n")
            raise
        if is_first():
            measure(Path(workdir))
        return result


def check_files(config, workdir) -> None:
    """Reads the files of `config.evaluate` unless the run has used them, so that a mistake is found before training.

    Raises:
        UserError: one cannot be read, or has no effect.
    """
    if Run(workdir).measured.exists():
        return
    asked = config.evaluate
    if asked.word_text and not (asked.words or asked.analogies):
        raise UserError("config.evaluate.word_text has no effect without evaluate.words or evaluate.analogies; set one of them")
    if asked.minimal_pairs:
        read_pairs(Path(asked.minimal_pairs), key="config.evaluate.minimal_pairs")
    if asked.words or asked.analogies:
        _check_words(asked)


def _check_words(asked: ConfigDict) -> None:
    from bertlab.transfer.similarity import read_questions, read_ratings  # pandas would slow down every training's start

    for path in _files(asked.words):
        read_ratings(path, "config.evaluate.words")
    if asked.analogies:
        read_questions(Path(asked.analogies), "config.evaluate.analogies")
    if asked.word_text:
        read_lines(Path(asked.word_text), "config.evaluate.word_text")


def _files(joined: str) -> list[Path]:
    return split_list("config.evaluate.words", joined, Path, "files") if joined else []


def measure(run: Path) -> None:
    """Measures what the config asks for, each once: bits per byte, minimal pairs, words' vectors, nats above the exact floors.

    If a measurement fails, one line says why, and the training is not lost. measured.json is written last and lists what is
    missing, so a sweep does not keep trying what an objective cannot do. Delete it to measure again.

    Raises:
        OSError: from the machine (a full disk); nothing is recorded, and the next call tries again.
    """
    directory = Run(run)
    if directory.measured.exists():
        return
    config = ConfigDict(directory.config.read())
    wanting = {"evaluation": _evaluate(config, run), "floor": _find_floors(config, run)}
    if config.evaluate.words or config.evaluate.analogies:
        wanting["similarity"] = _compare_words(config, run)
    directory.measured.write(wanting)
    for part, reason in wanting.items():
        if reason:
            print(f"no {part}: {reason}", flush=True)


def _evaluate(config: ConfigDict, run: Path) -> str | None:
    """Adds the measurements that the config asks for to evaluation.json, unless it has them; returns why one failed."""
    file, pairs = Run(run).evaluation.path, config.evaluate.minimal_pairs
    try:
        done = read_evaluations(file) if file.exists() else {}
        if config.evaluate.sentences and TEST_SPLIT not in done.get("bits_per_byte", {}):
            evaluate(run, limit=config.evaluate.sentences)
        if pairs and str(Path(pairs)) not in done.get("minimal_pairs", {}):
            evaluate(run, minimal_pairs=Path(pairs), limit=config.evaluate.pairs)
    except OSError:
        raise
    except Exception as error:
        return _reason(error)
    return None


def _compare_words(config: ConfigDict, run: Path) -> str | None:
    """Writes similarity.json unless the run has one; returns why it failed."""
    from bertlab.transfer.similarity import similarity

    asked = config.evaluate
    if Run(run).similarity.exists():
        return None
    files = {"analogies": asked.analogies, "text": asked.word_text}
    try:
        similarity(run, _files(asked.words), **{name: Path(file) for name, file in files.items() if file})
    except OSError:
        raise
    except Exception as error:
        return _reason(error)
    return None


def _find_floors(config: ConfigDict, run: Path) -> str | None:
    """Writes and prints floor.json if the text is the synthetic language; returns why it failed."""
    if config.data.corpus != "synthetic" or Run(run).floor.exists():
        return None
    try:
        found = floors(config, params=load_params(run))
        Run(run).floor.write({n: dataclasses.asdict(f) for n, f in found.items() if isinstance(f, Floor)})
    except OSError:
        raise
    except Exception as error:
        return _reason(error)
    for name, floor in found.items():
        known = isinstance(floor, Floor)
        said = f"{floor.above:+.4f} nats above its floor of {floor.value:.4f}" if known else f"no floor: {floor}"
        print(f"{name}: {said}", flush=True)
    return None


def _reason(error: Exception) -> str:
    """The text of an error for measured.json; a mistake in the code also prints its traceback."""
    if isinstance(error, UserError):
        return str(error)
    traceback.print_exception(error)
    return reason_of(error)
