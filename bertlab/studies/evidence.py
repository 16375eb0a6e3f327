"""The pages of published studies: one for each study, and one that holds every published finding against ours.

    bertlab evidence experiments/results --studies=experiments/ablations

All numbers come from the folders that `bertlab publish` wrote; nothing is edited by hand. A study's page has its `notes.md`, if
there is one: what may explain the results, in a person's words, with {expressions} in the place of numbers
(`bertlab.studies.noted`). The first page ends with the `notes.md` of the whole folder.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bertlab.config import SHIPPED
from bertlab.errors import UserError
from bertlab.files import write_text
from bertlab.locks import alone
from bertlab.run import Run, StudyDirectory
from bertlab.studies import plots
from bertlab.studies.comparisons import Comparison, compare_all
from bertlab.studies.curves import at_last_steps, untrained
from bertlab.studies.findings import Verdict, claimed, findings, notices, verdicts
from bertlab.studies.measurements import Measure, Results, load, scores
from bertlab.studies.noted import Place, fill
from bertlab.studies.published import names_of
from bertlab.studies.report import environment_rows, figures, write_svg
from bertlab.studies.seeds import mean_scores
from bertlab.studies.study import load_study
from bertlab.studies.tables import grouped_tables, interval_text, notes
from bertlab.studies.text import number, seconds_text

WORDS = ("agrees", "disagrees", "undecided", "too few seeds", "no such task")
RULE = """\
- A finding **agrees** if the 95 % interval of our difference (the higher variant minus the lower) lies above zero,
  **disagrees** if it lies below, and is **undecided** otherwise. Differences are in points of the task's score.
- Intervals are Student's over seeds, paired. They are corrected for the number of findings that the study names, within a task
  (Bonferroni), but not for the number of tasks and pages. The last column of the counts has the rows that are still decided if
  all rows are corrected together (Holm).
- With three seeds, an interval rests on the assumption that differences are normal: without it, no test reaches 5 % with fewer
  than six. An interval covers the chance of seeds (initial values, order, masks), not that of a test set's examples.
- Studies share pretrainings, and some share fine-tuned models. If all models of a row are also in another row, it is listed
  apart and not counted.
- A finding is held against every task of its study, also where the paper has it for other kinds of task, unless the study
  limits it to some kinds. **No such task**: the study has no task of those. **Too few seeds**: the two variants do not have two
  finished seeds yet."""
MADE = "<!-- made by `bertlab evidence`; do not edit -->"
PAGE, NOTES = "README.md", "notes.md"
SMALL = 0.02  # of a score: undecided rows within it, either way, are counted apart
MOST_VARIANTS = 9  # of which the first page prints the means
GROUPS = {
    "Between pretrained models, their parts and their uses": False,
    "Against no pretraining": True,
}


@dataclasses.dataclass(eq=False)
class Row:
    """A finding beside our difference in one task.

    Attributes:
        place, verdict: Where it was measured, and what came out.
        models: The fine-tuned models of the higher and of the lower variant, each known by its scores.
        control: Whether the lower variant was not pretrained.
        among: The row whose models include these, if there is one.
    """

    place: Place
    verdict: Verdict
    models: tuple[frozenset[str], frozenset[str]]
    control: bool
    among: "Row | None" = None


def write_pages(folder: Path, studies: Path) -> list[Path]:
    """Writes the page of every study in a folder, and the page of all findings.

    Args:
        folder: It holds a folder for each published study.
        studies: Folder of the study files, here or, as for `bertlab.config.find_file`, among bertlab's own; those that were not
            published are listed as not run.

    Returns:
        The pages that were written.

    Raises:
        UserError: The folder holds no published study, a study cannot be read, or notes ask for a number that is not there.
    """
    found = [place for place in sorted(folder.glob("*")) if StudyDirectory(place).study.exists()]
    if not found:
        raise UserError(
            f"{folder} has no folder with a study.json; publish a study there first: bertlab publish DIR {folder}/NAME"
        )
    studies = next((place for place in (studies, SHIPPED / studies) if place.is_dir()), studies)
    if not (files := sorted(path for path in studies.glob("*.py") if "def get_study(" in path.read_text(encoding="utf-8"))):
        raise UserError(f"--studies={studies} has no file with get_study(); give the folder of the study files")
    for page in [place / PAGE for place in (folder, *found)]:
        if page.exists() and not (page.is_file() and page.read_bytes().startswith(MADE.encode())):
            raise UserError(f"{page} was not made by `bertlab evidence`, which would replace it; move your text to {NOTES}")
    known = [load_study(str(path)) for path in files]
    places = {path.name: Place(path.name, results := load(path), compare_all(results)) for path in found}
    rows = [row for place in places.values() for row in rows_of(place)]
    mark_shared(rows)
    pictures = {place: figures(place.results) if len(place.results.finished) else {} for place in places.values()}
    texts = {place: study_page(place, rows, places, list(drawn)) for place, drawn in pictures.items()}  # before any is written
    ran = {place.results.study["name"] for place in places.values()}
    waiting = [(study.name, claim) for study in known if study.name not in ran for claim in study.claims]
    with alone(folder / PAGE, wait=True):
        for place, drawn in pictures.items():
            target = place.results.path / "figures"
            target.mkdir(exist_ok=True)
            for name, figure in drawn.items():
                write_svg(figure, target / f"{name}.svg", background="white")
            for old in [path for path in target.glob("*.svg") if path.stem not in drawn]:  # another file there is not ours
                old.unlink()
            write_text(place.results.path / PAGE, texts[place])
        write_text(folder / PAGE, top_page(rows, waiting, places, folder / NOTES))
    return [place / PAGE for place in (*found, folder)]


def rows_of(place: Place) -> list[Row]:
    """The findings of a study, in each of its tasks."""
    chosen = at_last_steps(place.chosen)
    not_pretrained = untrained(chosen)
    of_tasks = chosen.measurements[chosen.measurements["stage"] == "finetune"]
    known = {
        of: json.dumps(rows[["split", "metric", "value"]].to_numpy().tolist()) for of, rows in of_tasks.groupby(["run", "task"])
    }
    found = []
    for verdict in verdicts(place.results, place.compared):
        task = verdict.measure.task if verdict.measure else ""
        of_variant = lambda name: chosen.finished.loc[chosen.finished["variant"] == name, "run"]
        pair = [of_variant(verdict.claim[side]) for side in ("higher", "lower")]
        models = tuple(frozenset(known.get((run, task), run) for run in runs) for runs in pair)
        found.append(Row(place, verdict, models, control=verdict.claim["lower"] in not_pretrained))
    return found


def mark_shared(rows: Sequence[Row]) -> None:
    """Sets `among` of rows whose models are all among another's: that with more seeds, or else with more corrections."""
    weight = lambda row: (len(row.models[0]), row.verdict.found.corrections)
    measured = sorted((row for row in rows if row.verdict.found), key=weight, reverse=True)
    for i, row in enumerate(measured):
        among = (other for other in measured[:i] if not other.among and all(map(frozenset.issubset, row.models, other.models)))
        row.among = next(among, None)


def top_page(rows: Sequence[Row], waiting: Sequence[tuple[str, object]], places: Mapping[str, Place], history: Path) -> str:
    """All findings, with the counts of their verdicts, and the scores of all studies."""
    counted = [row for row in rows if row.verdict.found and not row.among]
    decided = decided_together([row.verdict.found for row in counted])
    undecided = [row.verdict.found for row in counted if row.verdict.word == "undecided"]
    narrow = sum(max(-found.low, found.high) <= SMALL for found in undecided)
    parts = [
        MADE,
        "# Published findings and ours",
        "Each row is a finding of a paper and a task on which we measured it. Data, sizes and steps differ from the paper's:"
        " compare signs, never values. [How verdicts are reached](#how-verdicts-are-reached) has the rule.",
    ]
    if counted:
        parts += [
            f"Of {len(counted)} measured rows, {len(counted) - len(undecided)} are decided by their own study's correction,"
            f" and {len(decided)} if all are corrected together (column Holm). Of the {len(undecided)} undecided rows,"
            f" {narrow} have an interval within {100 * SMALL:g} points of zero, so over seeds a larger difference is unlikely;"
            f" the others cannot tell. {len(waiting)} more findings are not run.",
            by_finding(counted),
            "A number after a task is that of its labelled examples, as in `ud_1000`; `_probe` is a linear layer on frozen"
            " states. Scores of ours are accuracies or F1 in %; where a paper prints errors, the lower one is the better.",
        ]
    else:
        parts.append(f"No published finding was measured here; {len(waiting)} are not run.")
    if rows:
        parts.append(markdown_table(counts(rows, decided)))
    for name, control in GROUPS.items():
        of_group = [row for row in counted if row.control == control]
        parts += [f"## {name}", table_of(of_group, decided)] if of_group else []
    if shared := [row for row in rows if row.among]:
        parts += ["## Rows whose models are among those of another row", table_of(shared, decided)]
    if without := [row for row in rows if not row.verdict.found]:
        parts += ["## Without a measurement", table_of(without, decided)]
    if scored := score_rows(places.values()):
        parts += ["## Scores", "Means over seeds on test.", markdown_table(pd.DataFrame(scored))]
    if lengths := length_rows(places.values()):
        said = "Bits per byte of held-out text, means over seeds; ≤ marks an upper bound of a code length."
        parts += ["## Code lengths", said, markdown_table(pd.DataFrame(lengths))]
    if waiting:
        cells = [{"Study": study, **finding_cells(vars(claim))} for study, claim in waiting]
        parts += ["## Not run", markdown_table(pd.DataFrame(cells))]
    parts += ["## How verdicts are reached", RULE]
    if history.exists():
        parts.append(history.read_text(encoding="utf-8").strip())
    return "\n\n".join(parts) + "\n"


def counts(rows: Sequence[Row], decided: Sequence[Comparison]) -> pd.DataFrame:
    """How many rows of each group have each verdict, and how many are decided if all are corrected together."""
    counted, lines = [row for row in rows if not row.among], []
    for name, control in GROUPS.items():
        words = Counter(row.verdict.word for row in counted if row.control == control)
        own = sum(row.verdict.found in decided for row in counted if row.control == control and row.verdict.found)
        lines.append({"": name, **{word: words[word] for word in WORDS}, "decided by Holm": own})
    total = {key: sum(line[key] for line in lines) for key in (*WORDS, "decided by Holm")}
    lines.append({"": "all", **total})
    return pd.DataFrame(lines)


def by_finding(counted: Sequence[Row]) -> str:
    """How many published findings the rows are of, and what came out of each; one that is printed once counts once."""
    words: dict[tuple[str, str], set[str]] = {}
    for row in counted:
        words.setdefault((row.verdict.claim["published"], row.verdict.claim["source"]), set()).add(row.verdict.word)
    both = sum({"agrees", "disagrees"} <= of for of in words.values())
    agrees, disagrees = (sum(word in of for of in words.values()) - both for word in ("agrees", "disagrees"))
    mixed = f", {both} both" if both else ""
    rest = len(words) - agrees - disagrees - both
    return (
        f"The rows are of {len(words)} published findings. {agrees} agree in at least one row and disagree in none, {disagrees}"
        f" the other way round{mixed}; {rest} are undecided in all their rows."
    )


def decided_together(found: Sequence[Comparison], level: float = 0.05) -> list[Comparison]:
    """The comparisons that are beyond chance if all are corrected together (Holm 1979)."""
    ordered = sorted((of for of in found if not np.isnan(of.p)), key=lambda of: of.p)
    kept = 0
    while kept < len(ordered) and ordered[kept].p <= level / (len(ordered) - kept):
        kept += 1
    return ordered[:kept]


def table_of(rows: Sequence[Row], decided: Sequence[Comparison]) -> str:
    """Rows of the first page; the decided ones first."""
    ordered = sorted(rows, key=lambda row: WORDS.index(row.verdict.word))
    holm = lambda row: "decided" if row.verdict.found in decided and not row.among else ""
    cells = [{**cells_of(row), "Holm": holm(row), "Page": link(row.place)} for row in ordered]
    for row, of in zip(ordered, cells, strict=True):
        of |= {"Among those of": link(row.among.place)} if row.among else {}
    return markdown_table(pd.DataFrame(cells))


def cells_of(row: Row) -> dict[str, str]:
    """The cells of a finding in one task."""
    found, measure = row.verdict.found, row.verdict.measure
    return {
        "Verdict": row.verdict.word,
        **finding_cells(row.verdict.claim),
        "Task": measure.task if measure else "",
        "Ours": signed(found) if found else "",
        "Seeds": str(found.pairs or min(found.seeds)) if found else "",
    }


def link(place: Place) -> str:
    """To a study's page, from that of all."""
    return f"[{place.name}]({place.name}/{PAGE})"


def finding_cells(claim: Mapping) -> dict[str, str]:
    """The cells of a claim."""
    published = f"{claim['published']} ({claim['source']})"
    return {"Finding": f"{claim['higher']} above {claim['lower']}", "Published": published}


def signed(found: Comparison) -> str:
    """A difference with its interval: "+0.3 (-3.0 to 3.5)"."""
    factor, digits = plots.score_scale(found.measure.metric)
    interval = interval_text(found.low, found.high, found.measure.metric)
    return f"{factor * found.mean:+.{digits}f} ({interval})"


def score_rows(places: Iterable[Place]) -> list[dict[str, str]]:
    """A row for each study and task: the variants' means, or the lowest and highest of many."""
    rows = []
    for place in places:
        results = at_last_steps(place.chosen)
        for measure in scores(results):
            means = {variant: score_number(value, measure) for variant, value in mean_scores(results, measure).items()}
            listed = "; ".join(f"{variant} {value}" for variant, value in means.items())
            if len(means) > MOST_VARIANTS:
                low, high = min(means, key=lambda v: float(means[v])), max(means, key=lambda v: float(means[v]))
                listed = f"{len(means)} variants, from {low} {means[low]} to {high} {means[high]}"
            rows.append({"Page": link(place), "Task": measure.name, "Scores": listed})
    return rows


def length_rows(places: Iterable[Place]) -> list[dict[str, str]]:
    """A row for each study that has code lengths and bounds: the variants' means."""
    rows = []
    for place in places:
        results = at_last_steps(place.chosen)
        if plots.has_code_lengths(results):
            known = plots.known_lengths(results)
            listed = "; ".join(f"{of.label} {'≤ ' * of.is_bound}{of.values.mean():.3f}" for of in known)
            rows.append({"Page": link(place), "Bits per byte": listed})
    return rows


def score_number(value: float, measure: Measure) -> str:
    """A score as tables print it, without a unit."""
    factor, digits = plots.score_scale(measure.metric)
    return number(factor * value, digits)


def study_page(place: Place, rows: Sequence[Row], places: Mapping[str, Place], drawn: Sequence[str]) -> str:
    """The page of one study; `drawn` are the names of its figures."""
    results, compared = place.results, place.compared
    study = results.study
    finished, runs = len(results.finished), len(results.runs)
    parts = [MADE, f"# {study['title']}", study["question"], f"Study `{study['name']}`, results `{place.name}`."]
    parts[-1] += f" [All findings](../{PAGE})"
    if finished < runs:
        parts.append(f"**{finished} of {runs} runs are finished.**")
    parts += [f"> {notice}" for notice in notices(results)]
    if own := [row for row in rows if row.place is place]:
        cells = [cells_of(row) | {"Note": f"its models are also in {row.among.place.name}" if row.among else ""} for row in own]
        table = pd.DataFrame(cells)
        kept = table if table["Note"].any() else table.drop(columns="Note")
        rule = f"[How verdicts are reached](../{PAGE}#how-verdicts-are-reached)."
        parts += ["## Published findings", markdown_table(kept), rule]
    in_table = claimed(results, compared)
    sentences = [f"- {sentence}" for sentence in findings(results, compared) if sentence not in in_table]
    parts += ["## Results", "\n".join(sentences)]
    said = notes(results)
    for frame in grouped_tables(results, compared) if finished else ():
        groups = [group for group in dict.fromkeys(group for group, _ in frame.columns) if group]
        plain = frame.copy()
        plain.columns = [name for _, name in frame.columns]
        parts += [f"**{', '.join(groups)}**", markdown_table(plain.rename_axis("Variant").reset_index())]
        parts += [note for group, note in said.items() if group in groups]
    if drawn:
        parts += ["## Figures", *(f"![{name.replace('_', ' ')}](figures/{name}.svg)" for name in drawn)]
    if (written := results.path / NOTES).exists():
        parts += ["## What may explain it", fill(written, place, places)]
    parts += ["## How to run it again", f"```sh\n{study['command']}\n```"]
    parts.append(
        f"The times of all runs add up to {seconds_text(sum(run_seconds(results)))}. Some ran side by side or on several"
        " machines, so compare FLOPs rather than times."
    )
    parts += [sentence] if (sentence := shared_pretrainings(place, places.values())) else []
    environment = environment_rows(results.environments)
    if environment and "processor" not in {name for name, _ in environment}:
        environment.insert(0, ("processor", "not recorded"))
    parts += [markdown_table(pd.DataFrame(environment, columns=["What", "Value"]))] if environment else []
    return "\n\n".join(parts) + "\n"


def shared_pretrainings(place: Place, places: Iterable[Place]) -> str:
    """Which other studies have pretrainings of this one; "" if none has."""
    own = place.pretrainings
    shared = {other: len(own & other.pretrainings) for other in places if other is not place}
    named = [f"[{other.name}](../{other.name}/{PAGE}) ({count})" for other, count in shared.items() if count] if own else []
    return f"Of its {len(own)} pretrainings, these studies have some too: {', '.join(named)}." if named else ""


def run_seconds(results: Results) -> Iterable[float]:
    """The time of every pretraining, adaptation and fine-tuning of a study, candidates for rates included."""
    for name in names_of(dict(results.study)):
        run = Run(results.path / name)
        stages = [run, *(run.stage(*stage) for stage in run.stages())]
        yield from (stage.result.get({}).get("seconds", 0.0) for stage in stages)


def markdown_table(frame: pd.DataFrame) -> str:
    """A table in GitHub's Markdown; `|` is escaped."""
    line = lambda cells: "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    return "\n".join([line(frame.columns), "|" + "---|" * frame.shape[1], *(line(row) for row in frame.to_numpy())])
