"""Makes experiments/results/README.md and its figure: every published finding that a study checks,
with our interval, and the list of the studies.

python experiments/results_page.py
"""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from bertlab.studies import comparisons, plots, tables
from bertlab.studies.comparisons import VERDICTS
from bertlab.studies.records import BASELINES, read

FOLDER = Path(__file__).parent / "results"


def claims(studies: dict) -> pd.DataFrame:
    """Differences for which a paper has numbers, from the largest in the published direction to
    the largest against it."""
    found = [tables.differences(of).assign(study=name) for name, of in studies.items()]
    frame = pd.concat(found)
    of_tasks = frame["label"].str.endswith("(points)")  # of a code length, the lower is better
    counted = of_tasks & frame["published"].str.contains(r"\d")
    return frame[counted].sort_values("mean", ascending=False)


def beside_linear(studies: dict) -> str:
    """The best mean of all models on each task and number of labels, and a linear model's."""
    best, linear = {}, {}
    for results in studies.values():
        for measure in comparisons.measures(results):
            labels = re.match(r".*_\d+|.*", measure.task)[0]  # "ud_1000" of "ud_1000_probe"
            mean = tables.baselines(results, measure).get(BASELINES["linear"])
            if mean is not None:
                own = comparisons.score_table(results, measure).mean().max()
                best[labels] = max(own, best.get(labels, 0))
                linear[labels] = mean
    found = [f"{linear[of]:.1%} on {of} (our best: {best[of]:.1%})" for of in linear]
    return ", ".join(found).replace("%", " %")


def draw(frame: pd.DataFrame) -> Figure:
    """A forest plot: a row a finding, right of zero if our sign is the published one."""
    figure = Figure(figsize=(11.0, 0.23 * len(frame) + 1.2), dpi=110, layout="constrained")
    panel = figure.subplots()
    short = frame["study"].str.removesuffix("_tiny_wikipedia")
    names = short + ": " + frame["variant"] + " − " + frame["other"] + ", " + frame["task"]
    colours = frame["verdict"].map({"agrees": plots.COLOURS[0], "contradicts": plots.COLOURS[1]})
    reach = plots.reach_of(frame, limit=30.0)
    plots.draw_differences(panel, frame.assign(name=names, colour=colours), reach)
    panel.set_xlabel(
        "our difference in points; right of zero is the published direction\n"
        "filled: a verdict that agrees (blue) or contradicts (orange); an arrow: beyond the plot"
    )
    return figure


def write_page() -> None:
    folders = [path.parent for path in FOLDER.glob("*/*.jsonl.zst")]
    folders.sort(key=lambda folder: (not folder.name.startswith("crossover"), folder.name))
    studies = {folder.name: read(folder) for folder in folders}
    counted = {name: of for name, of in studies.items() if "not_counted" not in of.study}
    frame = claims(counted)
    plots.save(draw(frame), FOLDER / "claims.png")
    beyond = (frame["low"] > 0).sum(), (frame["high"] < 0).sum()
    verdicts = Counter(frame["verdict"])
    decided = sum(verdicts.pop(verdict, 0) for verdict in VERDICTS)
    counts = "; ".join(f"{verdict}: {count}" for verdict, count in verdicts.most_common())
    rows, others = [], []
    for name, study in ((name, of.study) for name, of in studies.items()):
        row = f"| [{study['title']}]({name}/README.md) | {study['answer']} |"
        if reason := study.get("not_counted"):
            others.append(f"{row} {reason} |")
        else:
            rows.append(row)
    about = (
        f"{len(frame)} comparisons with published findings: {beyond[0]} have a 95 % interval right"
        f" of zero, in the paper's direction, {beyond[1]} left of it, before any correction."
        f" Verdicts: {decided}; {counts}."
    )
    page = PAGE.format(
        about=about,
        linear=beside_linear(counted),
        rows="\n".join(rows),
        others="\n".join(others),
    )
    (FOLDER / "README.md").write_text(page, encoding="utf-8")


PAGE = """# Published studies

![Every published finding with our interval](claims.png)

{about}
Those right of zero compare pretraining with none, or a layer with the embeddings; no two
pretrainings. None is on its paper's task or at its size, and they are not independent: some
findings are tested several times, and some studies share pretrainings.

A linear model on n-grams with as many labels has {linear}. SST-2's labels are its worst of eight
draws; on average it has 69.7 %.

Filled dots have a verdict, which takes five pretraining seeds with three fine-tunings each, rates
inside the grids that were tried, and p < 0.05 after correction ([the
rule](../../docs/statistics.md)). Intervals in answers are before correction. Each study's page has
its cautions, and the [list of corrections](CORRECTIONS.md) what was withdrawn.

| Study | Answer |
|---|---|
{rows}

Not counted above:

| Study | Answer | Why |
|---|---|---|
{others}

Each folder has three files: `README.md`, the figure, and `NAME.jsonl.zst` with all numbers behind
them, which read as tables:

```python
import bertlab.results

frame = bertlab.results.load("experiments/results/bert_table5_tiny_wikipedia")
frame = bertlab.results.curves("experiments/results/bert_table5_tiny_wikipedia")
```

`bertlab report runs/STUDY --publish=experiments/results/STUDY` writes such a folder from a sweep,
and `python experiments/results_page.py` this page. `python experiments/recompute.py` computes the
tables of all pages and the counts above again from these files, without bertlab's code, compares
the answers with the files, and lists an answer's numbers that are in no table; costs, distances to
floors, intervals of bits per byte and the steps at which lines cross it leaves out.
Studies made by version 0.1.0 (a page's last table names the version) are read-only, since today's
version reads other batches.
"""

if __name__ == "__main__":
    write_page()
