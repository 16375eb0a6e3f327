"""When a sweep may stop early: once the order of its variants is settled (`bertlab sweep --until_decided=TASK`).

Runs go seed by seed. After each seed that all variants have finished, from the third on, every pair of variants is tested, with
a correction for repeated looks (`statistics.settled`). Once all pairs are decided, the remaining seeds are not started.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from bertlab.errors import UserError
from bertlab.run import StudyDirectory
from bertlab.studies import statistics
from bertlab.studies.measurements import load, score_of_task
from bertlab.studies.seeds import nesting, seed_tables
from bertlab.studies.statistics import FIRST_LOOK
from bertlab.studies.study import RunSpec, Study

ALL = "all"


def check_until_decided(study: Study, task: str) -> None:
    """Raises a UserError for a study whose order cannot be settled: too few seeds, or no such task."""
    if task != ALL and task not in study.tasks:
        raise UserError(
            f"--until_decided={task}: the study's tasks are {', '.join(study.tasks) or 'none'}; name one of them, or all"
        )
    if not study.tasks:
        raise UserError(f"--until_decided: study {study.name} has no downstream task to order its variants by")
    if study.selected:
        raise UserError(
            f"--until_decided: study {study.name} selects among {', '.join(study.selected)} after all runs; omit the option"
        )
    counts = len(_seeds(study.runs(), study))
    if counts < FIRST_LOOK:
        raise UserError(
            f"--until_decided: study {study.name} has {counts} seeds and needs {FIRST_LOOK} to order its variants; ask for more"
        )


def fix_rule(workdir: Path, study: Study, task: str) -> None:
    """Records the stopping rule of a sweep's directory before the first look; raises a UserError if it had another rule."""
    rule = {"task": task, "max_seeds": len(_seeds(study.runs(), study))}
    file = StudyDirectory(workdir).rule
    if (before := file.get(rule)) != rule:
        raise UserError(
            f"{file}: this sweep stops by {before['task']} and {before['max_seeds']} seeds, not by {task} and"
            f" {rule['max_seeds']}; a second rule could find an order by chance, so give the same rule or another --workdir"
        )
    file.write(rule)


def seed_by_seed(runs: Sequence[RunSpec], study: Study) -> list[RunSpec]:
    """The runs, seed after seed."""
    order = {seed: place for place, seed in enumerate(_seeds(runs, study))}
    return sorted(runs, key=lambda run: order[_seed(run, study)])


def look(workdir: Path, study: Study, task: str, waiting: Mapping[str, str] | None = None) -> statistics.Settlement | None:
    """What the complete seeds of a study say about the order of its variants; None if they are too few.

    A seed is complete once each of its runs has finished or failed. `waiting` overrides the status of runs that the sweep will
    still start, or try again ("unfinished").
    """
    results, runs = load(workdir), study.runs()
    status = dict(zip(results.runs["run"], results.runs["status"], strict=True))
    status |= waiting or {}
    complete = []
    for seed in (seeds := _seeds(runs, study)):
        if any(status[run.name] == "unfinished" for run in runs if _seed(run, study) == seed):
            break
        complete.append(seed)
    if len(complete) < FIRST_LOOK:
        return None
    scores = {}
    for name in [task] if task != ALL else study.tasks:
        if measure := score_of_task(results, name):
            tables = seed_tables(results, measure)
            scores[measure.name] = pd.DataFrame({v: of.mean(axis=1).reindex(complete) for v, of in tables.items()})
    return statistics.settled(scores, len(seeds)) if scores else None


def write_settled(workdir: Path, found: statistics.Settlement) -> str:
    """Records in the study's directory that it stopped early; returns that as a sentence."""
    orders = "; ".join(f"{metric}: {' > '.join(ranking)}" for metric, ranking in found.rankings.items())
    sentence = f"The order of the variants was settled after {found.seeds} of {found.max_seeds} seeds ({orders})"
    StudyDirectory(workdir).settled.write({"seeds": found.seeds, "max_seeds": found.max_seeds, "sentence": sentence})
    return sentence


def open_pairs(found: statistics.Settlement) -> str:
    """The pairs that are not decided yet: "A against B on sst2/accuracy (0.004)"."""
    named = [f"{pair.better} against {pair.worse} on {pair.metric} ({pair.difference.mean:.3g})" for pair in found.open]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def _seeds(runs: Sequence[RunSpec], study: Study) -> list[str]:
    return list(dict.fromkeys(_seed(run, study) for run in runs))


def _seed(run: RunSpec, study: Study) -> str:
    """The seed of a run's pretraining, as `by_seed` names it; its fine-tuning's if there is no other."""
    return " ".join(run.labels[axis] for axis in nesting(study.axis_names)[0])
