"""Reads the directories of runs and studies into tidy pandas tables, and summarises them over seeds."""

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.studies import statistics
from bertlab.studies.study import COSTS, TRANSFER_COSTS
from bertlab.studies.worker import NO_COSTS, from_scratch
from bertlab.transfer.evaluations import MOST_FREQUENT, TEST_SPLIT, biases_of, read_evaluations

X_AXES = ("step", "tokens", "supervised", "flops", "seconds")
BOOKKEEPING = ("directory", "workers")  # keys of `config.data` that say nothing of what is read


@dataclass(frozen=True)
class Results:
    """Everything that was measured in a study or a single run.

    Attributes:
        path: The directory it was read from.
        study: The content of study.json; for a single run the same keys, without axes. "settled" where the sweep has stopped
            early.
        runs: One row per run: `name`, `variant` (its labels but for the seed; the study's title if all are seeds), a column
            per axis, `trained` (the objectives that it stands on, as in "mlm+nsp"), `status`
            ("finished", "failed", "unfinished"), `error`, the costs (`step`, `parameters`, `tokens`, `supervised`,
            `flops`, `seconds`), `data_hash`, held-out metrics of pretraining such as `valid/mlm/loss` (nats), what stands
            in evaluation.json of the test split (`bits_per_byte/pseudo`; `biases`: names, with spaces between) and of files of
            minimal pairs (`minimal_pairs/pseudo/blimp.jsonl`, 0 to 1), each with its `bits_per_byte_error/pseudo`, and what
            was asked (`text_hash/minimal_pairs/blimp.jsonl`), what stands in floor.json (`floor/mlm` and `above/mlm`, nats;
            `floor_exact/mlm`, else it is a lower bound), test metrics of downstream tasks such as `package/accuracy`
            (0 to 1), those on `valid` (`selected_by/package/accuracy`), and what always the most frequent answer would score
            (`most_frequent/package/accuracy`); `transfer/flops` and `transfer/seconds` of the run's adaptations and
            fine-tunings together. A run of a study whose fine-tunings all begin
            from random values has nothing of the pretraining that they discard but its `parameters`; its other costs are 0.
        metrics: One row per number in a metrics.jsonl: `run`, `variant`, a column per axis, `step`, `split`,
            `tokens`, `supervised`, `flops`, `seconds` (all cumulative), `metric`, `value`; none of a run from random values.
        data_hashes: The chain of batch hashes: `run`, `step`, `data_hash`.
        environments: Run name -> the content of its environment.json.
        first_metrics: Downstream task -> the metric that it is reported by.
        configs: Run name -> the content of its pretraining's config.json.
    """

    path: Path
    study: Mapping[str, Any]
    runs: pd.DataFrame
    metrics: pd.DataFrame
    data_hashes: pd.DataFrame
    environments: Mapping[str, Mapping[str, Any]]
    first_metrics: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the study's axes."""
        return tuple(self.study["axes"])

    @property
    def seed_axes(self) -> tuple[str, ...]:
        """Axes along which runs are repetitions of each other: "seed", or a config name that ends in ".seed"."""
        return seed_axes(self.axes)

    @property
    def variants(self) -> list[str]:
        """What is compared, in the study's order."""
        return list(dict.fromkeys(self.runs["variant"]))


def seed_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Those axes along which runs are repetitions of each other."""
    return tuple(axis for axis in axes if axis.split(".")[-1] == "seed")


def load(path: str | os.PathLike) -> Results:
    """Reads a study's directory or a single run's directory.

    A last line of a metrics.jsonl that was cut off by a kill is left out. Where a resumed run logged a step twice, the
    later line counts.

    Raises:
        UserError: The directory holds neither a study nor a run, or a file in it is damaged (file and line named).
    """
    path = Path(path)
    study, directories = read_study(path)
    single = list(directories.values()) == [path]  # whose own pretraining counts, whatever its fine-tunings begin with
    scratch = {name for run in study["runs"] if not single and discards_pretraining(directories[name := run["name"]], run)}
    trained = study.get("trained", {})
    runs, metrics, hashes, environments, configs = [], [], [], {}, {}
    seeds = seed_axes(tuple(study["axes"]))
    repetitions = bool(seeds) and len(seeds) == len(study["axes"])  # and nothing else: all runs are of one variant
    for run in study["runs"]:
        pretraining = directories[run.get("shares", {}).get("pretrain", run["name"])]
        labels = {axis: run["labels"].get(axis, "") for axis in study["axes"]}
        variant = ", ".join(label for axis, label in labels.items() if label and axis not in seeds)
        variant = variant or (study["title"] if repetitions else run["name"])
        identity = {"variant": variant, **labels}
        lines = [] if run["name"] in scratch else read_metrics(pretraining / "metrics.jsonl")
        outcome = read_outcome(directories[run["name"]], run, pretraining, run["name"] in scratch)
        config = read_json(pretraining / "config.json") if (pretraining / "config.json").exists() else {}
        row = {
            "name": run["name"],
            **identity,
            "trained": "" if run["name"] in scratch else trained.get(run["name"], trained_objectives(config)),
            **outcome,
        }
        if lines and row["step"] is None:
            row |= {key: lines[-1].get(key) for key in X_AXES}
        runs.append(row)
        for line in lines:
            place = {"step": line["step"], "split": line["split"]} | {key: line.get(key) for key in X_AXES[1:]}
            metrics += [
                {"run": run["name"], **identity} | place | {"metric": key, "value": value}
                for key, value in line.items()
                if key not in place and isinstance(value, int | float)
            ]
            if "data_hash" in line:
                hashes.append({"run": run["name"], "step": line["step"], "data_hash": line["data_hash"]})
        if row["data_hash"] and row["step"] is not None:
            hashes.append({"run": run["name"], "step": row["step"], "data_hash": row["data_hash"]})
        if config:
            configs[run["name"]] = config
        if (pretraining / "environment.json").exists():
            environments[run["name"]] = read_json(pretraining / "environment.json")
    for row, run in zip(runs, study["runs"], strict=True):
        averaged = [other for other in runs if other["name"] in run.get("averages", ())]
        if averaged and all(other["step"] is not None for other in averaged):
            row |= {key: sum(other.get(key) or 0 for other in averaged) for key in (*COSTS, *TRANSFER_COSTS)}

    if all(row["status"] == "finished" for row in runs):
        study.pop("settled", None)  # the runs that were left out then were run since
    metric_columns = ["run", "variant", *study["axes"], "step", "split", *X_AXES[1:], "metric", "value"]
    results = Results(
        path=path,
        study=study,
        runs=pd.DataFrame(runs),
        metrics=pd.DataFrame(metrics, columns=metric_columns),
        data_hashes=pd.DataFrame(hashes, columns=["run", "step", "data_hash"]).drop_duplicates(),
        environments=environments,
        first_metrics=read_first_metrics(directories.values(), study["downstream"]),
        configs=configs,
    )
    for table, columns in ((results.runs, COSTS), (results.metrics, (*X_AXES, "value"))):
        for column in columns:
            table[column] = pd.to_numeric(table[column])
    return results


def read_study(path: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """What study.json says, and each run's directory; of a single run the same keys, without axes.

    "settled" is what a sweep has noted that stopped early.

    Raises:
        UserError: The directory holds neither a study nor a run.
    """
    if (path / "study.json").exists():
        study = read_json(path / "study.json")
        if (path / "settled.json").exists():
            study["settled"] = read_json(path / "settled.json")
        return study, {run["name"]: path / run["name"] for run in study["runs"]}
    if not ((path / "config.json").exists() or (path / "metrics.jsonl").exists()):
        raise UserError(
            f"{path}: there is neither a study (study.json) nor a run (config.json, metrics.jsonl) here; "
            "give the --workdir of a sweep or of a run"
        )
    tasks = sorted(p.name for p in (path / "finetune").glob("*") if p.is_dir())
    name = path.resolve().name
    run = {"name": name, "labels": {}, "config": "", "overrides": {}, "downstream": tasks}
    said = {"name": name, "title": f"Run {name}", "question": "", "command": "", "axes": {}}
    return said | {"downstream": tasks, "runs": [run]}, {name: path}


def trained_objectives(config: Mapping[str, Any]) -> str:
    """The objectives that are in a pretraining's loss, in alphabetical order: "mlm+nsp"."""
    entries = config.get("objectives", {}).items()
    return "+".join(sorted(name for name, entry in entries if entry.get("weight") or entry.get("final_weight")))


def discards_pretraining(directory: Path, run: Mapping[str, Any]) -> bool:
    """Whether all fine-tunings of a study's run begin from random values; an average has the costs of what it averages.

    What a fine-tuning began with stands in its config.json; before it begins, the study's settings say it.
    """

    tasks = run["downstream"]
    settings_of = tasks if isinstance(tasks, Mapping) else {}  # names alone have none

    def at_random(task: str) -> bool:
        path = directory / "finetune" / task / "config.json"
        if path.exists():
            return bool(read_json(path).get("transfer", {}).get("random"))
        return str(settings_of.get(task, {}).get("transfer.random")).lower() == "true"

    return not run.get("averages") and from_scratch(map(at_random, tasks))


def read_outcome(directory: Path, run: Mapping[str, Any], pretraining: Path, scratch: bool = False) -> dict[str, Any]:
    """The columns of `Results.runs` that come from a run's result files, and those of the pretraining that it stands on.

    Args:
        directory: The run's.
        run: Its entry in study.json.
        pretraining: The directory of its pretraining.
        scratch: Whether the run discards that: nothing of it counts then but its parameters.
    """
    failed = directory / "failed.txt"
    row: dict[str, Any] = {"status": "finished", "error": "", "data_hash": "", "biases": ""} | dict.fromkeys(COSTS)
    missing = not ((pretraining / "result.json").exists() or run.get("averages"))
    if not scratch and (pretraining / "floor.json").exists():
        for objective, floor in read_json(pretraining / "floor.json").items():
            row |= {f"floor/{objective}": floor["value"], f"above/{objective}": floor["above"]}
            row |= {f"above_error/{objective}": floor["above_standard_error"], f"floor_exact/{objective}": floor["exact"]}
    if not scratch and (pretraining / "evaluation.json").exists():
        row |= _likelihoods(read_evaluations(pretraining / "evaluation.json"))
    if (pretraining / "result.json").exists():
        result = read_json(pretraining / "result.json")
        row |= {key: result.get(key) for key in COSTS}
        if not scratch:
            row["data_hash"] = result.get("data_hash") or ""
            for split, values in result["metrics"].items():
                row |= {f"{split}/{metric}": value for metric, value in values.items()}
    row |= NO_COSTS if scratch else {}
    for task in run["downstream"]:
        path = directory / "finetune" / task / "result.json"
        if not path.exists():
            missing = True
            continue
        named = lambda metric, task=task: metric if metric.startswith(f"{task}/") else f"{task}/{metric}"
        metrics = read_json(path)["metrics"]
        row |= {named(metric): value for metric, value in metrics.get("test", {}).items()}
        row |= {f"selected_by/{named(metric)}": value for metric, value in metrics.get("valid", {}).items()}
        if (path.parent / MOST_FREQUENT).exists():
            scores = read_json(path.parent / MOST_FREQUENT).get("test", {})
            row |= {f"most_frequent/{metric}": value for metric, value in scores.items()}
    row |= {} if run.get("averages") else transfer_costs(directory, run)
    if missing:
        row["status"] = "unfinished"
        if failed.exists():
            row |= {"status": "failed", "error": failed.read_text(encoding="utf-8").strip()}
    return row


def transfer_costs(directory: Path, run: Mapping[str, Any]) -> dict[str, float]:
    """TRANSFER_COSTS of a run, an adaptation that it shares included; nothing where no stage of them is finished."""
    adapted = directory.parent / run.get("shares", {}).get("adapt", directory.name) / "adapt"
    files = [stage / task / "result.json" for task in run["downstream"] for stage in (adapted, directory / "finetune")]
    spent = [of for of in (read_json(file) for file in files if file.exists()) if "flops" in of]
    return (
        dict(zip(TRANSFER_COSTS, (sum(of[key] for of in spent) for key in ("flops", "seconds")), strict=True)) if spent else {}
    )


def read_first_metrics(directories: Iterable[Path], downstream: Sequence[str]) -> dict[str, str]:
    """The metric that each downstream task is reported by, as the first run that has one says."""
    found = {}
    for directory, task in itertools.product(directories, downstream):
        path = directory / "finetune" / task / "config.json"
        if task not in found and path.exists():
            metrics = read_json(path).get("metrics") or {}
            found |= {task: next(iter(metrics.values()))} if metrics else {}
    return found


def _likelihoods(evaluations: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that come from evaluation.json: bits per byte of the test split, and minimal pairs of every file."""
    of_split = evaluations.get("bits_per_byte", {}).get(TEST_SPLIT, {})
    row = {"biases": " ".join(biases_of(of_split.values())), f"text_hash/bits_per_byte/{TEST_SPLIT}": _hashes(of_split)}
    for kind, found in of_split.items():
        row |= {f"bits_per_byte/{kind}": found["value"], f"bits_per_byte_error/{kind}": found["standard_error"]}
    for source, by_kind in evaluations.get("minimal_pairs", {}).items():
        row[f"text_hash/minimal_pairs/{source}"] = _hashes(by_kind)
        for kind, found in by_kind.items():
            row[f"minimal_pairs/{kind}/{source}"] = found["accuracy"]
            row[f"minimal_pairs_error/{kind}/{source}"] = found["standard_error"]
    return row


def _hashes(by_kind: Mapping[str, Any]) -> str:
    """What the kinds were asked about: more than one hash, with spaces between, where it was not the same."""
    return " ".join(sorted({found["text_hash"] for found in by_kind.values()}))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl in order of step; an unfinished last line is left out.

    Raises:
        UserError: Another line is not a JSON object with "step" and "split".
    """
    if not path.exists():
        return []
    lines = {}
    raw_lines = path.read_bytes().split(b"\n")
    for number, raw in enumerate(raw_lines, 1):
        if not raw.strip():
            continue
        try:
            line = json.loads(raw.decode("utf-8"))
            lines[line["step"], line["split"]] = line
        except (ValueError, KeyError, TypeError) as error:
            if number == len(raw_lines):  # no newline after it: the writer was killed here
                break
            raise UserError(
                f'{path}:{number}: not a JSON object with "step" and "split" ({error}); delete the line, '
                "or the run's directory to run it again"
            ) from error
    return sorted(lines.values(), key=lambda line: line["step"])


def is_score(column: str, downstream: list[str]) -> bool:
    """Whether a column of `Results.runs` is a downstream test metric of which more is better."""
    task, _, metric = column.partition("/")
    return task in downstream and not metric.endswith(("loss", "perplexity"))


def primary_metric(results: Results, task: str) -> str | None:
    """The column that stands for a task in tables: its first metric; in runs that do not say, F1, else accuracy."""
    columns = [c for c in results.runs.columns if c.startswith(f"{task}/") and is_score(c, [task])]
    if known := [c for c in columns if c.endswith(f"/{results.first_metrics.get(task)}")]:
        return known[0]
    ranked = [f"{task}/{metric}" for metric in ("f1", "accuracy") if f"{task}/{metric}" in columns]
    return (ranked + columns + [None])[0]


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean and spread over the seeds of each variant, of finished runs.

    Args:
        runs: `Results.runs`.

    Returns:
        One row per variant and numeric column, in the order of `runs`: `variant`, `metric`, `mean`, `sd` (between seeds,
        ddof = 1; NaN for one), `seeds` (those that have the metric), `runs` (more where fine-tuning seeds are nested in
        pretraining seeds: a pretraining seed then counts once, with its mean over them).
    """
    is_number = lambda column: pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    numeric = [c for c in runs.columns if c in COSTS or ("/" in c and is_number(runs[c]))]
    outer, _ = nesting(runs)
    finished = runs[runs["status"] == "finished"]
    values = finished[numeric].astype(float).replace([np.inf, -np.inf], np.nan)
    names = finished["variant"]
    over_seeds = values.groupby([names, *(finished[axis] for axis in outer)], sort=False).mean().groupby("variant", sort=False)
    found = {"mean": over_seeds.mean(), "sd": over_seeds.std(), "seeds": over_seeds.count()}
    found["runs"] = values.groupby(names, sort=False).count()
    tidy = pd.concat({statistic: of.stack() for statistic, of in found.items()}, axis=1).rename_axis(["variant", "metric"])
    return tidy[tidy["seeds"] > 0].astype({"seeds": int, "runs": int}).reset_index()


def nesting(runs: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Columns of seeds: of pretraining, and of fine-tuning nested in them; fine-tuning's alone are nested in nothing."""
    outer = pretraining_seeds(tuple(runs.columns))
    nested = [axis for axis in seed_axes(tuple(runs.columns)) if axis not in outer]
    return (outer, nested) if outer else (nested, [])


def pretraining_seeds(columns: tuple[str, ...]) -> list[str]:
    """The columns of seeds that are not of fine-tuning alone."""
    return [axis for axis in seed_axes(columns) if not axis.startswith("finetune.")]


def by_seed(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One variant's values of a column: a row a pretraining seed, a column a fine-tuning seed nested in it.

    Where there is one kind of seeds these are the rows, and there is one column. Runs that are not finished, and values that
    are not finite, are NaN.
    """
    values = runs[metric].where(runs["status"] == "finished").astype(float)
    outer, nested = nesting(runs)
    rows = (
        [" ".join(labels) for labels in runs[outer].itertuples(index=False)]
        if outer
        else [str(run) for run in range(len(runs))]
    )
    columns = [" ".join(labels) for labels in runs[nested].itertuples(index=False)]
    table = pd.DataFrame({"row": rows, "column": columns, "value": values.where(np.isfinite(values))})
    return table.pivot(index="row", columns="column", values="value")


def scores_by_seed(results: Results, metric: str, variant: str) -> pd.DataFrame:
    """`by_seed` of a variant of a study.

    Raises:
        UserError: there is no such column or variant, or the column holds no numbers.
    """
    if metric not in results.runs:
        scores = ", ".join(c for c in results.runs.columns if c.partition("/")[0] in results.study["downstream"])
        raise UserError(f"no run in {results.path} has '{metric}'; it has {scores or 'no downstream scores'}")
    if any(isinstance(value, str) for value in results.runs[metric]):
        raise UserError(f"{results.path}: column '{metric}' holds no numbers; give a column of scores or costs")
    if variant not in results.variants:
        raise UserError(f"{results.path} has no variant '{variant}'; it has {', '.join(results.variants)}")
    return by_seed(results.runs[results.runs["variant"] == variant], metric)


def curves(results: Results) -> pd.DataFrame:
    """`Results.metrics` of finished runs, of others only where none of their variant is; each pretraining by one variant."""
    finished = set(results.runs.loc[results.runs["status"] == "finished", "name"])
    variants = set(results.runs.loc[results.runs["status"] == "finished", "variant"])
    kept = results.metrics[results.metrics["run"].isin(finished) | ~results.metrics["variant"].isin(variants)]
    return kept[~kept["variant"].isin(shared_curves(results))]


def shared_curves(results: Results) -> dict[str, str]:
    """Variants that share all their pretrainings with one that is drawn, and which: their curves would hide each other.

    Not those from random values, which stand on no pretraining.
    """
    variant_of = results.runs.set_index("name")["variant"]
    owners = {run["name"]: run.get("shares", {}).get("pretrain", run["name"]) for run in results.study["runs"]}
    finished = results.runs[(results.runs["status"] == "finished") & (results.runs["step"] > 0)]
    found = {}
    for variant, runs in finished.groupby("variant", sort=False):
        of = {owners[name] for name in runs["name"]}
        drawn = set(finished["name"]) & of
        if drawn == of and not of & set(runs["name"]) and len(others := set(variant_of[list(of)])) == 1:
            found[variant] = others.pop()
    return found


def bounds(metric: str) -> tuple[float, float]:
    """The lowest and highest value that a score can have: of shares, of correlations, and of others none."""
    name = metric.rsplit("/", 1)[-1]
    if name.endswith(("accuracy", "f1", "precision", "recall", "exact_match")):
        return 0.0, 1.0
    return (-1.0, 1.0) if name.endswith(("correlation", "matthews", "mcc", "pearson", "spearman")) else (-math.inf, math.inf)


@dataclass(frozen=True)
class Difference:
    """Variant minus variant in one metric.

    Attributes:
        mean: Of the differences of `pairs` seeds that both have; without any, the difference of the means.
        low, high: The interval: Student's over the pairs (Welch's without any), or, where fine-tuning seeds are nested in
            pretraining seeds, the multi-bootstrap's; cut where differences of the metric end. NaN where nothing varies.
        p: Of the paired t test (Welch's); NaN where there is none.
        pairs: Seeds (of pretraining, if there are such) that both have.
        sd: Standard deviation of the differences, of each seed's mean over fine-tunings; NaN without pairs.
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int
    sd: float

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def difference(results: Results, metric: str, variant: str, other: str, level: float = 0.95) -> Difference:
    """Compares two variants in one column of `Results.runs`, seed by seed, over finished runs.

    Seeds that only one of the two has are left out; if they have none in common, they are compared as independent samples.

    Args:
        results: The study.
        metric: The column.
        variant, other: Their names.
        level: Coverage of the interval, for one comparison; of m at once, ask for 1 - 0.05/m (Bonferroni).

    Raises:
        UserError: there is no such column or variant, the column holds no numbers, or there are fewer than two seeds to
            compare: one seed is never compared with one seed.
    """
    names = (variant, other)
    tables, pairs = _tables_of(results, metric, names)
    ours, theirs = (table.mean(axis=1) for table in tables)
    lowest, highest = bounds(metric)
    within = lambda found: (max(found.low, lowest - highest), min(found.high, highest - lowest))
    if any(table.shape[1] > 1 for table in tables):
        found = statistics.multi_bootstrap(*tables, names=names, level=level)
        return Difference(found.mean, *within(found), math.nan, pairs, (ours - theirs).std())
    found = statistics.compare_variants(ours, theirs, names, level)
    return Difference(found.mean, *within(found), found.p, found.pairs, found.sd)


def comparable(results: Results, metric: str, variant: str, other: str) -> bool:
    """Whether `difference` can compare the two: two seeds in common, or two of each and none in common."""
    tables, _ = _tables_of(results, metric, (variant, other))
    return min(map(len, tables)) > 1


def _tables_of(results: Results, metric: str, names: tuple[str, str]) -> tuple[list[pd.DataFrame], int]:
    """Both variants' scores of the seeds that they have in common, and how many those are; without any, all scores and 0."""
    tables = [scores_by_seed(results, metric, name).dropna(how="all") for name in names]
    pairs = tables[0].index.intersection(tables[1].index)
    return ([table.loc[pairs] for table in tables] if len(pairs) else tables), len(pairs)


def compare_data(results: Results) -> tuple[dict[str, str], list[str]]:
    """Whether runs with the same seed and the same settings of the data read the same tokens in the same order.

    Such runs are compared by their hash chains at the last step that all of them logged; runs of zero steps read nothing and
    are left out.

    Returns:
        The common hash of such runs where all agree (key: "seed 1", or "all runs" in a study without seeds; with the variants
        in parentheses where settings of the data differ between variants), and a sentence for each where they do not.
    """
    same, problems = {}, []
    for where, runs in _reading_alike(results):
        chains = {
            name: results.data_hashes[results.data_hashes["run"] == name]
            .drop_duplicates("step", keep="last")
            .set_index("step")["data_hash"]
            for name in runs["name"]
        }
        chains = {name: chain for name, chain in chains.items() if len(chain)}
        if not chains:
            continue
        common = set.intersection(*(set(chain.index) for chain in chains.values()))
        if not common:
            problems.append(f"{where}: the runs logged no step in common, so their data cannot be compared")
            continue
        step = max(common)
        hashes = {name: chain[step] for name, chain in chains.items()}
        if len(set(hashes.values())) == 1:
            same[where] = next(iter(hashes.values()))
        else:
            listing = "; ".join(
                f"{value[:12]}… in {', '.join(name for name in hashes if hashes[name] == value)}"
                for value in dict.fromkeys(hashes.values())
            )
            problems.append(f"{where}: data_hash at step {step:,} is {listing}")
    return same, problems


def _reading_alike(results: Results) -> Iterator[tuple[str, pd.DataFrame]]:
    """The trained runs that ought to read the same, of one seed and with the same settings of the data, and what they are."""
    seeds = list(results.seed_axes)
    trained = results.runs[(results.runs["status"] == "finished") & (results.runs["step"] > 0)]
    for labels, of_seed in trained.groupby(seeds, sort=False) if seeds else [((), trained)]:
        where = ", ".join(f"{axis} {label}" for axis, label in zip(seeds, labels, strict=True)) or "all runs"
        groups = of_seed.groupby([_data_settings(results.configs.get(name, {})) for name in of_seed["name"]], sort=False)
        for _, runs in groups:
            yield where if len(groups) == 1 else f"{where} ({', '.join(dict.fromkeys(runs['variant']))})", runs


def _data_settings(config: Mapping[str, Any]) -> str:
    """What of a config decides the text that is read, as one string."""
    data = {key: value for key, value in config.get("data", {}).items() if key not in BOOKKEEPING}
    return json.dumps(data, sort_keys=True)


def compare_texts(results: Results) -> list[str]:
    """A sentence for each source of bits per byte or minimal pairs that is not the same texts in all finished runs."""
    finished = results.runs[results.runs["status"] == "finished"]
    problems = []
    for column in (c for c in finished.columns if c.startswith("text_hash/")):
        runs_of: dict[str, list[str]] = {}
        for name, hashes in finished.set_index("name")[column].dropna().items():
            for text_hash in hashes.split():
                runs_of.setdefault(text_hash, []).append(name)
        if len(runs_of) > 1:
            _, measure, source = column.split("/", 2)
            listing = "; ".join(f"{text_hash[:12]}… in {', '.join(names)}" for text_hash, names in runs_of.items())
            what = {"bits_per_byte": "Bits per byte", "minimal_pairs": "Minimal pairs"}[measure]
            of = "the test split" if source == TEST_SPLIT else source
            problems.append(f"{what} of {of}: these numbers are of different texts and do not compare: {listing}.")
    return problems
