"""The tables of a report, as frames of text: scores and losses, differences, seeds, floors, one scale for all, cost."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import scipy.stats

from bertlab import config
from bertlab.run import BOUNDS
from bertlab.studies import plots, statistics
from bertlab.studies.comparisons import CONTRASTS, FIRST_VARIANT, SHORTEST, Comparison, looks_of, of_family
from bertlab.studies.measurements import TRANSFER_COSTS, Measure, Results, bounds, cost, scores
from bertlab.studies.seeds import seed_counts, summarise
from bertlab.studies.selection import at_selected_labels, loss_text, searches_of, selections
from bertlab.studies.study import COSTS
from bertlab.studies.text import MISSING, count_text, interval, number, p_text, seconds_text, spread
from bertlab.transfer.evaluations import BIASES, CODE_LENGTHS

SCORES, LOSSES, COST = "Downstream test scores", "Validation losses (nats)", "Cost"
VALID_SCORES, TEST_LOSSES = "Downstream valid scores", "Test losses (nats)"  # of a single run
SCALES = "One scale for all (test)"
# Metrics of `bertlab evaluate` -> how a table heads and prints them.
ON_ONE_SCALE = {
    "bits_per_byte/": ("bits/byte, {}", lambda mean, sd: spread(mean, sd, 3)),
    "minimal_pairs/": ("minimal pairs (%), {}", lambda mean, sd: spread(100 * mean, 100 * sd, 1)),
    "babylm/": ("BabyLM (%), {}", lambda mean, sd: spread(100 * mean, 100 * sd, 1)),
    "similarity/": ("Spearman of cosines, {}", lambda mean, sd: spread(mean, sd, 3)),
    "analogies/": ("analogies (%), {}", lambda mean, sd: spread(100 * mean, 100 * sd, 1)),
}
LOSSES_NOTE = "Losses are measured on held-out documents."
SEVERAL_LOSSES_NOTE = (
    "Each objective answers its own question, so do not compare losses between columns, nor within one if variants differ"
    " in mask rate, tokenizer or format."
)
COST_NOTE = "FLOPs are those of the model in {}, forward and backward. Tokens do not include padding."
SUPERVISED_NOTE = "A supervised position is one at which a loss is taken."
TRANSFER_NOTE = "Transfer is all adaptation and fine-tuning of a run, without the heads' FLOPs."
SCALES_NOTE = (
    "Bits per byte: left-to-right and right-to-left are code lengths of the text, and ≤ marks an upper bound of one, the mean"
    " over random orders; all these compare with each other. Pseudo ones mask each token in turn and see both sides of it; they"
    " are not code lengths and compare only with each other (within-word: later pieces of the word are masked too). Of a"
    " tokenizer with special tokens, both say where a text ends, in their own way: a left-to-right model predicts [SEP], and a"
    " bound holds log2 T(T + 1) bits for the number T of a text's pieces."
)
# Heads the column of all CODE_LENGTHS.
CODE_LENGTH = "code length"
ONE_SEED_NOTE = "For one seed, s.e. is the standard error over texts or pairs; for several, ± is the deviation over seeds."
PHENOMENA = "Minimal pairs by phenomenon (%, test)"
PHENOMENA_NOTE = (
    "How often the better sentence is the more likely one, as the mean over the phenomenon's paradigms; chance is 50. The kind"
    " of likelihood is in parentheses. Each number is the mean over seeds."
)
FLOORS = "Compared with the exact floors (test)"
FLOORS_NOTE = (
    "A floor is the best loss that any model can have on these rows, in nats. Nats above it are paired with them row by row;"
    " s.e. is their standard error over documents. They compare across objectives. A value below 0 by more than chance is a"
    " leak."
)
BOUND_NOTE = "≥ marks a lower bound that may be out of reach for any model; nats above it are then an upper bound."
SEEDS = "Test scores over seeds"
SEEDS_NOTE = (
    "The 95 % interval is that of the mean: Student's over seeds (wide for two seeds, and based on a normal distribution), or"
    " the multi-bootstrap's if fine-tuning seeds are nested in pretraining seeds; it is cut where scores end. sd is the"
    " deviation between seeds. Best is the highest test score of a run; nobody could have chosen that run beforehand. Failed"
    " counts all failed runs."
)
SELECTED_NOTE = (
    "Chosen by the mean over seeds on `valid`, among the labels with the fewest unscored runs. `valid` is a published"
    " development set, or a part of train; with task_data.dev=valid the reported scores are on it too."
)
RATES = "Pretraining rates, selected on valid"
RATES_NOTE = (
    "Each variant is trained at a few multiples of its own rate, with the first seed and to the end. The lowest validation loss"
    " of its own objectives (nats, weighted as in training) selects the rate of all seeds. Losses compare within a row only."
    " Tokens, FLOPs and time are those of all candidates; the selected one is the first seed's pretraining, and counts there"
    " too."
)
DIFFERENCES = "Differences (test)"
DIFFERENCES_NOTE = (
    "Paired by seed. The intervals of a task's rows hold together with 95 %: Student's, or the multi-bootstrap's if"
    " fine-tuning seeds are nested in pretraining seeds, cut where differences of scores end. p is the paired t test's. Both"
    " are corrected for the number of the task's rows (Bonferroni). p by sign flips is uncorrected; in parentheses is the"
    " smallest it can be. Seeds for 1 point: the seeds needed to find a true difference of one point with a chance of 80 %"
    " and the same correction, with a 95 % range because so few seeds leave the spread uncertain."
)
SETTLED_NOTE = (
    "The sweep could stop early and looked at the scores up to {looks} times. Intervals and p are corrected for that; means are"
    " not, so they lie slightly further apart than the truth."
)
NAMED = "Differences that the study asks for (test)"
NAMED_NOTE = (
    "They are not counted as findings. Paired by seed; the intervals of a task's rows hold together with 95 % (Bonferroni)."
)
LENGTHS = "Bits per byte above the shortest (test)"
LENGTHS_NOTE = (
    "Each variant minus the one with the lowest mean of the same kind, paired by seed: code lengths with code lengths, bounds"
    " with bounds. The results choose the lowest one, so intervals are corrected for all pairs of the kind and hold together"
    " with 95 % (Bonferroni), over seeds, for these texts; `standard_error` in evaluation.json is each value's over texts. An"
    " interval that holds 0 does not tell which of the two is shorter."
)
PUBLISHED = "As published"
PUBLISHED_NOTE = (
    "Scales differ: other data, sizes and step counts than ours. Compare the order of rows and the signs of differences, never"
    " values. The paper may say how many seeds its numbers come from."
)
COST_LABELS = {
    cost("parameters"): "parameters",
    cost("step"): "steps",
    cost("tokens"): "tokens",
    cost("supervised"): "supervised positions",
    cost("flops"): "FLOPs",
    cost("seconds"): "time",
    cost("flops", "transfer"): "transfer FLOPs",
    cost("seconds", "transfer"): "transfer time",
}
WIDEST = 6  # scores side by side
UNDETERMINED = "undetermined"  # stands for an interval that holds every value that there is


def is_finetuning(results: Results) -> bool:
    """Whether the results are those of a single fine-tuning."""
    return not results.axes and any(map(config.is_finetuning, results.configs.values()))


def losses(results: Results, split: str = "valid") -> list[Measure]:
    """The losses of pretraining on a split, one per objective; the total if no objective has its own."""
    found = [m for m in results.measures(stage="pretrain", split=split) if m.metric.endswith("loss")]
    return [measure for measure in found if measure.metric != "loss"] or found


def table(results: Results) -> pd.DataFrame:
    """The report's table as text: a row per variant, columns in groups (scores, losses, one scale, cost).

    Scores are in percent and losses in nats, as mean ± standard deviation if there are two seeds or more. A cell says how many
    seeds it is of if some of the variant's seeds lack the metric. Scores are on test and losses on valid; a single run has both
    on both. A cost that is 0 everywhere has no column.
    """
    summary = summarise(results).set_index(["variant", *Measure._fields]).to_dict("index")
    counts = seed_counts(results)
    columns: dict[tuple[str, str], list[str]] = {("", "seeds"): [seeds_text(*counts[v]) for v in results.variants]}

    def cell(variant: str, measure: Measure, form: Callable[[float, float], str]) -> str:
        if not (row := summary.get((variant, *measure))):
            return MISSING
        text = form(row["mean"], row["sd"])
        if row["seeds"] == 1:
            runs = results.finished.loc[results.finished["variant"] == variant, "run"]
            error = results.standard_errors(measure).loc[runs].mean()
            text = text if math.isnan(error) else form(row["mean"], error).replace("±", "s.e.")
        of = seeds_text(row["seeds"], row["runs"])
        return f"{text} ({of} seed{'' if of == '1' else 's'})" if row["runs"] < counts[variant][1] else text

    def column(measure: Measure, form: Callable[[float, float], str]) -> list[str]:
        return [cell(variant, measure, form) for variant in results.variants]

    def single(*groups: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return () if results.axes else groups

    for group, split in ((SCORES, "test"), *single((VALID_SCORES, "valid"))):
        for measure in scores(results):
            factor, digits = plots.score_scale(measure.metric)
            percent = lambda mean, sd, factor=factor, digits=digits: spread(mean * factor, sd * factor, digits)
            columns[group, score_label(measure)] = column(measure._replace(split=split), percent)
    for group, split in ((LOSSES, "valid"), *single((TEST_LOSSES, "test"))):
        for measure in losses(results, split):
            columns[group, measure.metric] = column(measure, lambda mean, sd: spread(mean, sd, 3))
    for prefix, (label, form) in ON_ONE_SCALE.items():
        asked = [measure for measure in results.measures(stage="evaluate") if measure.metric.startswith(prefix)]
        asked.sort(key=lambda measure, prefix=prefix: measure.metric.removeprefix(prefix) in BOUNDS)
        kinds = [measure.metric.removeprefix(prefix) for measure in asked]
        one_axis = prefix == "bits_per_byte/" and {*kinds} >= {*CODE_LENGTHS}
        named = [CODE_LENGTH if one_axis and kind in CODE_LENGTHS else kind for kind in kinds]
        for measure, kind, name in zip(asked, kinds, kind_labels(list(zip(named, (m.task for m in asked)))), strict=True):
            bound = "≤ " if kind in BOUNDS and prefix == "bits_per_byte/" else ""
            cells = [cell if cell == MISSING else bound + cell for cell in column(measure, form)]
            before = columns.get((SCALES, label.format(name)), [MISSING] * len(cells))
            both = [[cell for cell in pair if cell != MISSING] for pair in zip(before, cells, strict=True)]
            columns[SCALES, label.format(name)] = ["; ".join(known) or MISSING for known in both]
    for measure in (*map(cost, COSTS), *(m for m in results.measures(stage="transfer") if m.metric in TRANSFER_COSTS)):
        known = results.values(measure).loc[results.finished["run"]].dropna()
        if len(known) and not known.any():
            continue
        form = seconds_text if measure.metric == "seconds" else count_text
        columns[COST, COST_LABELS[measure]] = column(measure, lambda mean, _, form=form: form(mean))
    return pd.DataFrame(columns, index=pd.Index(results.variants, name="variant"))


def seeds_text(seeds: int, runs: int) -> str:
    """ "3"; "3 × 5" for five fine-tunings of each of three; "3 (14 runs)" if they are not as many of each."""
    if runs == seeds:
        return str(seeds)
    return f"{seeds} × {runs // seeds}" if runs % seeds == 0 else f"{seeds} ({runs} runs)"


def kind_labels(asked: Sequence[tuple[str, str]]) -> list[str]:
    """Heads of (kind, source): the kind, with the file's stem if there are several files, or its path if stems are alike."""
    stems = {source: Path(source).stem for _, source in asked}
    alike = len(set(stems.values())) < len(stems)
    alone = lambda source: len(stems) == 1 or not source  # "" is the test split
    return [kind if alone(source) else f"{kind}, {source if alike else stems[source]}" for kind, source in asked]


def phenomenon_table(results: Results) -> pd.DataFrame:
    """A row for each variant and kind of likelihood, a column for each phenomenon of minimal pairs, as text."""
    asked = [m for m in results.measures(stage="evaluate") if m.metric.startswith("phenomenon/")]
    of = {measure: measure.metric.split("/", 2)[1:] for measure in asked}
    labels = dict(zip(asked, kind_labels([(of[measure][0], measure.task) for measure in asked]), strict=True))
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for variant in results.variants:
        runs = results.finished.loc[results.finished["variant"] == variant, "run"]
        for measure in asked:
            values = results.values(measure).reindex(runs).dropna()
            if len(values):
                row = rows.setdefault(f"{variant} ({labels[measure]})", {("", "seeds"): str(len(values))})
                row[PHENOMENA, of[measure][1].replace("_", " ")] = f"{100 * values.mean():.1f}"
    return pd.DataFrame.from_dict(rows, orient="index").fillna(MISSING)


def floor_table(results: Results) -> pd.DataFrame:
    """A row for each variant and objective with a floor, as text; s.e. is the mean's paired standard error, ≥ marks a bound."""
    rows = {}
    excesses = [m for m in results.measures(stage="floor") if m.metric.endswith("/above")]
    for variant in results.variants:
        runs = results.finished.loc[results.finished["variant"] == variant, "run"]
        found = {m.metric.removesuffix("/above"): m for m in excesses if results.values(m).loc[runs].notna().any()}
        for name, above in found.items():
            of_kind = {kind: results.values(above._replace(metric=f"{name}/{kind}")) for kind in ("floor", "lower_bound")}
            bounded = of_kind["lower_bound"].loc[runs].notna().any()
            low = of_kind["floor"].fillna(of_kind["lower_bound"]).loc[runs].mean()
            excess, errors = results.values(above).loc[runs].dropna(), results.standard_errors(above).loc[runs].dropna()
            error = math.hypot(*errors) / len(errors) if len(errors) else math.nan
            rows[variant if len(found) == 1 else f"{variant}: {name}"] = {
                ("", "seeds"): str(len(excess)),
                (FLOORS, "objective"): name,
                (FLOORS, "floor"): f"{'≥ ' if bounded else ''}{low:.4f}",
                (FLOORS, "loss"): f"{low + excess.mean():.4f}",
                (FLOORS, "above"): spread(excess.mean(), error, 4).replace("±", "s.e."),
                (FLOORS, "above (%)"): f"{100 * excess.mean() / low:.2f}" if low else MISSING,
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def rate_table(results: Results) -> pd.DataFrame:
    """A row for each search for a pretraining rate, as text; empty without one."""
    rows = {}
    for search in searches_of(results):
        losses, rate = search.losses(results.path), search.selected(results.path)
        tried = zip(sorted(results.study["rates"]), search.candidates, strict=True)
        spent = {key: sum(of.get(key) or 0 for of in search.costs(results.path)) for key in ("tokens", "flops", "seconds")}
        selected = MISSING if rate is None else f"{rate:g}" + (" (at the end)" if search.at_the_end(rate) else "")
        rows[search.variant] = {
            (RATES, "own rate"): f"{search.own:g}",
            **{(RATES, f"loss at × {factor:.3g}"): loss_text(losses.get(name)) for factor, name in tried},
            (RATES, "selected"): selected,
            (RATES, "tokens"): count_text(spent["tokens"]),
            (RATES, "FLOPs"): count_text(spent["flops"]),
            (RATES, "time"): seconds_text(spent["seconds"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def selection_table(results: Results) -> pd.DataFrame:
    """A row for each task and variant, as text; empty for a study without seeds or `select` to choose by."""
    found = selections(results)
    if found.empty or not (results.study.get("select") or found["seeds"].max() > 1):
        return pd.DataFrame()
    rows = {}
    tasks = list(results.study["downstream"])
    for row in sorted(found.to_dict("records"), key=lambda row: tasks.index(row["task"])):
        factor, digits = plots.score_scale(row["metric"])
        text = lambda value, factor=factor, digits=digits: number(factor * value, digits)
        rows[f"{score_label(Measure('finetune', row['task'], 'test', row['metric']))}: {row['variant']}"] = {
            ("", "seeds"): seeds_text(row["seeds"], row["runs"]),
            **({(SEEDS, "chosen"): row["chosen"]} if row["chosen"] else {}),
            (SEEDS, "valid"): text(row["valid"]),
            (SEEDS, "test"): text(row["test"]),
            (SEEDS, "95 % interval"): mean_interval_text(row["low"], row["high"], row["metric"]),
            (SEEDS, "sd"): text(row["sd"]),
            (SEEDS, "best"): text(row["best"]),
            (SEEDS, "failed"): str(row["failed"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def difference_table(compared: Sequence[Comparison]) -> pd.DataFrame:
    """A row for each task and variant compared with the study's first variant, as text; empty without two seeds to pair."""
    rows = {}
    for found in of_family(compared, FIRST_VARIANT):
        if found.flips is None:
            continue
        smallest, percent = statistics.smallest_p(found.pairs), plots.percent_factor(found.measure.metric) == 100
        rows[difference_label(found)] = difference_cells(found, DIFFERENCES) | {
            # Without spread there is neither an interval nor a p.
            (DIFFERENCES, "p"): p_text(math.nan if math.isnan(found.low) else found.corrected_p),
            (DIFFERENCES, "p by sign flips"): f"{p_text(found.flips)} ({p_text(smallest)})",
            (DIFFERENCES, "seeds for 1 point"): seeds_for_a_point(found) if percent else MISSING,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def contrast_table(compared: Sequence[Comparison]) -> pd.DataFrame:
    """A row for each task and contrast of the study, as text; empty without contrasts or without two seeds to pair."""
    rows = {difference_label(found): difference_cells(found, NAMED) for found in of_family(compared, CONTRASTS)}
    return pd.DataFrame.from_dict(rows, orient="index")


def length_table(compared: Sequence[Comparison]) -> pd.DataFrame:
    """A row for each code length or bound and the shortest of its kind, as text; empty without two seeds to pair."""
    rows = {}
    for found in of_family(compared, SHORTEST):
        bound = "bounds" if found.measure.metric.removeprefix("bits_per_byte/") in BOUNDS else "code lengths"
        cells = difference_cells(found, LENGTHS)
        cells[LENGTHS, "above the shortest"] = cells.pop((LENGTHS, "difference"))
        order = [("", "seeds"), (LENGTHS, "above the shortest"), (LENGTHS, "95 % interval")]
        rows[f"{bound}: {found.variant} − {found.other}"] = {key: cells[key] for key in order}
    return pd.DataFrame.from_dict(rows, orient="index")


def difference_label(found: Comparison) -> str:
    """ "package accuracy (%): LTR − MLM"."""
    return f"{score_label(found.measure)}: {found.variant} − {found.other}"


def difference_cells(found: Comparison, group: str) -> dict[tuple[str, str], str]:
    """The seeds, a difference and its interval, as columns of a group."""
    factor, digits = plots.score_scale(found.measure.metric)
    return {
        ("", "seeds"): str(found.pairs or min(found.seeds)),
        (group, "difference"): number(factor * found.mean, digits, "+"),
        (group, "95 % interval"): UNDETERMINED
        if found.is_undetermined
        else interval_text(found.low, found.high, found.measure.metric),
    }


def mean_interval_text(low: float, high: float, metric: str) -> str:
    """`interval_text` of a mean; "undetermined" if it holds every score that there is, as one of two seeds may."""
    lowest, highest = bounds(metric)
    everything = math.isfinite(highest) and low <= lowest and high >= highest
    return UNDETERMINED if everything else interval_text(low, high, metric)


def interval_text(low: float, high: float, metric: str) -> str:
    """ "41.0 to 43.2", in percent for shares."""
    factor, digits = plots.score_scale(metric)
    return interval(factor * low, factor * high, digits)


def seeds_for_a_point(found: Comparison, most: int = 1000) -> str:
    """Seeds that find a true difference of 0.01 with a chance of 80 %, corrected alike, and their 95 % range: "7 (3 to 58)".

    The standard deviation of the paired differences comes from few seeds: its own interval is chi-squared.
    """
    if not found.sd > 0:
        return MISSING
    freedom, alpha = found.pairs - 1, 0.05 / found.corrections
    low, high = (found.sd * math.sqrt(freedom / scipy.stats.chi2.ppf(q, freedom)) for q in (0.975, 0.025))
    needed = lambda sd: statistics.seeds_needed(0.01, sd, alpha=alpha, most=most)
    text = lambda sd: f"{seeds:,}" if (seeds := needed(sd)) <= most else f"> {most:,}"
    return f"{text(found.sd)} ({text(low)} to {text(high)})"


def published_table(results: Results) -> pd.DataFrame:
    """The published table that belongs to a study, as text, our variants first in our order; empty without one."""
    published = results.study.get("published")
    if not published:
        return pd.DataFrame()
    group = f"{PUBLISHED}: {published['source']}"
    order = {variant: place for place, variant in enumerate(results.variants)}
    rows = sorted(published["rows"].items(), key=lambda row: order.get(row[0], len(order)))
    decimals_of = lambda value: len(str(value).partition(".")[2]) if isinstance(value, float) else 0
    digits = [max(map(decimals_of, of)) for of in zip(*published["rows"].values(), strict=True)]  # 5.00 beside 4.58
    cells = lambda values: {
        (group, name): MISSING if value is None else f"{value:.{decimals}f}" if isinstance(value, float) else str(value)
        for name, value, decimals in zip(published["columns"], values, digits, strict=True)
    }
    return pd.DataFrame.from_dict({name: cells(values) for name, values in rows}, orient="index")


def grouped_tables(results: Results, compared: Sequence[Comparison]) -> list[pd.DataFrame]:
    """All tables in parts that fit on a page, each with the seeds: scores and losses, the published ones, and so on to cost."""
    chosen = at_selected_labels(results)
    frame = table(chosen)
    apart = (published_table(chosen), contrast_table(compared), difference_table(compared))
    apart += (selection_table(results), rate_table(results), floor_table(chosen))
    whole = lambda wanted: [frame[[("", "seeds"), *columns]] for columns in side_by_side(frame, wanted)]
    scales = (*whole((SCALES,)), length_table(compared), phenomenon_table(chosen))
    parts = [*whole((SCORES, VALID_SCORES, LOSSES, TEST_LOSSES)), *apart, *scales, *whole((COST,))]
    return [part for part in parts if not part.empty]


def side_by_side(frame: pd.DataFrame, groups: Sequence[str]) -> list[list[tuple[str, str]]]:
    """The columns of these groups, in several parts if there are more scores than a page has room for."""
    columns = [column for column in frame.columns if column[0] in groups]
    scored = sum(group in (SCORES, VALID_SCORES) for group, _ in columns)
    if scored <= WIDEST + 2:
        return [columns] if columns else []
    return [columns[i : i + WIDEST] for i in range(0, len(columns), WIDEST)]


def column_notes(results: Results, tables: Sequence[pd.DataFrame]) -> dict[str, str]:
    """What the columns of losses and costs in these tables mean; the page has it once, below all tables."""
    heads = {group: {name for frame in tables for of, name in frame.columns if of == group} for group in (LOSSES, COST)}
    costs = [COST_NOTE.format("this fine-tuning" if is_finetuning(results) else "pretraining")]
    costs += [SUPERVISED_NOTE] * (COST_LABELS[cost("supervised")] in heads[COST])
    costs += [TRANSFER_NOTE] * any(COST_LABELS[cost(metric, "transfer")] in heads[COST] for metric in TRANSFER_COSTS)
    said = {LOSSES: [LOSSES_NOTE, *[SEVERAL_LOSSES_NOTE] * (len(heads[LOSSES]) > 1)], COST: costs}
    return {group: " ".join(said[group]) for group in said if heads[group]}


def notes(results: Results) -> dict[str, str]:
    """The notes below a group of columns: how to read them, and what biases their numbers in which variants."""
    chosen = at_selected_labels(results)
    finished, floors = chosen.finished, floor_table(chosen)
    of_scales, of_floors = [SCALES_NOTE], [FLOORS_NOTE]
    summary = summarise(chosen)
    if ((summary["stage"] == "evaluate") & (summary["seeds"] == 1)).any():
        of_scales.append(ONE_SEED_NOTE)
    for name, sentence in BIASES.items():
        biased = finished.loc[[name in biases.split() for biases in finished["biases"]], "variant"]
        if len(biased):
            of_scales.append(f"In {'; '.join(dict.fromkeys(biased))}: {sentence}.")
    if not floors.empty and floors[FLOORS, "floor"].str.startswith("≥").any():
        of_floors.append(BOUND_NOTE)
    of_seeds = [SELECTED_NOTE, SEEDS_NOTE] if results.study.get("select") else [SEEDS_NOTE]
    looks = looks_of(results)
    of_differences = [DIFFERENCES_NOTE, SETTLED_NOTE.format(looks=looks)] if looks > 1 else [DIFFERENCES_NOTE]
    said = {
        SCALES: of_scales,
        PHENOMENA: [PHENOMENA_NOTE],
        FLOORS: of_floors,
        SEEDS: of_seeds,
        DIFFERENCES: of_differences,
        NAMED: [NAMED_NOTE],
        LENGTHS: [LENGTHS_NOTE],
        RATES: [RATES_NOTE],
    }
    if published := results.study.get("published"):
        said[f"{PUBLISHED}: {published['source']}"] = [PUBLISHED_NOTE, published["note"]]
    return {group: " ".join(filter(None, sentences)) for group, sentences in said.items()}


def score_label(measure: Measure) -> str:
    """The head of a score's column: "package accuracy (%)"."""
    return plots.metric_label(measure.name).replace("/", " ")
