"""What a head reads: mixes of a body's layers, a recurrent encoder, features and vectors of words.
Letters: B rows, L positions (W if they are words), D width, n layers, F cell width."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.data.characters import CHARACTERS
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.characters import Convolution
from bertlab.models.layers import Dropout, lookup, normal, param, shard_batch, uniform
from bertlab.models.recurrent import Cell, borders, lstm
from bertlab.objectives.word_vectors import word_table
from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory

PLACES = ("input", "after_first", "output", "input_output")
WORD_VECTORS = "word_vectors"  # name of the parameter that holds pretrained word vectors


def chosen_layers(mix: str, count: int) -> list[int]:
    """The numbers of the layers that a mix reads, of `count`."""
    layers = list(range(count))
    mixes = {"last": layers[-1:], "concat_first_last": [layers[0], layers[-1]]}
    mixes |= {"weighted_sum": layers, "scalar_mix": layers}
    mixes |= {f"layer:{n}": [layers[n]] for n in range(-count, count)}
    for n in range(1, count + 1):
        mixes |= {f"concat_last_{n}": layers[-n:], f"weighted_sum_last_{n}": layers[-n:]}
    if mix not in mixes:
        raise UserError(f"config.head.layers={mix} is not a mix of layers 0 to {count - 1}")
    return mixes[mix]


class LayerMix(nn.Module):
    """One vector per position from a body's layers. Mixes: "last"; "layer:K" (0: embeddings, -2:
    last but one); "concat_last_N" (Devlin et al. 2018, section 5.3); "concat_first_last" (Tenney et
    al. 2019's "cat"); "weighted_sum", Σ s_j h_j with s = softmax(w), w from 0; its "_last_N" form;
    "scalar_mix", γ Σ s_j h_j with γ from 1 (Peters et al. 2018, equation 1)."""

    mix: str
    dropout: float = 0.0  # of the result (AllenNLP's ELMo: 0.5)

    @nn.compact
    def __call__(self, layers: Sequence[Float[Array, "B L D"]]) -> Float[Array, "B L D"]:
        """The mix in float32."""
        layers = [layers[i].astype(jnp.float32) for i in chosen_layers(self.mix, len(layers))]
        if self.mix.startswith(("weighted_sum", "scalar_mix")):
            if len(widths := {layer.shape[-1] for layer in layers}) > 1:
                raise UserError(f"config.head.layers={self.mix} adds layers of widths {widths}")
            weights = self.param("weights", param(nn.initializers.zeros, None), (len(layers),))
            mixed = sum(share * layer for share, layer in zip(jax.nn.softmax(weights), layers))
            if self.mix == "scalar_mix":
                mixed = self.param("gamma", param(nn.initializers.ones), ()) * mixed
        else:
            mixed = jnp.concatenate(layers, -1)
        return Dropout(self.dropout)(mixed)


class Recurrent(nn.Module):
    """One direction of an LSTM of width F; parameters from U(±1/√F), as in torch. Gates are input,
    forget, candidate, output, with 1 added to the forget gate's first bias."""

    hidden: int
    reverse: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], documents: Int[Array, "B L"]
    ) -> Float[Array, "B L F"]:
        """States after each position; they restart at zero with each document."""
        size = self.hidden
        initial = uniform(size**-0.5)

        def bias_init(key, shape, dtype=jnp.float32):
            return initial(key, shape, dtype).at[1].add(1)

        kernel_init = param(initial, "embed", None, "hidden")
        kernel = self.param("input_kernel", kernel_init, (x.shape[-1], 4, size))
        recurrent = self.param("recurrent_kernel", kernel_init, (size, 4, size))
        bias = self.param("bias", param(bias_init, None, "hidden"), (4, size))
        inputs = x.swapaxes(0, 1) @ kernel.reshape(-1, 4 * size) + bias.ravel()
        limits = borders({"documents": documents}, self.reverse, stateful=False)
        zeros = jnp.zeros((len(x), size), inputs.dtype)
        begin = {"cell": zeros, "state": zeros}
        cell = Cell((0, 1, 2, 3), None, self.reverse)
        states, _ = lstm(cell, inputs, recurrent.reshape(size, 4 * size), None, begin, limits)
        return shard_batch(states.swapaxes(0, 1))


class RecurrentEncoder(nn.Module):
    """A task's bidirectional LSTM, which a language model's states s join at a place: "input"
    [x; s]; "after_first", to the first layer's output (TagLM: Peters et al. 2017); "output" [h; s]
    (ELMo); "input_output", each with a mix."""

    layers: int  # 2 in BERT's feature-based tagger (Devlin et al. 2018, section 5.3) and in TagLM
    hidden: int  # F of each direction
    dropout: float = 0.0  # on each layer's input, element by element (TagLM: 0.25)
    place: str = "input"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"] | None,
        states: Sequence[Float[Array, "B L E"]],
        documents: Int[Array, "B L"],
    ) -> Float[Array, "B L F"]:
        """Encodings, zero at padding, of words' features x and the states, one array per place."""
        filled = documents[..., None] > 0

        def join(*arrays):
            # Zeros at padding, since the backward direction reads it first.
            joined = jnp.concatenate([array for array in arrays if array is not None], -1)
            return jnp.where(filled, joined, 0)

        names = ["input", "output"] if self.place == "input_output" else [self.place]
        at = dict(zip(names, states))
        x = join(x, at.get("input"))
        for number in range(self.layers):
            x = Dropout(self.dropout)(x)
            both = [
                Recurrent(self.hidden, reverse, name=f"{side}_{number}")(x, documents)
                for side, reverse in (("forward", False), ("backward", True))
            ]
            x = join(*both, at.get("after_first") if number == 0 else None)
        return join(x, at.get("output"))


class Spelling(NamedTuple):
    """What `Convolution` reads from a shape; 30 filters of 3 characters (Ma and Hovy 2016)."""

    character_width: int = 25
    character_activation: str = "tanh"
    dtype: jnp.dtype = jnp.float32


class WordFeatures(nn.Module):
    """Features of words: spelling, trained and pretrained vectors, concatenated."""

    spelling: bool = False  # a convolution reads the characters; it covers padding too
    types: int = 0  # rows of the table of trained vectors
    width: int = 0  # its width; 0: none
    vectors: tuple[int, int] = (0, 0)  # shape of the table of pretrained vectors, from zeros

    @nn.compact
    def __call__(self, view) -> Float[Array, "B W D"]:
        """From the view's `spelling` [B, W, 50], `word_ids` and `vector_ids` [B, W]."""
        found = []
        if self.spelling:
            shape, characters = Spelling(), view["spelling"]
            init = param(uniform((3 / shape.character_width) ** 0.5), None, None)
            table = self.param("character_embedding", init, (CHARACTERS, shape.character_width))
            words = characters.reshape(-1, characters.shape[-1])
            x = Convolution(shape, 3, 30, name="filters")(shard_batch(table[words]))
            found.append(x.reshape(*characters.shape[:-1], -1))
        if self.width:
            init = param(normal(self.width**-0.5), "vocab", "embed")
            table = self.param("word_embedding", init, (self.types, self.width))
            found.append(lookup(table, view["word_ids"]))
        if self.vectors[1]:
            init = param(nn.initializers.zeros, "vocab", "embed")
            found.append(lookup(self.param(WORD_VECTORS, init, self.vectors), view["vector_ids"]))
        return jnp.concatenate(found, -1)


class WordVectors(NamedTuple):
    """The vectors of a task's words."""

    ids: dict[str, int]  # each word's row of the table, from 1
    table: Float[np.ndarray, "R E"]  # row 0 is zeros, for no word


def word_vectors(path: str | None, words: Iterable[str]) -> WordVectors:
    """The vectors that words have in a static run, trained or imported (of no path: none); prints
    how many do. A word's vector is the mean of its known pieces'. If all are unknown, the word is
    looked up in lower case, or else gets the vector of unknown words (zeros after an import)."""
    if not path:
        return WordVectors({}, np.zeros((0, 0), np.float32))
    run = RunDirectory(path)
    config = run.config()
    if config["model"]["family"] != "static":
        raise UserError(f"config.head.word_vectors={path} is not a static run, as GloVe's import")
    vectors = word_table(load_params(run)["body"], config["objectives"])
    words, tokenizer = sorted({*words}), load_tokenizer(run.tokenizer)
    pieces = [known_pieces(word, tokenizer) for word in words]
    numbers = {ids: number for number, ids in enumerate(dict.fromkeys(pieces), 1)}
    means = [vectors[list(ids)].mean(axis=0) for ids in numbers]
    table = np.stack([np.zeros(vectors.shape[1], np.float32), *means])
    found = sum(ids != (tokenizer.unk_id,) for ids in pieces)
    print(f"{found} of {len(words)} words have a vector in {run}", flush=True)
    return WordVectors({word: numbers[ids] for word, ids in zip(words, pieces)}, table)


def known_pieces(word: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The known pieces of a word, or of its lower-case form; (unk_id,) if there are none."""
    for form in (word, word.lower()):
        # Not as a text's first word, which has no space before it.
        _, (ids, _) = tokenizer.encode_spaced(["", form])
        if known := tuple(i for i in ids if i != tokenizer.unk_id):
            return known
    return (tokenizer.unk_id,)
