"""Opens a run or an imported model from Python: `bertlab.load(path)` gives tokenizer, parameters, hidden states and scores.

Letters: B rows, L length of a row, n layers (the embeddings are layer 0), T tokens of a text, D width of the side that
has seen most.
"""

import dataclasses
import functools
import operator
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import Array, Bool, Float
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.compressed import read_whole, text_of
from bertlab.config import base_config, is_finetuning, split_list
from bertlab.data.text_rows import RowEncoder, TextRow
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.files import ordinary_mode, whole_file
from bertlab.models.base import Carry, Encoded, View, sides_of
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.objectives.base import Objective
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.train.checkpoint import load_params, require_fitting
from bertlab.train.checks import vocabulary_of
from bertlab.train.phases import trained_objectives
from bertlab.train.processes import is_first, part
from bertlab.transfer.inputs import vocabulary_size
from bertlab.transfer.likelihood import (
    ORDERS,
    BitsPerByte,
    Score,
    Scorer,
    bits_per_byte,
    check_kind,
    check_orders,
    kinds_of,
    ways_of,
)
from bertlab.transfer.paragraphs import counted_vocabulary, drawing, paragraph_vectors
from bertlab.transfer.parts import folder_of_all, joined
from bertlab.transfer.rows import Inference, batches, own

if TYPE_CHECKING:
    import pandas

POOLINGS = ("mean", "first", "last", "max", "pooler", "paragraph")
SUFFIXES = (".npz", ".safetensors", ".csv")


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Hidden states of one text.

    Attributes:
        tokens: the string of each position; with `pretokenized`, the words.
        states: [n, T, D], where D is the width of the widest layer; narrower layers (of an AWD-LSTM) are padded with zeros.
        widths: the width of each of the n layers.
        layers: their numbers in the model; 0 is the embeddings.
    """

    tokens: tuple[str, ...]
    states: Float[np.ndarray, "n T D"]
    widths: tuple[int, ...]
    layers: tuple[int, ...]

    def frame(self) -> "pandas.DataFrame":
        """A table with one row per token and layer: `layer`, `position` (from 0), `token`, then `d0` to `d{D−1}`."""
        import pandas as pd  # here, because training and fine-tuning start sooner without it

        count, length, width = self.states.shape
        where = {
            "layer": np.repeat(np.array(self.layers, np.int64), length),
            "position": np.tile(np.arange(length), count),
            "token": pd.Series(list(self.tokens) * count, dtype="str"),
        }
        return pd.concat([pd.DataFrame(where), _columns(self.states.reshape(-1, width))], axis=1)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A trained model, ready to use.

    Attributes:
        config: the run's model, objectives, seed, steps and, of a pretraining, data; other keys have their defaults.
        tokenizer: turns text into ids and back.
        program: body and objectives as pure functions: `program.views` and `program.metrics` help you write your own loss.
        params: tree of float32 NumPy arrays.
        step: the checkpoint's step; None for the last one.
        process: (index, count) of this process among those that share the work; (0, 1): it does all.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    program: Program
    params: Any
    step: int | None = None
    process: tuple[int, int] = (0, 1)

    def apply(self, params: Any, view: View) -> Encoded:
        """Hidden states by the side that they have seen: a pure function, so you can jit or differentiate it.

        Args:
            params: `self.params`, or others of the same shapes.
            view: int32 [B, L] `tokens`, `segments`, `documents` (0: padding) and `positions`.
        """
        return self.program.encode(params, view)

    def encode(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        layers: str | Sequence[int] = "all",
        pretokenized: bool = False,
        special_tokens: bool = False,
        carry: bool = False,
    ) -> list[Embedding]:
        """Hidden states of each text, on the side that has seen most.

        Args:
            texts: strings; with `pretokenized`, lists of words.
            layers: "all", or a list of numbers: 0 is the embeddings, −1 the last layer.
            pretokenized: return one vector per word: that of its first piece or, in a model that reads one way, of its last.
            special_tokens: keep the special tokens around each text.
            carry: a recurrent model reads the texts one by one in order, and begins each, in both directions, with the states
                at the end of the one before, as bilm-tf and AllenNLP do with ELMo; otherwise every text begins with zeros.

        A GloVe run gives the word vectors w; published vectors, and those of `bertlab export`, are w + w̃.

        Raises:
            UserError: the layer does not exist, a text is longer than the model's positions, or the model carries no states.
        """
        found = self.embeddings(texts, layers, pretokenized, special_tokens, carry)
        return [found[number] for number in range(len(found))]

    def embeddings(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        layers: str | Sequence[int] = "all",
        pretokenized: bool = False,
        special_tokens: bool = False,
        carry: bool = False,
        share: bool = False,
    ) -> dict[int, Embedding]:
        """As `encode`, by the number of the text; with `share`, only of the texts that are this process's share."""
        if carry and not family_of(self.config.model).recurrent:
            raise UserError(f"carry: {self.config.model.family} carries no states from text to text; leave it out")
        if pretokenized and special_tokens:
            raise UserError("special_tokens: pretokenized gives one vector per word, and special tokens are not words")
        rows = self.rows(texts, pretokenized)
        both = "both" in sides_of(self.config.model.family, model_direction(self.config.model))
        pieces, embeddings = self.tokenizer.pieces() if special_tokens else [], {}
        for indices, _, numbers, found in self._states(rows, layers, carry, share):
            widths = tuple(layer.shape[-1] for layer in found)
            states = np.zeros((len(found), *found[0].shape[:2], max(widths)), np.float32)
            for layer, of_layer in zip(states, found):
                layer[..., : of_layer.shape[-1]] = of_layer
            for row_states, index in zip(states.swapaxes(0, 1), indices):
                row = rows[index]
                places, names = (row.first if both else row.last), row.names
                if special_tokens:
                    places, names = np.arange(len(row.tokens)), tuple(pieces[i] for i in row.tokens)
                embeddings[index] = Embedding(names, row_states[:, places], widths, numbers)
        return embeddings

    def sentence_vectors(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        layer: int = -1,
        pooling: str = "mean",
        pretokenized: bool = False,
    ) -> Float[np.ndarray, "N D"]:
        """One vector per text, float32, on the side that has seen most; D is the layer's own width.

        Args:
            texts: strings; with `pretokenized`, lists of words; every piece counts.
            layer: 0 is the embeddings, −1 the last one.
            pooling: "mean" or "max" over the text's positions; "first" or "last" position; "pooler", the input of next-sentence
                prediction: a dense layer and tanh on the last layer (BERT, section 3.1). Special tokens count, as in
                Sentence-BERT (Reimers and Gurevych 2019, section 3). In a model that reads left to right, "first" has seen only
                itself; right to left, "last". "paragraph": the vector that predicts the text's words (Le and Mikolov 2014),
                for word vectors of skip_gram and cbow (`bertlab.transfer.paragraphs`); it counts words in the run's training
                text, which is prepared again if it is not in the cache.
            pretokenized: texts are lists of words.

        Raises:
            UserError: the layer or pooling does not exist; what the pooling needs was not trained; or a text has no tokens, or
                too many.
        """
        found = self.vectors(texts, layer, pooling, pretokenized)
        return np.stack([found[number] for number in range(len(found))]) if found else np.zeros((0, 0), np.float32)

    def vectors(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        layer: int = -1,
        pooling: str = "mean",
        pretokenized: bool = False,
        share: bool = False,
    ) -> dict[int, Float[np.ndarray, "D"]]:
        """As `sentence_vectors`, by the number of the text; with `share`, only of the texts that are this process's share."""
        if pooling not in POOLINGS:
            raise UserError(f"pooling={pooling!r} is not known; choose one of {', '.join(POOLINGS)}")
        readers = [name for name, objective in self.program.objectives.items() if objective.asks == "pairs"]
        untrained = readers and not any(name in self._trained for name in readers)
        if pooling == "pooler" and ("pooler" not in self.params["body"] or untrained):
            others = " or ".join(name for name in POOLINGS if name not in ("pooler", "paragraph"))
            train_it = " and ".join(objectives.asking("pairs"))
            raise UserError(f"pooling='pooler': this model's pooler is untrained ({train_it} train it); choose {others}")
        if pooling == "pooler" and layer != -1:
            raise UserError(f"layer={layer}: the pooler reads only the last layer; leave layer at -1")
        if pooling == "paragraph" and layer != -1:
            raise UserError(f"layer={layer}: a paragraph vector is of no layer; leave layer at -1")
        words = drawing(self._trained, self.program.vocabulary) if pooling == "paragraph" else ""
        rows = self.rows(texts, pretokenized)
        if empty := [number for number, row in enumerate(rows) if not len(row.tokens)]:
            raise UserError(f"text {empty[0]} has no tokens and so no vector; remove it")
        vectors = {}
        for indices, found in self._paragraphs(rows, words, share) if words else self._pooled(rows, layer, pooling, share):
            vectors.update(zip(indices, found))
        return vectors

    def _pooled(
        self, rows: list[TextRow], layer: int, pooling: str, share: bool
    ) -> Iterator[tuple[list[int], Float[np.ndarray, "B D"]]]:
        """Yields (indices of rows, their vectors) for each batch."""
        for indices, view, _, (states,) in self._states(rows, [layer], share=share):
            if pooling == "pooler":
                yield indices, np.asarray(self.inference(_pooler, view), np.float32)
            else:
                yield indices, pool(states, np.asarray(view["documents"]) > 0, pooling)

    def _paragraphs(
        self, rows: list[TextRow], objective: str, share: bool
    ) -> Iterator[tuple[list[int], Float[np.ndarray, "B D"]]]:
        """Yields (indices of rows, their paragraph vectors) for each batch."""
        vocabulary = counted_vocabulary(self.tokenizer, self.config.data)
        each = batches(rows, self.longest, self.tokenizer.pad_id)
        for indices, view in own(each, self.process if share else (0, 1), "inferring", len(rows)):
            yield indices, np.asarray(self.inference(paragraph_vectors, (view, 0), objective, vocabulary))

    def rows(self, texts: Sequence[str] | Sequence[Sequence[str]], pretokenized: bool = False, first: int = 0) -> list[TextRow]:
        """The rows that the model reads.

        Args:
            texts, pretokenized: as for `encode`.
            first: number of the first text, for errors.

        Raises:
            UserError: a text is not of the right type, or longer than `longest`.
        """
        rows = self._encoded(texts, pretokenized, first)
        for number, row in enumerate(rows, first):
            if len(row.tokens) > self.longest:
                raise UserError(
                    f"text {number} has {len(row.tokens)} tokens including special ones, but the model has {self.longest}"
                    " positions; split it"
                )
        return rows

    def lengths(self, texts: Sequence[str] | Sequence[Sequence[str]], pretokenized: bool = False) -> list[int]:
        """Number of positions of each text, special tokens included; texts of more than `longest` cannot be encoded."""
        return [len(row.tokens) for row in self._encoded(texts, pretokenized)]

    def _encoded(self, texts, pretokenized: bool, first: int = 0) -> list[TextRow]:
        if isinstance(texts, str):
            raise UserError("texts is a single string; give a list of strings")
        wanted = "a list of words" if pretokenized else "a string; for words split already set pretokenized=True"
        for number, text in enumerate(texts, first):
            if isinstance(text, str) == pretokenized:
                raise UserError(
                    f"text {number} is of type {type(text).__name__} and pretokenized={pretokenized}: expected {wanted}"
                )
        encoder = RowEncoder(self.tokenizer, self.config.model.token_encoder == "characters")
        return [encoder.words(text) if pretokenized else encoder.text(text) for text in texts]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of score that this model allows, from `bertlab.transfer.likelihood.KINDS`; the default first."""
        return kinds_of(self._trained)

    def check_kind(self, kind: str | None) -> str:
        """The kind, or for None the first of `kinds`.

        Raises:
            UserError: the kind is not in `kinds`, or `kinds` is empty; the message says why.
        """
        return check_kind(kind, self.program.objectives, self._trained)

    def score(self, texts: Sequence[str], kind: str | None = None, orders: int = ORDERS, closing: bool = True) -> list[Score]:
        """Log-probability, or pseudo-log-likelihood, of each text by the model's own objectives.

        Args:
            texts: strings.
            kind: one of `kinds`; None for the first. `bertlab.transfer.likelihood` defines each kind.
            orders: random orders of each text, for "any-order".
            closing: whether to score where the text ends too: its last token, or for "any-order" its number of pieces. False
                suits texts whose length is known.

        Raises:
            UserError: the model predicts no tokens, or not in this way; or a text has more tokens than the model has positions.
        """
        kind = self.check_kind(kind)
        check_orders(orders)
        return self.scorer.score(self.rows(texts, pretokenized=False), kind, orders, closing)

    def bits_per_byte(
        self, texts: Sequence[str], kind: str | None = None, orders: int = ORDERS, closing: bool = True
    ) -> BitsPerByte:
        """Bits per byte of texts: within one kind of score, you can compare models with different tokenizers.

        Args:
            texts, kind, orders, closing: as for `score`.

        Raises:
            UserError: as for `score`, or the texts are empty.
        """
        kind = self.check_kind(kind)
        rows = self.rows(texts, pretokenized=False)
        return bits_per_byte(texts, rows, self.scorer.score(rows, kind, orders, closing), self.tokenizer)

    def _states(
        self, rows: list[TextRow], layers, carried: bool = False, share: bool = False
    ) -> Iterator[tuple[list[int], View, tuple[int, ...], list[np.ndarray]]]:
        """Yields (indices of rows, view, numbers of the layers, states [B, L, D] of each layer) for each batch."""
        sides = [side for side in sides_of(self.config.model.family, model_direction(self.config.model)) if side != "both"]
        carry = self.program.body.config.initial_carry(1, sides) if carried else {}
        each = batches(rows, self.longest, self.tokenizer.pad_id, in_order=carried)
        for indices, view in own(each, self.process if share else (0, 1), "extracting", len(rows)):
            found, carry = self.inference(_widest, (view, carry))
            numbers = tuple(_chosen(layers, len(found)))
            yield indices, view, numbers, [np.asarray(found[i], np.float32) for i in numbers]

    @functools.cached_property
    def inference(self) -> Inference:
        """Compiled functions of the program and the parameters."""
        return Inference(self.program, self.params, self.process)

    @functools.cached_property
    def scorer(self) -> Scorer:
        """Scores rows, and parts of rows."""
        return Scorer(self.inference, self.tokenizer, self.longest, self.learned)

    @functools.cached_property
    def learned(self) -> dict[str, str]:
        """Each way in which the trained objectives predict a token, and the objective that does so."""
        return ways_of(self._trained)

    @functools.cached_property
    def _trained(self) -> dict[str, Objective]:
        """The objectives that had a weight before the checkpoint; the parameters of the others are untrained."""
        trained = trained_objectives(self.config, self.step)
        return {name: objective for name, objective in self.program.objectives.items() if name in trained}

    @property
    def longest(self) -> int:
        """The most positions of a text, special tokens included; 2^20 if the model has no limit."""
        shape = self.program.body.config
        return shape.max_positions if getattr(shape, "position_encoding", "") == "learned" else 1 << 20


def _widest(program: Program, params, given: tuple[View, Carry]) -> tuple[tuple[Float[Array, "B L D"], ...], Carry]:
    view, carry = given
    view = {**view, "continues": jnp.ones(len(view["tokens"]), jnp.int32)}
    encoded, carry = program.body.apply({"params": program.plain(params)["body"]}, view, True, carry, method="encode")
    return encoded.widest()[1], carry


def _pooler(program: Program, params, view: View) -> Float[Array, "B D"]:
    encoded = program.encode(params, view)
    return program.body.apply({"params": program.plain(params)["body"]}, encoded, view, method="pool")


def pool(states: Float[np.ndarray, "B L D"], filled: Bool[np.ndarray, "B L"], pooling: str) -> Float[np.ndarray, "B D"]:
    """One vector per row: "mean", "first", "last" or "max" of its filled positions. These come first, and no row is empty."""
    if pooling == "first":
        return states[:, 0]
    if pooling == "last":
        return states[np.arange(len(states)), filled.sum(1) - 1]
    if pooling == "max":
        return np.where(filled[:, :, None], states, -np.inf).max(1)
    return np.where(filled[:, :, None], states, 0).sum(1) / np.maximum(filled.sum(1), 1)[:, None].astype(states.dtype)


def _chosen(layers: str | Sequence[int], count: int) -> list[int]:
    if isinstance(layers, str) and layers == "all":
        return list(range(count))
    try:
        layers = [operator.index(layer) for layer in layers]
    except TypeError:
        raise UserError(f"layers={layers!r}: expected 'all' or a list of whole numbers, such as [0, -1]") from None
    if not layers:
        raise UserError("layers is empty; name at least one, such as [-1]")
    if wrong := [layer for layer in layers if not -count <= layer < count]:
        raise UserError(f"layers={layers}: layer {wrong[0]} does not exist; the model has 0 (embeddings) to {count - 1}")
    return [layer % count for layer in layers]


def load(path: str | os.PathLike, step: int | None = None, with_objectives: bool = True, together: bool = False) -> Pretrained:
    """Opens a run or an imported directory.

    Args:
        path: its directory.
        step: of the checkpoint; None: the last one.
        with_objectives: False: only for hidden states; the modules of objectives from outside are not needed.
        together: all processes (`bertlab.train.processes`) call it, and then the same methods, which share the work.

    Raises:
        UserError: the path is neither, or has no checkpoint of that step.
    """
    run = Path(path).expanduser()
    saved = Run(run).model_config()
    config = base_config()
    config.model.update(saved.pop("model"))
    config.update(ConfigDict({key: saved[key] for key in ("objectives",)}))
    config.seed = saved["seed"]
    tokenizer = load_tokenizer(Run(run).tokenizer)
    asked = objectives.build(config.objectives) if with_objectives and config.objectives and not is_finetuning(saved) else {}
    config.train.update({key: saved["train"][key] for key in ("steps", "phases")})
    if not is_finetuning(saved):
        config.update({"data": saved["data"]})
    size, params = vocabulary_size(saved, tokenizer), load_params(run, step)
    require_fitting(Run(run), params, config, size)
    program = Program(build_body(model_shape(config.model, size)), asked, vocabulary_of(tokenizer))
    return Pretrained(config, tokenizer, program, params, step, part() if together else (0, 1))


def parse_layers(text: str) -> str | list[int]:
    """ "all", or the numbers of "0,-1"."""
    if text == "all":
        return text
    return split_list("--layers", text, int, "all, or numbers")


def to_frame(embeddings: Sequence[Embedding]) -> "pandas.DataFrame":
    """Stacks the tables of several texts (`Embedding.frame`); the first column `text` is the text's number from 0."""
    import pandas as pd

    frames = [embedding.frame() for embedding in embeddings]
    together = pd.concat(frames, ignore_index=True)
    together.insert(0, "text", np.repeat(np.arange(len(frames)), [len(frame) for frame in frames]))
    return together


def _columns(vectors: Float[np.ndarray, "N D"]) -> "pandas.DataFrame":
    import pandas as pd

    return pd.DataFrame(vectors, columns=[f"d{number}" for number in range(vectors.shape[1])])


def embed_file(
    run: Path,
    text: Path,
    out: Path,
    layers: str | Sequence[int],
    pretokenized: bool,
    special_tokens: bool,
    pooling: str | None = None,
    step: int | None = None,
    carry: bool = False,
    together: bool = False,
) -> None:
    """Writes the hidden states, or one vector, of every line of a text file.

    Args:
        run: run or imported directory.
        text: as for `read_lines`, one text per line.
        out: written whole or not at all. FILE.npz and FILE.safetensors hold one array [n, T, D] per line, by its number from 0,
            and with `pooling` one array "vectors" [lines, D]. FILE.csv is the table of `to_frame`; with `pooling` it has one
            row per line: `text`, then `d0`, `d1`, ….
        layers, pretokenized, special_tokens, carry: as for `Pretrained.encode`; spaces and tabs separate words.
        pooling: write one vector per line, from one layer, as `Pretrained.sentence_vectors` does.
        step: as for `load`.
        together: all processes call it and share the lines; each writes its part beside `out`, and the first joins them.

    Raises:
        UserError: a file cannot be read, or as for `Pretrained.encode` or `sentence_vectors`.
    """
    if out.suffix not in SUFFIXES:
        raise UserError(
            f"--out={out}: the output is a NumPy archive, a safetensors file or a table; choose a name that ends in .npz,"
            " .safetensors or .csv"
        )
    if pooling is not None and pooling not in POOLINGS:
        raise UserError(f"--pooling={pooling} is not known; choose one of {', '.join(POOLINGS)}")
    if pooling is not None and (layers == "all" or len(layers) != 1):
        raise UserError(f"--layers={layers}: --pooling gives one vector per line; name one layer, such as --layers=-1")
    if pooling is not None and special_tokens:
        raise UserError("--special_tokens: --pooling always includes them; omit the flag")
    if pooling is not None and carry:
        raise UserError("--carry: --pooling reads each line for itself; omit one of them")
    texts = read_lines(text, "--text")
    if not texts:
        raise UserError(f"--text={text} is empty; give one text per line")
    texts = [re.findall(r"[^ \t]+", line) for line in texts] if pretokenized else texts
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out={out}: bertlab cannot write to {out.parent}; choose another directory")
    model = load(run, step, pooling in ("pooler", "paragraph"), together)  # what they read may be untrained
    if pooling is None:
        found = model.embeddings(texts, layers, pretokenized, special_tokens, carry, share=together)
        parts = {number: (embedding.states, embedding.tokens) for number, embedding in found.items()}
    else:
        found = model.vectors(texts, layers[0], pooling, pretokenized, share=together)
        parts = {number: (vector, None) for number, vector in found.items()}
    if model.process[1] > 1:
        with folder_of_all(out.parent, f".{out.name}") as folder:
            if folder is None:
                raise UserError(f"--out={out}: not all processes see the same {out.parent}; give a directory that they share")
            parts = dict(joined(folder, parts))
        if not is_first():
            return
    parts = [parts[number] for number in range(len(texts))]
    if pooling is None:
        some = next(iter(found.values()))
        embeddings = [dataclasses.replace(some, states=states, tokens=tuple(tokens)) for states, tokens in parts]
        arrays = {str(number): embedding.states for number, embedding in enumerate(embeddings)}
        sizes = embeddings[0].states.shape
        said = f"{len(texts)} lines, arrays [{sizes[0]} layers, tokens, {sizes[2]}], the first of {sizes[1]} tokens"
        table = lambda: to_frame(embeddings)
    else:
        vectors = np.stack([vector for vector, _ in parts])
        arrays, said = {"vectors": vectors}, f"{len(texts)} lines, one vector of {vectors.shape[1]} each"
        table = lambda: _columns(vectors).rename_axis("text").reset_index()
    with whole_file(out) as partial, ordinary_mode(partial):
        if out.suffix == ".npz":
            with partial.open("wb") as file:  # under a name it would add a suffix
                np.savez(file, **arrays)
        elif out.suffix == ".safetensors":
            # A slice of a batch may not be contiguous, and the format writes memory as it is.
            safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial)
        else:
            table().to_csv(partial, index=False)
    print(f"{out}: {said}")


def read_lines(path: Path, flag: str) -> list[str]:
    """The lines of a UTF-8 file, plain or compressed (.gz, .xz, .zst), without line ends.

    Raises:
        UserError: names the flag; the file cannot be read, or as `bertlab.compressed.read_whole` and `text_of`.
    """
    named = f"{flag}={path}"
    try:
        lines = text_of(read_whole(path, named), named).split("\n")
    except (OSError, MemoryError) as error:
        said = getattr(error, "strerror", None) or str(error) or "too large for the memory"
        raise UserError(f"{named}: {said}; give a UTF-8 file, plain or compressed (.gz, .xz or .zst)") from None
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
