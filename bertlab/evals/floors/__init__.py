"""Exact floors: the loss of the best possible model on the synthetic language
(bertlab/data/corpora/synthetic.py), a hidden Markov chain with a topic for each document.

`oracle` is the best possible model, and `objectives` has the questions that each objective asks of
it. Here a run's loss is compared with its floor on the same views, so loss − floor is a paired
difference; its expectation is the model's divergence from the language.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from bertlab.evals.floors.objectives import corruption, floor
from bertlab.evals.floors.oracle import (
    Batch,
    Chain,
    Corruption,
    NoFloor,
    Oracle,
    chain_of,
    log_probability,
    words_of,
)
from bertlab.evals.ratio import ratio
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program, group_by_view

__all__ = ["Corruption", "NoFloor", "chain_of", "corruption", "floor", "floors", "log_probability"]


class Floor(NamedTuple):
    """The Bayes-optimal loss on some rows in nats per supervised position, weighted like the loss;
    the standard errors are over rows (None for one)."""

    value: float
    standard_error: float | None
    exact: bool  # a model can reach the value; otherwise it is a lower bound
    loss: float | None = None  # a run's on the same rows; None without a run, like the two below
    above: float | None = None  # loss − value
    above_standard_error: float | None = None  # from the differences row by row


def floors(
    program: Program,
    batches: Sequence[Batch],
    chain: Chain,
    relations: Mapping[str, float],
    params: Any = None,
) -> dict[str, Floor | str]:
    """The floor of every objective on held-out batches (NumPy arrays), or why it has none; with the
    parameters of a run, also its loss on the same rows."""

    def losses(params, view):
        return program.metrics(params, jax.tree.map(lambda x: x[None], view))[0]

    losses_by_row, make_views = jax.jit(jax.vmap(losses, (None, 0))), jax.jit(program.views)
    groups = group_by_view(program.objectives, program.stream)
    view_of = {name: view for view, names in groups.items() for name in names}
    # As in `bertlab.train.loop.build_evaluation`.
    keys = [jax.random.fold_in(jax.random.key(0), index) for index in range(len(batches))]
    views = [make_views(batch, key) for batch, key in zip(batches, keys)]
    sums = [] if params is None else jax.device_get([losses_by_row(params, x) for x in views])
    views, same, found = jax.device_get(views), alike(batches, program.vocabulary), {}
    for name, objective in program.objectives.items():
        view = view_of[name]
        viewed = program.objectives.get(view) if view != name else None
        oracles = [Oracle(chain, batch, program.vocabulary, relations, viewed) for batch in batches]
        try:
            rows = [row_sums(objective, oracle, x[view]) for oracle, x in zip(oracles, views)]
        except NoFloor as reason:
            found[name] = str(reason)
            continue
        nats, weights = np.hstack(rows)
        if not weights.any():
            found[name] = "nothing is supervised in these rows"
            continue
        value, error = ratio(nats, weights)
        of = Floor(value, error, same or not any(oracle.bound for oracle in oracles))
        if sums:
            loss, loss_weights = np.hstack([of_batch[f"{name}/loss"] for of_batch in sums])
            if not np.allclose(loss_weights, weights, rtol=1e-4):  # sums of float32
                raise ValueError(f"{name}: its floor and its loss must weigh each row alike")
            above, above_error = ratio(loss - nats, weights)
            of = of._replace(loss=value + above, above=above, above_standard_error=above_error)
        found[name] = of
    return found


def row_sums(objective, oracle: Oracle, view: Batch) -> list[Float[np.ndarray, "R"]]:
    """Σ nats · weight and Σ weight of each row."""
    nats, weights = (np.asarray(x, float) for x in floor(objective, oracle, view, oracle.batch))
    nats = np.where(weights > 0, nats, 0.0)
    if not np.isfinite(nats).all():
        raise ValueError(f"{type(objective).__name__}: the language cannot produce these rows")
    return [array.sum(axis=1) for array in (nats * weights, weights)]


def alike(batches: Sequence[Batch], vocabulary: Vocabulary) -> bool:
    """Whether all rows have their special tokens and the ends of their documents at the same
    positions."""
    layouts = np.concatenate(
        [np.where(words_of(b, vocabulary), b["documents"], -b["documents"]) for b in batches]
    )
    layouts = layouts[layouts.any(axis=1)]
    return bool((layouts == layouts[:1]).all())


def relations_of(data) -> dict[str, float]:
    """Probability of each relation of a row's segments; {"follows": 1} without pairs."""
    name, settings = data.format, data.get(data.format)
    shortest, longest = data.synthetic.sentence_words
    if name in ("stream", "cooccurrence"):
        raise NoFloor(f"rows of config.data.format={name} continue or are no text")
    if data.pack_length:
        raise NoFloor("a row holds several texts; set config.data.pack_length=0")
    if name == "full_sentences" and settings.attend_across_documents:
        raise NoFloor("attend_across_documents=True hides where documents begin")
    if name not in ("segment_pair", "sentence_pair"):
        return {"follows": 1.0}
    most, other = data.seq_len - 3, "swapped" if settings.negatives == "swapped" else "random"
    cut = shortest != longest or most % longest
    if name == "segment_pair" and (other == "random" or cut):
        raise NoFloor(
            "lengths reveal how segments are related; use sentence_pair, or doc_sentences where no"
            " objective asks about pairs, or set segment_pair.negatives=swapped and"
            " synthetic.sentence_words=(n, n) with n dividing seq_len − 3"
        )
    if name == "sentence_pair" and 2 * longest > most:
        raise NoFloor(f"pairs are cut; set config.data.seq_len to {2 * longest + 3} or more")
    if other == "random" and settings.force_random_if_single:
        raise NoFloor(f"set config.data.{name}.force_random_if_single=False")
    share = settings.random_next_probability
    relations = {"follows": 1 - share, other: share}
    return {relation: prior for relation, prior in relations.items() if prior}
