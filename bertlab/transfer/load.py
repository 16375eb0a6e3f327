"""Opens a run or an imported model: `bertlab.load(path)` gives its parameters and hidden states.
Letters: B rows, L positions, T tokens of a text, N texts, n layers with the embeddings, D width."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config.defaults import base_config
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import Encoded, Shape, View
from bertlab.models.presets import build_body, model_direction, model_shape
from bertlab.objectives.base import Objective
from bertlab.objectives.program import Program
from bertlab.objectives.word_vectors import with_word_table
from bertlab.train.build import vocabulary_of
from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.batches import Batches, by_row
from bertlab.transfer.heads import pooled
from bertlab.transfer.inputs import NEW_TOKENS, Inputs

ROWS, BUCKETS = 16, [1 << n for n in range(3, 20)]  # texts per batch, and their lengths


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Hidden states of one text."""

    tokens: tuple[str, ...]  # the string of each piece or word
    states: Float[np.ndarray, "n T D"]  # float32; D is the widest layer's, narrower ones end in 0
    widths: tuple[int, ...]  # of each of the n layers


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained model."""

    config: ConfigDict  # its run's; keys that an import lacks have their defaults
    params: Any  # tree of float32 NumPy arrays, with low-rank updates added to their kernels
    tokenizer: Tokenizer
    # Body and objectives as pure functions; a fine-tuning's heads are only in `params`.
    program: Program
    step: int | None = None  # the checkpoint's; None: the last

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """A pretraining's objectives, by name."""
        return self.program.objectives

    @property
    def longest(self) -> int:
        """The most positions that a text may have, special tokens included."""
        return self.program.body.shape.longest

    def check_length(self, number: int, tokens: int) -> None:
        """Refuses a text that is longer than the model's rows."""
        if tokens > self.longest:
            raise UserError(
                f"text {number} has {tokens} tokens with special ones, and a row at most"
                f" {self.longest}; split it"
            )

    @functools.cached_property
    def inputs(self) -> Inputs:
        """How texts of any length become its rows."""
        model = self.config.model
        reads = model_direction(model) == "bidirectional", model.token_encoder == "characters"
        return Inputs(self.tokenizer, "pair", Shape.longest, *reads)

    @functools.cached_property
    def encode(self) -> Callable[[View], Encoded]:
        """From a batch, int32 [B, L] `tokens`, `segments`, `documents` (0: padding) and
        `positions`, the hidden states of every layer, on the device, without dropout."""
        params = self.params
        if self.config.model.family == "static":
            params = params | {"body": with_word_table(params["body"], self.objectives)}
        return functools.partial(jax.jit(self.program.encode), jax.device_put(params))

    def embed(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        layers: str | Sequence[int] = "all",
        pooling: str | None = None,
        pretokenized: bool = False,
    ) -> list[Embedding] | Float[np.ndarray, "N n D"]:
        """Hidden states of texts, on the side that has seen the most, of "all" `layers` or those
        with these numbers: 0 is the embeddings, -1 the last layer.

        With `pooling` ("mean", "max", "first", "last") each text and layer has one vector, over all
        positions, special tokens included (as in Sentence-BERT, Reimers and Gurevych 2019). If
        `pretokenized`, texts are lists of words, and each word has one state: its first piece's, or
        its last one's if the model reads one way."""
        rows, units = self._rows(texts, pretokenized)
        data = {"seq_len": self.longest, "buckets": BUCKETS, "batch_size": ROWS, "seed": 0}
        batches = Batches(rows, ConfigDict(data), self.tokenizer.pad_id)
        outputs, widths = [], ()
        for batch in batches:
            side, states = self.encode(batch).widest()
            states = states if layers == "all" else [states[number] for number in layers]
            if pooling is not None:
                read = (batch, pooling, 1, side == "backward")
                states = [pooled(x.astype(np.float32), *read)[:, 0] for x in states]
            widths = tuple(layer.shape[-1] for layer in states)
            joined = np.zeros((len(states), *states[0].shape[:-1], max(widths)), np.float32)
            for layer, wide in zip(states, joined):
                wide[..., : layer.shape[-1]] = layer
            outputs.append({"row_number": batch["row_number"], "states": joined.swapaxes(0, 1)})
        found = [output["states"] for output in by_row(outputs)]
        if pooling is not None:
            return np.stack(found)
        pairs = zip(units, found)
        return [Embedding(names, states[:, at], widths) for (names, at), states in pairs]

    def _rows(self, texts, pretokenized: bool):
        """Rows of texts, and for each one the (names, positions) of its pieces or words."""
        inputs, pieces, rows, units = self.inputs, self.tokenizer.pieces(), [], []
        for number, text in enumerate(texts):
            if isinstance(text, str) == pretokenized:
                expected = "a list of words" if pretokenized else "a string"
                raise UserError(f"text {number}: expected {expected}, found {type(text).__name__}")
            if pretokenized:
                words = inputs.words(text)
                document, names, positions = words.document, tuple(text), words.read_at
            else:
                document = inputs.document([text])
                positions = np.arange(document.begins[0], document.ends[0] + 1)
                names = tuple(pieces[index] for index in document.pieces[positions, 0])
            self.check_length(number, len(document.pieces))
            rows.append(inputs.row([document]))
            units.append((names, positions))
        return rows, units


def run_config(run: str | Path) -> ConfigDict:
    """The config of a run or an import; keys that it lacks have their defaults."""
    config = base_config()
    config.update(ConfigDict(RunDirectory(run).config()))
    return config


def load(path: str | Path, step: int | None = None) -> Pretrained:
    """Opens a run or an imported model."""
    run, config = RunDirectory(path), run_config(path)
    tokenizer = load_tokenizer(run.tokenizer)
    has_objectives = len(config.objectives) and not config.get("task")
    built = objectives.build(config.objectives) if has_objectives else {}
    body = build_body(model_shape(config.model, embedded_tokens(config, tokenizer)))
    is_stream = config.data.get("format") == "stream"
    program = Program(body, built, vocabulary_of(tokenizer), stream=is_stream)
    return Pretrained(config, load_params(run, step), tokenizer, program, step)


def embedded_tokens(config: Mapping[str, Any], tokenizer: Tokenizer) -> int:
    """Rows of a run's token embeddings: the vocabulary, plus what a delimited layout adds."""
    delimited = (config.get("transfer") or {}).get("layout") == "delimited"
    return tokenizer.vocab_size + (len(NEW_TOKENS) if delimited else 0)
