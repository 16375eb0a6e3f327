"""A second way to the numbers of a published study's page: the JSON files, NumPy and SciPy, and nothing of bertlab.

`check_page(folder, page)` recomputes scores, losses, code lengths, costs, findings, contrasts, differences, spreads over seeds
and the sentences that compare the highest mean, and asserts that the page prints each of them. Tables are known by their
columns, rows by their first cell.
"""

import itertools
import json
import re

import numpy as np
import scipy.stats

UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "s": 1, "min": 60, "h": 3600, "days": 86400, "": 1}
COSTS = {
    "parameters": "parameters",
    "steps": "step",
    "tokens": "tokens",
    "supervised positions": "supervised",
    "FLOPs": "flops",
    "time": "seconds",
}
CODE_LENGTHS = ("left-to-right", "any-order")  # that share a column


def tables_of(page):
    """All tables of a page: lists of dicts by head."""
    found = []
    for block in re.split(r"\n\n+", page.read_text()):
        if block.startswith("| "):
            heads, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
            found.append([dict(zip(heads, row, strict=True)) for row in rows])
    return found


def read(file):
    return json.loads(file.read_text()) if file.exists() else {}


class Published:
    """The JSON files of a published study."""

    def __init__(self, place):
        self.place, self.study = place, read(place / "study.json")
        self.hidden = {"seed", "finetune.seed", *self.study["select"]}
        self.runs = {run["name"]: run for run in self.study["runs"]}
        self.variants = list(dict.fromkeys(map(self.variant, self.study["runs"]))) or [""]

    def variant(self, run):
        return ", ".join(label for axis, label in run["labels"].items() if axis not in self.hidden and label)

    @staticmethod
    def seed(run):
        return run["labels"].get("seed") or run["labels"].get("finetune.seed")

    def first_runs(self):
        """(Variant, seed) -> the first run, whatever its labels of `select`."""
        found = {}
        for run in self.study["runs"]:
            found.setdefault((self.variant(run), self.seed(run)), run)
        return found

    def selected(self, task, metric):
        """Variant -> (label, seed -> (score on valid, on test)), at the label of `select` with the highest mean on valid."""
        found = {}
        for run in self.study["runs"]:
            of = read(self.place / run["name"] / "finetune" / task / "result.json").get("metrics", {})
            if metric in of.get("test", {}):
                label = tuple(run["labels"].get(axis, "") for axis in self.study["select"])
                scores = of.get("valid", {}).get(metric, 0.0), of["test"][metric]
                found.setdefault(self.variant(run), {}).setdefault(label, {})[self.seed(run)] = scores
        chosen = {}
        for variant, labels in found.items():
            most = max(map(len, labels.values()))
            mean_on_valid = lambda label, labels=labels: np.mean([valid for valid, _ in labels[label].values()])
            best = max((label for label, of in labels.items() if len(of) == most), key=mean_on_valid)
            chosen[variant] = best, labels[best]
        return chosen

    def scores(self, task, metric):
        """Variant -> seed -> score on test at the selected label."""
        chosen = self.selected(task, metric)
        return {variant: {seed: test for seed, (_, test) in of.items()} for variant, (_, of) in chosen.items()}

    def pretraining(self, run):
        """The result of the pretraining that a run has or shares, at the step that it uses, and whether that is the last."""
        place = self.place / run["shares"].get("pretrain", run["name"])
        result = read(place / "result.json")
        configs = [read(self.place / run["name"] / "finetune" / task / "config.json") for task in run["downstream"]]
        if configs and all(config.get("transfer", {}).get("random") for config in configs):  # its pretraining is not used
            return dict.fromkeys(COSTS.values(), 0) | {"parameters": result.get("parameters")}, place, False
        stages = [run["adapt"]] if run["adapt"] else run["downstream"].values()
        steps = {of.get("init_step") for of in stages}
        step = steps.pop() if len(steps) == 1 else None
        if step in (None, result.get("step")):
            return result, place, True
        return {"parameters": result["parameters"], "step": step} | read(place / "costs.json")[str(step)], place, False

    def losses(self, metric):
        """Variant -> seed -> loss on valid."""
        found = {}
        for (variant, seed), run in self.first_runs().items():
            valid = self.pretraining(run)[0].get("metrics", {}).get("valid", {})
            if metric in valid:
                found.setdefault(variant, {})[seed] = valid[metric]
        return found

    def code_lengths(self, kind):
        """Variant -> values of a kind of bits per byte, one of each seed."""
        found = {}
        for (variant, _), run in self.first_runs().items():
            _, place, last = self.pretraining(run)
            of = read(place / "evaluation.json").get("bits_per_byte", {}).get("test split", {}) if last else {}
            if kind in of:
                found.setdefault(variant, []).append(of[kind]["value"])
        return found

    def lengths_by_seed(self, kind):
        """Variant -> seed -> bits per byte, of the variants that a page compares."""
        seeds = {variant: [seed for of, seed in self.first_runs() if of == variant] for variant in at_last(self)}
        values = self.code_lengths(kind)
        return {name: dict(zip(seeds[name], values[name], strict=True)) for name in seeds if name in values}

    def cost(self, run, key):
        """What a run's pretraining has cost; an average has the costs of what it averages."""
        if run["averages"]:
            return sum(self.cost(self.runs[name], key) for name in run["averages"])
        return self.pretraining(run)[0].get(key)

    def transfer(self, run, key):
        """What a run's adaptation and fine-tuning have cost in all tasks."""
        if run["averages"]:
            return sum(self.transfer(self.runs[name], key) for name in run["averages"])
        own, adapted = self.place / run["name"], self.place / run["shares"].get("adapt", run["name"])
        files = [file for task in run["downstream"] for file in (adapted / "adapt" / task, own / "finetune" / task)]
        return sum(read(file / "result.json").get(key, 0) for file in files)


def interval_of(scores, higher, lower, corrections, factor=100):
    """The difference of two variants in points, paired by seed: mean, ends of its interval, number of seeds."""
    differences = differences_of(scores, higher, lower) * (factor / 100)
    ends = scipy.stats.ttest_1samp(differences, 0).confidence_interval(1 - 0.05 / corrections)
    low, high = np.clip(ends, -100, 100)
    return differences.mean(), low, high, len(differences)


def is_interval(text, ends):
    """Whether a cell of differences has these ends, or says that they hold every difference that there is."""
    return text == "undetermined" if list(ends) == [-100, 100] else close(text, ends)


def differences_of(scores, higher, lower):
    seeds = sorted(scores[higher].keys() & scores[lower].keys())
    return np.array([100 * (scores[higher][seed] - scores[lower][seed]) for seed in seeds])


def numbers_in(text):
    return [float(number) for number in re.findall(r"[-+]?\d+\.\d+(?:e[-+]\d+)?", text)]


def spread_of(values):
    return [np.mean(values), *([np.std(values, ddof=1)] if len(values) > 1 else [])]


def close(text, expected, digits=1):
    """Whether a cell begins with these numbers, to within the rounding of its last decimal."""
    found = numbers_in(text)[: len(expected)]
    return len(found) == len(expected) and np.allclose(found, expected, rtol=0, atol=0.501 * 10**-digits)


def is_amount(text, value):
    """Whether a cell such as "26.5 T", "2,000" or "6.3 min" prints this value, to within its last digit."""
    figures, unit = re.fullmatch(r"([\d.,]+) ?(\w*)", text).groups()
    last = 10.0 ** -len(figures.partition(".")[2])
    return abs(float(figures.replace(",", "")) * UNITS[unit] - value) <= 0.501 * last * UNITS[unit]


def check_page(place, page):
    """Asserts every number of a page's tables; returns the rows of its findings."""
    published, tables = Published(place), tables_of(page)
    scored = check_scores(published, tables)
    check_scales(published, tables)
    check_shortest(published, tables)
    check_costs(published, tables)
    check_differences(published, tables, scored)
    check_seeds(published, tables, scored)
    check_sentences(published, page.read_text(), scored)
    check_published(published, tables)
    return check_findings(published, tables, scored)


def check_scores(published, tables):
    """Scores and losses. Returns task -> variant -> seed -> score."""
    scored = {}
    for table in tables:
        if list(table[0])[:2] != ["Variant", "seeds"]:
            continue
        for head in table[0]:
            if match := re.fullmatch(r"(\S+) (?:(\S+) )?(\w+) \(%\)", head):
                assert [row["Variant"] for row in table] == published.variants
                task = match[1]
                scored[task] = published.scores(task, f"{match[2] or task}/{match[3]}")
                assert scored[task].keys() == set(published.variants)
                for row in table:
                    assert row["seeds"] == str(len(scored[task][row["Variant"]])), row
                    assert close(row[head], spread_of([100 * x for x in scored[task][row["Variant"]].values()])), (row, head)
            elif head.endswith("/loss"):
                known = published.losses(head)
                for row in table:
                    values = list(known.get(row["Variant"], {}).values())
                    assert close(row[head], spread_of(values), 3) if values else row[head] == "–", (row, head)
    assert list(scored) == published.study["downstream"] or not published.study["downstream"]
    return scored


def check_scales(published, tables):
    """Bits per byte. A kind stands in one column; code lengths and their bounds share one."""
    cells = [(row, head) for table in tables for row in table for head in row if head.startswith("bits/byte, ")]
    for row, head in cells:
        kind = head.removeprefix("bits/byte, ")
        check_lengths(row[head], published, row["Variant"], CODE_LENGTHS if kind == "code length" else [kind])


def check_shortest(published, tables):
    """Every code length and bound beside the lowest mean of its kind, paired by seed, with Bonferroni over all pairs."""
    found = {row["Variant"]: row for table in tables for row in table if "above the shortest" in row}
    expected = set()
    for kind, name in zip(CODE_LENGTHS, ("code lengths", "bounds"), strict=True):
        lengths = published.lengths_by_seed(kind)
        if published.study["downstream"] or len(lengths) < 2 or min(map(len, lengths.values())) < 2:
            continue
        best = min(lengths, key=lambda of, lengths=lengths: np.mean(list(lengths[of].values())))
        for variant in lengths.keys() - {best}:
            row = found[f"{name}: {variant} − {best}"]
            expected.add(row["Variant"])
            mean, low, high, seeds = interval_of(lengths, variant, best, len(lengths) * (len(lengths) - 1) // 2, 1)
            assert close(f"{row['above the shortest']} {row['95 % interval']}", [mean, low, high], 3), row
            assert row["seeds"] == str(seeds), row
    assert found.keys() == expected


def check_lengths(cell, published, variant, kinds):
    """A cell's values, one for each kind that the variant has: with their spread, or means alone; ≤ before a bound."""
    values = [(kind, of) for kind in kinds if (of := published.code_lengths(kind).get(variant))]
    parts = [] if cell == "–" else cell.split("; ")
    assert len(parts) == len(values), (variant, cell)
    for part, (kind, of) in zip(parts, values, strict=True):
        assert close(part, spread_of(of) if "±" in part else [np.mean(of)], 3), (variant, cell)
        assert part.startswith("≤") == (kind == "any-order"), (variant, cell)


def check_costs(published, tables):
    """Means over seeds of what was spent, and how many seeds there are."""
    of_variant = {}
    for (variant, _), run in published.first_runs().items():
        of_variant.setdefault(variant, []).append(run)
    for row in (row for table in tables for row in table if "FLOPs" in row and "steps" in row):
        runs = of_variant[row["Variant"]]
        assert row["seeds"] == str(len(runs)), row
        for head, key in COSTS.items():
            spent = [value for run in runs if (value := published.cost(run, key)) is not None]
            assert is_amount(row[head], np.mean(spent)) if spent else row[head] == "–", (row, head)
        for head, key in (("transfer FLOPs", "flops"), ("transfer time", "seconds")):
            if head in row:
                assert is_amount(row[head], np.mean([published.transfer(run, key) for run in runs])), (row, head)


def at_last(published):
    """The variants that a page compares: of a study along the steps those of the last one."""
    if "steps" not in published.study["axes"]:
        return published.variants
    last = max(map(int, filter(str.isdigit, published.study["axes"]["steps"])))
    return [name for name in published.variants if name.endswith(f", {last}") or not re.search(r", \d+$", name)]


def check_sentences(published, text, scored):
    """ "TASK (METRIC, test): A has the highest mean, 79.0 %, 0.6 points (-0.1 to 1.2) above B (may be chance); ..." """
    variants = at_last(published)
    found = re.findall(r"(?m)^- (\S+) \(\S+, test\): (.+) has the highest mean, ([\d.]+)\s%, (.+)\.$", text)
    several_seeds = all(len(of_seeds) > 1 for of_task in scored.values() for of_seeds in of_task.values())
    assert len(found) == (len(scored) if several_seeds else 0)
    for task, best, mean, gaps in found:
        means = {name: 100 * np.mean(list(scored[task][name].values())) for name in variants}
        assert means[best] == max(means.values()) and close(mean, [means[best]]), (task, best)
        for gap in gaps.split("; "):
            if equal := re.fullmatch(r"as high as (.+)", gap):
                assert np.isclose(means[equal[1]], means[best]), gap
                continue
            points, ends, other, chance = re.fullmatch(r"(\S+) points \((.+)\) above (.+?)( \(may be chance\))?", gap).groups()
            expected = interval_of(scored[task], best, other, len(variants) * (len(variants) - 1) // 2)
            assert close(points, expected[:1]) and bool(chance) == (expected[1] <= 0), gap
            undetermined = f"undetermined with {expected[3]} seeds"
            assert ends == undetermined if list(expected[1:3]) == [-100, 100] else close(ends, expected[1:3]), gap


def check_findings(published, tables, scored):
    """Every claim in every task, with its verdict. Returns the rows."""
    study = published.study
    claims = {frozenset((claim["higher"], claim["lower"])) for claim in study["claims"]}
    rows = [row for table in tables for row in table if "Verdict" in row]
    limited = [claim for claim in study["claims"] if claim["kinds"]]
    expected = {(c["higher"], c["lower"], task) for c in study["claims"] if c not in limited for task in scored}
    of_rows = {(*row["Finding"].split(" above "), row["Task"]) for row in rows}
    assert len(of_rows) == len(rows) and expected <= of_rows
    assert {(a, b) for a, b, _ in of_rows - expected} <= {(c["higher"], c["lower"]) for c in limited}
    assert len({row["Finding"] for row in rows}) == len(study["claims"])
    for row in rows:
        higher, lower = row["Finding"].split(" above ")
        claim = next(c for c in study["claims"] if (c["higher"], c["lower"]) == (higher, lower))
        assert row["Published"] == f"{claim['published']} ({claim['source']})"
        if row["Verdict"] == "no such task":
            continue
        mean, low, high, seeds = interval_of(scored[row["Task"]], higher, lower, len(claims))
        assert close(row["Ours"], [mean, low, high]) and row["Seeds"] == str(seeds), row
        assert row["Verdict"] == ("agrees" if low > 0 else "disagrees" if high < 0 else "undecided"), row
    return rows


def check_differences(published, tables, scored):
    """The study's contrasts, and all variants against the first, with p."""
    study, variants = published.study, published.variants
    found = {"contrasts": [], "first": []}
    for row in (row for table in tables for row in table if "difference" in row):
        task, pair = re.fullmatch(r"(\S+) .*?\(%\): (.*)", row["Variant"]).groups()
        found["first" if "p" in row else "contrasts"].append((task, pair, row))
    contrasts = {" − ".join(names): names for names in study["contrasts"]}
    assert {(task, pair) for task, pair, _ in found["contrasts"]} == {(task, pair) for task in scored for pair in contrasts}
    for task, pair, row in found["contrasts"]:
        expected = interval_of(scored[task], *contrasts[pair], len(contrasts))
        assert close(row["difference"], expected[:1]) and is_interval(row["95 % interval"], expected[1:3]), row
    variants = at_last(published)
    assert len(found["first"]) in (0, len(scored) * (len(variants) - 1))
    for task, pair, row in found["first"]:
        one = pair.removesuffix(f" − {variants[0]}")
        assert one in variants and one != pair
        mean, *ends, seeds = interval_of(scored[task], one, variants[0], len(variants) - 1)
        assert close(row["difference"], [mean]) and row["seeds"] == str(seeds), row
        if row["95 % interval"] == "–":
            continue
        assert is_interval(row["95 % interval"], ends), row
        differences = differences_of(scored[task], one, variants[0])
        p = min(1, scipy.stats.ttest_1samp(differences, 0).pvalue * (len(variants) - 1))
        assert row["p"] == "< 0.001" if p < 0.001 else close(row["p"], [p], 3), row
        signs = np.array(list(itertools.product((1, -1), repeat=seeds)))
        flipped = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-12))
        assert close(row["p by sign flips"].replace("(", ""), [flipped, 2 / 2**seeds], 3), row


def check_published(published, tables):
    """The paper's table, as study.json has it."""
    given = published.study["published"]
    if given:
        [table] = [table for table in tables if list(table[0])[1:] == given["columns"]]
        assert {row["Variant"] for row in table} == given["rows"].keys()
        for row in table:
            for head, value in zip(given["columns"], given["rows"][row["Variant"]], strict=True):
                assert row[head] == "–" if value is None else float(row[head]) == value, (row, head)


def check_all_scores(tables, places):
    """The first page's means over seeds of every study and task."""
    [table] = [table for table in tables if list(table[0]) == ["Page", "Task", "Scores"]]
    expected = {}
    for place in places:
        published = Published(place)
        for page_table in tables_of(place / "README.md"):
            for head in page_table[0]:
                if match := re.fullmatch(r"(\S+) (?:(\S+) )?(\w+) \(%\)", head):
                    task, metric = match[1], f"{match[2] or match[1]}/{match[3]}"
                    of = published.scores(task, metric)
                    means = {name: 100 * np.mean(list(of[name].values())) for name in at_last(published)}
                    expected[place.name, task] = means
    found = set()
    for row in table:
        page = re.match(r"\[(\w+)\]", row["Page"])[1]
        [means] = [of for (place, task), of in expected.items() if place == page and row["Task"].startswith(f"{task}/")]
        found.add((page, row["Task"]))
        if several := re.fullmatch(r"(\d+) variants, from (.+) (\S+) to (.+) (\S+)", row["Scores"]):
            count, low, lowest, high, highest = several.groups()
            assert int(count) == len(means) and close(lowest, [min(means.values())]) and close(highest, [max(means.values())])
            assert close(lowest, [means[low]]) and close(highest, [means[high]]), row
        else:
            listed = dict(of.rsplit(" ", 1) for of in row["Scores"].split("; "))
            assert listed.keys() == means.keys() and all(close(text, [means[name]]) for name, text in listed.items()), row
    assert len(found) == len(table) == len(expected)


def check_all_lengths(tables, places):
    """The first page's code lengths of the studies that have them and bounds."""
    [table] = [table for table in tables if list(table[0]) == ["Page", "Bits per byte"]]
    there = [published for published in map(Published, places) if all(map(published.code_lengths, CODE_LENGTHS))]
    assert len(table) == len(there) > 1
    for row, published in zip(table, there, strict=True):
        assert re.match(r"\[(\w+)\]", row["Page"])[1] == published.place.name
        cells = {}
        for part in row["Bits per byte"].split("; "):
            label, value = re.fullmatch(r"(.+?) ((?:≤ )?[\d.]+)", part).groups()
            variant, kind = re.fullmatch(rf"(.+?)(?:, ({'|'.join(CODE_LENGTHS)}))?", label).groups()
            assert (kind is not None) == all(variant in published.code_lengths(of) for of in CODE_LENGTHS), label
            assert kind is None or value.startswith("≤") == (kind == "any-order"), label
            cells.setdefault(variant, []).append(value)
        known = {name for kind in CODE_LENGTHS for name in published.code_lengths(kind)}
        assert cells.keys() == known & {*at_last(published)}
        for variant, values in cells.items():
            check_lengths("; ".join(values), published, variant, CODE_LENGTHS)


def check_seeds(published, tables, scored):
    """What was chosen on valid, and the spread of the scores on test."""
    rows = [row for table in tables for row in table if "best" in row and "sd" in row]
    heads = {}
    for table in tables:
        for head in table[0]:
            if match := re.fullmatch(r"(\S+) (?:(\S+) )?(\w+) \(%\)", head):
                heads[head] = match[1], f"{match[2] or match[1]}/{match[3]}"
    assert len(rows) in (0, len(scored) * len(published.variants))
    for row in rows:
        head, variant = row["Variant"].split(": ", 1) if ": " in row["Variant"] else (row["Variant"], "")
        label, of_seeds = published.selected(*heads[head])[variant]
        valid, test = 100 * np.array(list(of_seeds.values())).T
        chosen = ", ".join(
            f"{axis.removeprefix('finetune.')}={of}" for axis, of in zip(published.study["select"], label, strict=True)
        )
        assert row.get("chosen", "") == chosen and row["seeds"] == str(len(test)), row
        assert close(f"{row['valid']} {row['test']} {row['best']}", [valid.mean(), test.mean(), test.max()]), row
        low, high = np.clip(scipy.stats.ttest_1samp(test, 0).confidence_interval(), -100, 100)
        given = row["95 % interval"]
        assert close(row["sd"], [test.std(ddof=1)]), row
        assert low <= 0 and high >= 100 if given == "undetermined" else close(given, [low, high]), row
