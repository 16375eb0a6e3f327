"""Recomputes the numbers of published studies from their raw lines, and compares them with the
pages to the last printed digit: python experiments/recompute.py [FOLDER]. Written from
docs/statistics.md, without bertlab's code. Not recomputed: costs, warnings, distances to floors and
intervals of bits per byte. An answer must be the file's on its page and on the first one; what it
has in numbers and intervals that its page's tables do not have is listed."""

import base64
import json
import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats
import zstandard

LIMIT = "task_data.limit"
BITS = "Bits per byte of held-out text"
CROSSING = "Where the lines cross"
# What a record has beside its own test scores: the key, and what the page puts before the metric.
OTHERS = {"evaluation": "", "most_frequent": "always the most frequent answer/"}
OTHERS["linear"] = "a linear model on n-grams, as many labels/"
NUMBER = r"\d+\.?\d*"
INTERVAL = rf"\(−?({NUMBER}) to −?({NUMBER})\)"  # without signs: an answer may turn a difference
UNCHECKED = "published|above the floor"  # columns
UNFINISHED = {"scores": {"valid": {"loss": math.inf}, "test": {}}}


def read(path: Path) -> dict:
    """study.json, with `records`: {(run, stage, task): finished stage}."""
    study, *lines = map(json.loads, zstandard.decompress(path.read_bytes()).splitlines())
    study["records"] = {(of["run"], of["stage"], of["task"]): of for of in lines if of["finished"]}
    for record in study["records"].values():
        scores = record["scores"].setdefault("test", {})
        for key, prefix in OTHERS.items():
            others = record.get(key, {}).get("test", {})
            scores |= {prefix + metric: value for metric, value in others.items()}
    return study


def select(study: dict, task: str, metric: str) -> dict:
    """{variant: (labels selected on valid, test scores, fine-tunings of a seed)}; without a task of
    all pretrainings. Scores: a row a pretraining seed, the score and then each sentence's."""
    stage, axes = ("finetune", study["select"]) if task else ("pretrain", [])
    nested = [axis for axis in study["seed_axes"] if not axis.startswith("finetune.")]
    groups, chosen = defaultdict(lambda: defaultdict(list)), {}
    for run in study["runs"]:
        owner = run["shares"].get(stage, run["name"])
        record = study["records"].get((owner, stage, task), UNFINISHED)
        if metric in (tests := record["scores"]["test"]):
            labels = tuple(run["labels"].get(axis, "") for axis in axes)
            seed = " ".join(run["labels"].get(axis, "") for axis in nested or study["seed_axes"])
            valid = record["scores"].get("valid", {}).get(metric, 0.0)
            row = [tests[metric], *sentences(record["correct"].get("test", {}), tests[metric])]
            groups[run["variant"]][labels].append((valid, seed, row))
    for variant, by_labels in groups.items():
        # Labels with fewer failed runs come first, then those with the better mean.
        ranks = {x: (len(runs), np.mean([of[0] for of in runs])) for x, runs in by_labels.items()}
        _, seeds, rows = zip(*by_labels[labels := max(ranks, key=ranks.get)])
        by_seed = pd.DataFrame(rows, index=seeds).dropna(axis=1).groupby(level=0, sort=False)
        chosen[variant] = labels, by_seed.mean(), by_seed.size().min()
    return chosen


def sentences(answers: dict, score: float) -> np.ndarray:
    """What each test sentence adds; their mean is the score. Empty if it is no such mean."""
    if "sizes" not in answers:
        return np.empty(0)
    right = np.unpackbits(np.frombuffer(base64.b64decode(answers["bits"]), np.uint8))
    starts = np.cumsum([0, *answers["sizes"]])[:-1]
    right = np.add.reduceat(right[: answers["items"]], starts, dtype=int)
    sizes = np.array(answers["sizes"])
    scores = score + (right - score * sizes) / sizes.mean()
    return scores if abs(right.sum() / sizes.sum() - score) < 1e-6 else np.empty(0)


def two_way(differences: np.ndarray) -> tuple:
    """(seeds, mean, low, high, p) of [seeds, sentences], both drawn: a crossed design. With a
    single column it is Student's."""
    seeds, items = differences.shape
    mean, centred = differences.mean(), differences - differences.mean()
    squares = [items * (centred.mean(1) ** 2).sum(), seeds * (centred.mean(0) ** 2).sum()]
    squares = np.array([*squares, (centred**2).sum() - sum(squares)])
    freedom = np.maximum([seeds - 1, items - 1, (seeds - 1) * (items - 1)], 1)
    parts = squares / freedom * [1, 1, -1] / differences.size
    variance = max(parts.sum(), parts.max())
    student = scipy.stats.t(variance**2 / (parts**2 / freedom).sum(), scale=math.sqrt(variance))
    return seeds, mean, *(mean + student.ppf([0.025, 0.975])), 2 * student.sf(abs(mean))


def difference(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple | None:
    """`two_way` of two variants' scores, by sentence if both have them; None with too few seeds."""
    differences = (ours - theirs).dropna(how="all").dropna(axis="columns").to_numpy()
    differences = differences[:, 1:] if differences.shape[1] > 1 else differences
    return two_way(differences) if len(differences) > 1 else None


def at_edge(study: dict, chosen: dict) -> set:
    """Variants with a selected rate that is the lowest or highest tried."""
    found = set()
    for search in study.get("searches", ()):
        records = [study["records"].get((of, "pretrain", "")) for of in search["candidates"]]
        losses = [(of or UNFINISHED)["scores"]["valid"]["loss"] for of in records]
        rates = search["candidates"].values()
        if len(rates) > 1 and min(zip(losses, rates))[1] in (min(rates), max(rates)):
            found |= {of["variant"] for of in study["runs"] if of["name"] in search["runs"]}
    rates = sorted(study["axes"].get("finetune.rate", ()), key=float)
    edges = {"", *rates[:1], *rates[-1:]}  # an only rate has no label
    for variant, (labels, *_) in chosen.items() if study["tasks"] else ():
        if not rates or labels[-1] in edges:  # the rate is the last of the labels
            found.add(variant)
    return found


def differences(study: dict, place: str, digits: int, chosen: dict, cells: dict, findings: list):
    """{cell: text} on a task; adds (low, high, verdict) of the claims to `findings`. A claim about
    some kinds of tasks counts if the page has it: raw lines do not name a task's kind."""
    values, claims = {}, {}  # pair -> whether it counts on the first page
    for claim in study["claims"]:
        pair = claim["higher"], claim["lower"]
        row = "Differences", f"{place}: {' − '.join(pair)}", "published"
        is_printed = cells.get(row, "–") != "–"
        if place.endswith(tuple(claim.get("uses") or [""])) and (is_printed or not claim["kinds"]):
            counts = re.search(r"\d", claim["published"]) and "not_counted" not in study
            claims[pair] = claims.get(pair) or counts
    is_task, (first, *others) = place in study["tasks"], chosen
    none = [] if study["claims"] else [(name, first) for name in others]
    contrasts = list(map(tuple, study["contrasts"])) or none
    for family in (contrasts, claims):  # a pair in both is a claim
        pairs = [pair for pair in family if set(pair) <= chosen.keys()]
        tests = [(pair, difference(*(chosen[name][1] for name in pair))) for pair in pairs]
        tests, corrected = sorted((x for x in tests if x[1]), key=lambda test: test[1][4]), 0.0
        for rank, (pair, (seeds, mean, low, high, p)) in enumerate(tests):
            corrected = max(corrected, min(1.0, p * (len(tests) - rank)))  # Holm
            verdicts = {
                "too few seeds": seeds < 5,
                "too few fine-tunings": is_task and min(chosen[name][2] for name in pair) < 3,
                "undecided": corrected >= 0.05,
                "undecided: rate at the edge": at_edge(study, chosen) & set(pair),
                "decided": family is contrasts,
                "agrees": (mean > 0) == is_task,  # of code lengths the lower is better
                "contradicts": True,
            }
            verdict = next(name for name, holds in verdicts.items() if holds)
            ends = f"{printed(low, digits)} to {printed(high, digits)}"
            interval = f"{printed(mean, digits, '+')} ({ends})".replace("-", "−")
            texts = {"mean (95 % interval)": interval, "pairs": str(seeds), "verdict": verdict}
            texts["p (Holm)"] = "< 0.001" if corrected < 0.001 else f"{corrected:.3f}"
            row = "Differences", f"{place}: {' − '.join(pair)}"
            values |= {(*row, column): text for column, text in texts.items()}
            lines = [re.fullmatch(r"(.+?)(?:, ([\d,]+))?", name) for name in pair]
            step = lines[0][2] or f"{study.get('overrides', {}).get('train.steps', 0):,}"
            cell = CROSSING, f"{place}: {lines[0][1]} − {lines[1][1]}", f"{step} steps"
            values |= {cell: interval} if cell in cells else {}
            findings += [(low, high, verdict)] if family is claims and claims[pair] else []
    return values


def printed(value: float, digits: int, sign: str = "") -> str:
    """A number of points if it has one digit."""
    return f"{value * (100 if digits == 1 else 1):{sign}.{digits}f}"


def read_cells(page: str) -> dict:
    """{(heading, first cell of the row, column): cell} of what is recomputed."""
    cells, heading, columns = {}, "", []
    for line in page.split("\n"):
        if match := re.match(r"## (.*)|<details><summary>(.*)</summary>", line):
            heading, columns = match[1] or match[2], []
        elif line.startswith("| ") and heading not in ("Costs", "How it was made"):
            name, *row = line[2:-2].split(" | ")
            row = [cell.partition(" (")[0] for cell in row] if heading == BITS else row
            read = {(heading, name, column): cell for column, cell in zip(columns, row)}
            cells |= {key: cell for key, cell in read.items() if "zero" not in key[2]}
            columns = columns or row
    return cells


def recompute(study: dict, cells: dict, findings: list) -> dict:
    """{cell: text} of the columns of a page."""
    values = {}
    for heading, column in dict.fromkeys((x, z) for x, _, z in cells if x in ("Scores", BITS)):
        kind, _, more = column.partition(",")  # "any-order, 1.01M bytes"
        task, digits = "", 1 if "(%)" in column else 3
        metric = f"{'above_truth' if more == ' above the truth' else 'bits_per_byte'}/{kind}"
        if heading == "Scores" and study["tasks"]:
            task, _, metric = column.removesuffix(" (%)").partition(" ")
        if not (chosen := select(study, task, metric)):
            continue
        found = {}
        for name, (labels, scores, _) in chosen.items():
            found[name] = printed(scores[0].mean(), digits)
            if heading == "Scores":
                most = max(len(scores), int(values.get((heading, name, "seeds"), 0)))
                values[heading, name, "seeds"] = str(most)
                found[name] += f" ± {printed(scores[0].std(), digits)}" if len(scores) > 1 else ""
            if task and study["select"]:
                values["Selected on validation", name, task] = ", ".join(labels)
        rows = [of[1] for of in cells if (of[0], of[2]) == (heading, column) and cells[of] != "–"]
        records = [of for (*_, x), of in study["records"].items() if x == task]
        coded = heading != BITS or kind == "left-to-right"
        for name in {*rows} - chosen.keys() if coded else ():
            baseline, _, labels = name.partition(": ")
            key = f"{baseline}/{metric}" if task else f"baseline/{name}"
            same = [of for of in records if labels in ("", str(of["config"].get(LIMIT) or "all"))]
            tests = [of["scores"]["test"] for of in same]
            if scores := [test[key] for test in tests if key in test]:
                found[name] = printed(np.mean(scores), digits)
        shown = found if heading == "Scores" else found.keys() & rows  # untrained: no bits
        values |= {(heading, name, column): found[name] for name in shown}
        if heading == "Scores" and "pseudo" not in metric:
            values |= differences(study, task or metric, digits, chosen, cells, findings)
    return values


def main(folder: Path) -> int:
    """Prints the cells that differ, page by page, and returns their number."""
    first_page, pages, findings, wrong = (folder / "README.md").read_text(), {}, [], 0
    for path in sorted(folder.glob("*/*.jsonl.zst")):
        page, study = (path.parent / "README.md").read_text(), read(path)
        cells, answer = read_cells(page), study.get("answer", "")
        pages[path.parent.name] = cells, recompute(study, cells, findings), answer
        if answer not in page or answer not in first_page:
            print(f"{path.parent.name}: an answer that is not the file's")
            wrong += 1
    about = re.search(".*published findings.*", first_page)[0]
    counts = [len(findings), sum(of[0] > 0 for of in findings), sum(of[1] < 0 for of in findings)]
    verdicts = Counter(of[2] for of in findings)
    counts.append(sum(verdicts.pop(name, 0) for name in ("decided", "agrees", "contradicts")))
    counts += [count for _, count in verdicts.most_common()]
    printed_counts = re.findall(r"\d+", about.replace("95 %", ""))
    texts = [{("counts",): ", ".join(map(str, of))} for of in (printed_counts, counts)]
    for page, (cells, values, answer) in (pages | {"README.md": [*texts, ""]}).items():
        ours = [of for of in {**values, **cells} if not re.match(UNCHECKED, of[-1])]
        places = [of for of in ours if cells.get(of) != values.get(of, "–")]
        numbers = re.findall(NUMBER, " ".join(values.values()))
        intervals = {frozenset(of) for of in re.findall(INTERVAL, " ".join(values.values()))}
        others = [number for number in re.findall(r"\d+\.\d+", answer) if number not in numbers]
        asked = [of for of in re.findall(INTERVAL, answer) if frozenset(of) not in intervals]
        others += [f"({low} to {high})" for low, high in asked]
        listed = f"; of its answer in no table: {', '.join(others)}" if others else ""
        print(f"{page}: {len(numbers)} numbers, {len(places)} mismatches{listed}")
        for of in places:
            print(f"  {' | '.join(of)}: printed {cells.get(of)}, recomputed {values.get(of)}")
        wrong += len(places) + (not cells)
    return wrong


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "results"
    sys.exit(main(folder) > 0)
