"""Whether the runs of a study read the same text in training, and were asked about the same texts in evaluation."""

import json
from collections.abc import Iterator, Mapping

import pandas as pd

from bertlab import checksums, keys
from bertlab.config import flatten
from bertlab.run import Run
from bertlab.studies.curves import trained_runs
from bertlab.studies.measurements import Results, once
from bertlab.train.sources import INIT_FROM, in_words

WEIGHTS = ("weight", "final_weight")  # settings of an objective that its own loss does not have
BOOKKEEPING = ("directory", "workers")  # keys of `config.data` that do not change what is read


@once
def compare_data(results: Results) -> tuple[dict[str, str], list[str]]:
    """Whether runs with the same seed and the same data settings read the same tokens in the same order.

    They are compared by their hash chains at the last step that all of them logged. Runs of zero steps are left out.

    Returns:
        The common hash where all runs agree (key: "seed 1", or "all runs" in a study without seeds, with the variants in
        parentheses if data settings differ between variants), and a sentence for each disagreement.
    """
    same, problems, hashes_of = {}, [], {}
    for name, step, data_hash in zip(*(column.tolist() for _, column in results.data_hashes.items()), strict=True):
        hashes_of.setdefault(name, {})[step] = data_hash
    for where, runs in _reading_alike(results):
        chains = {name: hashes_of[name] for name in runs["run"] if name in hashes_of}
        if not chains:
            continue
        common = set.intersection(*(set(chain) for chain in chains.values()))
        if not common:
            problems.append(f"{where}: the runs logged no common step, so their data cannot be compared")
            continue
        step = max(common)
        hashes = {name: chain[step] for name, chain in chains.items()}
        if len(set(hashes.values())) == 1:
            same[where] = next(iter(hashes.values()))
        else:
            problems.append(f"{where}: data_hash at step {step:,} is {_listing(hashes)}")
    return same, problems


@once
def unlike_losses(results: Results) -> dict[str, list[str]]:
    """Objective -> the config keys in which its trained runs differ, so that its losses ask different questions.

    They are its own settings, those of the tokenizer, and the format with its settings. Objectives whose losses compare are
    left out. Two tokenizers are the same if their files are; of results without these the settings count.
    """
    trained = trained_runs(results)
    files = {run: _tokenizer(results, run) for run in trained["run"]}
    found: dict[str, list[str]] = {}
    for objective in dict.fromkeys(name for config in results.configs.values() for name in config.get("objectives", {})):
        asked = {}
        for run, config in results.configs.items():
            if run in files and objective in config.get("objectives", {}):
                own, data = config["objectives"][objective], config.get("data", {})
                own = {key: value for key, value in own.items() if key not in WEIGHTS}
                settings = {key: value for key, value in data.get("tokenizer", {}).items() if key != "path"}
                data = {key: data[key] for key in ("format", data.get("format")) if key in data}
                asked[run] = {f"objectives.{objective}": own, "data": data | {"tokenizer": settings}}
        known = all(files[run] for run in asked)
        flat = [flatten(of) for of in asked.values()]
        keys_of = (key for of in flat for key in of if not (known and key.startswith("data.tokenizer.")))
        values = {key: {json.dumps(of.get(key)) for of in flat} for key in dict.fromkeys(keys_of)}
        differ = [key for key, of in values.items() if len(of) > 1]
        # Seeds may have tokenizers of their own, learned from other texts.
        runs, seeds = trained[trained["run"].isin(asked)], list(results.seed_axes)
        by_seed = [of["run"] for _, of in runs.groupby(seeds, sort=False)] if seeds else [runs["run"]]
        if known and any(len({files[run] for run in of}) > 1 for of in by_seed):
            differ.append("data.tokenizer")
        if differ:
            found[objective] = differ
    return found


def _tokenizer(results: Results, run: str) -> str:
    """The digests of the files of a run's tokenizer; "" if it was published without them."""
    entries = checksums.entries_in(results.path / run) or {}
    files = {name: of for name, of in entries.items() if name.startswith("tokenizer/")}
    return json.dumps(files, sort_keys=True) if files else ""


WHAT = {
    "bits_per_byte": "Bits per byte",
    "minimal_pairs": "Minimal pairs",
    "babylm": "BabyLM's scores",
    "similarity": "Similarities of words",
    "analogies": "Analogies",
    "scores": "Test scores",
}


def compare_texts(results: Results) -> list[str]:
    """A sentence for each text that was scored, pairs or questions included, and differs between finished runs."""
    problems = []
    table = results.text_hashes[results.text_hashes["run"].isin(results.finished["run"])]
    measured = table["metric"].map(lambda metric: metric.partition("/")[0])  # the kinds are compared with each other
    for (source, measure), rows in table.groupby(["task", measured], sort=False):
        if rows["text_hash"].nunique() > 1:
            what = WHAT[measure]
            of = source or "the test split"
            by_text = rows.groupby("text_hash", sort=False)["run"]
            listing = "; ".join(f"{text_hash[:12]}… in {', '.join(runs.unique())}" for text_hash, runs in by_text)
            problems.append(f"{what} of {of} were measured on different texts and are not comparable: {listing}.")
    return problems


def compare_sources(results: Results) -> list[str]:
    """A sentence for each text, example or run to start from that differs between runs which differ in seeds only.

    Of the examples of test, `compare_texts` speaks, whatever the runs differ in.
    """
    finished, problems = {*results.finished["run"]}, []
    read: dict[tuple[str, str], dict[str, str]] = {}
    variant_of = dict(zip(results.runs["run"], results.runs["variant"], strict=True))
    stands = {run["name"] for run in results.study["runs"] if str(run.get("config", "")).startswith("run:")}
    for (name, task), known in results.sources.items():
        for source, value in known.items() if name in finished else ():
            # Each run of a study fine-tunes its own pretraining, unless the study stands on an existing run.
            if not source.endswith("/test") and (source != INIT_FROM or not task or name in stands):
                read.setdefault((task, source), {})[name] = value
    for (task, source), values in read.items():
        if len({*values.values()}) == 1:
            continue
        alike: dict[tuple[str, str], dict[str, str]] = {}
        for name, value in values.items():
            same = (variant_of[name] if task else "", _settings(results, name, task, shared=name in stands))
            alike.setdefault(same, {})[name] = value
        for runs in alike.values():
            if len({*runs.values()}) > 1:
                problems.append(
                    f"Runs that differ in seeds only do not have the same here: {in_words(source)} ({_listing(runs)}). So their"
                    " mean and spread are of different things."
                )
    return problems


def _settings(results: Results, name: str, task: str, shared: bool) -> str:
    """What decides a run's stage, but for seeds.

    Args:
        results: Of the study.
        name: The run.
        task: Of its fine-tuning; "" for the pretraining.
        shared: Whether all seeds fine-tune one run, not each its own.
    """
    config = Run(results.path / name).stage("finetune", task).config.get({}) if task else results.configs.get(name, {})
    own = () if shared or not task else ("init_from",)
    free = lambda key: key in ("seed", "data.seed", *own) or keys.has("on_resume", key)
    return json.dumps({key: value for key, value in flatten(config).items() if not free(key)}, sort_keys=True, default=str)


def _reading_alike(results: Results) -> Iterator[tuple[str, pd.DataFrame]]:
    """Groups of trained runs with the same seed and data settings, each with its name."""
    seeds, trained = list(results.seed_axes), trained_runs(results)
    for labels, of_seed in trained.groupby(seeds, sort=False) if seeds else [((), trained)]:
        where = ", ".join(f"{axis} {label}" for axis, label in zip(seeds, labels, strict=True)) or "all runs"
        data = [results.configs.get(name, {}).get("data", {}) for name in of_seed["run"]]
        read = [json.dumps({key: of[key] for key in sorted(of) if key not in BOOKKEEPING}) for of in data]
        groups = of_seed.groupby(read, sort=False)
        for _, runs in groups:
            yield where if len(groups) == 1 else f"{where} ({', '.join(dict.fromkeys(runs['variant']))})", runs


def _listing(hashes: Mapping[str, str]) -> str:
    """ "0123… in a, b; 4567… in c" of run name -> hash."""
    runs_of: dict[str, list[str]] = {}
    for name, value in hashes.items():
        runs_of.setdefault(value, []).append(name)
    return "; ".join(f"{value[:12]}… in {', '.join(names)}" for value, names in runs_of.items())
