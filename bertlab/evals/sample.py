"""Texts drawn from a model, left to right or by revealing hidden pieces in a random order.

Letters: N texts, L length of a row, k pieces drawn at a time, V vocabulary.
"""

import functools
import itertools

import jax
import numpy as np
from jaxtyping import Float, Int

from bertlab.errors import UserError
from bertlab.evals.code_length import Scorer
from bertlab.evals.scoring import HIDDEN

ABILITIES = {"left-to-right": "forward", "any-order": "hidden"}
"""How texts are drawn, and the field of `Scoring` that it needs."""


def sample(
    model,
    number: int = 1,
    length: int = 32,
    kind: str | None = None,
    steps: int | None = None,
    prompt: str = "",
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> list[str]:
    """Texts without special tokens.

    "left-to-right" draws one piece after the other, until the end of the text is drawn or the text
    is full. "any-order" begins with all pieces hidden and reveals them in a random order, in
    `steps` steps of about as many pieces, which do not see each other: with as many steps as pieces
    it draws from the model whose code length the score "any-order" bounds.

    Args:
        model: From `bertlab.load`.
        number: N.
        length: Pieces of a text with its prompt: left to right the most, in any order exactly.
        kind: One of ABILITIES; None: the first that the model allows.
        steps: Of "any-order"; None: one a piece.
        prompt: How the texts begin.
        temperature: Divides the logits; 0: the likeliest piece.
        top_p: Draws among the likeliest pieces of this probability (Holtzman et al. 2020).
        seed: Of the draws.
    """
    tokenizer, scorer = model.tokenizer, Scorer(model.program, model.tokenizer, model.trained)
    kinds = [kind for kind, ability in ABILITIES.items() if ability in scorer.names]
    if not kinds or kind not in (None, *kinds):
        raise UserError(f"this model has no kind={kind}; it allows {', '.join(kinds) or 'none'}")
    if model.config.model.token_encoder == "characters":
        raise UserError("this model reads characters, which drawn pieces do not have")
    kind = kind or kinds[0]
    given = [*tokenizer.prefix_ids, *tokenizer.encode(prompt)]
    end = len(tokenizer.prefix_ids) + length
    size = end + len(tokenizer.suffix_ids)
    if not len(given) < end or size > model.longest:
        raise UserError(
            f"length={length} must be more than the prompt's {len(tokenizer.encode(prompt))} pieces"
            f" and fit into {model.longest} positions"
        )
    name = scorer.names[ABILITIES[kind]]
    how = scorer.scorings[name]
    if not given and (kind == "left-to-right" or how.from_before):
        raise UserError("nothing comes before the first piece to predict it; give a prompt")
    predict = getattr(how, ABILITIES[kind])
    program, params = model.program, jax.device_put(model.params)

    @jax.jit
    def logits(view, at):
        return program.call(params, name, view, lambda model, view: predict(model, view, at))

    tokens = np.full((number, size), tokenizer.pad_id, np.int32)
    tokens[:, : len(given)] = given
    rng = np.random.default_rng(seed)
    draw = functools.partial(draw_pieces, temperature=temperature, top_p=top_p, rng=rng)
    if kind == "left-to-right":
        left_to_right(logits, tokens, len(given), end, tokenizer, draw)
    else:
        in_any_order(logits, tokens, len(given), end, steps, tokenizer, draw, rng)
    return [tokenizer.decode(row[len(tokenizer.prefix_ids) : end]) for row in tokens]


def left_to_right(logits, tokens: Int[np.ndarray, "N L"], first, end, tokenizer, draw) -> None:
    """Fills positions first to end, up to the first end of a text; padding follows it."""
    stop = tokenizer.suffix_ids[0] if tokenizer.suffix_ids else None
    forbidden = tokenizer.special_ids - {stop}
    ended = np.zeros(len(tokens), bool)
    for position in range(first, end):
        view = view_of(tokens, position + 1)
        at = np.full((len(tokens), 1), position, np.int32)
        drawn = draw(np.asarray(logits(view, at), np.float64)[:, 0], forbidden)
        ended |= drawn == stop
        tokens[:, position] = np.where(ended, tokenizer.pad_id, drawn)
        if ended.all():
            return


def in_any_order(
    logits, tokens: Int[np.ndarray, "N L"], first, end, steps, tokenizer, draw, rng
) -> None:
    """Fills positions first to end, each row in an order of its own."""
    tokens[:, end:] = tokenizer.suffix_ids
    hidden, rows = end - first, np.arange(len(tokens))[:, None]
    order = first + np.argsort(rng.random((len(tokens), hidden)), axis=1)
    ranks = np.zeros_like(tokens)
    ranks[:, len(tokenizer.prefix_ids) : first] = 1
    ranks[rows, order] = HIDDEN
    bounds = np.round(np.linspace(0, hidden, min(steps or hidden, hidden) + 1)).astype(int)
    for begin, stop in itertools.pairwise(bounds.tolist()):
        at = order[:, begin:stop].astype(np.int32)
        view = view_of(tokens, tokens.shape[1]) | {"ranks": ranks.copy()}
        found = np.asarray(logits(view, at), np.float64)
        drawn = draw(found.reshape(-1, found.shape[-1]), tokenizer.special_ids)
        tokens[rows, at] = drawn.reshape(at.shape)
        ranks[rows, at] = 2 + np.arange(begin, stop)


def draw_pieces(
    logits: Float[np.ndarray, "N V"],
    forbidden: frozenset[int],
    temperature: float,
    top_p: float,
    rng: np.random.Generator,
) -> Int[np.ndarray, "N"]:
    """A piece of each row of logits; those at `forbidden` are never drawn."""
    logits = logits.copy()
    logits[:, list(forbidden)] = -np.inf
    if not temperature:
        return logits.argmax(axis=1)
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    likeliest = np.argsort(-powers, axis=1, kind="stable")
    ordered = np.take_along_axis(powers / powers.sum(axis=1, keepdims=True), likeliest, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    kept = np.cumsum(np.where(before < top_p, ordered, 0.0), axis=1)
    drawn = (kept <= rng.random((len(kept), 1)) * kept[:, -1:]).sum(axis=1)
    return np.take_along_axis(likeliest, drawn[:, None], axis=1)[:, 0]


def view_of(tokens: Int[np.ndarray, "N L"], filled: int) -> dict[str, np.ndarray]:
    """Rows of which the first positions are a text; nothing is hidden."""
    position = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    inside = position < filled
    return {
        "tokens": tokens.copy(),
        "segments": np.zeros_like(tokens),
        "documents": inside.astype(np.int32),
        "positions": np.where(inside, position, 0),
        "ranks": np.zeros_like(tokens),
    }
