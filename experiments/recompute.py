"""Recomputes the numbers of published studies from their raw lines, and compares them with the
pages to the last printed digit. Shares no code with bertlab: written from docs/statistics.md.

python experiments/recompute.py [FOLDER]

Scores, differences, selected labels, bits per byte and the counts in the list of studies are
recomputed; costs, warnings, intervals of bits per byte and numbers in sentences are not.
"""

import base64
import json
import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import scipy.stats
import zstandard

BITS = "Bits per byte of held-out text"
BASELINES = {"always the most frequent answer": "most_frequent"}
BASELINES["a linear model on n-grams, as many labels"] = "linear"
UNFINISHED = {"scores": {"valid": {"loss": math.inf}, "test": {}}}


def read(path: Path) -> dict:
    """study.json, with `records`: {(run, stage, task): finished stage}."""
    text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().decode()
    study, *lines = (json.loads(line) for line in text.strip().split("\n"))
    study["records"] = {(of["run"], of["stage"], of["task"]): of for of in lines if of["finished"]}
    for record in study["records"].values():  # an evaluation's scores are its pretraining's
        scores = record["scores"].setdefault("test", {})
        scores |= record.get("evaluation", {}).get("test", {})
        for name, stage in BASELINES.items():
            found = record.get(stage, {}).get("test", {}).items()
            scores |= {f"{name}/{metric}": value for metric, value in found}
    return study


def select(study: dict, task: str, metric: str) -> dict:
    """{variant: (labels selected on valid, {pretraining seed: [(score, by sentence)]} on test)};
    without a task of all pretrainings."""
    stage, axes = ("finetune", study["select"]) if task else ("pretrain", [])
    nested = [axis for axis in study["seed_axes"] if not axis.startswith("finetune.")]
    groups, chosen = defaultdict(lambda: defaultdict(list)), {}
    for run in study["runs"]:
        owner = run["shares"].get(stage, run["name"])
        record = study["records"].get((owner, stage, task), UNFINISHED)
        if metric in record["scores"]["test"]:
            labels = tuple(run["labels"].get(axis, "") for axis in axes)
            groups[run["variant"]][labels].append((run, record))
    for variant, by_labels in groups.items():
        ranks = {}  # labels with fewer failed runs come first, then those with the better mean
        for labels, runs in by_labels.items():
            valid = [of["scores"].get("valid", {}).get(metric, 0.0) for _, of in runs]
            ranks[labels] = len(valid), np.mean(valid)
        labels, seeds = max(ranks, key=ranks.get), defaultdict(list)
        for run, of in by_labels[labels]:
            seed = tuple(run["labels"].get(axis, "") for axis in nested or study["seed_axes"])
            score = of["scores"]["test"][metric]
            seeds[seed].append((score, sentences(of["correct"].get("test", {}), score)))
        chosen[variant] = labels, seeds
    return chosen


def sentences(answers: dict, score: float) -> np.ndarray | None:
    """What each test sentence adds; their mean is the score. None if it is no such mean."""
    if "sizes" not in answers:
        return None
    data = np.frombuffer(base64.b64decode(answers["bits"]), np.uint8)
    right = np.cumsum(np.unpackbits(data)[: answers["items"]], dtype=float)
    by_sentence = np.diff(right[np.cumsum(answers["sizes"]) - 1], prepend=0.0)
    by_sentence *= len(answers["sizes"]) / answers["items"]
    return by_sentence if abs(by_sentence.mean() - score) < 1e-6 else None


def two_way(differences: np.ndarray) -> tuple:
    """(seeds, mean, low, high, p) of [seeds, sentences], both drawn: a crossed design."""
    seeds, items = differences.shape
    mean, centred = differences.mean(), differences - differences.mean()
    squares = [items * (centred.mean(1) ** 2).sum(), seeds * (centred.mean(0) ** 2).sum()]
    squares = np.array([*squares, (centred**2).sum() - sum(squares)])
    freedom = np.array([seeds - 1, items - 1, (seeds - 1) * (items - 1)])
    parts = squares / freedom * [1, 1, -1] / differences.size
    variance = max(parts.sum(), parts.max())
    if variance <= 0:
        return seeds, mean, math.nan, math.nan, 2 / 2**seeds if mean else 1.0
    student = scipy.stats.t(variance**2 / (parts**2 / freedom).sum(), scale=math.sqrt(variance))
    return seeds, mean, *(mean + student.ppf([0.025, 0.975])), 2 * student.sf(abs(mean))


def difference(ours: dict, theirs: dict) -> tuple | None:
    """(pairs, mean, low, high, p) of two variants' {seed: runs}; None with too few seeds."""
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if len(pairs) < 2:
        return None
    if all(row is not None for of in (ours, theirs) for runs in of.values() for _, row in runs):
        rows = [[np.mean([row for _, row in runs], 0) for runs in pair] for pair in pairs]
        return two_way(np.array([first - second for first, second in rows]))
    scores = np.array([[np.mean([score for score, _ in runs]) for runs in pair] for pair in pairs])
    mean, resolution = np.mean(scores[:, 0] - scores[:, 1]), 1e-6 * np.abs(scores).max()
    if np.ptp(scores[:, 0] - scores[:, 1]) <= resolution:  # then p is a permutation test's
        p = 2 / 2 ** len(pairs) if abs(mean) > resolution else 1.0
        return len(pairs), mean, math.nan, math.nan, p
    test = scipy.stats.ttest_rel(*scores.T)
    return len(pairs), mean, *test.confidence_interval(0.95), test.pvalue


def at_edge(study: dict, chosen: dict) -> set:
    """Variants with a selected rate that is the lowest or highest tried."""
    found = set()
    for search in study.get("searches", ()):
        tried, rates = [], search["candidates"].values()
        for name, rate in search["candidates"].items():
            record = study["records"].get((name, "pretrain", ""), UNFINISHED)
            tried.append((record["scores"]["valid"]["loss"], rate))
        if min(tried)[1] in (min(rates), max(rates)):
            found |= {of["variant"] for of in study["runs"] if of["name"] in search["runs"]}
    for variant, (labels, _) in chosen.items():
        grids = [sorted(study["axes"][axis], key=float) for axis in study["select"]]
        edges = [label in (rates[0], rates[-1]) for label, rates in zip(labels, grids)]
        if any(edges) or (study["tasks"] and not grids):  # an only rate is the lowest one
            found.add(variant)
    return found


def differences(study: dict, place: str, digits: int, chosen: dict, cells: dict) -> tuple:
    """({cell: text}, [(low, high, verdict) of the claims]) on a task. A claim about some kinds of
    tasks counts if the page has it: raw lines do not name a task's kind."""
    values, edges, is_task = {}, at_edge(study, chosen), place in study["tasks"]
    contrasts, claims, findings = [tuple(pair) for pair in study["contrasts"]], [], []
    counted = set()  # on the first page
    for claim in study["claims"]:
        pair = claim["higher"], claim["lower"]
        if not place.endswith(tuple(claim.get("uses") or [""])):
            continue
        old = study.get("version") == ["0.1.0"] and re.match("trec|sst2", place)  # cut, not counted
        if not old and re.search(r"\d", claim["published"]):
            counted.add(pair)
        if not claim["kinds"] or ("Differences", f"{place}: {' − '.join(pair)}", "pairs") in cells:
            claims.append(pair)
    if not study["claims"] and not contrasts:
        contrasts = [(name, next(iter(chosen))) for name in [*chosen][1:]]
    for family in (contrasts, claims):  # a pair in both is a claim
        pairs = [pair for pair in family if set(pair) <= chosen.keys()]
        tests = [(pair, difference(*(chosen[name][1] for name in pair))) for pair in pairs]
        tests = sorted((test for test in tests if test[1]), key=lambda test: test[1][4])
        corrected, scale = 0.0, 100 if digits == 1 else 1
        for rank, (pair, (seeds, mean, low, high, p)) in enumerate(tests):
            corrected = max(corrected, min(1.0, p * (len(tests) - rank)))  # Holm
            tunings = min(len(runs) for name in pair for runs in chosen[name][1].values())
            verdicts = {
                "too few seeds": seeds < 5,
                "too few fine-tunings": is_task and tunings < 3,
                "undecided": corrected >= 0.05,
                "undecided: rate at the edge": edges & set(pair),
                "decided": family is contrasts,
                "agrees": (mean > 0) == is_task,  # of code lengths the lower is better
                "contradicts": True,
            }
            verdict = next(name for name, holds in verdicts.items() if holds)
            interval = f"{scale * low:.{digits}f} to {scale * high:.{digits}f}"
            interval = "no spread between seeds" if math.isnan(low) else interval
            interval = f"{scale * mean:+.{digits}f} ({interval})".replace("-", "−")
            p_value = "< 0.001" if corrected < 0.001 else f"{corrected:.3f}"
            row = "Differences", f"{place}: {' − '.join(pair)}"
            values |= {(*row, "mean (95 % interval)"): interval, (*row, "pairs"): str(seeds)}
            values |= {(*row, "p (Holm)"): p_value, (*row, "verdict"): verdict}
            findings += [(low, high, verdict)] if family is claims and pair in counted else []
    return values, findings


def read_cells(page: str) -> dict:
    """{(heading, first cell of the row, column): cell} of what is recomputed."""
    cells, heading, columns = {}, "", []
    for line in page.split("\n"):
        if match := re.match(r"## (.*)|<details><summary>(.*)</summary>", line):
            heading, columns = match[1] or match[2], []
        elif line.startswith("| ") and heading not in ("Costs", "How it was made"):
            name, *row = line[2:-2].split(" | ")
            row = [cell.partition(" (")[0] for cell in row] if heading == BITS else row
            cells |= {(heading, name, column): cell for column, cell in zip(columns, row)}
            columns = columns or row
    return {place: cell for place, cell in cells.items() if "published" not in place[2]}


def recompute(study: dict, cells: dict) -> tuple[dict, list]:
    """({cell: text}, [(low, high, verdict) of the claims]) of the columns of a page."""
    values, findings, records = {}, [], study["records"].items()
    for heading, column in dict.fromkeys((heading, column) for heading, _, column in cells):
        task, metric, digits = "", f"bits_per_byte/{column}", 1 if "(%)" in column else 3
        if column.endswith(", above the truth"):
            metric = f"above_truth/{column.partition(',')[0]}"
        if heading == "Scores" and study["tasks"]:
            task, _, metric = column.removesuffix(" (%)").partition(" ")
        chosen = select(study, task, metric) if heading in ("Scores", BITS) else {}
        scale = 100 if digits == 1 else 1
        for name, (labels, seeds) in chosen.items():
            means = [scale * np.mean([score for score, _ in runs]) for runs in seeds.values()]
            spread = f" ± {np.std(means, ddof=1):.{digits}f}" if len(means) > 1 else ""
            if heading == "Scores":
                values[heading, name, column] = f"{np.mean(means):.{digits}f}{spread}"
                most = max(len(means), int(values.get((heading, name, "seeds"), 0)))
                values[heading, name, "seeds"] = str(most)
            elif (heading, name, column) in cells:  # models from random values have none
                values[heading, name, column] = f"{np.mean(means):.{digits}f}"
            if task and study["select"]:
                values["Selected on validation", name, task] = ", ".join(labels)
        rows = {name for where, name, of in cells if (where, of) == (heading, column)}
        for name in rows - chosen.keys() if chosen else ():
            key = f"{name}/{metric}" if task else f"baseline/{name}"
            tests = [of["scores"]["test"] for (*_, place), of in records if place == task]
            if scores := [test[key] for test in tests if key in test]:
                values[heading, name, column] = f"{scale * np.mean(scores):.{digits}f}"
        if chosen and heading == "Scores" and "pseudo" not in metric:
            texts, found = differences(study, task or metric, digits, chosen, cells)
            values |= texts
            findings += found
    return values, findings


def check(page: str, cells: dict, values: dict) -> int:
    """Prints the cells that differ, and returns their number."""
    places = [of for of in {**values, **cells} if cells.get(of) != values.get(of, "–")]
    numbers = re.findall(r"\d+\.?\d*", " ".join(values.values()))
    print(f"{page}: {len(numbers)} numbers, {len(places)} mismatches")
    for place in places:
        printed, found = cells.get(place), values.get(place)
        print(f"  {' | '.join(place)}: printed {printed}, recomputed {found}")
    return len(places)


def main(folder: Path) -> int:
    wrong, findings = 0, []
    for path in sorted(folder.glob("*/*.jsonl.zst")):
        study, cells = read(path), read_cells((path.parent / "README.md").read_text())
        values, found = recompute(study, cells)
        findings += found
        wrong += check(path.parent.name, cells, values) + (not values)
    lines = (folder / "README.md").read_text().split("\n")
    about = next(line for line in lines if "published findings" in line)
    printed = re.findall(r"\d+", about.replace("95 %", ""))
    counts = [len(findings), sum(of[0] > 0 for of in findings), sum(of[1] < 0 for of in findings)]
    verdicts = Counter(of[2] for of in findings)
    counts.append(sum(verdicts.pop(name, 0) for name in ("decided", "agrees", "contradicts")))
    counts += [count for _, count in verdicts.most_common()]
    values = {("counts",): ", ".join(map(str, counts))}
    return wrong + check("README.md", {("counts",): ", ".join(printed)}, values)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "results"
    sys.exit(main(folder) > 0)
