"""The pages of published studies are made from the committed files, and a finding's verdict follows from its interval."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import objectives_study, write_study

from bertlab.errors import UserError
from bertlab.studies import evidence
from bertlab.studies.comparisons import PUBLISHED, Comparison, compare_all, of_family
from bertlab.studies.curves import examples_axis, scores_by_examples
from bertlab.studies.evidence import PAGE, WORDS, decided_together, markdown_table, write_pages
from bertlab.studies.measurements import Measure, load, scores
from bertlab.studies.published import publish
from bertlab.studies.report import figures
from bertlab.studies.selection import at_selected_labels
from bertlab.studies.study import Claim, load_study
from tests.conftest import ROOT
from tests.studies.page_oracle import Published, check_all_lengths, check_all_scores, check_page, differences_of, tables_of

RESULTS, STUDIES = ROOT / "experiments/results", ROOT / "experiments/ablations"


def findings_of(page):
    """The rows of a page's tables of findings."""
    return [row for table in tables_of(page) for row in table if "Finding" in row and "Ours" in row]


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
    (tmp_path / "results" / "ours" / "files.json").unlink()  # tests change the results
    return tmp_path / "results"


def test_verdicts_follow_from_intervals_and_are_counted(folder):
    (folder / "ours" / "notes.md").write_text("Too few tokens.")
    (folder / "ours" / "figures").mkdir()
    for name in ("old.svg", "mine.png"):
        (folder / "ours" / "figures" / name).write_text("a picture")
    assert write_pages(folder, STUDIES) == [folder / "ours" / PAGE, folder / PAGE]
    assert (folder / "ours" / "figures" / "mine.png").exists()
    rows = findings_of(folder / PAGE)
    ours = [(row["Finding"], row["Task"], row["Verdict"], row["Seeds"]) for row in rows]
    expected = {"LTR above MLM": "agrees", "MLM above LTR": "disagrees", "MLM+NSP above MLM": "undecided"}
    of_tasks = lambda finding, *rest: [(finding, task, *rest) for task in ("package", "code_spans")]
    wanted = [row for finding, word in expected.items() for row in of_tasks(finding, word, "3")]
    wanted.insert(2, ("LTR above MLM+NSP", "code_spans", "agrees", "3"))  # `package` is no tagging
    wanted += [*of_tasks("LTR above biLM", "too few seeds", ""), ("LTR above MLM+NSP", "", "no such task", "")]
    assert ours == wanted
    assert [row["Ours"] for row in rows[:2]] == ["+10.0 (9.5 to 10.5)"] * 2
    of_group, _, of_all = tables_of(folder / PAGE)[0]
    assert of_group == of_all | {"": of_group[""]}
    assert {word: int(of_all[word]) for word in WORDS} == {word: sum(row["Verdict"] == word for row in rows) for word in WORDS}
    not_run = tables_of(folder / PAGE)[-1]
    assert {row["Study"] for row in not_run} >= {"bert_table5", "bert_figure5"}
    assert f"{len(not_run)} more findings are not run" in (folder / PAGE).read_text()
    of_claims = of_family(compare_all(load(folder / "ours")), PUBLISHED)
    assert {found.corrections for found in of_claims} == {4}, "LTR against MLM is one comparison, whatever is published of it"
    first = scipy.stats.ttest_1samp([0.1, 0.101, 0.099], 0).confidence_interval(1 - 0.05 / 4)
    assert sorted(map(abs, (of_claims[0].low, of_claims[0].high))) == pytest.approx(sorted(first))
    page = (folder / "ours" / PAGE).read_text()
    assert "9 of 12 runs are finished" in page and page.count("Too few tokens.") == 1
    assert {path.stem for path in (folder / "ours" / "figures").glob("*.svg")} == set(re.findall(r"figures/(\w+)\.svg", page))
    assert "| processor | not recorded |" in page


def test_a_finding_against_no_pretraining_is_of_a_group_of_its_own(folder):
    for file in folder.glob("ours/mlm-seed=*/result.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 0}))
    write_pages(folder, STUDIES)
    counts = {row.pop(""): row for row in tables_of(folder / PAGE)[0]}
    assert counts["Against no pretraining"] == counts["Against no pretraining"] | {"agrees": "2", "undecided": "2"}
    assert counts["Between pretrained models, their parts and their uses"]["disagrees"] == "2", "MLM is the higher one there"


@pytest.mark.slow
def test_a_row_whose_models_are_all_in_another_is_not_counted(folder):
    """A copy of a study that has two of its seeds; and one that differs in the last digit of one score."""
    for name in ("part", "other"):
        shutil.copytree(folder / "ours", folder / name)
        study = json.loads((folder / name / "study.json").read_text())
        study["runs"] = [run for run in study["runs"] if run["labels"]["seed"] != "3"]
        (folder / name / "study.json").write_text(json.dumps(study))
    file = folder / "other" / "ltr-seed=1" / "finetune" / "package" / "result.json"
    result = json.loads(file.read_text())
    result["metrics"]["test"]["package/accuracy"] = np.nextafter(result["metrics"]["test"]["package/accuracy"], 1)
    file.write_text(json.dumps(result))
    write_pages(folder, STUDIES)
    among = {(row["Page"][1:5], row["Finding"], row["Task"]) for row in findings_of(folder / PAGE) if "Among those of" in row}
    named = ("LTR above MLM", "MLM above LTR", "MLM+NSP above MLM")
    parts = {("part", finding, task) for finding in named for task in ("package", "code_spans")}
    parts.add(("part", "LTR above MLM+NSP", "code_spans"))
    others = {("othe", *row[1:]) for row in parts if "LTR" not in row[1] or row[2] == "code_spans"}
    assert among == parts | others
    assert "its models are also in ours" in (folder / "part" / PAGE).read_text()


def test_what_is_decided_together_is_holms():
    measure = Measure("finetune", "package", "test", "accuracy")
    of = lambda p: Comparison(0.1, 0.1, 0.0, 0.2, p, 3, measure, "a", "b", (3, 3))
    for values in ([0.01, 0.02, 0.03, 0.04], [0.001, 0.012, 0.02, 0.2], [0.2, math.nan, 0.001]):
        known = [p for p in values if not math.isnan(p)]
        reference = by_holm(known)
        assert sorted(found.p for found in decided_together([of(p) for p in values])) == reference


def by_holm(values):
    """Holm 1979, from its definition: p is rejected if so are all below it, and p (m - i + 1) <= 0.05."""
    rejected = []
    for i, p in enumerate(sorted(values)):
        if p > 0.05 / (len(values) - i):
            break
        rejected.append(p)
    return rejected


def test_contrasts_are_corrected_for_their_own_number(folder):
    study = json.loads((folder / "ours" / "study.json").read_text())
    study["contrasts"] = [["LTR", "MLM"], ["MLM+NSP", "MLM"]]
    (folder / "ours" / "study.json").write_text(json.dumps(study))
    write_pages(folder, STUDIES)
    rows = [row for table in tables_of(folder / "ours" / PAGE) for row in table if "difference" in row and "p" not in row]
    low, high = scipy.stats.ttest_1samp([10, 10.1, 9.9], 0).confidence_interval(1 - 0.05 / 2)
    assert rows[0] == {
        "Variant": "package accuracy (%): LTR − MLM",
        "seeds": "3",
        "difference": "+10.0",
        "95 % interval": f"{low:.1f} to {high:.1f}",
    }
    assert len(rows) == 4, "two contrasts in two tasks"


def test_published_studies_have_the_findings_of_their_files(monkeypatch):
    """If this fails, run the study's sweep again (nothing is trained anew) and publish it."""
    monkeypatch.chdir(ROOT)
    compared = 0
    for place in sorted(path.parent for path in RESULTS.glob("*/study.json")):
        published = json.loads((place / "study.json").read_text())
        spec = re.search(r"--study=([^' ]+)", published["command"])[1]
        if spec.startswith("experiments/ablations/"):
            study = load_study(spec)
            described = {"claims": [dataclasses.asdict(claim) for claim in study.claims], "contrasts": study.contrasts}
            described |= {"published": study.published and dataclasses.asdict(study.published), "title": study.title}
            assert {key: published[key] for key in described} == json.loads(json.dumps(described)), place.name
            compared += 1
    assert compared >= 15


@pytest.mark.slow
def test_numbers_of_notes_come_from_the_results(folder):
    notes = folder / "ours" / "notes.md"
    notes.write_text(
        "LTR has {package: LTR}, MLM {package: MLM}: {package: LTR | MLM} apart ({package: LTR | MLM | interval});"
        " other way round {package: MLM | LTR} ({package: MLM | LTR | interval}); there {ours/code_spans valid: LTR};"
        " loss {mlm/loss: MLM}."
    )
    write_pages(folder, STUDIES)
    page = (folder / "ours" / PAGE).read_text()
    assert "LTR has 60.0, MLM 50.0: 10.0 apart (9.5 to 10.5); other way round 10.0 (-10.5 to -9.5); there" in page
    assert re.search(r"there \d\d\.\d; loss \d\.\d\d\.", page)
    for wrong, said in [
        ("{package: ELMo}", "'ELMo' is not one of MLM; MLM.NSP; LTR"),
        ("{packages: LTR}", "'packages' is not one of package, code_spans"),
        ("{package: LTR | MLM | 95 %}", "write {TASK: A}"),
        ("{package}", "'' is not one of"),
    ]:
        notes.write_text(wrong)
        with pytest.raises(UserError, match=rf"notes\.md: {re.escape(wrong)}: {said}"):
            write_pages(folder, STUDIES)


@pytest.mark.slow
def test_the_committed_pages_are_those_of_the_committed_results(tmp_path, monkeypatch):
    """If this fails: bertlab evidence experiments/results --studies=experiments/ablations. Figures' files are not compared."""
    monkeypatch.setattr(evidence, "write_svg", lambda figure, path, **_: path.write_text(""))
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("figures"))
    for page in write_pages(tmp_path / "results", STUDIES):
        assert page.read_text() == (RESULTS / page.relative_to(tmp_path / "results")).read_text(), page


PUBLISHED_STUDIES = sorted(path.parent for path in RESULTS.glob("*/study.json"))


@pytest.mark.parametrize("place", PUBLISHED_STUDIES, ids=lambda place: place.name)
def test_the_numbers_of_a_page_follow_from_the_json_files(place):
    """All tables once more, with NumPy and SciPy only."""
    check_page(place, place / PAGE)


PLANTED = [
    (r"(?m)^\| agrees \|.*\n", "", "a finding left out"),
    (r"(?m)^\| Last \|", "| Lost |", "a variant renamed"),
    (r"(?m)^\| Last \| 3 \| \d", "| Last | 3 | 9", "another score"),
    (r"NER 94\.9 and 91\.0", "NER 91.0 and 94.9", "another published number"),
    (r"(?s)(\*\*Differences \(test\).*?\| [-+]\d+\.\d)", lambda m: m[1][:-1] + str((int(m[1][-1]) + 3) % 10), "a difference"),
    (r"(?m)^\| Embeddings \|.*\n", "", "a score's row left out"),
    (r"rate=0\.003 \|", "rate=0.002 |", "another selected label"),
    (r"(?s)(\*\*Cost.*?)(\d)(\.\d min)", lambda m: f"{m[1]}{int(m[2]) % 9 + 1}{m[3]}", "another time"),
    (r"(?s)(\*\*Cost.*?) (\d)(\d*\.\d+ T)", lambda m: f"{m[1]} {int(m[2]) % 9 + 1}{m[3]}", "other FLOPs"),
    (r"(?s)(\*\*One scale.*?≤ )(\d)", lambda m: f"{m[1]}{int(m[2]) % 9 + 1}", "another code length"),
    (r"≤ (?=\d)", "", "a bound without its sign"),
    (r"(has the highest mean, )(\d)", lambda m: f"{m[1]}{int(m[2]) % 9 + 1}", "a sentence with another score"),
    (r"(points \(\S+ to \d+)\.\d\) above", r"\1.9) above", "a sentence with another interval"),
]


@pytest.mark.parametrize(("pattern", "replacement", "what"), PLANTED, ids=[what for *_, what in PLANTED])
def test_a_wrong_page_would_be_seen(pattern, replacement, what, tmp_path):
    place = RESULTS / "bert_table7_tiny_wikipedia"
    text = (place / PAGE).read_text()
    wrong, changed = re.subn(pattern, replacement, text, count=1)
    assert changed == 1 and wrong != text
    (tmp_path / PAGE).write_text(wrong)
    with pytest.raises(AssertionError):
        check_page(place, tmp_path / PAGE)


@pytest.mark.slow
def test_the_first_page_has_the_rows_of_all_pages_and_counts_them():
    tables = tables_of(RESULTS / PAGE)
    counts = {row.pop(""): {key: int(value) for key, value in row.items()} for row in tables[0]}
    rows = [row for table in tables for row in table if "Page" in row and "Verdict" in row]
    key = lambda page, row: (page, *(row[name] for name in ("Finding", "Published", "Task", "Verdict", "Ours", "Seeds")))
    of_pages = sorted(key(place.name, row) for place in PUBLISHED_STUDIES for row in check_page(place, place / PAGE))
    assert sorted(key(re.match(r"\[(\w+)\]", row["Page"])[1], row) for row in rows) == of_pages
    counted = [row for row in rows if not row.get("Among those of")]
    for word in WORDS:
        assert counts["all"][word] == sum(row["Verdict"] == word for row in counted)
        assert counts["all"][word] == sum(of[word] for name, of in counts.items() if name != "all")
    ends = [re.search(r"\((\S+) to (\S+)\)", row["Ours"]).groups() for row in counted if row["Verdict"] == "undecided"]
    narrow = sum(max(abs(float(end)) for end in of) <= 2 for of in ends)
    assert f"Of the {len(ends)} undecided rows, {narrow} have an interval within 2 points" in (
        text := (RESULTS / PAGE).read_text()
    )
    measured = counts["all"]["agrees"] + counts["all"]["disagrees"] + len(ends)
    assert f"Of {measured} measured rows, {measured - len(ends)} are decided by their own study" in text
    words = {}
    for row in counted:
        words.setdefault(row["Published"], set()).add(row["Verdict"])
    of_findings = [of & {"agrees", "disagrees"} for published, of in words.items() if of & set(WORDS[:3])]
    agree, disagree = of_findings.count({"agrees"}), of_findings.count({"disagrees"})
    assert f"of {len(of_findings)} published findings. {agree} agree in" in text and f"in none, {disagree} the other" in text
    ran = {json.loads((place / "study.json").read_text())["name"] for place in PUBLISHED_STUDIES}
    studies = [load_study(str(path)) for path in STUDIES.glob("*.py")]
    waiting = [(study.name, claim) for study in studies for claim in study.claims if study.name not in ran]
    rows_of = lambda claim: (f"{claim.higher} above {claim.lower}", f"{claim.published} ({claim.source})")
    [not_run] = [table for table in tables if "Study" in table[0]]
    listed = [(row["Study"], row["Finding"], row["Published"]) for row in not_run]
    assert sorted(listed) == sorted((name, *rows_of(claim)) for name, claim in waiting)
    assert f"{len(waiting)} more findings are not run" in text
    values = []  # p of every counted row
    for row in (row for row in counted if row["Ours"]):
        place = RESULTS / re.match(r"\[(\w+)\]", row["Page"])[1]
        metric = next(head for table in tables_of(place / PAGE) for head in table[0] if head.startswith(f"{row['Task']} "))
        parts = metric.removesuffix(" (%)").split(" ")
        of_task = Published(place).scores(row["Task"], f"{parts[-2] if len(parts) > 2 else parts[0]}/{parts[-1]}")
        differences = differences_of(of_task, *row["Finding"].split(" above "))
        values.append((scipy.stats.ttest_1samp(differences, 0).pvalue, row["Holm"] == "decided"))
    check_all_scores(tables, PUBLISHED_STUDIES)
    check_all_lengths(tables, PUBLISHED_STUDIES)
    rejected = by_holm([p for p, _ in values])
    assert {p for p, decided in values if decided} == set(rejected) and counts["all"]["decided by Holm"] == len(rejected)


def test_scores_by_number_of_examples_are_those_of_the_json_files():
    place = RESULTS / "ulmfit_low_shot_tiny_wikipedia"
    chosen = at_selected_labels(load(place))
    table = scores_by_examples(chosen, scores(chosen)).set_index(["metric", "variant", "examples"])
    expected = Published(place).scores("trec", "trec/accuracy")
    assert len(table) == 2 * len(expected) == 32
    for variant, of_seeds in expected.items():
        examples, method = variant.split(", ")
        row, values = table.loc[("trec/accuracy", method, examples)], np.array(list(of_seeds.values()))
        ends = scipy.stats.ttest_1samp(values, 0).confidence_interval()
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((values.mean(), *np.clip(ends, 0, 1)))
    assert [panel.get_ylabel() for panel in figures(load(place))["scores_by_examples"].axes] == [
        "trec/accuracy (%)",
        "sms_spam/accuracy (%)",
    ]
    others = load(RESULTS / "bert_table5_tiny_wikipedia")
    assert examples_axis(others) is None and scores_by_examples(others, scores(others)).empty


def test_a_table_keeps_its_columns_whatever_the_cells_hold():
    lines = markdown_table(pd.DataFrame({"a": ["x|y", "two\nlines"], "b": [1, 2]})).splitlines()
    assert lines == ["| a | b |", "|---|---|", r"| x\|y | 1 |", "| two lines | 2 |"]


def test_what_cannot_be_is_refused_before_a_page_is_written(folder, tmp_path):
    for of, studies, said in ((tmp_path / "none", STUDIES, "none has no folder"), (folder, tmp_path, "--studies=")):
        with pytest.raises(UserError, match=said):
            write_pages(of, studies)
    for own, other in ((folder / PAGE, folder / "ours" / PAGE), (folder / "ours" / PAGE, folder / PAGE)):
        for words in (b"my own words", b"\xff"):
            own.write_bytes(words)
            with pytest.raises(UserError, match=rf"^{own} was not made by `bertlab evidence`"):
                write_pages(folder, STUDIES)
            assert own.read_bytes() == words and not other.exists() and not (folder / "ours" / "figures").exists()
        own.unlink()


def test_a_study_without_claims_has_no_rows(folder, monkeypatch):
    study = json.loads((folder / "ours" / "study.json").read_text())
    study.pop("claims")  # as before studies had them
    (folder / "ours" / "study.json").write_text(json.dumps(study))
    monkeypatch.chdir(folder)  # the studies are bertlab's own
    write_pages(folder, STUDIES.relative_to(ROOT))
    page = (folder / PAGE).read_text()
    assert not findings_of(folder / PAGE) and "Of 0" not in page and "| decided by Holm |" not in page and "## Scores" in page
