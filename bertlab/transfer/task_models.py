"""Models for frozen hidden states in feature-based transfer: mixes of layers, biLSTM or biGRU, CRF, character features, an MLP.

Inputs are rows of words or tokens. Letters: B rows, L positions (W if they are words), D width, n layers, F cell width,
C classes.
"""

import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.data.characters import PADDING
from bertlab.errors import UserError
from bertlab.models.base import Dense, Dropout, Norm, lookup, normal, param, rows_apart
from bertlab.models.characters import ALPHABET, CharactersConfig, Convolution
from bertlab.models.recurrent import Cell, borders, gru, lstm, uniform
from bertlab.objectives.program import STATISTICS
from bertlab.transfer import crf

MIXES = (
    "last, layer:K, sum_last_N, concat_last_N, concat_first_last, weighted_sum, weighted_sum_last_N, scalar_mix, hypercolumns"
)
PLACES = ("input", "after_first", "output", "input_output")


def chosen_layers(kind: str, widths: Sequence[int]) -> list[int]:
    """The numbers of the layers that a mix reads.

    Args:
        kind: one of MIXES, see `LayerMix`.
        widths: of all layers, embeddings first.

    Raises:
        UserError: the mix or layer is unknown, or it adds layers of different widths.
    """
    count = len(widths)
    if kind in ("weighted_sum", "scalar_mix", "hypercolumns"):
        layers = list(range(count))
    elif kind == "last":
        layers = [count - 1]
    elif kind == "concat_first_last":
        layers = [0, count - 1]
    elif found := re.fullmatch(r"layer:(-?\d+)", kind):
        number = int(found[1])
        if not -count <= number < count:
            raise UserError(f"layers={kind}: choose a layer from 0 (embeddings) to {count - 1}")
        layers = [number % count]
    elif found := re.fullmatch(r"(?:sum|concat|weighted_sum)_last_(\d+)", kind):
        number = int(found[1])
        if not 1 <= number <= count:
            raise UserError(f"layers={kind}: the model has {count} layers, embeddings included; choose 1 to {count}")
        layers = list(range(count - number, count))
    else:
        raise UserError(f"layers={kind}: expected one of {MIXES}")
    if not _joins(kind) and len({widths[i] for i in layers}) > 1:
        raise UserError(
            f"layers={kind}: layers {layers[0]} to {layers[-1]} are {', '.join(str(widths[i]) for i in layers)} wide and"
            " cannot be summed; choose concat_last_N or hypercolumns, or layers of the same width"
        )
    return layers


def split_layers(features: Float[Array, "... n D"], widths: Sequence[int]) -> tuple[Float[Array, "..."], ...]:
    """Splits stored features (`bertlab.transfer.features`) into one array per layer, each with its own width."""
    return tuple(features[..., i, :width] for i, width in enumerate(widths))


def _joins(kind: str) -> bool:
    return kind == "hypercolumns" or kind.startswith("concat_")


class LayerMix(nn.Module):
    """One vector per position from all of a model's layers.

    Attributes:
        kind: "last"; "layer:K" (0 the embeddings, −2 the last but one); "sum_last_N" and "concat_last_N" (Devlin et al. 2018,
            section 5.3: N = 4); "concat_first_last", the embeddings beside the last layer (Tenney et al. 2019's "cat", as in
            jiant's config/defaults.conf); "weighted_sum", Σ s_j h_j over all layers with s = softmax(w), w starting at 0, and
            "weighted_sum_last_N"; "scalar_mix", γ Σ s_j h_j, γ starting at 1 (Peters et al. 2018, equation 1);
            "hypercolumns", all layers side by side.
        regulariser: λ of the penalty λ‖w‖² on the weights. The first version of ELMo's paper has λ‖w − 1/n‖². Both are the
            same, because softmax ignores a constant. 1 keeps the weights near their mean, 0.001 lets them differ.
        layer_norm: first normalises each layer to mean 0 and variance 1 over all elements of the batch's filled positions,
            without parameters (so a row's result depends on its batch).
        dropout: of the result (AllenNLP's ELMo: 0.5).
    """

    kind: str
    regulariser: float = 0.0
    layer_norm: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, layers: tuple[Float[Array, "B L D"], ...], filled: Bool[Array, "B L"], deterministic: bool
    ) -> tuple[Float[Array, "B L D"], Float[Array, ""]]:
        """The mix in float32, and the penalty for the loss (0 without weights).

        Raises:
            UserError: as for `chosen_layers`.
        """
        chosen = chosen_layers(self.kind, [layer.shape[-1] for layer in layers])
        layers = [layers[i].astype(jnp.float32) for i in chosen]
        if self.layer_norm:
            layers = [normalised_together(layer, filled) for layer in layers]
        penalty = jnp.zeros((), jnp.float32)
        if _joins(self.kind):
            mixed = jnp.concatenate(layers, -1)
        elif self.kind.startswith(("weighted_sum", "scalar_mix")):
            weights = self.param("weights", param(nn.initializers.zeros, None), (len(layers),))
            penalty = self.regulariser * jnp.sum(weights**2)
            mixed = sum(share * layer for share, layer in zip(jax.nn.softmax(weights), layers))
            if self.kind == "scalar_mix":
                mixed = self.param("gamma", param(nn.initializers.ones), ()) * mixed
        else:
            mixed = sum(layers)
        return Dropout(self.dropout)(mixed, deterministic), penalty


def normalised_together(x: Float[Array, "B L D"], filled: Bool[Array, "B L"], epsilon: float = 1e-12) -> Float[Array, "B L D"]:
    """Mean 0 and variance 1 over all elements of filled positions (bilm-tf's and AllenNLP's `do_layer_norm`), 0 elsewhere."""
    inside = filled[:, :, None]
    count = jnp.maximum(inside.sum() * x.shape[-1], 1)
    centred = jnp.where(inside, x - jnp.where(inside, x, 0).sum() / count, 0)
    return centred * jax.lax.rsqrt((centred**2).sum() / count + epsilon)


class Gated(nn.Module):
    """What one direction of an LSTM and of a GRU have in common; kernels and biases start from U(±1/√F), as in torch.

    Attributes:
        hidden: F.
        reverse: read from the last position to the first.
    """

    hidden: int
    reverse: bool

    @property
    def initial(self):
        """Initial values."""
        return uniform(self.hidden**-0.5)

    def of_inputs_and_states(self, x: Float[Array, "L B D"], n: int, bias_init) -> tuple[Array, Array]:
        """The inputs' contribution to the n gates [L, B, nF], and the kernel from states to gates [F, nF]."""
        f, flat = self.hidden, lambda w: w.reshape(*w.shape[:-2], n * self.hidden)
        wx = self.param("input_kernel", param(self.initial, "embed", None, "hidden"), (x.shape[-1], n, f))
        wh = self.param("recurrent_kernel", param(self.initial, "embed", None, "hidden"), (f, n, f))
        bias = self.param("bias", param(bias_init, None, "hidden"), (n, f))
        return x @ flat(wx) + flat(bias), flat(wh)


class Lstm(Gated):
    """One direction of a plain LSTM, gates in the order input, forget, candidate, output.

    1 is added to the forget gate's initial bias.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "L B D"], documents: Int[Array, "L B"]) -> Float[Array, "L B F"]:
        """States after every position; they restart at zero with every document."""
        forget_more = lambda key, shape, dtype=jnp.float32: self.initial(key, shape, dtype).at[1].add(1)
        gates, kernel = self.of_inputs_and_states(x, 4, forget_more)
        zeros = jnp.zeros((x.shape[1], self.hidden), gates.dtype)
        rows = borders(documents, self.reverse, stateful=False)
        cell = Cell((0, 1, 2, 3), None, self.reverse)
        return rows_apart(lstm(cell, gates, kernel, None, {"cell": zeros, "state": zeros}, *rows)[0], axis=1)


class Gru(Gated):
    """One direction of a plain GRU (`bertlab.models.recurrent.gru`), gates in the order reset, update, candidate.

    `bias` has the biases of inputs and, for the first two gates, of states, which add up; `recurrent_bias` is the third gate's,
    which the reset gate multiplies.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "L B D"], documents: Int[Array, "L B"]) -> Float[Array, "L B F"]:
        """States after every position; they restart at zero with every document."""
        gates, kernel = self.of_inputs_and_states(x, 3, self.initial)
        recurrent_bias = self.param("recurrent_bias", param(self.initial, "hidden"), (self.hidden,))
        reset, _ = borders(documents, self.reverse, stateful=False)
        return rows_apart(gru(self.reverse, gates, kernel, recurrent_bias, reset), axis=1)


CELLS = {"lstm": Lstm, "gru": Gru}
SPELLERS = ("convolution", *CELLS)
"""What can read the characters of a word (`WordFeatures`)."""


class RecurrentEncoder(nn.Module):
    """A task's bidirectional LSTM or GRU over words, with a language model's states at one or two places.

    Attributes:
        layers: 2 in BERT's feature-based tagger (Devlin et al. 2018, section 5.3) and in TagLM (Peters et al. 2017).
        hidden: F of each direction; the result is 2F wide.
        dropout: on each layer's input (TagLM: 0.25), element by element.
        place: where the states s go: "input" [x; s]; "after_first", joined to the first layer's output (TagLM); "output"
            [h; s] (ELMo); "input_output", both, with two arrays because each mix has its own weights.
        cell: a key of CELLS.
    """

    layers: int
    hidden: int
    dropout: float = 0.0
    place: str = "input"
    cell: str = "lstm"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"] | None,
        states: Sequence[Float[Array, "B L E"]],
        documents: Int[Array, "B L"],
        deterministic: bool,
    ) -> Float[Array, "B L F"]:
        """Encodings, zero at padding.

        Args:
            x: features of the words themselves; None if states are the input.
            states: of the language model: none, one array, or for "input_output" two.
            documents: each position's document; states do not cross documents. 0 is padding, at any position.
        """
        filled = documents[:, :, None] > 0
        # Set padding to zero: the reverse direction reads it first.
        joined = lambda *parts: jnp.where(filled, jnp.concatenate([p for p in parts if p is not None], -1), 0)
        at = dict(zip(self.place.split("_") if self.place == "input_output" else [self.place], states))
        x = joined(x, at.get("input"))
        for i in range(self.layers):
            x = Dropout(self.dropout)(x, deterministic)
            x, row = x.transpose(1, 0, 2), documents.T
            cell, sides = CELLS[self.cell], ("forward", "backward")
            both = [cell(self.hidden, side == "backward", name=f"{side}_{i}")(x, row) for side in sides]
            x = joined(*(h.transpose(1, 0, 2) for h in both), at.get("after_first") if i == 0 else None)
        return joined(x, at.get("output"))


class Crf(nn.Module):
    """Tags from word encodings: a dense layer and a linear-chain CRF (see `bertlab.transfer.crf`), trained by its likelihood.

    Attributes:
        classes: C.
    """

    classes: int

    def setup(self):
        self.dense = Dense(self.classes, ("embed", "classes"))
        score = lambda name, *shape: self.param(name, param(nn.initializers.zeros, *("classes" for _ in shape)), shape)
        c = self.classes
        self.between = crf.Scores(score("transitions", c, c), score("start", c), score("end", c))

    def __call__(self, x: Float[Array, "B W D"], mask: Bool[Array, "B W"], labels: Int[Array, "B W"]) -> Float[Array, "B"]:
        """log p(labels) of each row in nats; `mask` and `labels` as in `crf.log_likelihood`."""
        return crf.log_likelihood(self.dense(x), mask, labels, self.between)

    def decode(self, x: Float[Array, "B W D"], mask: Bool[Array, "B W"]) -> Int[Array, "B W"]:
        """The best tags, −1 beyond the words."""
        return crf.viterbi(self.dense(x), mask, self.between)[0]

    def marginals(self, x: Float[Array, "B W D"], mask: Bool[Array, "B W"]) -> Float[Array, "B W C"]:
        """The probabilities of each word's tags (`crf.marginals`)."""
        return crf.marginals(self.dense(x), mask, self.between)


VECTORS = "word_vectors"
"""The name of the parameter that holds pretrained word vectors."""


class WordFeatures(nn.Module):
    """Features of a word: from its spelling, and from tables of trained and of pretrained vectors.

    Attributes:
        vocab_size: size of the table of word vectors; 0: no table.
        width: width of the word vectors.
        spelling: what reads the word's characters: "convolution", max-pooled filters (Ma and Hovy 2016); a key of CELLS, the
            last states of that cell in both directions, side by side (TagLM's tagger of names has "gru": Peters et al. 2017,
            section 4.1); "": no spelling.
        filters: filters of the convolution, which covers padding too.
        filter_width: their width in characters.
        character_width: width of a character's vector.
        hidden: width of the cells in each direction (TagLM: 80; whether this is of each direction is not verified).
        dropout: on the cells' inputs (TagLM: 0.25).
        pretrained: rows and width of the table of pretrained vectors, which starts from zeros; None: no such table.
    """

    vocab_size: int = 0
    width: int = 50
    spelling: str = "convolution"
    filters: int = 30
    filter_width: int = 3
    character_width: int = 25
    hidden: int = 80
    dropout: float = 0.0
    pretrained: tuple[int, int] | None = None

    @nn.compact
    def __call__(
        self,
        characters: Int[Array, "B W 50"] | None = None,
        words: Int[Array, "B W"] | None = None,
        vectors: Int[Array, "B W"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B W D"]:
        """Spelling's features and word vectors, side by side.

        Args:
            characters: ids of `bertlab.data.characters`.
            words: ids below `vocab_size`.
            vectors: rows of the pretrained vectors.
            deterministic: no dropout.
        """
        found = []
        if self.spelling:
            e = self.character_width
            embedding = self.param("character_embedding", param(uniform((3 / e) ** 0.5), None, None), (ALPHABET, e))
            x = rows_apart(embedding[characters.reshape(-1, characters.shape[-1])])
            if self.spelling == "convolution":
                config = CharactersConfig(self.filters, 0, ((self.filter_width, self.filters),), e, activation="tanh")
                x = Convolution(config, self.filter_width, self.filters, name="filters")(x)
            else:
                x = self._last_states(x, characters.reshape(-1, characters.shape[-1]) != PADDING, deterministic)
            found.append(x.reshape(*characters.shape[:-1], x.shape[-1]))
        if self.vocab_size:
            table = self.param(
                "word_embedding", param(normal(self.width**-0.5), "vocab", "embed"), (self.vocab_size, self.width)
            )
            found.append(lookup(table, words))
        if self.pretrained:
            found.append(lookup(self.param(VECTORS, param(nn.initializers.zeros, "vocab", "embed"), self.pretrained), vectors))
        return jnp.concatenate(found, -1)

    def _last_states(self, x: Float[Array, "N 50 E"], there: Bool[Array, "N 50"], deterministic: bool) -> Float[Array, "N 2F"]:
        """The forward state at a word's last character and the backward state at its first; zeros of a word without any."""
        x, row = Dropout(self.dropout)(x, deterministic).transpose(1, 0, 2), there.T.astype(jnp.int32)
        cell = CELLS[self.spelling]
        forward, backward = (cell(self.hidden, i == 1, name=name)(x, row) for i, name in enumerate(("forward", "backward")))
        last = jnp.maximum(row.sum(axis=0) - 1, 0)
        forward = jnp.take_along_axis(forward, last[None, :, None], axis=0)[0]
        return jnp.where(there.any(axis=1)[:, None], jnp.concatenate([forward, backward[0]], -1), 0)


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015, algorithms 1 and 2) of vectors, as torch's and fastai's BatchNorm1d.

    In training, the mean and the biased variance are those of the batch's counted vectors, on all devices; each micro-batch is
    a batch of its own. Otherwise they are running ones, which a training step moves towards the batch's mean and unbiased
    variance. Fewer than two counted vectors leave them as they are. They are stored as `running_mean` and `running_variance`
    among the parameters, but no optimiser changes them (`bertlab.objectives.program.STATISTICS`).

    Attributes:
        momentum: how far they move in a step.
        epsilon: added to the variance.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], counted: Bool[Array, "..."], deterministic: bool) -> Float[Array, "... D"]:
        """The vectors in float32.

        Args:
            x: vectors.
            counted: which of them the batch's mean and variance are of.
            deterministic: use the running mean and variance.
        """
        x, zeros, ones = x.astype(jnp.float32), nn.initializers.zeros, nn.initializers.ones
        initial = {"scale": ones, "bias": zeros, "running_mean": zeros, "running_variance": ones}
        scale, bias, *running = (self.param(name, param(init, "norm"), x.shape[-1:]) for name, init in initial.items())
        mean, variance = running
        if not deterministic:
            there, axes = counted[..., None], tuple(range(x.ndim - 1))
            count = counted.sum()
            mean = jnp.where(there, x, 0).sum(axes) / jnp.maximum(count, 1)
            squares = (jnp.where(there, x - mean, 0) ** 2).sum(axes)
            variance = squares / jnp.maximum(count, 1)
            latest = mean, squares / jnp.maximum(count - 1, 1)
            for name, old, new in zip(("running_mean", "running_variance"), running, latest):
                moved = jnp.where(count > 1, old + self.momentum * (new - old), old)
                self.sow(STATISTICS, name, jax.lax.stop_gradient(moved), init_fn=lambda: None, reduce_fn=lambda _, last: last)
        return (x - mean) * jax.lax.rsqrt(variance + self.epsilon) * scale + bias


NORMS = ("layer_norm", "batch_norm", "none")


class Mlp(nn.Module):
    """ULMFiT's classifier (Howard and Ruder 2018, section 3.3): blocks of norm, dropout and dense, with a ReLU between.

    Attributes:
        classes: C.
        hidden: width between the blocks.
        dropout: in the first block and in each later one (the released script: 0.4 and 0.1).
        norm: one of NORMS; the paper's is "batch_norm".
        layers: blocks before the last, which has the classes (the paper: 1; fastai's `lin_ftrs` has one width for each).
    """

    classes: int
    hidden: int = 50
    dropout: tuple[float, float] = (0.4, 0.1)
    norm: str = "layer_norm"
    layers: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], counted: Bool[Array, "..."], deterministic: bool) -> Float[Array, "... C"]:
        """Logits in float32; `counted` as for `BatchNorm`."""
        x = x.astype(jnp.float32)
        for i, width in enumerate((*[self.hidden] * self.layers, self.classes)):
            x = jax.nn.relu(x) if i else x
            if self.norm == "layer_norm":
                x = Norm(1e-5, name=f"norm_{i}")(x)
            elif self.norm == "batch_norm":
                x = BatchNorm(name=f"norm_{i}")(x, counted, deterministic)
            x = Dropout(self.dropout[min(i, 1)])(x, deterministic)
            axes = "embed", "classes" if i == self.layers else None
            x = Dense(width, axes, nn.initializers.lecun_normal(), name=f"dense_{i}")(x)
        return x
