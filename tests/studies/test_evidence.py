"""The pages of published studies are made from the committed files, and a finding's verdict follows from its interval."""

import dataclasses
import json
import re
import shutil

import pandas as pd
import pytest
import scipy.stats
from conftest import objectives_study, write_study

from bertlab.errors import UserError
from bertlab.studies.comparisons import PUBLISHED, compare_all, of_family
from bertlab.studies.evidence import PAGE, WORDS, markdown_table, write_pages
from bertlab.studies.measurements import load
from bertlab.studies.published import publish
from bertlab.studies.study import Claim
from tests.conftest import ROOT

RESULTS, STUDIES = ROOT / "experiments/results", ROOT / "experiments/ablations"


def rows_of(page):
    """The rows of a page's first table: dicts by head."""
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    return [dict(zip(heads, row, strict=False)) for row in rows if len(row) == len(heads)]


@pytest.fixture
def folder(tmp_path):
    """A published study with three claims; LTR scores 10 points above MLM in every seed, and MLM+NSP scores as MLM."""
    claims = [Claim(*pair, "1 and 2", "A, table 1") for pair in (("LTR", "MLM"), ("MLM", "LTR"), ("MLM+NSP", "MLM"))]
    claims += [Claim("LTR", "biLM", "2 and 1", "A, table 2"), Claim("LTR", "MLM+NSP", "2 and 1", "B", kinds=("tagging",))]
    claims.append(Claim("LTR", "MLM+NSP", "2 and 1", "C", kinds=("span",)))
    names = ("MLM", "MLM+NSP", "LTR", "biLM")
    study = dataclasses.replace(objectives_study((1, 2, 3), names), claims=claims)
    score = {"MLM": 0.5, "MLM+NSP": 0.5, "LTR": 0.6, "biLM": 0.7}
    noise = {"1": 0.0, "2": 0.01, "3": -0.01}
    follows = {"MLM": 1.0, "MLM+NSP": -0.2, "LTR": 1.1, "biLM": 1.0}
    per_run = {}
    for run in study.runs():
        variant, seed = run.labels["objective"], run.labels["seed"]
        value = score[variant] + noise[seed] * follows[variant]
        per_run[run.name] = {"package": value, "code_spans": value, "finished": variant != "biLM"}
    write_study(tmp_path / "run", study, per_run=per_run)
    for run in study.runs():  # as a sweep leaves them
        (tmp_path / "run" / run.name / "job.json").write_text("{}")
        if per_run[run.name]["finished"]:
            (tmp_path / "run" / run.name / "measured.json").write_text("{}")
    publish(tmp_path / "run", tmp_path / "results" / "ours")
    return tmp_path / "results"


def test_verdicts_follow_from_intervals_and_are_counted(folder):
    (folder / "ours" / "notes.md").write_text("Too few tokens.")
    assert write_pages(folder, STUDIES) == [folder / "ours" / PAGE, folder / PAGE]
    rows = rows_of(folder / PAGE)
    ours = [(row["Finding"], row["Task"], row["Verdict"], row["Seeds"]) for row in rows if "ours/" in row["Study"]]
    expected = {"LTR above MLM": "agrees", "MLM above LTR": "disagrees", "MLM+NSP above MLM": "undecided"}
    of_tasks = lambda finding, *rest: [(finding, task, *rest) for task in ("package", "code_spans")]
    wanted = [row for finding, word in expected.items() for row in of_tasks(finding, word, "3")]
    wanted.insert(2, ("LTR above MLM+NSP", "code_spans", "agrees", "3"))  # `package` is no tagging
    wanted += [*of_tasks("LTR above biLM", "too few seeds", ""), ("LTR above MLM+NSP", "", "no such task", "")]
    assert ours == wanted
    assert {row["Study"] for row in rows if row["Verdict"] == "not run"} >= {"bert_table5", "bert_figure5"}
    counts = dict(re.findall(r"([a-z ]+): (\d+)", (folder / PAGE).read_text().split(" rows. ")[1].split("\n")[0]))
    counts = {word.strip(): int(count) for word, count in counts.items()}
    assert counts == {word: sum(row["Verdict"] == word for row in rows) for word in WORDS}
    assert [row["Verdict"] for row in rows] == sorted((row["Verdict"] for row in rows), key=WORDS.index)
    of_claims = of_family(compare_all(load(folder / "ours")), PUBLISHED)
    assert {found.corrections for found in of_claims} == {5}, "the findings, not the six pairs of variants"
    first = scipy.stats.ttest_1samp([0.1, 0.101, 0.099], 0).confidence_interval(1 - 0.05 / 5)
    assert (of_claims[0].low, of_claims[0].high) == pytest.approx(first)
    page = (folder / "ours" / PAGE).read_text()
    assert "9 of 12 runs are finished" in page and page.count("Too few tokens.") == 1
    assert {path.stem for path in (folder / "ours" / "figures").iterdir()} == set(re.findall(r"figures/(\w+)\.svg", page))


def test_the_committed_pages_are_those_of_the_committed_results(tmp_path):
    """If this fails: bertlab evidence experiments/results --studies=experiments/ablations."""
    shutil.copytree(RESULTS, tmp_path / "results")
    for page in write_pages(tmp_path / "results", STUDIES):
        assert page.read_text() == (RESULTS / page.relative_to(tmp_path / "results")).read_text(), page


def test_a_table_keeps_its_columns_whatever_the_cells_hold():
    lines = markdown_table(pd.DataFrame({"a": ["x|y", "two\nlines"], "b": [1, 2]})).splitlines()
    assert lines == ["| a | b |", "|---|---|", r"| x\|y | 1 |", "| two lines | 2 |"]


def test_what_cannot_be_is_refused_before_a_page_is_written(folder, tmp_path):
    for of, studies, said in ((tmp_path / "none", STUDIES, "none has no folder"), (folder, tmp_path, "--studies=")):
        with pytest.raises(UserError, match=said):
            write_pages(of, studies)
    (folder / PAGE).write_text("my own words")
    with pytest.raises(UserError, match=r"README\.md was not made by `bertlab evidence`"):
        write_pages(folder, STUDIES)
    assert (folder / PAGE).read_text() == "my own words" and not (folder / "ours" / PAGE).exists()


def test_a_study_without_claims_has_no_rows(folder):
    study = json.loads((folder / "ours" / "study.json").read_text())
    study.pop("claims")  # as before studies had them
    (folder / "ours" / "study.json").write_text(json.dumps(study))
    write_pages(folder, STUDIES)
    assert not [row for row in rows_of(folder / PAGE) if "ours/" in row["Study"]]
