"""Floors of experiments, and the distance of runs to them.

A floor is computed on the same views on which a run is evaluated, so loss − floor is a paired difference. Its expectation is
the model's divergence from the true language.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict
from rich.table import Table

from bertlab import progress
from bertlab.config import flatten
from bertlab.console import Console
from bertlab.data.synthetic import language
from bertlab.data.tokenizers import has_whole_words
from bertlab.errors import UserError
from bertlab.floors.chain import Batch, chain_of, words_of
from bertlab.floors.oracle import COUNT, SPECIAL_TOKENS, ExactOracle, floor, relations_of
from bertlab.objectives.base import NoFloor, Vocabulary
from bertlab.objectives.blame import blamed
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.train.build import Experiment, build_pretraining
from bertlab.train.checkpoint import load_params


@dataclasses.dataclass(frozen=True)
class Floor:
    """The Bayes-optimal loss on some rows, and a run's loss on the same.

    Attributes:
        value: nats per supervised position, weighted like the loss.
        standard_error: of `value`, over documents, since positions of one document are dependent; None for one document.
        positions: number of supervised positions, those with a weight.
        exact: whether a model can reach the value; otherwise it is a lower bound.
        note: why it is not exact.
        loss: of the run; None without a run, like the two below.
        above: loss − value.
        above_standard_error: of `above`, from the differences row by row.
    """

    value: float
    standard_error: float | None
    positions: int
    exact: bool
    note: str = ""
    loss: float | None = None
    above: float | None = None
    above_standard_error: float | None = None


def floors(experiment: Experiment | ConfigDict, split: str = "test", params: Any = None) -> dict[str, Floor | str]:
    """The floor of every objective of an experiment, or the reason why it has none.

    Args:
        experiment: an experiment or its config.
        split: "valid" or "test". `config.train.eval_batches` batches of it are used.
        params: parameters of a run; if given, its loss is measured on the same rows.

    Raises:
        UserError: the text is not the synthetic language with one token per word.
    """
    _require_synthetic(experiment if isinstance(experiment, ConfigDict) else experiment.config)
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
    model = language(**{key: value for key, value in config.data.synthetic.items() if key != "documents"})
    chain = chain_of(model, program.vocabulary.size, experiment.tokenizer.encode_words(model.words)[0])
    make_views = jax.jit(program.views)
    row_losses = jax.jit(functools.partial(_row_losses, program))
    rows, found, caveats = {name: [] for name in names}, {}, {name: set() for name in names}
    for index, batch in enumerate(progress.over(batches, "computing the floors", len(batches))):
        views = make_views(batch, jax.random.fold_in(jax.random.key(0), index))  # as build_eval_step's
        losses = None if params is None else jax.device_get(row_losses(params, views))
        views = jax.device_get(views)
        for name, view_name in ((name, view) for view, members in program.groups.items() for name in members):
            if name in found:
                continue
            shown_by = (view_name, names[view_name]) if view_name in names and view_name != name else None
            oracle = ExactOracle(chain, batch, program.vocabulary, relations, views[view_name], shown_by, caveats[name])
            try:
                with blamed(name, names[name], "floor"):
                    nats, weights = floor(names[name], oracle)
            except NoFloor as reason:
                found[name] = str(reason)
                continue
            sums = [of.sum(axis=1) for of in (nats * weights, weights, weights > 0)]
            if losses is not None:
                loss, of_loss = losses[f"{name}/loss"]
                if not np.allclose(of_loss, sums[1], rtol=1e-4):  # sums of float32
                    raise UserError(f"objective {name}: floor() and loss() must give the same weights; these differ in a row")
                sums.append(loss)
            rows[name].append(np.stack(sums, axis=1))
    documents = np.concatenate([batch["example_id"][:, 0] for batch in batches])
    alike, packed = _alike(batches, program.vocabulary), any((batch["documents"] > 1).any() for batch in batches)
    for name, of_one in rows.items():
        if name in found:
            continue
        if not (together := np.concatenate(of_one))[:, 1].any():
            found[name] = f"floor() gives no position of the {split} split a weight above 0"
        else:
            reasons = [] if alike else [SPECIAL_TOKENS, *[COUNT] * packed]
            note = next((reason for reason in reasons if reason in caveats[name]), "")
            found[name] = _summary(together, documents, note)
    return {name: found[name] for name in names}


def _row_losses(program: Program, params, views):
    """`Program.metrics` of each row: {name: (sum, weight)}, each [R]."""
    return jax.vmap(lambda view: program.metrics(params, jax.tree.map(lambda x: x[None], view)))(views)


def _alike(batches: Sequence[Batch], vocabulary: Vocabulary) -> bool:
    """Whether all rows have their special tokens and the ends of their documents at the same places."""
    layouts = np.concatenate([np.where(words_of(b, vocabulary), b["documents"], -b["documents"]) for b in batches])
    layouts = layouts[layouts.any(axis=1)]
    return bool((layouts == layouts[:1]).all())


def _summary(rows: Float[np.ndarray, "R n"], documents: np.ndarray, note: str) -> Floor:
    nats, weights, positions, *loss = rows.T
    value, error = ratio(nats, weights, documents)
    run = {}
    if loss:
        above, above_standard_error = ratio(loss[0] - nats, weights, documents)
        run = {"loss": float(loss[0].sum() / weights.sum()), "above": above, "above_standard_error": above_standard_error}
    return Floor(value, error, int(positions.sum()), not note, note, **run)


def ratio(
    sums: Float[np.ndarray, "R"], weights: Float[np.ndarray, "R"], documents: Int[np.ndarray, "R"]
) -> tuple[float, float | None]:
    """Σ sums / Σ weights and its standard error (None for one document), treating rows of one document as dependent.

    The error is the first-order error of a ratio over clusters: √(n/(n−1) · Σ_document (sum − ratio · weight)²) / Σ weight.
    """
    total = weights.sum()
    value = sums.sum() / total
    real = weights > 0
    residuals = np.bincount(np.unique(documents[real], return_inverse=True)[1], (sums - value * weights)[real])
    number = len(residuals)
    error = float(np.sqrt(number / (number - 1) * (residuals**2).sum()) / total) if number > 1 else None
    return float(value), error


_WORDS = "floors are known only for config.data.tokenizer.kind='words', with one token per word"


def _require_synthetic(config: ConfigDict) -> None:
    """Refuses text whose probabilities are not known."""
    if config.data.corpus != "synthetic":
        raise UserError(f"floors are known only for config.data.corpus='synthetic', not for {config.data.corpus!r}")
    if not config.data.tokenizer.path and not has_whole_words(config.data.tokenizer.kind):
        raise UserError(f"{_WORDS}; set it and config.data.tokenizer.vocab_size={config.data.synthetic.vocab_size + 5}")


def print_floors(config: ConfigDict | None, run: Path | None = None, split: str = "test") -> dict[str, dict[str, Any]]:
    """Prints the floors as a table, with the run's losses if a run is given.

    Returns:
        {"floors": {objective: the fields of `Floor`}, "none": {objective: why it has no floor}}.

    Raises:
        UserError: neither a config nor a run is given, the config differs from the run's, or the text is not synthetic.
    """
    if run is not None:
        theirs = ConfigDict(Run(run).config.read())
        given = {} if config is None else flatten(json.loads(json.dumps(config.to_dict())))
        known = flatten(theirs)
        differ = [k for k, v in given.items() if k.startswith(("data.", "model.", "objectives.")) and known.get(k) != v]
        if differ := [k for k in differ if k not in ("data.directory", "data.workers")]:
            raise UserError(f"--run={run} was trained with a different {differ[0]} than --config has; omit --config")
        config = theirs
    if config is None:
        raise UserError("give --config=FILE.py, or --run=RUN to use that run's config and show its losses next to the floors")
    found = floors(config, split, None if run is None else load_params(run))
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
        exact = "yes" if of_one.exact else "lower bound"
        shown = lambda error: "–" if error is None else f"{error:.4f}"
        cells = [name, f"{of_one.value:.4f}", shown(of_one.standard_error), f"{of_one.positions:,}", exact]
        if of_one.note:
            reasons.append(f"{name}: {of_one.note}")
        if run is not None:
            excess = f"{of_one.above / of_one.value:+.2%}" if of_one.value > 0 else "–"
            cells += [f"{of_one.loss:.4f}", f"{of_one.above:+.4f}", shown(of_one.above_standard_error), excess]
        table.add_row(*cells)
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(table)
    for reason in reasons:
        console.print(reason, highlight=False, markup=False, soft_wrap=True)
    none = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    return {"floors": {name: dataclasses.asdict(of) for name, of in found.items() if name not in none}, "none": none}
