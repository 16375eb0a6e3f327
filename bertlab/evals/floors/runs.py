"""Floors of a program on held-out batches, and the distance of a run's loss from them.

A floor is computed on the views on which a run is evaluated, so loss − floor is a paired
difference; its expectation is the model's divergence from the language.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from bertlab.evals.floors.chain import Batch, Chain, words_of
from bertlab.evals.floors.objectives import floor
from bertlab.evals.floors.oracle import NoFloor, Oracle
from bertlab.evals.ratio import ratio
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program, group_by_view


class Floor(NamedTuple):
    """The Bayes-optimal loss on some rows, and a run's loss on the same.

    Attributes:
        value: Nats per supervised position, weighted like the loss.
        standard_error: That of `value` over rows; None for one row.
        exact: Whether a model can reach the value; otherwise it is a lower bound.
        loss: The run's loss; None without a run, like the two below.
        above: loss − value.
        above_standard_error: That of `above`, from the differences row by row.
    """

    value: float
    standard_error: float | None
    exact: bool
    loss: float | None = None
    above: float | None = None
    above_standard_error: float | None = None


def floors(
    program: Program,
    batches: Sequence[Batch],
    chain: Chain,
    relations: Mapping[str, float],
    params: Any = None,
) -> dict[str, Floor | str]:
    """The floor of every objective on held-out batches (NumPy arrays), or why it has none; with the
    parameters of a run, also its loss on the same rows."""
    groups = group_by_view(program.objectives, program.stream)
    view_names = {name: view for view, names in groups.items() for name in names}
    row_losses, make_views = jax.jit(losses_by_row(program)), jax.jit(program.views)
    keys = [jax.random.fold_in(jax.random.key(0), index) for index in range(len(batches))]
    # As in `bertlab.train.loop.build_evaluation`.
    views = [make_views(batch, key) for batch, key in zip(batches, keys)]
    losses = [] if params is None else jax.device_get([row_losses(params, x) for x in views])
    views, same, found = jax.device_get(views), alike(batches, program.vocabulary), {}
    for name, objective in program.objectives.items():
        view = view_names[name]
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
        found[name] = Floor(value, error, same or not any(oracle.bound for oracle in oracles))
        if losses:
            loss, loss_weights = np.hstack([sums[f"{name}/loss"] for sums in losses])
            if not np.allclose(loss_weights, weights, rtol=1e-4):  # sums of float32
                raise ValueError(f"{name}: its floor and its loss must weigh each row alike")
            above, above_error = ratio(loss - nats, weights)
            found[name] = found[name]._replace(
                loss=value + above, above=above, above_standard_error=above_error
            )
    return found


def losses_by_row(program: Program):
    """(params, views) -> the sums of the losses of each row, [R]."""

    def of_row(params, view):
        return program.metrics(params, jax.tree.map(lambda x: x[None], view))[0]

    return jax.vmap(of_row, in_axes=(None, 0))


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
