"""A pretraining without text: its program, and random rows with the shape of its batches."""

import itertools
from collections.abc import Iterator

import grain
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.batches import TrainingBatches
from bertlab.data.characters import WORD_LENGTH
from bertlab.data.formats import format_of
from bertlab.data.formats.row_format import READ_HERE
from bertlab.data.packing import packed
from bertlab.data.rows import make_row
from bertlab.objectives import Vocabulary
from bertlab.objectives.program import Program
from bertlab.train.build import Experiment, build_phases, compose
from bertlab.train.checks import check_config


def made_up_program(config: ConfigDict) -> Program:
    """A pretraining's program with `data.tokenizer.vocab_size` tokens; no text is read.

    Raises:
        UserError: from `check_config`.
    """
    size = config.data.tokenizer.vocab_size
    # Ids like those of bertlab's tokenizers; they do not affect counts and shapes.
    vocabulary = Vocabulary(size, 0, 1, 2, 3, 4, counts=(1,) * size, continues=(False,) * size)
    return compose(config, check_config(config), vocabulary)


def made_up_experiment(config: ConfigDict, batches: int = 8) -> Experiment:
    """A pretraining to measure: its training steps read the same few made-up batches in turns. It has no tokenizer.

    Raises:
        UserError: from `check_config`.
    """
    program, size = made_up_program(config), config.data.tokenizer.vocab_size
    example = next(iter(MadeUpRows(config.data, size)))
    phases = build_phases(config, program, lambda data: RepeatedRows(MadeUpRows(data, size), batches))
    return Experiment(config, program, phases, tokenizer=None, evaluations={"valid": [example]})


class RepeatedRows(TrainingBatches):
    """The first batches of others, again and again: they cost nothing to make after the first time."""

    def __init__(self, batches: TrainingBatches, count: int):
        self.batches, self.whole = list(itertools.islice(batches, count)), batches.whole

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        yield from itertools.cycle(self.batches)


class MadeUpRows(TrainingBatches):
    """Endless batches of `config.data` with the fields of its format: the same random tokens each time; they fill `seq_len`."""

    whole = True

    def __init__(self, data: ConfigDict, vocab_size: int):
        self.data, self.vocab_size = data, vocab_size

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        rng = np.random.default_rng(0)
        length, half = self.data.seq_len, self.data.seq_len // 2
        segments, characters = np.arange(length) > half, self.data.characters
        examples = min(self.data.pack_length // length, self.data.pack_examples) if self.data.pack_length else 1
        while True:
            made = []
            for number in range(self.data.batch_size * examples):
                tokens = rng.integers(5, self.vocab_size, length)
                tokens[[0, half, -1]] = (2, 3, 3)
                row = make_row(length, 0, tokens, segments, np.ones(length), number % 2, (number, 0), number % 2)
                made.append({**row, "visit": np.int32(0)})
            if self.data.pack_length:
                made = list(packed(grain.MapDataset.source(made).to_iter_dataset(READ_HERE), self.data, pad_id=0, seed=0))
            batch = {name: np.stack([row[name] for row in made]) for name in made[0]}
            batch = format_of(self.data).made_up(batch)
            yield batch | ({"characters": np.zeros((*batch["tokens"].shape, WORD_LENGTH), np.uint16)} if characters else {})
