"""Makes experiments/results/README.md and its figure: every published finding that a study checks,
with our interval, and the list of the studies.

python experiments/results_page.py
"""

from collections import Counter
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from bertlab.studies import plots, tables
from bertlab.studies.comparisons import VERDICTS
from bertlab.studies.records import read

FOLDER = Path(__file__).parent / "results"
CUT = ("trec", "sst2")


def claims(studies: dict) -> pd.DataFrame:
    """Differences of all studies for which a paper has numbers, from the largest in the published
    direction to the largest against it; without tasks whose rows version 0.1.0 cut."""
    frames = []
    for name, results in studies.items():
        frame = tables.differences(results).assign(study=name)
        cut = frame["task"].str.startswith(CUT) & (results.study.get("version") == ["0.1.0"])
        frames.append(frame[~cut & frame["published"].str.contains(r"\d")])
    frame = pd.concat(frames)
    of_tasks = frame["label"].str.endswith("(points)")  # of a code length, the lower is better
    return frame[of_tasks].sort_values("mean", ascending=False)


def draw(frame: pd.DataFrame) -> Figure:
    """A forest plot: a row a finding, right of zero if our sign is the published one."""
    figure = Figure(figsize=(11.0, 0.23 * len(frame) + 1.2), dpi=110, layout="constrained")
    panel = figure.subplots()
    short = frame["study"].str.removesuffix("_tiny_wikipedia")
    names = short + ": " + frame["variant"] + " − " + frame["other"] + ", " + frame["task"]
    colours = frame["verdict"].map({"agrees": plots.COLOURS[0], "contradicts": plots.COLOURS[1]})
    reach = plots.reach_of(frame, limit=15.0)
    plots.draw_differences(panel, frame.assign(name=names, colour=colours), reach)
    panel.set_xlabel(
        "our difference in points; right of zero is the published direction\n"
        "filled: a verdict that agrees (blue) or contradicts (orange); an arrow: beyond the plot"
    )
    return figure


def write_page() -> None:
    folders = sorted(path.parent for path in FOLDER.glob("*/*.jsonl.zst"))
    studies = {folder.name: read(folder) for folder in folders}
    frame = claims(studies)
    plots.save(draw(frame), FOLDER / "claims.png")
    beyond = (frame["low"] > 0).sum(), (frame["high"] < 0).sum()
    verdicts = Counter(frame["verdict"])
    decided = sum(verdicts.pop(verdict, 0) for verdict in VERDICTS)
    counts = "; ".join(f"{verdict}: {count}" for verdict, count in verdicts.most_common())
    rows = []
    for name, results in studies.items():
        study = results.study
        answer, caution = study.get("answer", ""), study.get("caution", "")
        rows.append(f"| [{study['title']}]({name}/README.md) | {answer} | {caution} |")
    about = (
        f"{len(frame)} comparisons with published findings: {beyond[0]} have a 95 % interval right"
        f" of zero, in the paper's direction, {beyond[1]} left of it, before any correction."
        f" {decided} {'has' if decided == 1 else 'have'} a verdict; the others: {counts}."
    )
    page = PAGE.format(about=about, rows="\n".join(rows))
    (FOLDER / "README.md").write_text(page, encoding="utf-8")


PAGE = """# Published studies

![Every published finding with our interval](claims.png)

{about}
Many compare pretraining with none, which is the easiest to find. None is on its paper's task or at
its size, and they are not independent: some findings are tested several times, and some studies
share pretrainings.

Filled dots have a verdict, which takes five pretraining seeds with three fine-tunings each, rates
inside the grids that were tried, and p < 0.05 after correction ([the
rule](../../docs/statistics.md)). Intervals of studies made by version 0.1.0 ignore the sampling of
test sets and are too short, and their rows cut texts. Their findings on TREC and SST-2, which were
cut most, are not counted, nor is [what was withdrawn](CORRECTIONS.md).

| Study | Answer | Caution |
|---|---|---|
{rows}

Each folder has three files: `README.md`, the figure, and `NAME.jsonl.zst` with all numbers behind
them, which read as tables:

```python
import bertlab.results

frame = bertlab.results.load("experiments/results/bert_table5_tiny_wikipedia")
frame = bertlab.results.curves("experiments/results/bert_table5_tiny_wikipedia")
```

`bertlab report runs/STUDY --publish=experiments/results/STUDY` writes such a folder from a sweep,
and `python experiments/results_page.py` this page. `python experiments/recompute.py` computes the
tables of all pages and the counts above again from these files, without bertlab's code, and lists
the numbers of an answer that are in no table; costs and intervals of bits per byte it leaves out.
Studies made by version 0.1.0 (a page's last table names the version) are read-only, since today's
version reads other batches.
"""

if __name__ == "__main__":
    write_page()
