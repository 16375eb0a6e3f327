"""Texts drawn from a model, left to right or by revealing hidden pieces in a random order.

Letters: N texts, L row length, k pieces drawn at a time, V vocabulary.
"""

import itertools

import numpy as np
from jaxtyping import Float, Int

from bertlab.errors import UserError
from bertlab.evals.code_length import Scorer
from bertlab.evals.scoring import HIDDEN

KINDS = ("left-to-right", "any-order")


def sample(
    model,
    number: int = 1,
    length: int | None = None,
    kind: str | None = None,
    steps: int | None = None,
    prompt: str = "",
    temperature: float = 1.0,
    seed: int = 0,
) -> list[str]:
    """N texts of `length` pieces (32) with the prompt (left to right: at most), without special
    tokens, by a model from `bertlab.load`; at temperature 0 the most likely pieces.

    "any-order" begins with all pieces hidden and reveals them in a random order, in `steps` steps
    of about equal size, whose pieces do not see each other: with one step per piece (None) it draws
    from the model whose code length the score "any-order" bounds. It also fills each [MASK] in the
    prompt with one piece; without a `length` the text then ends with the prompt.
    """
    tokenizer, scorer, rng = model.tokenizer, Scorer(model), np.random.default_rng(seed)
    start, *others = map(tokenizer.encode, prompt.split("[MASK]"))
    kinds = [kind for kind in (KINDS[1:] if others else KINDS) if kind in scorer.kinds]
    if not kinds or kind not in (None, *kinds):
        raise UserError(f"this model has no kind={kind}; it allows {', '.join(kinds) or 'none'}")
    prefix, suffix = tokenizer.prefix_ids, tokenizer.suffix_ids
    given, hidden = [*prefix, *start], []
    for part in others:
        hidden.append(len(given))
        given += [tokenizer.mask_id, *part]
    first = len(given)
    length = length or (first - len(prefix) if others else 32)
    end = len(prefix) + length
    hidden = np.array([*hidden, *range(first, end)], np.int32)
    if not len(hidden) or end < first or end + len(suffix) > model.longest:
        raise UserError(
            f"length={length} must be more than the prompt's {first - len(prefix)} pieces and fit"
            f" into {model.longest} positions"
        )
    forward = (kind or kinds[0]) == "left-to-right"
    answerer = scorer.answerers["forward" if forward else "hidden"]
    if not given and (forward or answerer.how.from_before):
        raise UserError("nothing precedes the first piece to predict it from; give a prompt")
    if forward:
        order, steps, stop = np.tile(hidden, (number, 1)), None, next(iter(suffix), None)
    else:
        order, stop = hidden[np.argsort(rng.random((number, len(hidden))), axis=1)], None
    tokens = np.full((number, end + len(suffix)), tokenizer.pad_id, np.int32)
    tokens[:, :first], tokens[:, end:] = given, suffix
    ranks, zeros = np.zeros_like(tokens), np.zeros_like(tokens)
    ranks[:, len(prefix) : first], ranks[:, hidden] = 1, HIDDEN
    view = {"tokens": tokens, "segments": zeros, "documents": zeros + 1, "ranks": ranks}
    view["positions"] = zeros + np.arange(tokens.shape[1], dtype=np.int32)
    bounds = np.linspace(0, len(hidden), min(steps or len(hidden), len(hidden)) + 1)
    for begin, upto in itertools.pairwise(bounds.round().astype(int).tolist()):
        at = order[:, begin:upto]
        logits = np.asarray(answerer.logits(scorer.params, view, at), np.float64)
        logits = logits.reshape(at.size, -1)
        drawn = draw_pieces(logits, tokenizer.special_ids - {stop}, temperature, rng)
        np.put_along_axis(tokens, at, drawn.reshape(at.shape), axis=1)
        np.put_along_axis(ranks, at, 2 + np.arange(begin, upto)[None], axis=1)
        if (tokens[:, first : first + upto] == stop).any(axis=1).all():
            break
    rows = tokens[:, len(prefix) : end].tolist()
    texts = (itertools.takewhile(lambda piece: piece != stop, row) for row in rows)
    return [tokenizer.decode(list(text)) for text in texts]


def draw_pieces(
    logits: Float[np.ndarray, "N V"], forbidden: frozenset[int], temperature: float, rng
) -> Int[np.ndarray, "N"]:
    """One piece per row of logits; those at `forbidden` are never drawn."""
    # The largest of logits / temperature + Gumbel noise is a draw from the softmax.
    noisy = logits + temperature * rng.gumbel(size=logits.shape)
    noisy[:, list(forbidden)] = -np.inf
    return noisy.argmax(axis=1)
