"""The findings of a study, and the notices to read first, as plain sentences computed from the results."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import scipy.stats
from ml_collections import ConfigDict

from bertlab.run import Run
from bertlab.studies import held_out, plots
from bertlab.studies.comparisons import MOST_FREQUENT, PUBLISHED, Comparison, find, of_family
from bertlab.studies.curves import at_last_steps, trajectory_axis, untrained
from bertlab.studies.measurements import Measure, Results, bounds, cost, score_of_task, scores
from bertlab.studies.same_data import compare_data, compare_sources, compare_texts, unlike_losses
from bertlab.studies.seeds import mean_scores, seed_counts, seed_tables
from bertlab.studies.selection import at_selected_labels, at_the_ends, searches_of
from bertlab.studies.tables import is_finetuning
from bertlab.studies.text import count_text, points, score_text, seconds_text, signed_points
from bertlab.train.phases import phase_configs, weights_of
from bertlab.transfer.tasks import TASKS

LISTED = 6  # unfinished runs that a notice names
ROUNDING = 1e-6  # between a score that JAX and one that NumPy counted
# What it means that all seeds have one score.
AT_CEILING = (
    "That is the highest score there is: the task is at its ceiling, so it cannot tell these variants apart from better ones."
)
UNTRAINED_HEAD = (
    "That is the score of always giving the most frequent answer, as a head gives that has not trained: look at its rate and"
    " its steps."
)
NO_SPREAD = "Equal scores have no spread, so they give no interval."


def findings(results: Results, compared: Sequence[Comparison]) -> list[str]:
    """What the results of a study or run show, in plain sentences; `compared` comes from `compare_all`."""
    if results.finished.empty:
        return ["No run is finished yet, so nothing can be concluded."]
    if not results.axes:
        return [run_finding(results)]
    along = ", compared at the last step of pretraining" if trajectory_axis(results) else ""
    results = at_last_steps(at_selected_labels(results))
    counts = {variant: seeds for variant, (seeds, _) in seed_counts(results).items() if seeds}
    least, most = min(counts.values()), max(counts.values())
    variants = f"{len(counts)} variants were run" if len(counts) > 1 else "One variant was run"
    if most < 2:
        listed = [said for measure in scores(results) for said in one_seed(results, measure) if said]
        return [
            f"{variants} with one seed each{along}. One seed cannot tell a difference from chance, so nothing is compared.",
            *listed,
        ]
    seeds = f"{least}" if least == most else f"{least} to {most}"
    head = f"{variants} with {seeds} seeds{' each' if len(counts) > 1 else ''}{along}; ± is the standard deviation over seeds."
    said = [said for measure in scores(results) for said in of_score(results, compared, measure) if said]
    if len(counts) > 1 and said:
        head += (
            " Parentheses hold the interval of a difference, paired by seed; the intervals of all pairs of variants hold"
            " together with 95 % (Bonferroni)."
        )
    return [*claimed(results, compared), *scale(results), *said, head] if results.study.get("claims") else [head, *said]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A published finding beside the study's own difference in one score.

    Attributes:
        claim: As in study.json: `higher`, `lower`, `published`, `source`, `kinds`.
        measure: The score; None if the study has none of the claim's kinds of task.
        found: The difference, higher minus lower; None if the two have too few seeds in common.
    """

    claim: Mapping[str, Any]
    measure: Measure | None
    found: Comparison | None

    @property
    def word(self) -> str:
        """ "agrees" or "disagrees" if the interval of the difference excludes zero, else why not."""
        if self.measure is None:
            return "no such task"
        if self.found is None:
            return "too few seeds"
        return "agrees" if self.found.low > 0 else "disagrees" if self.found.high < 0 else "undecided"


def verdicts(results: Results, compared: Sequence[Comparison]) -> list[Verdict]:
    """Every published finding of a study, in every score of the kinds of task for which it was published."""
    if not (claims := results.study.get("claims")):
        return []
    given = {task: of.get("task", task) for run in results.study["runs"] for task, of in run["downstream"].items()}
    found = []
    for claim in claims:
        kinds = claim.get("kinds")
        # Not your own tasks: to know their kind, their Python file would have to run.
        suited = [task for task, of in given.items() if not kinds or (of in TASKS and TASKS[of].kind.is_among(kinds))]
        measures = [score_of_task(results, task) or Measure("finetune", task, "test", "") for task in suited]
        found += [Verdict(claim, of, find(compared, of, claim["higher"], claim["lower"], PUBLISHED)) for of in measures]
        found += [] if suited else [Verdict(claim, None, None)]
    return found


def claimed(results: Results, compared: Sequence[Comparison]) -> list[str]:
    """Each published finding beside the study's own difference, and whether they agree; the decided ones first."""
    decided, undecided = [], {}
    for verdict in verdicts(results, compared):
        claim, task = verdict.claim, verdict.measure.task if verdict.measure else ""
        finding, source = f"{claim['higher']} is above {claim['lower']}", f"{claim['published']}; {claim['source']}"
        if verdict.word == "undecided":
            undecided.setdefault(f"{finding} ({source})", []).append(task)
        elif verdict.found:
            decided.append(
                f"On {task}, {claim['higher']} is {apart(verdict.found)} {claim['lower']}. This {verdict.word} with"
                f" the published finding that {finding} ({source})."
            )
    return decided + [f"Published: {finding}. Undecided here on {', '.join(tasks)}." for finding, tasks in undecided.items()]


def scale(results: Results) -> list[str]:
    """How much was read, to be kept in mind beside published findings; [] if nothing was pretrained."""
    tokens = results.values(cost("tokens")).max()
    if not tokens > 0:
        return []
    return [f"No model here was pretrained on more than {count_text(tokens)} tokens; with more text, a finding can change."]


def one_seed(results: Results, measure: Measure) -> list[str]:
    """Every variant's score, and the most frequent answer's; "" without."""
    listed = [f"{variant} {score_text(score, measure.metric)}" for variant, score in mean_scores(results, measure).items()]
    said = f"{measure.task} ({measure.metric}, test): {', '.join(listed)}." if listed else ""
    return [said, most_frequent(results, [], measure)]


def of_score(results: Results, compared: Sequence[Comparison], measure: Measure) -> list[str]:
    """The highest mean beside the second and the untrained variants, the most frequent answer, and MLM beside LTR."""
    means = mean_scores(results, measure).sort_values(ascending=False, kind="stable")
    if len(means) < 2:
        return []
    best, second = means.index[:2]
    others = [second, *(v for v in untrained(results) if v in means.index and v not in (best, second))]
    gaps = [gap(compared, measure, best, other) for other in others]
    score, head = score_text(means[best], measure.metric), f"{measure.task} ({measure.metric}, test)"
    highest = f"{head}: {best} has the highest mean, {score}, {'; '.join(gaps)}."
    if means.max() - means.min() < ROUNDING:
        highest = f"{head}: {'both' if len(means) == 2 else 'all'} variants score {score}."
    held = [{claim["higher"], claim["lower"]} for claim in results.study.get("claims", ())]  # `claimed` says these
    pairs = [(a, b) for a, b in mlm_and_ltr(results.variants) if {a, b} <= set(means.index) and {a, b} not in held]
    return [
        highest,
        most_frequent(results, compared, measure),
        *(comparison(compared, measure, a, b) for a, b in pairs),
    ]


def most_frequent(results: Results, compared: Sequence[Comparison], measure: Measure) -> str:
    """The score of always giving the most frequent answer, and which variants are above it by more than chance; "" if it is 0.

    It comes from each run's own training examples, and differs if their number is an axis.
    """
    answered = mean_scores(results, measure._replace(stage="most_frequent"))
    if not len(answered) or not answered.max() > 0:
        return ""
    low, high = (score_text(score, measure.metric) for score in (answered.min(), answered.max()))
    score = low if low == high else f"{low} to {high}, depending on the variant,"
    head = f"Always giving the most frequent answer scores {score} on {measure.task}"
    family = of_family(compared, MOST_FREQUENT, measure)
    if not family:
        return f"{head}."
    above = [found.variant for found in family if found.low > 0]
    tested = [found.variant for found in family if not math.isnan(found.low)]
    untested = [variant for variant in mean_scores(results, measure).index if variant not in tested]
    if not above:
        said = ["no variant is above that by more than chance"] if tested else []
    elif untested or above != tested:
        said = [f"{', '.join(above)} {'are' if len(above) > 1 else 'is'} above that by more than chance"]
    else:
        said = ["all variants are above that by more than chance"]
    if untested:
        said.append(f"{', '.join(untested)} cannot be tested (too few seeds, or no spread over them)")
    return f"{head}; {'; '.join(said)}."


def gap(compared: Sequence[Comparison], measure: Measure, variant: str, other: str) -> str:
    """A difference in words, seed by seed, with its interval: "3.1 points (1.9 to 4.3) above LTR"."""
    found = find(compared, measure, variant, other)
    if not found:
        return f"not compared with {other} (too few seeds in common)"
    if is_none(found):
        return f"as high as {other}"
    text = f"{apart(found)} {other}"
    if math.isnan(found.low):
        return f"{text} in every seed, so no interval can be given"
    text += f" on the {found.pairs} seeds that both have" if 0 < found.pairs < max(found.seeds) else ""
    return text if found.beyond_chance else f"{text} (may be chance)"


def is_none(found: Comparison) -> bool:
    """Whether two variants have the same mean, to within rounding."""
    return abs(found.mean) < 1e-12


def apart(found: Comparison) -> str:
    """How far a variant is from another, and on which side, if on any: "3.1 points (1.9 to 4.3) above"."""
    return size(found) + ("" if is_none(found) else " above" if found.mean > 0 else " below")


def size(found: Comparison) -> str:
    """How far apart two variants are, whichever is above, with the interval: "3.1 points (1.9 to 4.3)"."""
    metric = found.measure.metric
    if math.isnan(found.low):
        return points(found.mean, metric)
    if found.is_undetermined:
        return f"{points(found.mean, metric)} (undetermined with {found.pairs or min(found.seeds)} seeds)"
    low, high = (-found.high, -found.low) if found.mean < 0 else (found.low, found.high)
    return f"{points(found.mean, metric)} ({signed_points(low, metric)} to {signed_points(high, metric)})"


def mlm_and_ltr(variants: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of variants that differ only in the label MLM against LTR, whatever their other labels."""

    def swapped(variant):
        labels = variant.split(", ")
        return ", ".join("ltr" if label.casefold() == "mlm" else label.casefold() for label in labels)

    names = {variant.casefold(): variant for variant in variants}
    return [(v, names[swapped(v)]) for v in variants if swapped(v) != v.casefold() and swapped(v) in names]


def comparison(compared: Sequence[Comparison], measure: Measure, variant: str, other: str) -> str:
    """Says honestly whether one variant is above another in a downstream score."""
    task = measure.task
    found = find(compared, measure, variant, other)
    if not found:
        return f"{variant} and {other} have too few seeds in common to be compared on {task}."
    if found.mean > 0:
        sentence = f"{variant} is above {other} on {task} by {size(found)}"
    elif found.mean < 0:
        sentence = f"{variant} is not above {other} on {task} at this scale: it is {size(found)} below"
    else:
        sentence = f"{variant} is not above {other} on {task} at this scale: the two are equal"
    over = f"{found.pairs} seeds" if found.pairs else "different seeds"
    if math.isnan(found.low):
        return f"{sentence}, the same in all {over}; that says nothing about chance."
    return f"{sentence}; {over} {'show more than chance' if found.beyond_chance else 'cannot tell that from chance'}."


def run_finding(results: Results) -> str:
    """The plain-language summary of a single run."""
    run = results.runs["run"].iloc[0]
    steps, tokens, seconds = (results.values(cost(name))[run] for name in ("step", "tokens", "seconds"))
    sentence = f"The run took {steps:,.0f} steps over {count_text(tokens)} tokens in {seconds_text(seconds)}"
    held_out = "valid examples" if is_finetuning(results) else "held-out text"
    for metric in plots.loss_metrics(results.metrics):
        curve = results.metrics[(results.metrics["split"] == "valid") & (results.metrics["metric"] == metric)]
        first, last = curve["value"].iloc[0], curve["value"].iloc[-1]
        sentence += f"; {metric} on {held_out} went from {first:.3f} to {last:.3f}"
    for measure in scores(results):
        sentence += f"; {measure.name} on test is {score_text(results.values(measure)[run], measure.metric)}"
        answered = results.values(measure._replace(stage="most_frequent"))[run]
        if answered > 0:
            sentence += f" ({score_text(answered, measure.metric)} by always giving the most frequent answer)"
    if is_finetuning(results):
        files = {split: Run(results.path).predictions(split) for split in ("valid", "test")}
        counts = [f"{file.read().count(chr(10)):,} {split}" for split, file in files.items() if file.exists()]
        sentence += f"; there are {' and '.join(counts)} examples" if counts else ""
    return sentence + ". One run says nothing about differences."


def notices(results: Results) -> list[str]:
    """What the reader must know before the numbers: different data, leaks, missing runs."""
    _, problems = compare_data(results)
    texts = []
    if problems:
        texts.append(
            "The runs did not read the same data in the same order, so their differences are not due to the variants alone."
            f" {'. '.join(problems)}."
        )
    texts += (
        code_notices(results)
        + compare_sources(results)
        + compare_texts(results)
        + leak_notices(results)
        + guessing_notices(results)
        + rate_notices(results)
    )
    texts += seed_notices(results)
    settled = results.study.get("settled")
    if settled:
        left = int((results.runs["status"] == "unfinished").sum())
        texts.append(f"{settled['sentence']}, by a rule fixed beforehand; {left} runs were not started.")
    statuses = ("failed",) if settled else ("failed", "unfinished")
    return texts + [runs_left_out(results, status) for status in statuses if (results.runs["status"] == status).any()]


def loss_notices(results: Results) -> list[str]:
    """A sentence for each objective whose losses do not compare between the variants; for pages that show losses."""
    return [
        f"Losses of {name} do not compare between these variants, which differ in {', '.join(differ[:LISTED])}"
        f"{' and more' if len(differ) > LISTED else ''}: compare scores on tasks, or bits per byte."
        for name, differ in unlike_losses(results).items()
    ]


def code_notices(results: Results) -> list[str]:
    """A sentence for each objective from outside of whose code the runs had different versions."""
    versions: dict[str, dict[str, list[str]]] = {}
    for run, environment in results.environments.items():
        for name, digest in environment.get("code", {}).items():
            versions.setdefault(name, {}).setdefault(digest, []).append(run)
    said = []
    for name, of in versions.items():
        if len(of) > 1:
            few = min(of.values(), key=len)
            more = f" and {len(few) - LISTED} more" if len(few) > LISTED else ""
            said.append(
                f"The code of {name} was not the same in all runs ({', '.join(few[:LISTED])}{more} had another than the rest),"
                " so differences are not due to the variants and seeds alone."
            )
    return said


def rate_notices(results: Results) -> list[str]:
    """Which rates were selected at the end of their candidates, and which pretrainings have none."""
    selected = [(search, search.selected(results.path)) for search in searches_of(results)]
    ends = [f"{search.variant} ({rate:g})" for search, rate in selected if rate and search.at_the_end(rate)]
    none = [search.variant for search, rate in selected if rate is None]
    said = []
    if ends:
        said.append(
            f"The selected pretraining rate of {'; '.join(ends)} is the lowest or highest candidate, so a better one may lie"
            " beyond."
        )
    if none:
        said.append(f"No pretraining rate is selected for {'; '.join(none)}: candidates have not finished, or all diverged.")
    for (axis, label, end), variants in at_the_ends(results).items():
        listed = "; ".join(f"{variant} ({', '.join(tasks)})" for variant, tasks in variants.items())
        said.append(f"{axis}={label} is the {end} candidate and was selected for {listed}; a better one may lie beyond.")
    return said


def seed_notices(results: Results) -> list[str]:
    """Which variants have two seeds only, and which score exactly the same with every seed, and what that may come from."""
    chosen, said = at_selected_labels(results), []
    # That one seed tells nothing is the first finding where all have one.
    counts = {variant: seeds for variant, (seeds, _) in seed_counts(chosen).items() if seeds}
    few = [variant for variant, seeds in counts.items() if seeds < 3]
    if few and max(counts.values()) > 1:
        said.append(
            f"{'; '.join(few)}: fewer than 3 seeds. An interval from two rests on a single degree of freedom, so it is very"
            " wide; one seed has none."
        )
    same: dict[str, dict[str, list[str]]] = {sentence: {} for sentence in (AT_CEILING, UNTRAINED_HEAD, NO_SPREAD)}
    for measure in scores(chosen):
        answered = mean_scores(chosen, measure._replace(stage="most_frequent"))
        for variant, table in seed_tables(chosen, measure).items():
            values = table.stack()
            if len(values) > 1 and values.nunique() == 1:
                at = lambda score, value=values.iloc[0]: math.isclose(value, score, rel_tol=0, abs_tol=ROUNDING)
                highest, most_frequent = bounds(measure.metric)[1], answered.get(variant, math.nan)
                sentence = AT_CEILING if at(highest) else UNTRAINED_HEAD if at(most_frequent) else NO_SPREAD
                same[sentence].setdefault(measure.task, []).append(variant)
    for sentence, of in same.items():
        if of:
            listed = "; ".join(f"{task} ({', '.join(variants)})" for task, variants in of.items())
            said.append(f"All seeds have exactly the same score on {listed}. {sentence}")
    return said


def leak_notices(results: Results) -> list[str]:
    """A sentence for each objective with a loss that is too good to be true in some runs."""
    said = []
    for measure in results.measures(stage="floor"):
        name, _, kind = measure.metric.rpartition("/")
        if kind != "above":
            continue
        metrics = [f"{name}/{of}" for of in ("above", "floor", "lower_bound")]
        errors = zip(*(results.standard_errors(measure._replace(metric=metric)) for metric in metrics), strict=True)
        above = zip(results.values(measure).items(), errors, strict=True)
        if runs := held_out.below_floor({run: (nats, held_out.standard_error(*of_run)) for (run, nats), of_run in above}):
            said.append(
                f"The loss of {name} is below its floor by more than {held_out.STANDARD_ERRORS} standard errors in"
                f" {', '.join(runs)}. No model can be that good, so it sees what it must predict (a leak)."
            )
    runs_of: dict[str, list[str]] = {}
    for run, losses in _token_losses(results):
        for name in held_out.next_to_nothing(losses):
            runs_of.setdefault(name, []).append(run)
    return said + [
        f"The loss of {name} is next to nothing in {', '.join(runs)}. Text does not allow that, so the model sees what it must"
        " predict (a leak)."
        for name, runs in runs_of.items()
    ]


def guessing_notices(results: Results) -> list[str]:
    """A sentence for each objective whose trained models know little more than how frequent each token is."""
    floors = {of.metric: results.values(of) for of in results.measures(stage="floor")}
    runs_of: dict[str, list[str]] = {}
    for run, losses in _token_losses(results):
        best = {name: floors[f"{name}/floor"].get(run, 0.0) for name in losses if f"{name}/floor" in floors}
        config = results.configs.get(run, {})
        found = held_out.near_guessing(losses, results.token_objectives[run], best, config.get("objectives", {}))
        for name in found.keys() & _trained_at_the_end(config) if found else ():
            runs_of.setdefault(name, []).append(run)
    return [
        f"The held-out loss of {name} is no better than guessing by token frequency in {_listed(runs)}. These models learned"
        " little else, so their scores say little about the objective; train them longer, or at another rate."
        for name, runs in sorted(runs_of.items())
    ]


def _trained_at_the_end(config: Mapping[str, Any]) -> set[str]:
    """The objectives that are in the loss at the last step; others may be forgotten by design."""
    entries = config.get("objectives", {})
    if config.get("train", {}).get("phases"):
        entries = phase_configs(ConfigDict(config))[-1][1].objectives
    return {name for name, entry in entries.items() if weights_of(ConfigDict(entry))[1]}


def _token_losses(results: Results) -> Iterator[tuple[str, dict[str, float]]]:
    """Each pretraining with steps, and its last held-out losses of objectives that predict tokens."""
    steps = results.values(cost("step"))
    found = {measure.metric: results.values(measure) for measure in results.measures(stage="pretrain", split="valid")}
    for run, guessing in ((name, of) for name, of in results.token_objectives.items() if steps[name] > 0):
        yield run, held_out.token_losses({metric: values[run] for metric, values in found.items()}, guessing)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def runs_left_out(results: Results, status: str) -> str:
    """Which runs have failed, of those that were started, with their rate; or which are unfinished, of all."""
    runs = results.runs[results.runs["status"] == status]
    verb = "is" if len(runs) == 1 else "are"
    did = "failed" if status == "failed" else f"{verb} not finished"
    if not results.axes:
        return f"This run {did}" + (f": {runs['error'].iloc[0]}." if runs["error"].iloc[0] else ".")
    names = [f"{run['run']} ({run['error']})" if run["error"] else run["run"] for _, run in runs.iterrows()]
    if status == "unfinished" and len(names) > LISTED:
        names[LISTED:] = [f"and {len(names) - LISTED} more"]
    of = f"{len(results.runs)} runs"
    if status == "failed":
        started = int(results.runs["status"].isin(["failed", "finished"]).sum())
        of = f"{started} runs that were started" if started < len(results.runs) else of
        interval = scipy.stats.binomtest(len(runs), started).proportion_ci(method="exact")  # Clopper and Pearson's
        ends = f"{100 * interval.low:.0f} to {100 * interval.high:.0f} %"
        did += f" ({100 * len(runs) / started:.0f} %, 95 % interval {ends})"
    return f"{len(runs)} of {of} {did} and {verb} left out of tables: {', '.join(names)}."
