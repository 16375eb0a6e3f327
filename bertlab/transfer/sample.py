"""`bertlab sample`: texts drawn from a run, left to right or by revealing hidden pieces in a random order.

Letters: N texts, L length of a row, k pieces drawn at a time, V vocabulary.
"""

import itertools
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import HIDDEN, WAYS
from bertlab.objectives.choosing import at_positions
from bertlab.objectives.program import Program
from bertlab.transfer.likelihood import way_of
from bertlab.transfer.load import Pretrained, load
from bertlab.transfer.rows import padded_length

KINDS = ("left-to-right", "any-order")


def sample(
    model: Pretrained,
    number: int = 1,
    length: int = 32,
    kind: str | None = None,
    steps: int | None = None,
    prompt: str = "",
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> list[str]:
    """Draws texts from a model, without special tokens.

    "left-to-right" draws one piece after the other, until the frame's end is drawn (in models with one) or the text is full.
    "any-order" begins with all pieces hidden and reveals them in a random order, in `steps` steps of about as many pieces. The
    pieces of one step do not see each other: with as many steps as pieces this draws from the model that the score "any-order"
    bounds. The samplers of the diffusion papers reveal each piece with a chance instead, so a random number a step. Every
    step is a pass over whole rows.

    Args:
        model: from `bertlab.load`.
        number: N, how many texts.
        length: pieces of a text with its prompt; left to right the most, in any order exactly so many.
        kind: one of KINDS; None: the first that the model allows.
        steps: of "any-order"; None: as many as there are pieces to draw.
        prompt: the text begins with it.
        temperature: divides the logits; 0 draws the likeliest piece.
        top_p: only the likeliest pieces that together have this probability are drawn (Holtzman et al. 2020).
        seed: the same seed gives the same texts.

    Raises:
        UserError: a value is out of range, or the model cannot be sampled in this way.
    """
    for name, value, least in (("number", number, 1), ("length", length, 1), ("steps", steps, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UserError(f"{name}={value} must be at least {least}")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise UserError(f"temperature={temperature} must be 0 or more")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} must be above 0 and at most 1")
    allowed = [of for of in KINDS if of in model.kinds]
    if kind is not None and kind not in KINDS:
        raise UserError(f"kind={kind!r} is not known; choose one of {', '.join(KINDS)}")
    if not allowed:
        raise UserError(f"this model cannot be sampled: it allows the kinds {', '.join(model.kinds) or 'none'} of score only")
    kind = kind or allowed[0]
    if kind not in allowed:
        raise UserError(
            f"kind={kind!r}: this model was not trained for it ({', '.join(model.program.objectives)}); choose {allowed[0]}"
        )
    if steps is not None and kind != "any-order":
        raise UserError(f"steps={steps} has no effect with kind={kind!r}, which draws one piece at a time; omit it")
    if model.config.model.token_encoder == "characters":
        raise UserError("this model reads characters, which drawn pieces do not have; sample one that reads pieces")
    tokenizer, given = model.tokenizer, model.tokenizer.encode(prompt)
    before, after = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    if len(given) >= length:
        raise UserError(f"the prompt has {len(given)} pieces, so length={length} leaves none to draw; raise it")
    if steps is not None and steps > length - len(given):
        raise UserError(
            f"steps={steps} is more than the {length - len(given)} pieces to draw; lower it, or raise length={length}"
        )
    if (size := len(before) + length + len(after)) > model.longest:
        raise UserError(f"length={length} makes rows of {size} tokens, but the model has {model.longest} positions; lower it")
    tokens = np.full((number, padded_length(size, model.longest)), tokenizer.pad_id, np.int32)
    tokens[:, : len(before) + len(given)] = [*before, *given]
    rng = np.random.default_rng(seed)
    draw = lambda logits, forbidden: draw_pieces(logits, temperature, top_p, forbidden, rng)
    first = len(before) + len(given), len(before) + length
    texts = (_left_to_right if kind == "left-to-right" else _in_any_order)(model, tokens, *first, steps, draw, rng)
    return [tokenizer.decode([*given, *text]) for text in texts]


def _left_to_right(model: Pretrained, tokens: Int[np.ndarray, "N L"], first: int, end: int, steps: None, draw, rng):
    """The pieces at [first, end) of each row, up to the first end of text."""
    tokenizer, (way, name) = model.tokenizer, way_of(model.learned, "left-to-right")
    if not first:
        raise UserError("this tokenizer puts nothing before a text, so nothing predicts its first piece; give a prompt")
    stop = tokenizer.suffix_ids[0] if tokenizer.suffix_ids else None
    forbidden = specials(tokenizer) - {stop}
    ended = np.zeros(len(tokens), bool)
    for place in range(first, end):
        view = _view(tokens, place)
        if way == "in order":
            view["order"] = view["positions"]
        places = np.full(len(tokens), place - 1, np.int32)
        logits = model.inference(_next_logits, view | {"places": places}, name, way)
        drawn = draw(np.asarray(logits, np.float64), forbidden)
        ended |= drawn == stop
        tokens[:, place] = np.where(ended, tokenizer.pad_id, drawn)
        if ended.all():
            break
    return tokens[:, first:end]


def _in_any_order(model: Pretrained, tokens: Int[np.ndarray, "N L"], first: int, end: int, steps: int | None, draw, rng):
    """The pieces at [first, end) of each row."""
    tokenizer, (way, name) = model.tokenizer, way_of(model.learned, "any-order")
    if way == "before the mask" and not first:
        raise UserError(
            "this model predicts a piece from the position before it, and nothing is before the first; give a prompt"
        )
    tokens[:, end : end + len(tokenizer.suffix_ids)] = tokenizer.suffix_ids
    hidden = end - first
    orders = first + np.argsort(rng.random((len(tokens), hidden)), axis=1)
    ranks, rows = np.zeros_like(tokens), np.arange(len(tokens))[:, None]
    ranks[:, :first] = np.maximum(1 + np.arange(first) - len(tokenizer.prefix_ids), 0)
    ranks[rows, orders] = HIDDEN
    ends = np.round(np.linspace(0, hidden, (steps or hidden) + 1)).astype(int)
    for begin, stop in itertools.pairwise(ends.tolist()):
        places = orders[:, begin:stop].astype(np.int32)
        view = _view(tokens, end + len(tokenizer.suffix_ids)) | {"ranks": ranks.copy(), "places": places}
        logits = np.asarray(model.inference(_hidden_logits, view, name), np.float64)
        tokens[rows, places] = draw(logits.reshape(-1, logits.shape[-1]), specials(tokenizer)).reshape(places.shape)
        ranks[rows, places] = 1 + first + np.arange(begin, stop)
    return tokens[:, first:end]


def draw_pieces(
    logits: Float[np.ndarray, "N V"], temperature: float, top_p: float, forbidden: set[int], rng: np.random.Generator
) -> Int[np.ndarray, "N"]:
    """A piece of each row of logits; those at `forbidden` are never drawn. Arguments as for `sample`."""
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


def specials(tokenizer) -> set[int]:
    """The ids that no text has."""
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    return {of for of in ids if of is not None}


def _view(tokens: Int[np.ndarray, "N L"], filled: int) -> dict[str, np.ndarray]:
    """Rows of which the first positions are filled."""
    place = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    inside = place < filled
    return {
        "tokens": tokens.copy(),
        "segments": np.zeros_like(tokens),
        "documents": inside.astype(np.int32),
        "positions": np.where(inside, place, 0),
    }


def _next_logits(program: Program, name: str, way: str, params, view: View) -> Float[Array, "N V"]:
    """The logits of the piece after one place of each row."""
    clean = {field: values for field, values in view.items() if field != "places"}
    return program.token_logits(params, clean, name, WAYS[way], view["places"])


def _hidden_logits(program: Program, name: str, params, view: View) -> Float[Array, "N k V"]:
    """The logits of the hidden pieces at some places of each row."""
    clean = {field: values for field, values in view.items() if field not in ("places", "ranks")}
    return at_positions(program.hidden_logits(params, clean, name, jnp.asarray(view["ranks"])), view["places"])


def sample_run(run: Path, step: int | None = None, **settings) -> list[str]:
    """Prints texts drawn from a run or imported directory, and returns them; `settings` are those of `sample`."""
    texts = list(sample(load(run, step), **settings))
    for text in texts:
        print(text)
    return texts
