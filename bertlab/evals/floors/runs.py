"""Floors of a program on held-out batches, and the distance of a run's loss to them.

A floor is computed on the views on which a run is evaluated, so loss − floor is a paired
difference; its expectation is the model's divergence from the language.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from bertlab.errors import UserError
from bertlab.evals.floors.chain import Batch, Chain, words_of
from bertlab.evals.floors.objectives import floor
from bertlab.evals.floors.oracle import COUNT, SPECIAL_TOKENS, NoFloor, Oracle
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program, group_by_view


@dataclasses.dataclass(frozen=True)
class Floor:
    """The Bayes-optimal loss on some rows, and a run's loss on the same.

    Attributes:
        value: Nats per supervised position, weighted like the loss.
        standard_error: Of `value` over documents, since positions of one document are dependent;
            None for one document.
        positions: Supervised positions, those with a weight.
        exact: Whether a model can reach the value; otherwise it is a lower bound.
        note: Why it is not exact.
        loss: Of the run; None without a run, like the two below.
        above: loss − value.
        above_standard_error: Of `above`, from the differences row by row.
    """

    value: float
    standard_error: float | None
    positions: int
    exact: bool
    note: str = ""
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
    """The floor of every objective, or the reason why it has none.

    Args:
        program: Its objectives.
        batches: Held-out batches of the synthetic language, NumPy arrays.
        chain: The language in the vocabulary's ids (`chain_of`).
        relations: From `relations_of`.
        params: Of a run; if given, its loss is measured on the same rows.
    """
    groups = group_by_view(program.objectives, program.stream)
    view_names = {name: view for view, names in groups.items() for name in names}

    @jax.jit
    def row_losses(params, views):
        def of_row(view):
            sums, _, _ = program.metrics(params, jax.tree.map(lambda x: x[None], view))
            return sums

        return jax.vmap(of_row)(views)

    make_views = jax.jit(program.views)
    found = {}
    caveats = {name: set() for name in view_names}
    rows = {name: [] for name in view_names}
    for index, batch in enumerate(batches):
        # As in `build_eval_step`.
        views = make_views(batch, jax.random.fold_in(jax.random.key(0), index))
        losses = {} if params is None else jax.device_get(row_losses(params, views))
        views = jax.device_get(views)
        for name in view_names.keys() - found.keys():
            viewed = program.objectives.get(view_names[name]) if view_names[name] != name else None
            oracle = Oracle(chain, batch, program.vocabulary, relations, viewed, caveats[name])
            try:
                sums = row_sums(program.objectives[name], oracle, views[view_names[name]])
            except NoFloor as reason:
                found[name] = str(reason)
                continue
            if losses:
                loss, weight = losses[f"{name}/loss"]
                if not np.allclose(weight, sums[1], rtol=1e-4):  # sums of float32
                    raise UserError(
                        f"objective {name}: its floor and its loss must weigh each row alike"
                    )
                sums.append(loss)
            rows[name].append(np.stack(sums, axis=1))
    documents = np.concatenate(
        [np.reshape(b["example_id"], (len(b["tokens"]), -1))[:, 0] for b in batches]
    )
    reasons = []
    if not alike(batches, program.vocabulary):
        packed = any((batch["documents"] > 1).any() for batch in batches)
        reasons = [SPECIAL_TOKENS, COUNT] if packed else [SPECIAL_TOKENS]
    for name in view_names.keys() - found.keys():
        note = next((reason for reason in reasons if reason in caveats[name]), "")
        found[name] = summary(np.concatenate(rows[name]), documents, note)
    return {name: found[name] for name in program.objectives}


def row_sums(objective, oracle: Oracle, view: Batch) -> list[Float[np.ndarray, "R"]]:
    """Σ nats · weight, Σ weight and the number of supervised positions of each row.

    Raises:
        NoFloor: As for `floor`.
        ValueError: The language cannot have made these rows.
    """
    nats, weights = (np.asarray(x, float) for x in floor(objective, oracle, view, oracle.batch))
    nats = np.where(weights > 0, nats, 0.0)
    if not np.isfinite(nats).all():
        raise ValueError(
            f"{type(objective).__name__}: the language cannot produce these rows, or they were"
            " corrupted differently"
        )
    return [array.sum(axis=1) for array in (nats * weights, weights, weights > 0)]


def alike(batches: Sequence[Batch], vocabulary: Vocabulary) -> bool:
    """Whether all rows have their special tokens and the ends of their documents at the same
    positions."""
    layouts = np.concatenate(
        [np.where(words_of(b, vocabulary), b["documents"], -b["documents"]) for b in batches]
    )
    layouts = layouts[layouts.any(axis=1)]
    return bool((layouts == layouts[:1]).all())


def summary(
    rows: Float[np.ndarray, "R n"], documents: Int[np.ndarray, "R"], note: str
) -> Floor | str:
    """The floor from the sums of rows, and a run's losses in a fourth column."""
    nats, weights, positions, *loss = rows.T
    if not weights.any():
        return "nothing is supervised in these rows"
    value, error = ratio(nats, weights, documents)
    result = Floor(value, error, int(positions.sum()), not note, note)
    if not loss:
        return result
    above, above_error = ratio(loss[0] - nats, weights, documents)
    return dataclasses.replace(
        result,
        loss=float(loss[0].sum() / weights.sum()),
        above=above,
        above_standard_error=above_error,
    )


def ratio(
    sums: Float[np.ndarray, "R"], weights: Float[np.ndarray, "R"], documents: Int[np.ndarray, "R"]
) -> tuple[float, float | None]:
    """Σ sums / Σ weights and its standard error (None for one document), treating rows of one
    document as dependent.

    The error is the first-order one of a ratio over clusters:
    √(n/(n−1) · Σ_document (sum − ratio · weight)²) / Σ weight.
    """
    total, real = weights.sum(), weights > 0
    value = sums.sum() / total
    _, cluster = np.unique(documents[real], return_inverse=True)
    residuals = np.bincount(cluster, (sums - value * weights)[real])
    number = len(residuals)
    if number == 1:
        return float(value), None
    return float(value), float(np.sqrt(number / (number - 1) * (residuals**2).sum()) / total)


def relations_of(data) -> dict[str, float]:
    """Probability of each relation of a row's segments; {"follows": 1} without pairs.

    Args:
        data: `config.data`, of the synthetic corpus.

    Raises:
        NoFloor: The probabilities depend on lengths, or a row hides where its text begins.
    """
    if data.format in ("stream", "cooccurrence"):
        raise NoFloor(
            f"rows of config.data.format={data.format} continue from batch to batch or are no text"
        )
    if data.pack_length:
        raise NoFloor("a row is several texts; set config.data.pack_length=0")
    if data.format not in ("segment_pair", "sentence_pair"):
        if data.format == "full_sentences" and data.full_sentences.attend_across_documents:
            raise NoFloor("attend_across_documents=True hides where documents begin")
        return {"follows": 1.0}
    settings, (shortest, longest) = data[data.format], data.synthetic.sentence_words
    most, swapped = data.seq_len - 3, settings.negatives == "swapped"
    if data.format == "segment_pair":
        if not swapped:
            raise NoFloor(
                "lengths tell segments that follow from random ones; use sentence_pair, or"
                " doc_sentences where no objective asks about pairs"
            )
        if shortest != longest or most % longest:
            raise NoFloor(
                "segments are cut, and their lengths tell which was first; set"
                " config.data.synthetic.sentence_words=(n, n) with n dividing seq_len − 3"
            )
    elif 2 * longest > most:
        raise NoFloor(f"pairs are cut; set config.data.seq_len to {2 * longest + 3} or more")
    if not swapped and settings.force_random_if_single:
        raise NoFloor(f"set config.data.{data.format}.force_random_if_single=False")
    share = settings.random_next_probability
    relations = {"follows": 1 - share, "swapped" if swapped else "random": share}
    return {name: probability for name, probability in relations.items() if probability}
