"""The pages of published studies: one for each study, and one that holds every published finding against ours.

    bertlab evidence experiments/results --studies=experiments/ablations

All numbers come from the folders that `bertlab publish` wrote; nothing is edited by hand. A study's page ends with its
`notes.md`, if there is one: what may explain the results, in a person's words.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from bertlab.errors import UserError
from bertlab.run import Run, StudyDirectory
from bertlab.studies.comparisons import Comparison, compare_all
from bertlab.studies.findings import Verdict, apart, claimed, findings, notices, verdicts
from bertlab.studies.measurements import Results, load
from bertlab.studies.published import names_of
from bertlab.studies.report import environment_rows, figure_svg, figures
from bertlab.studies.study import load_study
from bertlab.studies.tables import grouped_tables, notes
from bertlab.studies.text import seconds_text

WORDS = ("agrees", "disagrees", "undecided", "too few seeds", "no such task", "not run")
RULE = (
    "A finding **agrees** if the 95 % interval of our difference lies above zero, **disagrees** if it lies below, and is"
    " **undecided** otherwise. Intervals are paired by seed and corrected for the number of findings that the study names"
    " before it is run, within a task (Bonferroni)."
    " **Too few seeds**: the two variants do not have two finished seeds yet. **No such task**: the study has no task of the"
    " kind for which the finding was published. **Not run**: no run of the study is published."
)
MADE = "<!-- made by `bertlab evidence`; do not edit -->"
PAGE = "README.md"


def write_pages(folder: Path, studies: Path) -> list[Path]:
    """Writes the page of every study in a folder, and the page of all findings.

    Args:
        folder: It holds a folder for each published study.
        studies: Folder of the study files; those that were not published are listed as not run.

    Returns:
        The pages that were written.

    Raises:
        UserError: The folder holds no published study, or a study cannot be read.
    """
    places = [place for place in sorted(folder.glob("*")) if StudyDirectory(place).study.exists()]
    if not places:
        raise UserError(
            f"{folder} has no folder with a study.json; publish a study there first: bertlab publish DIR {folder}/NAME"
        )
    if not (files := sorted(path for path in studies.glob("*.py") if "def get_study(" in path.read_text(encoding="utf-8"))):
        raise UserError(f"--studies={studies} has no file with get_study(); give the folder of the study files")
    for page in [place / PAGE for place in (folder, *places)]:
        if page.exists() and not page.read_text(encoding="utf-8").startswith(MADE):
            raise UserError(f"{page} was not made by `bertlab evidence`, which would replace it; move your text to notes.md")
    known = [load_study(str(path)) for path in files]
    rows, ran = [], set()
    for place in places:
        results = load(place)
        compared = compare_all(results)
        pictures = place / "figures"
        shutil.rmtree(pictures, ignore_errors=True)
        pictures.mkdir()
        drawn = figures(results) if len(results.finished) else {}
        for name, figure in drawn.items():
            figure_svg(figure, pictures / f"{name}.svg", background="white")
        found = [finding_row(verdict, place.name) for verdict in verdicts(results, compared)]
        (place / PAGE).write_text(study_page(results, compared, found, list(drawn)), encoding="utf-8")
        rows += found
        ran.add(results.study["name"])
    for study in known:
        if study.name not in ran:
            rows += [claim_row(vars(claim), study.name, "not run") for claim in study.claims]
    (folder / PAGE).write_text(top_page(rows), encoding="utf-8")
    return [place / PAGE for place in (*places, folder)]


def top_page(rows: Sequence[dict[str, str]]) -> str:
    """All findings in one table, with the counts of their verdicts."""
    counts = Counter(row["Verdict"] for row in rows)
    counted = ", ".join(f"{word}: {counts[word]}" for word in WORDS)
    order = sorted(rows, key=lambda row: WORDS.index(row["Verdict"]))  # the studies' order within a verdict
    return (
        "\n\n".join(
            [
                MADE,
                "# Published findings",
                "Each row is a finding of a paper and, if we have run its study, a task on which we measured it. Data, sizes"
                " and steps differ from the paper's: compare signs, never values. Studies can share runs; then"
                " their rows are not evidence apart from each other, and their pages say so.",
                RULE,
                f"{len(rows)} rows. {counted}.",
                markdown_table(pd.DataFrame(order)),
            ]
        )
        + "\n"
    )


def finding_row(verdict: Verdict, study: str) -> dict[str, str]:
    """A row of the top page."""
    row = claim_row(verdict.claim, link(study), verdict.word)
    row["Task"] = verdict.measure.task if verdict.measure else ""
    if found := verdict.found:
        row["Ours"] = apart(found)
        row["Seeds"] = str(found.pairs or min(found.seeds))
    return row


def link(study: str) -> str:
    """To the page of a study, from that of all."""
    return f"[{study}]({study}/{PAGE})"


def claim_row(claim, study: str, word: str) -> dict[str, str]:
    """A row of the top page without a measurement."""
    finding = f"{claim['higher']} above {claim['lower']}"
    published = f"{claim['published']} ({claim['source']})"
    return {"Verdict": word, "Study": study, "Finding": finding, "Published": published, "Task": "", "Ours": "", "Seeds": ""}


def study_page(results: Results, compared: Sequence[Comparison], found: Sequence[dict[str, str]], drawn: Sequence[str]) -> str:
    """The page of one study, with the rows of its findings and the names of its figures."""
    study = results.study
    finished, runs = len(results.finished), len(results.runs)
    parts = [MADE, f"# {study['title']}", study["question"]]
    if finished < runs:
        parts.append(f"**{finished} of {runs} runs are finished.**")
    parts += [f"> {notice}" for notice in notices(results)]
    if found:
        parts += ["## Published findings", RULE, markdown_table(pd.DataFrame(found).drop(columns="Study"))]
    in_table = claimed(results, compared)
    sentences = [f"- {sentence}" for sentence in findings(results, compared) if sentence not in in_table]
    parts += ["## Results", "\n".join(sentences)]
    for frame in grouped_tables(results, compared) if finished else ():
        groups = [group for group in dict.fromkeys(group for group, _ in frame.columns) if group]
        plain = frame.copy()
        plain.columns = [name for _, name in frame.columns]
        parts += [f"**{', '.join(groups)}**", markdown_table(plain.rename_axis("Variant").reset_index())]
        parts += [note for group, note in notes(results).items() if group in groups]
    if drawn:
        parts += ["## Figures", *(f"![{name.replace('_', ' ')}](figures/{name}.svg)" for name in drawn)]
    if (written := results.path / "notes.md").exists():
        parts += ["## What may explain it", written.read_text(encoding="utf-8").strip()]
    hours = f"All runs together took {seconds_text(sum(run_seconds(results)))} of training, one at a time."
    parts += ["## How to run it again", f"```sh\n{study['command']}\n```", hours]
    environment = pd.DataFrame(environment_rows(results.environments), columns=["What", "Value"])
    parts += [markdown_table(environment)] if len(environment) else []
    return "\n\n".join(parts) + "\n"


def run_seconds(results: Results) -> Iterable[float]:
    """The time of every pretraining, adaptation and fine-tuning of a study, candidates for rates included."""
    for name in names_of(dict(results.study)):
        run = Run(results.path / name)
        stages = [run, *(run.stage(kind, task) for kind in ("adapt", "finetune") for task in run.tasks(kind))]
        yield from (stage.result.get({}).get("seconds", 0.0) for stage in stages)


def markdown_table(frame: pd.DataFrame) -> str:
    """A table in GitHub's Markdown; `|` is escaped."""
    line = lambda cells: "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    return "\n".join([line(frame.columns), "|" + "---|" * frame.shape[1], *(line(row) for row in frame.to_numpy())])
