"""The comparisons of a study, computed once: terminal, CSV, LaTeX, HTML and findings only format these records."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bertlab.errors import UserError
from bertlab.run import StudyDirectory
from bertlab.studies import statistics
from bertlab.studies.curves import at_last_steps
from bertlab.studies.measurements import Measure, Results, bits_per_byte, bounds, scores
from bertlab.studies.seeds import mean_scores, seed_tables
from bertlab.studies.selection import at_selected_labels
from bertlab.studies.statistics import TTest
from bertlab.transfer.evaluations import CODE_LENGTHS

# Families of comparisons, each corrected for its own number.
ALL_PAIRS, FIRST_VARIANT, MOST_FREQUENT = "all pairs", "first variant", "most frequent answer"
# The study names these pairs, so they are not searched for among all.
PUBLISHED, CONTRASTS = "published findings", "contrasts"
SHORTEST = "shortest code"


@dataclasses.dataclass(frozen=True)
class Comparison(TTest):
    """Variant minus variant in one measure; without common seeds (`pairs` is 0), the difference of the means.

    The interval is of level 1 - 0.05/`corrections`: Student's over the pairs (Welch's without any), or the multi-bootstrap's if
    fine-tuning seeds are nested in pretraining seeds (p is NaN then, and a seed counts with its mean over fine-tunings). It is
    cut where differences of the metric end. p is uncorrected.

    Attributes:
        measure: What is compared.
        variant, other: Their names; `other` is "" for the most frequent answer.
        seeds: How many seeds of each have a value.
        family: What it is corrected with: every two variants, the published findings, the study's contrasts, every variant
            against the first, every variant against the most frequent answer, or against the shortest code. "" if it belongs
            to no family.
        corrections: The comparisons in the family, times the looks of a sweep that may stop early (Bonferroni).
        flips: p of the pairs by sign flips, uncorrected; None except against the first variant.
    """

    measure: Measure
    variant: str
    other: str
    seeds: tuple[int, int]
    family: str = ""
    corrections: int = 1
    flips: float | None = None

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def is_undetermined(self) -> bool:
        """Whether the interval holds every difference that two scores can have, as one of two seeds may."""
        lowest, highest = bounds(self.measure.metric)
        return math.isfinite(highest) and self.low <= lowest - highest and self.high >= highest - lowest

    @property
    def corrected_p(self) -> float:
        """p times the corrections, 1 at most."""
        return float(np.minimum(self.corrections * self.p, 1.0))

    def reversed(self) -> "Comparison":
        """The other variant minus this one."""
        turned = {"variant": self.other, "other": self.variant, "seeds": self.seeds[::-1]}
        return dataclasses.replace(self, **turned, mean=-self.mean, low=-self.high, high=-self.low)


def compare_all(results: Results) -> list[Comparison]:
    """The comparisons that a study's seeds allow, in all families, score by score.

    Steps of a pretraining are compared only at the last, but for contrasts. In a study that selects labels, each variant has
    its selected ones. A study without tasks compares code lengths and bounds, each kind with its shortest.
    """
    results = at_selected_labels(results)
    last = at_last_steps(results)
    of_scores = [
        found for measure in scores(results) for found in (*_of_measure(last, measure), *_named(results, measure, CONTRASTS))
    ]
    if results.study["downstream"]:
        return of_scores
    return [found for kind in CODE_LENGTHS for found in _beside_shortest(last, bits_per_byte(kind))]


def find(
    compared: Sequence[Comparison], measure: Measure, variant: str, other: str, family: str = ALL_PAIRS
) -> Comparison | None:
    """The comparison of two variants in a family, in either direction; None if they have too few seeds in common."""
    for found in compared:
        if found.family == family and found.measure == measure:
            if (found.variant, found.other) == (variant, other):
                return found
            if (found.other, found.variant) == (variant, other):
                return found.reversed()
    return None


def of_family(compared: Sequence[Comparison], family: str, measure: Measure | None = None) -> list[Comparison]:
    """The comparisons of a family, of one measure or of all."""
    return [found for found in compared if found.family == family and measure in (None, found.measure)]


def highest_beyond_chance(results: Results, compared: Sequence[Comparison], measure: Measure) -> str | None:
    """The variant with a mean that is the highest by more than chance; None if no variant is."""
    best = mean_scores(at_last_steps(results), measure).sort_values(ascending=False, kind="stable").index
    found = find(compared, measure, *best[:2]) if len(best) > 1 else None
    return best[0] if found and found.low > 0 else None


def difference(results: Results, metric: str, variant: str, other: str, level: float = 0.95) -> Comparison:
    """Compares two variants of a study seed by seed, over finished runs.

    Seeds that only one of the two has are left out. Without a common seed they are compared as independent samples.

    Args:
        results: The study.
        metric: A test score such as "package/accuracy", a test loss such as "mlm/loss", or a cost such as "tokens".
        variant, other: Their names.
        level: Coverage of the interval for one comparison; for m at once, ask for 1 - 0.05/m (Bonferroni).

    Raises:
        UserError: The study has no such metric or variant, or has fewer than two seeds to compare: one seed is never
            compared with one seed.
    """
    measure = results.find(metric)
    if unknown := [name for name in (variant, other) if name not in results.variants]:
        raise UserError(f"{results.path} has no variant '{unknown[0]}'; it has {', '.join(results.variants)}")
    return _compare(_scored_seeds(results, measure), measure, [(variant, other)], level)[0]


def looks_of(results: Results) -> int:
    """How often a sweep that may stop early could have looked at the scores, whether it stopped or not; 1 for other sweeps."""
    rule = StudyDirectory(results.path).rule.get()
    return rule["max_seeds"] - statistics.FIRST_LOOK + 1 if rule else 1


def _of_measure(results: Results, measure: Measure) -> list[Comparison]:
    tables, looks = _scored_seeds(results, measure), looks_of(results)
    scored = [name for name in results.variants if len(tables[name])]
    corrections = looks * max(1, len(scored) * (len(scored) - 1) // 2)
    every = [pair for pair in itertools.combinations(scored, 2) if _comparable(tables, *pair)]
    found = _compare(tables, measure, every, family=ALL_PAIRS, corrections=corrections)
    found += _named(results, measure, PUBLISHED)
    reference, *others = results.variants
    beside_first = [(name, reference) for name in others if _comparable(tables, name, reference)]
    corrections = looks * max(len(beside_first), 1)
    of_first = _compare(tables, measure, beside_first, family=FIRST_VARIANT, corrections=corrections)
    means = {name: table.mean(axis=1) for name, table in tables.items()}
    flips = iter(statistics.flip_pairs(means, [(of.variant, of.other) for of in of_first if of.pairs]))
    found += [dataclasses.replace(of, flips=next(flips)) if of.pairs else of for of in of_first]
    answered = seed_tables(results, measure._replace(stage="most_frequent"))
    for name in scored:
        ours, theirs = (table[name].mean(axis=1).dropna() for table in (tables, answered))
        if min(len(ours), len(theirs)) > 1:
            family = {"family": MOST_FREQUENT, "corrections": looks * len(scored)}
            beside = {name: ours.to_frame(), "": theirs.to_frame()}
            found += _compare(beside, measure, [(name, "")], **family)
    return found


def _beside_shortest(results: Results, measure: Measure) -> list[Comparison]:
    """Every other variant minus the one with the lowest mean. The results choose that one, so all pairs count (Bonferroni)."""
    tables = {name: table for name, table in _scored_seeds(results, measure).items() if len(table)}
    if len(tables) < 2:
        return []
    best = min(tables, key=lambda name: tables[name].mean(axis=1).mean())
    corrections = looks_of(results) * (len(tables) * (len(tables) - 1) // 2)
    pairs = [(name, best) for name in tables if name != best and _comparable(tables, name, best)]
    return _compare(tables, measure, pairs, family=SHORTEST, corrections=corrections)


def _named(results: Results, measure: Measure, family: str) -> list[Comparison]:
    """The published findings or the contrasts that the study names; two findings about the same pair are one comparison."""
    claims = [(claim["higher"], claim["lower"]) for claim in results.study.get("claims", ())]
    named = {PUBLISHED: claims, CONTRASTS: results.study.get("contrasts", ())}[family]
    pairs = {frozenset(pair): tuple(pair) for pair in named}.values()
    if not pairs:
        return []
    tables, corrections = _scored_seeds(results, measure), looks_of(results) * len(pairs)
    known = [pair for pair in pairs if {*pair} <= {*tables} and _comparable(tables, *pair)]
    return _compare(tables, measure, known, family=family, corrections=corrections)


def _compare(
    tables: Mapping[str, pd.DataFrame],
    measure: Measure,
    pairs: Sequence[tuple[str, str]],
    level: float | None = None,
    family: str = "",
    corrections: int = 1,
) -> list[Comparison]:
    """The comparison of each pair of variants, of their `_scored_seeds`."""
    level = level or 1 - 0.05 / corrections
    single = {name: table.iloc[:, 0] for name, table in tables.items() if table.shape[1] == 1}
    tests = iter(statistics.compare_pairs(single, [pair for pair in pairs if {*pair} <= {*single}], level))
    lowest, highest = bounds(measure.metric)
    found = []
    for pair in pairs:
        test = next(tests) if {*pair} <= {*single} else _nested_test(tables, pair, level)
        low, high = max(test.low, lowest - highest), min(test.high, highest - lowest)
        seeds = tuple(len(tables[name]) for name in pair)
        of = (measure, *pair, seeds, family, corrections)
        found.append(Comparison(test.mean, test.sd, low, high, test.p, test.pairs, *of))
    return found


def _nested_test(tables: Mapping[str, pd.DataFrame], pair: tuple[str, str], level: float) -> TTest:
    """The multi-bootstrap's interval, without a p."""
    ours, theirs = (tables[name] for name in pair)
    found = statistics.multi_bootstrap(ours, theirs, pair, level)
    sd = (ours.mean(axis=1) - theirs.mean(axis=1)).std()
    return TTest(found.mean, sd, found.low, found.high, math.nan, _in_common(ours, theirs))


def _scored_seeds(results: Results, measure: Measure) -> dict[str, pd.DataFrame]:
    """`seed_tables` without the seeds that have no score."""
    return {name: table.dropna(how="all") for name, table in seed_tables(results, measure).items()}


def _comparable(tables: Mapping[str, pd.DataFrame], variant: str, other: str) -> bool:
    """Whether two variants have two seeds in common, or two seeds each and none in common."""
    ours, theirs = tables[variant], tables[other]
    return (_in_common(ours, theirs) or min(len(ours), len(theirs))) > 1


def _in_common(ours: pd.DataFrame, theirs: pd.DataFrame) -> int:
    """How many seeds two variants have in common."""
    return len(ours.index.intersection(theirs.index))
