"""Floors of experiments, and how far runs end above them.

The randomness is that of the very views on which a run is evaluated, so that loss − floor is paired: its expectation is the
model's divergence from the truth.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bertlab.config import flatten
from bertlab.data.synthetic import language
from bertlab.data.tokenizers import has_whole_words
from bertlab.errors import UserError
from bertlab.floors.chain import Batch, chain_of, words_of
from bertlab.floors.oracle import COUNT, SPECIAL_TOKENS, ExactOracle, floor, relations_of
from bertlab.objectives.base import NoFloor, Vocabulary
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.train.build import Experiment, build_pretraining
from bertlab.train.checkpoint import load_params


@dataclasses.dataclass(frozen=True)
class Floor:
    """The Bayes-optimal loss on some rows, and a run's loss on the same.

    Attributes:
        value: nats a supervised position, weighted as the loss.
        standard_error: of `value` as an estimate for all such text, over documents: positions of one are dependent.
        positions: supervised ones.
        exact: whether a model can reach it; else it is a lower bound.
        note: why it is not exact.
        loss: the run's; None without a run, as the two below.
        above: loss − value.
        above_standard_error: standard error of `above`, of the differences row by row.
    """

    value: float
    standard_error: float
    positions: int
    exact: bool
    note: str = ""
    loss: float | None = None
    above: float | None = None
    above_standard_error: float | None = None


def floors(experiment: Experiment | ConfigDict, split: str = "test", params=None) -> dict[str, Floor | str]:
    """The floor of every objective of an experiment on the very views on which a run is evaluated, or why there is none.

    Args:
        experiment: or its config.
        split: "valid" or "test"; `config.train.eval_batches` of it.
        params: of a run of it; then its loss and nats above the floor are found on the same rows.

    Raises:
        UserError: the text is not the synthetic language, one token a word.
    """
    require_synthetic(experiment if isinstance(experiment, ConfigDict) else experiment.config)
    if isinstance(experiment, ConfigDict):
        experiment = build_pretraining(experiment)
    if not experiment.tokenizer.has_whole_words:
        raise UserError(f"{_WORDS}, not {experiment.tokenizer.kind}")
    config, program = experiment.config, experiment.program
    names, batches = program.objectives, experiment.evaluations[split]
    try:
        relations = relations_of(config.data)
    except NoFloor as reason:
        return dict.fromkeys(names, str(reason))
    settings = {key: value for key, value in config.data.synthetic.items() if key != "documents"}
    model = language(**settings)
    chain = chain_of(model, program.vocabulary.size, experiment.tokenizer.encode_words(model.words)[0])
    make_views = jax.jit(program.views)
    row_losses = jax.jit(functools.partial(_row_losses, program))
    found, caveats = {name: [] for name in names}, {name: set() for name in names}
    for index, batch in enumerate(batches):
        views = make_views(batch, jax.random.fold_in(jax.random.key(0), index))  # as build_eval_step's
        losses = None if params is None else jax.device_get(row_losses(params, views))
        views = jax.device_get(views)
        for view_name, members in program.groups.items():
            for name in members:
                if isinstance(found[name], str):
                    continue
                shown_by = names.get(view_name) if view_name != name else None
                oracle = ExactOracle(chain, batch, program.vocabulary, relations, views[view_name], shown_by, caveats[name])
                try:
                    nats, weights = floor(names[name], oracle)
                except NoFloor as reason:
                    found[name] = str(reason)
                    continue
                rows = np.stack([nats.sum(axis=1), weights.sum(axis=1)], axis=1)
                if losses is not None:
                    loss, loss_weights = losses[f"{name}/loss"]
                    np.testing.assert_allclose(loss_weights, rows[:, 1], err_msg=f"positions that {name} supervises")
                    rows = np.concatenate([rows, loss[:, None]], axis=1)
                found[name].append(rows)
    documents = np.concatenate([batch["example_id"][:, 0] for batch in batches])
    alike, packed = _alike(batches, program.vocabulary), any((batch["documents"] > 1).any() for batch in batches)
    notes = {
        name: "" if alike else SPECIAL_TOKENS if SPECIAL_TOKENS in of else COUNT if packed and COUNT in of else ""
        for name, of in caveats.items()
    }
    return {
        name: rows if isinstance(rows, str) else _summary(np.concatenate(rows), documents, notes[name])
        for name, rows in found.items()
    }


def _row_losses(program: Program, params, views):
    """{name: (sum, weight)} as `Program.metrics`, each [R]."""
    return jax.vmap(lambda view: program.metrics(params, jax.tree.map(lambda x: x[None], view)))(views)


def _alike(batches: Sequence[Batch], vocabulary: Vocabulary) -> bool:
    """Whether special tokens and documents' ends lie at the same places in all rows."""
    layouts = np.concatenate([np.where(words_of(b, vocabulary), b["documents"], -b["documents"]) for b in batches])
    layouts = layouts[layouts.any(axis=1)]
    return bool((layouts == layouts[:1]).all())


def _summary(rows: Float[np.ndarray, "R n"], documents: np.ndarray, note: str) -> Floor:
    nats, weights = rows[:, 0], rows[:, 1]
    value, error = ratio(nats, weights, documents)
    run = {}
    if rows.shape[1] == 3:
        above, above_standard_error = ratio(rows[:, 2] - nats, weights, documents)
        run = {"loss": float(rows[:, 2].sum() / weights.sum()), "above": above, "above_standard_error": above_standard_error}
    return Floor(value, error, round(weights.sum()), not note, note, **run)


def ratio(
    sums: Float[np.ndarray, "R"], weights: Float[np.ndarray, "R"], documents: Int[np.ndarray, "R"]
) -> tuple[float, float]:
    """Σ sums / Σ weights and its standard error, where rows of one document are dependent.

    The ratio's first-order error with clusters: √(n/(n−1) · Σ_document (sum − ratio · weight)²) / Σ weight.
    """
    total = weights.sum()
    value = sums.sum() / total
    real = weights > 0
    names, cluster = np.unique(documents[real], return_inverse=True)
    residuals = np.bincount(cluster, (sums - value * weights)[real])
    number = len(names)
    error = np.sqrt(number / (number - 1) * (residuals**2).sum()) / total if number > 1 else np.inf
    return float(value), float(error)


_WORDS = "a floor is known for config.data.tokenizer.kind='words' alone, one token a word"


def require_synthetic(config: ConfigDict) -> None:
    """Refuses, with a UserError, text whose probabilities are not known."""
    if config.data.corpus != "synthetic":
        raise UserError(f"a floor is known for config.data.corpus='synthetic' alone, not for {config.data.corpus!r}")
    if not config.data.tokenizer.path and not has_whole_words(config.data.tokenizer.kind):
        raise UserError(f"{_WORDS}; set it and config.data.tokenizer.vocab_size={config.data.synthetic.vocab_size + 5}")


def print_floors(config: ConfigDict | None, run: Path | None = None, split: str = "test") -> bool:
    """The floors as a table on standard output, with a run's loss beside them; whether there is any.

    Raises:
        UserError: neither is given, or the config is another than the run's.
    """
    if run is not None:
        theirs = ConfigDict(Run(run).config.read())
        given = {} if config is None else flatten(json.loads(json.dumps(config.to_dict())))
        known = flatten(theirs)
        differ = [k for k, v in given.items() if k.startswith(("data.", "model.", "objectives.")) and known.get(k) != v]
        if differ := [k for k in differ if k not in ("data.directory", "data.workers")]:
            raise UserError(f"--run={run} was trained with another {differ[0]} than --config says; leave --config out")
        config = theirs
    if config is None:
        raise UserError("give --config=FILE.py, or --run=RUN for that run's config and its loss beside the floors")
    require_synthetic(config)
    params = None if run is None else load_params(run)
    found = floors(config, split, params)
    columns = ("objective", "floor, nats", "standard error", "positions", "exact")
    if run is not None:
        columns += ("loss", "above the floor", "standard error", "excess")
    table = Table(title=f"Bayes-optimal losses, {split} split", title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("objective", "exact") else "right")
    reasons = []
    for name, of_one in found.items():
        if isinstance(of_one, str):
            table.add_row(name, "–")
            reasons.append(f"{name}: no floor: {of_one}")
            continue
        cells = [name, f"{of_one.value:.4f}", f"{of_one.standard_error:.4f}", f"{of_one.positions:,}"]
        cells.append("yes" if of_one.exact else "lower bound")
        if of_one.note:
            reasons.append(f"{name}: {of_one.note}")
        if run is not None:
            excess = f"{of_one.above / of_one.value:+.2%}" if of_one.value > 0 else "–"
            cells += [f"{of_one.loss:.4f}", f"{of_one.above:+.4f}", f"{of_one.above_standard_error:.4f}", excess]
        table.add_row(*cells)
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(table)
    for reason in reasons:
        console.print(reason, highlight=False, markup=False, soft_wrap=True)
    return any(isinstance(of_one, Floor) for of_one in found.values())
