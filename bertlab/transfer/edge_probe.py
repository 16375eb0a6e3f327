"""Dependency edges: which word is each word's head? A bilinear probe and its control task (Hewitt and Liang 2019).

The probe gives word j the score h_iᵀ L R h_j as the head of word i, with L [D, r] and R [r, D], and takes the highest one.

Letters: S sentences, W words of the longest, N words in all, D width, r rank.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.transfer.inspect import InContext, in_context
from bertlab.transfer.load import Pretrained

NO_HEAD = -1
"""Of a word that is not asked: the root, and punctuation."""

STEPS, RATE, SENTENCES, EVERY = 1000, 1e-3, 32, 100
"""Of the fit: steps of Adam, its rate, sentences of a step, and steps between two looks at the held-out sentences."""

Headed = tuple[Sequence[str], Sequence[int]]
"""A sentence's words, and each word's head by its place from 0; NO_HEAD: not asked."""


class _Part(NamedTuple):
    """Sentences of one length; what is not there is 0, and NO_HEAD."""

    states: Float[np.ndarray, "S W D"]
    inside: Bool[np.ndarray, "S W"]
    heads: Int[np.ndarray, "S W"]


def control_heads(sentences: Sequence[Headed], test: Sequence[Headed], seed: int = 0) -> tuple[list[Headed], list[Headed]]:
    """The heads of the control task: a word type always has itself, its sentence's first word or its last one as head.

    Each type has one of the three at random. The same words are asked as in the true task.

    Args:
        sentences, test: the true heads.
        seed: of the draw.

    Source: `CorruptedEdgePositionTask` of john-hewitt/control-tasks, task.py.
    """
    types = sorted({word for words, _ in (*sentences, *test) for word in words})
    behaviour = dict(zip(types, np.random.default_rng(seed).integers(0, 3, len(types)).tolist()))

    def changed(words: Sequence[str], heads: Sequence[int]) -> Headed:
        drawn = [(place, 0, len(words) - 1)[behaviour[word]] for place, word in enumerate(words)]
        return words, [NO_HEAD if head == NO_HEAD else new for head, new in zip(heads, drawn)]

    return [changed(*of) for of in sentences], [changed(*of) for of in test]


def read_heads(words: Sequence[str], heads: Sequence[str], where: str) -> Headed:
    """The heads of a CoNLL-U sentence, counted there from 1 with 0 for the root. Punctuation is not asked.

    Raises:
        UserError: a head is no word of the sentence.
    """
    if odd := next((head for head in heads if not head.isdecimal() or int(head) > len(words)), None):
        raise UserError(f"{where}: '{odd}' is no head in a sentence of {len(words)} words; correct the line")
    asked = [any(map(str.isalnum, word)) for word in words]
    return words, [int(head) - 1 if of else NO_HEAD for head, of in zip(heads, asked)]


def _scores(weights, part: _Part) -> Float[Array, "S W W"]:
    left, right = weights
    scores = jnp.einsum("swd,dr,re,sve->swv", part.states, left, right, part.states)
    return jnp.where(part.inside[:, None], scores, jnp.finfo(scores.dtype).min)


@jax.jit
def _right(weights, part: _Part) -> Bool[Array, "S W"]:
    return (_scores(weights, part).argmax(axis=-1) == part.heads) & (part.heads != NO_HEAD)


@functools.partial(jax.jit, static_argnames="steps")
def _trained(weights, state, part: _Part, key: Array, steps: int):
    """The weights and Adam's state after more steps, each on some sentences."""

    def step(carry, key):
        weights, state = carry
        some = jax.random.randint(key, (SENTENCES,), 0, len(part.heads))
        drawn = _Part(*(field[some] for field in part))

        def nats(weights):
            log_p = jax.nn.log_softmax(_scores(weights, drawn))
            asked = drawn.heads != NO_HEAD
            own = jnp.take_along_axis(log_p, jnp.maximum(drawn.heads, 0)[..., None], axis=-1)[..., 0]
            return -jnp.where(asked, own, 0).sum() / jnp.maximum(asked.sum(), 1)

        updates, state = optax.adam(RATE).update(jax.grad(nats)(weights), state)
        return (optax.apply_updates(weights, updates), state), None

    return jax.lax.scan(step, (weights, state), jax.random.split(key, steps))[0]


def edge_accuracy(
    states: Sequence[Float[np.ndarray, "W D"]],
    heads: Sequence[Sequence[int]],
    test_states: Sequence[Float[np.ndarray, "W D"]],
    test_heads: Sequence[Sequence[int]],
    rank: int = 1000,
    steps: int = STEPS,
    seed: int = 0,
) -> tuple[float, int]:
    """(Share of test words with the right head, number of these words) of the bilinear probe.

    It is trained on four fifths of the sentences and taken from the step with the best share on the fifth. States are
    standardised by those of training.

    Args:
        states, heads: of each training sentence.
        test_states, test_heads: used only for scoring.
        rank: r; at most D.
        steps: of the fit.
        seed: of the held-out sentences, the initial values and the order.

    Raises:
        UserError: there are fewer than five training sentences, or no test word is asked.
    """
    known = sum(head != NO_HEAD for of in test_heads for head in of)
    if len(states) < 5 or not known:
        raise UserError(f"{len(states)} training sentences and {known} test words with a head: give five and one at least")
    everything = np.concatenate(states)
    mean, deviation = everything.mean(axis=0), np.maximum(everything.std(axis=0), 1e-6)
    longest = max(map(len, (*heads, *test_heads)))
    padded = lambda *of: _padded([(x - mean) / deviation for x in of[0]], of[1], longest)
    train, test = padded(states, heads), padded(test_states, test_heads)
    order = np.random.default_rng(seed).permutation(len(states))
    held, fitted = (_Part(*(field[some] for field in train)) for some in (order[: len(order) // 5], order[len(order) // 5 :]))
    width = everything.shape[1]
    starts = jax.random.split(jax.random.key(seed), 2 + steps // EVERY)
    shapes = (width, min(rank, width)), (min(rank, width), width)
    weights = tuple(jax.random.uniform(key, shape, minval=-0.05, maxval=0.05) for key, shape in zip(starts, shapes))
    state, best = optax.adam(RATE).init(weights), (-1, weights)
    for key in starts[2:]:
        weights, state = _trained(weights, state, fitted, key, EVERY)
        best = max(best, (int(_right(weights, held).sum()), weights), key=lambda of: of[0])
    return float(_right(best[1], test).sum()) / known, known


def _padded(states: Sequence[np.ndarray], heads: Sequence[Sequence[int]], longest: int) -> _Part:
    part = _Part(
        np.zeros((len(states), longest, states[0].shape[1]), np.float32),
        np.zeros((len(states), longest), bool),
        np.full((len(states), longest), NO_HEAD, np.int32),
    )
    for number, (x, of) in enumerate(zip(states, heads, strict=True)):
        part.states[number, : len(x)], part.inside[number, : len(x)], part.heads[number, : len(x)] = x, True, of
    return part


def probe_edges(
    model: Pretrained,
    headed: Sequence[Headed],
    test: Sequence[Headed],
    layers: str | Sequence[int] = "all",
    max_words: int = 10_000,
    seed: int = 0,
    control: bool = False,
) -> pd.DataFrame:
    """Fits the bilinear probe on every layer.

    Args:
        model: from `bertlab.load`.
        headed, test: sentences with their heads.
        layers: as for `Pretrained.encode`.
        max_words: the most words of each of the two, in whole sentences.
        seed: of the samples, the probe and the control task.
        control: also probe `control_heads`.

    Returns:
        A table by `layer`: `accuracy`, its `standard_error` over words, `train_words` and `test_words` with a head; with
        `control` also `control_accuracy` and `selectivity`.

    Raises:
        UserError: as for `in_context` and `edge_accuracy`.
    """
    sides = [in_context(model, [words for words, _ in part], layers, max_words, seed) for part in (headed, test)]
    tasks = {"accuracy": (headed, test)} | ({"control_accuracy": control_heads(headed, test, seed)} if control else {})
    rows = {}
    for ours, theirs in zip(*sides):
        row = {}
        for name, (task, of_test) in tasks.items():
            row[name], count = edge_accuracy(*_of_sentences(ours, task), *_of_sentences(theirs, of_test), seed=seed)
        row["standard_error"] = float(np.sqrt(row["accuracy"] * (1 - row["accuracy"]) / count))
        if control:
            row["selectivity"] = row["accuracy"] - row["control_accuracy"]
        trained = sum(head != NO_HEAD for of in _of_sentences(ours, headed)[1] for head in of)
        rows[ours.layer] = row | {"train_words": trained, "test_words": count}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("layer")


def _of_sentences(found: InContext, headed: Sequence[Headed]) -> tuple[list[np.ndarray], list[Sequence[int]]]:
    """The states and the heads of each sentence of a sample, which has whole sentences."""
    numbers = np.unique(found.sentence)
    return [found.vectors[found.sentence == number] for number in numbers], [headed[number][1] for number in numbers]
