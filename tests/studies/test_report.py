"""The report: tables, findings and notices of a study, and how terminal, CSV, LaTeX and HTML show them."""

import dataclasses
import io
import itertools
import json
import math
import os
import re
import shutil
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import scipy.stats
from conftest import Elements, objectives_study, write_run, write_study
from matplotlib.figure import Figure
from rich.console import Console

from bertlab.cli import main
from bertlab.run import Run
from bertlab.studies import report as module
from bertlab.studies.comparisons import compare_all
from bertlab.studies.curves import curves
from bertlab.studies.findings import findings, notices
from bertlab.studies.measurements import cost, load
from bertlab.studies.report import all_metrics, csv_tables, environment_rows, print_columns, print_report, report, show
from bertlab.studies.seeds import summarise
from bertlab.studies.statistics import seeds_needed
from bertlab.studies.study import Claim, Published, Study
from bertlab.studies.tables import (
    BOUND_NOTE,
    COST,
    DIFFERENCES,
    FLOORS,
    LOSSES,
    SCALES,
    SCORES,
    TEST_LOSSES,
    VALID_SCORES,
    difference_table,
    floor_table,
    length_table,
    notes,
    phenomenon_table,
    published_table,
    side_by_side,
    table,
)
from bertlab.studies.text import count_text, escape_latex, number, p_text, points, seconds_text, spread


def quiet():
    return Console(file=io.StringIO(), width=100)


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without their figures, most of a report's time."""
    monkeypatch.setattr(module, "inline_svg", lambda *_: '<svg role="img"></svg>')
    monkeypatch.setattr(module, "figures", lambda _: {})
    monkeypatch.setattr(module, "explore_page", lambda _: "")
    for name in ("learning_curves", "downstream_bars", "heat_map"):
        monkeypatch.setattr(module.plots, name, lambda *_, **__: Figure())


def study_of(directory, task="code_spans", published=None, **scores):
    """A study of these variants (MLM, LTR, ...) with these scores in a task, one per seed."""
    seeds = range(1, max(map(len, scores.values())) + 1)
    study = dataclasses.replace(objectives_study(seeds, tuple(scores)), published=published)
    per_run = {f"{name.lower()}-seed={seed}": {task: score} for name, of in scores.items() for seed, score in enumerate(of, 1)}
    return write_study(directory, study, per_run=per_run)


def html_page(results):
    return module.html_page(results, show(results))


def latex(results):
    return module.latex(results.study["name"], show(results))


def findings_of(results):
    return [sentence.replace("\N{NO-BREAK SPACE}", " ") for sentence in findings(results, compare_all(results))]


def sentence(results):
    return next(sentence for sentence in findings_of(results) if "above LTR on code_spans" in sentence)


ABOVE = "MLM is above LTR on code_spans by "
NOT_ABOVE = "MLM is not above LTR on code_spans at this scale: "


@pytest.mark.parametrize(
    "mlm, ltr, expected",
    [
        ([0.72, 0.74, 0.73], [0.69, 0.70, 0.70], f"{ABOVE}3.3 points (1.9 to 4.8); 3 seeds show more than chance."),
        (
            [0.66, 0.67, 0.68],
            [0.69, 0.70, 0.72],
            f"{NOT_ABOVE}it is 3.3 points (1.9 to 4.8) below; 3 seeds show more than chance.",
        ),
        ([0.70, 0.74], [0.72, 0.71], f"{ABOVE}0.5 points (-31.3 to 32.3); 2 seeds cannot tell that from chance."),
        ([0.72, 0.74], [0.70, 0.72], f"{ABOVE}2.0 points, the same in all 2 seeds; that says nothing about chance."),
        ([0.69, 0.70], [0.69, 0.70], f"{NOT_ABOVE}the two are equal, the same in all 2 seeds; that says nothing about chance."),
    ],
)
def test_says_honestly_whether_mlm_is_above_ltr(tmp_path, mlm, ltr, expected):
    assert sentence(load(study_of(tmp_path / "s", MLM=mlm, LTR=ltr))) == expected


def test_mlm_and_ltr_are_compared_at_equal_other_labels(tmp_path):
    study = objectives_study((1,), ("MLM", "LTR"))
    study = Study(
        name="s",
        title="S",
        question="",
        config="c.py",
        downstream=study.downstream,
        axes={"objective": study.axes["objective"], "size": {"tiny": {}, "mini": {}}, "seed": [1, 2]},
    )
    text = " ".join(findings_of(load(write_study(tmp_path / "s", study))))
    assert re.search("MLM, tiny is (not )?above LTR, tiny on code_spans", text)
    assert re.search("MLM, mini is (not )?above LTR, mini on code_spans", text)


def test_an_interval_of_mlm_above_ltr_is_of_all_pairs_like_the_others(tmp_path):
    """The first sentence says that all intervals hold together."""
    mlm, ltr = (0.70, 0.72, 0.69, 0.71), (0.60, 0.63, 0.58, 0.61)
    directory = study_of(tmp_path / "s", MLM=mlm, LTR=ltr, biLM=(0.65, 0.66, 0.67, 0.65))
    gaps = [100 * (a - b) for a, b in zip(mlm, ltr, strict=True)]

    def ends(comparisons):
        half = scipy.stats.t.ppf(1 - 0.05 / comparisons / 2, 3) * statistics.stdev(gaps) / 2
        return f"{statistics.mean(gaps):.1f} points ({statistics.mean(gaps) - half:.1f} to {statistics.mean(gaps) + half:.1f})"

    assert sentence(load(directory)).startswith(f"{ABOVE}{ends(3)}")
    (directory / "until_decided.json").write_text(json.dumps({"task": "all", "max_seeds": 10}))
    assert sentence(load(directory)).startswith(f"{ABOVE}{ends(3 * 8)}")


def test_intervals_are_explained_only_where_a_difference_follows(study_directory):
    results = load(study_directory)
    assert "Bonferroni" in findings_of(results)[0]
    without = dataclasses.replace(results, study={**results.study, "downstream": []})
    assert len(said := findings_of(without)) == 1 and "Bonferroni" not in said[0]


def test_code_lengths_and_bounds_stand_beside_the_shortest_of_their_kind(study_directory):
    """Bonferroni over all pairs of a kind, because the results choose the shortest."""
    results = load(study_directory)
    lengths = {("MLM", "any-order"): (2.1, 2.2), ("MLM+NSP", "any-order"): (2.4, 2.6), ("biLM", "any-order"): (2.3, 2.3)}
    lengths[("LTR", "left-to-right")] = (2.0, 2.0)
    rows = [
        {"run": run, "stage": "evaluate", "task": "", "split": "test", "metric": f"bits_per_byte/{kind}", "value": value}
        for (variant, kind), values in lengths.items()
        for run, value in zip(results.finished.loc[results.finished["variant"] == variant, "run"], values, strict=True)
    ]
    given = dataclasses.replace(
        results,
        measurements=pd.concat([results.measurements, pd.DataFrame(rows)]),
        study={**results.study, "downstream": []},
    )
    shown = length_table(compare_all(given))
    assert list(shown.index) == ["bounds: MLM+NSP − MLM", "bounds: biLM − MLM"]
    half = scipy.stats.t.ppf(1 - 0.05 / 3 / 2, 1) * 0.05
    cells = list(shown.loc["bounds: MLM+NSP − MLM"])
    assert cells == ["2", "+0.350", f"{0.35 - half:.3f} to {0.35 + half:.3f}"]
    assert length_table(compare_all(results)).empty


def test_every_file_of_a_report_appears_in_one_move(study_directory, tmp_path, monkeypatch):
    shutil.copytree(study_directory, tmp_path / "s", ignore=shutil.ignore_patterns("report", "report.html"))
    replace, moved = os.replace, set()
    monkeypatch.setattr("os.replace", lambda source, target: moved.add(Path(target)) or replace(source, target))
    page = report(tmp_path / "s", console=Console(file=io.StringIO()))
    files = {path for path in (tmp_path / "s" / "report").rglob("*") if path.is_file()} | {page, page.with_name("explore.html")}
    assert {".png", ".svg", ".csv", ".tex", ".html"} == {path.suffix for path in files} and files <= moved


def test_findings_name_the_best_and_the_reference(study_directory):
    text = " ".join(findings_of(load(study_directory)))
    assert text.startswith("5 variants were run with 2 seeds each")
    assert re.search(
        r"package \(accuracy, test\): MLM\+NSP has the highest mean, 7\d\.\d %, \S+ points \(undetermined with 2 seeds\) above"
        r" MLM \(may be chance\); \S+ points \(\S+ to \S+\) above No pretraining[ .]",
        text,
    )


def with_most_frequent(directory, score):
    """The directory, where always the most frequent package scores that in every run."""
    for run in directory.glob("*-seed=*"):
        (run / "finetune" / "package" / "most_frequent.json").write_text(json.dumps({"test": {"package/accuracy": score}}))
    return directory


def test_findings_say_which_variants_are_above_always_the_most_frequent_answer(tmp_path):
    scores = {"mlm": (0.70, 0.701, 0.703), "ltr": (0.45, 0.55, 0.53), "no-pretraining": (0.401, 0.402, 0.403)}
    study = objectives_study(seeds=(1, 2, 3), variants=("MLM", "LTR", "No pretraining"))
    per_run = {f"{name}-seed={i}": {"package": score} for name, of in scores.items() for i, score in enumerate(of, 1)}
    directory = with_most_frequent(write_study(tmp_path / "s", study, per_run=per_run), 0.40)
    said = lambda: [sentence for sentence in findings_of(load(directory)) if sentence.startswith("Always")]
    # LTR's mean is higher than that of no pretraining, but its seeds are further apart. Nothing is known of the other task.
    head = "Always giving the most frequent answer scores"
    assert said() == [f"{head} 40.0 % on package; MLM is above that by more than chance."]
    for seed in (1, 2, 3):
        path = directory / f"ltr-seed={seed}" / "finetune" / "package" / "most_frequent.json"
        path.write_text(json.dumps({"test": {"package/accuracy": 0.3}}))
    [of_two] = said()
    assert of_two.startswith(f"{head} 30.0 % to 40.0 %, depending on the variant, on package")
    with_most_frequent(directory, 0.0)
    assert said() == [], "nothing to be above"
    one = with_most_frequent(write_study(tmp_path / "one", objectives_study(seeds=(1,))), 0.40)
    assert findings_of(load(one))[2] == f"{head} 40.0 % on package."


def said_of_the_most_frequent(directory, **scores):
    """What is said about always giving the most frequent package, 40 %, beside variants with these accuracies, one per seed."""
    path = with_most_frequent(study_of(directory, "package", **scores), 0.40)
    return next(sentence for sentence in findings_of(load(path)) if sentence.startswith("Always"))


def test_a_variant_without_an_interval_is_not_said_to_be_no_better_than_the_most_frequent_answer(tmp_path):
    said = said_of_the_most_frequent(tmp_path / "a", MLM=[1.0, 1.0, 1.0], LTR=[1.0, 1.0, 1.0])
    assert "; MLM, LTR cannot be tested (too few seeds, or no spread over them)." in said and "no variant" not in said
    directory = with_most_frequent(study_of(tmp_path / "b", "package", MLM=[0.7, 0.71], LTR=[0.5, 0.5], biLM=[0.6, 0.6]), 0.40)
    Run(directory / "bilm-seed=2").result.delete()
    said = next(sentence for sentence in findings_of(load(directory)) if sentence.startswith("Always"))
    assert "; MLM is above that by more than chance; LTR, biLM cannot be tested" in said
    said = said_of_the_most_frequent(tmp_path / "c", MLM=[0.3, 0.6], LTR=[0.2, 0.7])
    assert said.endswith("; no variant is above that by more than chance.")
    said = said_of_the_most_frequent(tmp_path / "d", MLM=[0.7, 0.71, 0.72], LTR=[0.73, 0.71, 0.72])
    assert said.endswith("; all variants are above that by more than chance.")


def test_an_interval_that_holds_every_value_is_undetermined(tmp_path):
    results = load(study_of(tmp_path / "s", MLM=[0.1, 0.98], LTR=[0.95, 0.05]))
    assert "by 4.0 points (undetermined with 2 seeds); 2 seeds cannot tell that from chance." in sentence(results)
    cells = {
        f"{group} {row}": text
        for frame in show(results).tables
        for (group, head), column in frame.items()
        if head == "95 % interval"
        for row, text in column.items()
    }
    assert [text for row, text in cells.items() if "code_spans" in row] == ["undetermined"] * 3, "the difference and both means"
    assert "undetermined" not in [text for row, text in cells.items() if "package" in row and "MLM" not in row]


def test_findings_before_anything_is_finished(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study(), finished=False)
    assert findings_of(load(directory)) == ["No run is finished yet, so nothing can be concluded."]
    assert report(directory, console=quiet()).exists()


def test_table_cells_equal_hand_computed_mean_and_deviation(tmp_path, no_figures):
    mlm, ltr = [0.70, 0.74, 0.735], [0.69, 0.70, 0.70]
    directory = study_of(tmp_path / "s", MLM=mlm, LTR=ltr)
    frame = table(load(directory))
    cells = frame[SCORES, "code_spans f1 (%)"]
    assert cells["MLM"] == f"{100 * statistics.mean(mlm):.1f} ± {100 * statistics.stdev(mlm):.1f}"
    assert list(frame["", "seeds"]) == ["3", "3"]
    csv = pd.read_csv(report(directory, console=quiet()).parent / "report" / "table.csv")
    [row] = csv.query("variant == 'LTR' and task == 'code_spans' and split == 'test' and metric == 'f1'").to_dict("records")
    assert [row[name] for name in ("mean", "sd", "seeds")] == pytest.approx([statistics.mean(ltr), statistics.stdev(ltr), 3])


def test_one_seed_has_no_deviation_and_is_said(tmp_path):
    results = load(study_of(tmp_path / "s", MLM=[0.70], LTR=[0.69]))
    assert table(results)[SCORES, "code_spans f1 (%)"]["MLM"] == "70.0"
    said = findings_of(results)
    assert "One seed cannot tell a difference from chance" in said[0]
    assert said[2] == "code_spans (f1, test): MLM 70.0 %, LTR 69.0 %.", "no order is claimed"


class Requests(HTMLParser):
    """Collects what a browser would fetch, and every id."""

    def __init__(self):
        super().__init__()
        self.fetched, self.links, self.ids, self.tags = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "srcset", "href", "xlink:href", "data", "action", "poster"):
                (self.links if tag == "a" else self.fetched).append(value)
            if name == "id":
                self.ids.append(value)


def test_page_is_self_contained(study_directory, study_report):
    text = study_report[0].read_text(encoding="utf-8")
    page = Requests()
    page.feed(text)
    assert all(value.startswith(("#", "data:")) for value in page.fetched), page.fetched
    assert page.links == ["explore.html"] and (study_report[0].parent / page.links[0]).exists()
    assert not re.search(r"https?:|file:|@import|url\((?!#)", text)
    assert str(study_directory) not in text
    assert {"script", "img", "iframe"}.isdisjoint(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert {value[1:] for value in page.fetched if value.startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)
    panels = 4 * 5 + 2 + 1  # curves, bars, and a map
    assert text.count('role="img"') == panels + 6  # and six samples in the legends


def test_page_escapes_what_a_study_says(tmp_path, no_figures):
    study = Study(
        name="s",
        title="<b>T</b>",
        question="a < b & c",
        config="c.py",
        axes={"objective": {"MLM": {}}, "other": {"<i>&_$x^2$": {}}, "seed": [1]},
        downstream=("package",),
    )
    directory = write_study(tmp_path / "s", study)
    text = report(directory, console=quiet()).read_text(encoding="utf-8")
    assert "<b>T" not in text and "<i>" not in text and "a &lt; b &amp; c" in text
    latex = (directory / "report" / "table.tex").read_text(encoding="utf-8")
    assert r"MLM, $<$i$>$\&\_\$x\textasciicircum{}2\$ & 1 &" in latex


def test_latex_is_booktabs_and_escaped(study_directory):
    text = latex(load(study_directory))
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 4
    assert r"code\_spans f1 (\%)" in text and r"$\pm$" in text
    assert "±" not in text and "–" not in text
    blocks = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)
    # Scores and losses; differences from the first of five variants, by task; scores over seeds, by task and variant; cost.
    columns = [[line.count(" & ") for line in block.strip().split("\n")] for block in blocks]
    assert columns == [[7] * 5, [6] * 8, [7] * 10, [9] * 5]
    assert escape_latex("a&b%c$d#e_f{g}~^\\") == (r"a\&b\%c\$d\#e\_f\{g\}\textasciitilde{}\textasciicircum{}\textbackslash{}")


def test_differences_are_from_the_first_variant_and_corrected(tmp_path):
    scores = {"MLM": (0.70, 0.74, 0.72, 0.71), "LTR": (0.69, 0.70, 0.70, 0.66), "biLM": (0.60, 0.61, 0.64, 0.62)}
    frame = difference_table(compare_all(load(study_of(tmp_path / "s", **scores))))
    assert set(frame["", "seeds"]) == {"4"} and len(frame) == 4
    tests = {name: scipy.stats.ttest_rel(scores[name], scores["MLM"]) for name in ("LTR", "biLM")}
    for name in tests:
        row = frame.loc[f"code_spans f1 (%): {name} \N{MINUS SIGN} MLM", DIFFERENCES]
        mean = sum(scores[name]) / 4 - sum(scores["MLM"]) / 4
        interval = tests[name].confidence_interval(1 - 0.05 / 2)
        assert row["difference"] == f"{100 * mean:+.1f}"
        assert row["95 % interval"] == f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
        assert row["p"] == f"{2 * tests[name].pvalue:.3f}" and row["p by sign flips"] == "0.125 (0.125)"
        sd = statistics.stdev([a - b for a, b in zip(scores[name], scores["MLM"])])
        ends = [sd * math.sqrt(3 / scipy.stats.chi2.ppf(q, 3)) for q in (0.975, 0.025)]
        needed = [f"{seeds_needed(0.01, value, alpha=0.05 / 2):,}" for value in (sd, *ends)]
        assert row["seeds for 1 point"] == "{} ({} to {})".format(*needed)
    one_seed = write_study(tmp_path / "t", objectives_study((1,), ("MLM", "LTR")))
    assert difference_table(compare_all(load(one_seed))).empty


def test_the_published_table_stands_beside_ours_with_a_warning(tmp_path, no_figures):
    published = Published(
        "Somebody 2019, table 5", ("MNLI", "SQuAD F1"), {"LTR": (82.1, 77.8), "MLM": (84.4, None)}, "dev sets"
    )
    study = dataclasses.replace(objectives_study((1,), ("MLM", "LTR")), published=published)
    directory, console = write_study(tmp_path / "s", study), quiet()
    page = report(directory, console=console).read_text(encoding="utf-8")
    frame = published_table(load(directory))
    assert list(frame.index) == ["MLM", "LTR"], "in our order"
    assert frame.loc["MLM"].tolist() == ["84.4", "\N{EN DASH}"]
    for text in (page, console.file.getvalue()):
        assert "As published: Somebody 2019, table 5" in text and "Scales differ" in text and "dev sets" in text
    assert r"As published: Somebody 2019, table 5" in (directory / "report" / "table.tex").read_text(encoding="utf-8")


def test_different_data_are_flagged_on_top_and_below(tmp_path, no_figures):
    study = objectives_study((1,), ("MLM", "LTR"))
    directory = write_study(tmp_path / "s", study, per_run={"ltr-seed=1": {"data": "other"}})
    console = quiet()
    text = report(directory, console=console).read_text(encoding="utf-8")
    assert text.index("did not read the same data") < text.index("What this shows")
    assert "data_hash differs between runs" in text and "read the same tokens in the same order." not in text
    assert "did not read the same data" in console.file.getvalue()


def test_the_same_data_are_stated_with_their_hash_and_the_footer_says_where_numbers_come_from(study_directory, study_report):
    text = study_report[0].read_text(encoding="utf-8")
    assert "Runs with the same seed and the same settings of the data read the same tokens in the same order." in text
    assert load(study_directory).runs.set_index("run").loc["mlm-seed=2", "data_hash"] in text
    assert text.count('class="notice"') == 1 and "fewer than 3 seeds" in text, "nothing else is to be noticed"
    footer = text[text.index("<footer>") :]
    assert all(expected in footer for expected in ("3f2a9c1d", "jax 0.10.2", "cpu"))


def write_likelihoods(directory, bits=None, pairs=None, text_hash="a" * 32, **bias):
    """evaluation.json: {kind: bits per byte} of the test split, and {source: {kind: accuracy}}."""
    unbiased = {"tokens": 9, "pieces": 9, "unknown": 0.0, "lowercase": False, "standard_error": 0.0456, "text_hash": text_hash}
    of_split = {kind: unbiased | {"value": value} | bias for kind, value in (bits or {}).items()}
    judged = {"standard_error": 0.0123, "text_hash": text_hash, "pairs": 7}
    by_file = {source: {k: judged | {"accuracy": a} for k, a in of.items()} for source, of in (pairs or {}).items()}
    evaluations = {"bits_per_byte": {"test split": of_split}, "minimal_pairs": by_file}
    (directory / "evaluation.json").write_text(json.dumps(evaluations))


def columns_of(results, group):
    frame = table(results)
    return {name: dict(frame[group, name]) for of, name in frame.columns if of == group}


def test_bits_per_byte_are_of_the_test_split_with_the_error_of_one_seed_or_the_spread_of_several(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2), ("MLM", "LTR")))
    write_likelihoods(directory / "mlm-seed=1", {"pseudo": 1.5}, {"x/blimp.jsonl": {"pseudo": 0.75}}, text_hash="1" * 32)
    write_likelihoods(directory / "mlm-seed=2", {"pseudo": 1.7}, {"x/blimp.jsonl": {"pseudo": 0.85}}, text_hash="1" * 32)
    write_likelihoods(directory / "ltr-seed=1", {"left-to-right": 2.0}, text_hash="1" * 32)
    results = load(directory)
    assert columns_of(results, SCALES) == {
        "bits/byte, pseudo": {"MLM": "1.600 ± 0.141", "LTR": "–"},
        "bits/byte, left-to-right": {"MLM": "–", "LTR": "2.000 s.e. 0.046 (1 seed)"},
        "minimal pairs (%), pseudo": {"MLM": "80.0 ± 7.1", "LTR": "–"},
    }
    said = notes(results)[SCALES]
    assert "For one seed, s.e." in said
    assert "[UNK]" not in said and "capitals" not in said and "free" not in said
    assert [said for said in notices(results) if "fewer than 3 seeds" not in said] == []
    write_likelihoods(directory / "ltr-seed=2", {"left-to-right": 2.2}, text_hash="1" * 32)
    assert "s.e." not in notes(load(directory))[SCALES]


def test_code_lengths_and_bounds_share_a_column(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM", "LTR", "biLM")))
    write_likelihoods(directory / "mlm-seed=1", {"any-order": 1.9}, {"b.jsonl": {"any-order": 0.75}})
    only_bounds = columns_of(load(directory), SCALES)
    assert only_bounds["bits/byte, any-order"] == {"MLM": "≤ 1.900 s.e. 0.046", "LTR": "–", "biLM": "–"}
    write_likelihoods(directory / "ltr-seed=1", {"left-to-right": 2.0})
    write_likelihoods(directory / "bilm-seed=1", {"left-to-right": 2.1, "any-order": 2.3})
    assert columns_of(load(directory), SCALES) == {
        "bits/byte, code length": {
            "MLM": "≤ 1.900 s.e. 0.046",
            "LTR": "2.000 s.e. 0.046",
            "biLM": "2.100 s.e. 0.046; ≤ 2.300 s.e. 0.046",
        },
        "minimal pairs (%), any-order": {"MLM": "75.0 s.e. 1.2", "LTR": "–", "biLM": "–"},
    }


def test_minimal_pairs_have_a_table_by_phenomenon_with_a_row_for_each_kind(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2), ("MLM", "LTR")))
    assert phenomenon_table(load(directory)).empty
    accuracies = {
        "mlm-seed=1": {"pseudo": 0.75, "any-order": 0.5},
        "mlm-seed=2": {"pseudo": 0.25},
        "ltr-seed=1": {"left-to-right": 1},
    }
    for run, of_kind in accuracies.items():
        write_likelihoods(directory / run, pairs={"x/blimp.jsonl": of_kind})
        found = json.loads((directory / run / "evaluation.json").read_text())
        for entry in found["minimal_pairs"]["x/blimp.jsonl"].values():
            of = {"accuracy": entry["accuracy"] / 2, "standard_error": None, "pairs": 3}
            entry["phenomena"] = {"island_effects": of} | ({"binding": of} if run.startswith("ltr") else {})
        (directory / run / "evaluation.json").write_text(json.dumps(found))
    frame = phenomenon_table(load(directory))
    frame.columns = [name for _, name in frame.columns]
    assert frame.to_dict("index") == {
        "MLM (pseudo)": {"seeds": "2", "island effects": "25.0", "binding": "–"},
        "MLM (any-order)": {"seeds": "1", "island effects": "25.0", "binding": "–"},
        "LTR (left-to-right)": {"seeds": "1", "island effects": "50.0", "binding": "50.0"},
    }
    assert "phenomenon" not in str(columns_of(load(directory), SCALES)), "the table of one scale has the means only"


def test_minimal_pairs_of_several_files_have_columns_of_their_own(tmp_path):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM", "LTR")))
    pairs = {"x/blimp.jsonl": {"pseudo": 0.75}, "x/zorro.jsonl": {"pseudo": 0.5}}
    write_likelihoods(directory / "mlm-seed=1", pairs=pairs)
    write_likelihoods(directory / "ltr-seed=1", pairs={"x/blimp.jsonl": {"pseudo": 0.25}})
    assert columns_of(load(directory), SCALES) == {
        "minimal pairs (%), pseudo, blimp": {"MLM": "75.0 s.e. 1.2", "LTR": "25.0 s.e. 1.2"},
        "minimal pairs (%), pseudo, zorro": {"MLM": "50.0 s.e. 1.2", "LTR": "–"},
    }
    write_likelihoods(directory / "ltr-seed=1", pairs={"y/blimp.jsonl": {"pseudo": 0.25}})
    write_likelihoods(directory / "mlm-seed=1", pairs={"x/blimp.jsonl": {"pseudo": 0.75}})
    assert list(columns_of(load(directory), SCALES)) == [
        "minimal pairs (%), pseudo, x/blimp.jsonl",
        "minimal pairs (%), pseudo, y/blimp.jsonl",
    ]


def test_babylm_tasks_have_columns_and_scores_by_different_rules_are_noticed(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM", "LTR")))
    for variant, rule in (("mlm", "a"), ("ltr", "b")):
        entry = {"score": 0.75, "standard_error": None, "text_hash": rule * 32, "items": 4, "special_tokens": rule}
        found = {"babylm": {"ewok": {"pseudo": entry}, "wug_past": {"pseudo": entry | {"score": -0.1, "text_hash": "c" * 32}}}}
        (directory / f"{variant}-seed=1" / "evaluation.json").write_text(json.dumps(found))
    results = load(directory)
    assert columns_of(results, SCALES) == {
        "BabyLM (%), pseudo, ewok": {"MLM": "75.0", "LTR": "75.0"},
        "BabyLM (%), pseudo, wug_past": {"MLM": "-10.0", "LTR": "-10.0"},
    }
    assert len(notices(results)) == 1 and "ewok" in notices(results)[0]


def test_bits_per_byte_of_a_file_stand_beside_those_of_the_test_split(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM",)))
    write_likelihoods(directory / "mlm-seed=1", {"pseudo": 1.5})
    file = Run(directory / "mlm-seed=1").evaluation
    own = file.read()["bits_per_byte"]["test split"]
    file.write({"bits_per_byte": {"test split": own, "texts/b.txt": {"pseudo": own["pseudo"] | {"value": 1.25}}}})
    found = columns_of(load(directory), SCALES)
    assert [found[f"bits/byte, pseudo{of}"]["MLM"].split()[0] for of in ("", ", b")] == ["1.500", "1.250"]


def test_other_code_of_an_objective_is_flagged_on_top(tmp_path):
    path = write_study(tmp_path, objectives_study(seeds=(1, 2), variants=("MLM", "LTR")))
    for run, digest in {"mlm-seed=1": "ab", "mlm-seed=2": "ab", "ltr-seed=1": "cd"}.items():  # the fourth recorded none
        Run(path / run).environment.write({"code": {"rarity:Rarity": digest, "other:Own": "12"}})
    [said] = [said for said in notices(load(path)) if "code" in said]
    assert "rarity:Rarity" in said and "ltr-seed=1" in said and "mlm-seed=1" not in said
    Run(path / "ltr-seed=1").environment.write({"code": {"rarity:Rarity": "ab"}})
    assert not [said for said in notices(load(path)) if "code" in said]


def test_few_seeds_and_equal_scores_of_all_seeds_are_flagged_on_top(tmp_path):
    spec = objectives_study(seeds=(1, 2, 3), variants=("MLM", "LTR"))
    flat = {f"mlm-seed={seed}": {"package": 0.5} for seed in (1, 2, 3)} | {"ltr-seed=1": {"package": 0.5}}
    said = notices(load(write_study(tmp_path / "three", spec, per_run=flat)))
    assert len(said) == 1 and "package (MLM)" in said[0] and "code_spans" not in said[0]
    assert said[0].endswith("Equal scores have no spread, so they give no interval."), "nothing is known of the cause"
    said = notices(load(write_study(tmp_path / "two", spec, per_run={"ltr-seed=3": {"finished": False}})))
    assert [of for of in said if of.startswith("LTR: fewer than 3 seeds")] and not [of for of in said if "MLM" in of]
    one = objectives_study(seeds=(1,), variants=("MLM", "LTR"))
    assert notices(load(write_study(tmp_path / "one", one))) == [], "the first finding says it"


def test_equal_scores_of_all_seeds_are_a_ceiling_a_head_without_training_or_neither(tmp_path):
    spec = objectives_study(seeds=(1, 2, 3), variants=("MLM", "LTR", "biLM"))
    scores = {"mlm": 1.0, "ltr": 0.4 + 1e-8, "bilm": 0.5}  # JAX and NumPy round differently
    per_run = {f"{name}-seed={seed}": {"package": score} for name, score in scores.items() for seed in (1, 2, 3)}
    said = notices(load(with_most_frequent(write_study(tmp_path / "s", spec, per_run=per_run), 0.40)))
    assert [sentence.partition(" at ")[0].partition(" That")[0].partition(" Equal")[0] for sentence in said] == [
        f"All seeds have exactly the same score on package ({variant})." for variant in ("MLM", "LTR", "biLM")
    ]
    assert ["ceiling" in of for of in said] == [True, False, False] and ["not trained" in of for of in said] == [
        False,
        True,
        False,
    ]


def test_equal_scores_have_no_highest_mean_and_no_p(tmp_path):
    spec = objectives_study(seeds=(1, 2, 3), variants=("MLM", "LTR"))
    same = {f"{name}-seed={seed}": {"package": 0.5} for name in ("mlm", "ltr") for seed in (1, 2, 3)}
    results = load(write_study(tmp_path, spec, per_run=same))
    compared = compare_all(results)
    said = [of for of in findings(results, compared) if of.startswith("package")]
    assert said[0] == "package (accuracy, test): both variants score 50.0\u00a0%."
    table = difference_table(compared)
    assert [(row[2] == "–", row[3] == "–") for row in table.to_numpy() if "–" in row[:3]] == [(True, True)], table


def test_numbers_of_different_texts_are_flagged_on_top(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM", "LTR")))
    write_likelihoods(directory / "mlm-seed=1", {"pseudo": 1.5}, {"blimp.jsonl": {"pseudo": 0.75}}, text_hash="1" * 32)
    write_likelihoods(directory / "ltr-seed=1", {"left-to-right": 2.0}, {"others.jsonl": {"pseudo": 0.5}}, text_hash="2" * 32)
    (notice,) = notices(load(directory))
    where = "not comparable: 111111111111… in mlm-seed=1; 222222222222… in ltr-seed=1."
    assert notice.startswith("Bits per byte of the test split ") and notice.endswith(where)
    page = html_page(load(directory))
    assert page.index("not comparable: 1111") < page.index("What this shows")
    write_likelihoods(directory / "ltr-seed=1", pairs={"blimp.jsonl": {"pseudo": 0.5}}, text_hash="2" * 32)
    (notice,) = notices(load(directory))
    assert notice.startswith("Minimal pairs of blimp.jsonl ") and "not comparable: 1111" in notice


@pytest.mark.parametrize(
    ("bias", "sentence"),
    [
        ({"unknown": 0.01}, "In MLM: any unknown word costs only one [UNK]: too low"),
        (
            {"lowercase": True},
            "In MLM: the tokenizer drops capitals, so they count as bytes but are not predicted: too low.",
        ),
        ({"tokens": 8}, "In MLM: fewer scores than pieces: without a special token next to it"),
    ],
)
def test_what_biases_bits_per_byte_is_said_below_them_with_the_variants(bias, sentence, tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2), ("MLM", "LTR")))
    write_likelihoods(directory / "mlm-seed=1", {"pseudo": 1.5})
    write_likelihoods(directory / "mlm-seed=2", {"pseudo": 1.5, "pseudo-within-word": 1.6}, **bias)
    write_likelihoods(directory / "ltr-seed=1", {"left-to-right": 2.0})
    said = notes(load(directory))[SCALES]
    assert sentence in said and said.count("In ") == 1
    console = quiet()
    page = report(directory, console=console).read_text(encoding="utf-8")
    assert sentence in page and sentence in " ".join(console.file.getvalue().split())


def write_floors(directory, exact=True, **of_objectives):
    named = {name: {"value": v, "above": a, "above_standard_error": e} for name, (v, a, e) in of_objectives.items()}
    floors = {name: floor | {"exact": exact, "note": ""} for name, floor in named.items()}
    (directory / "floor.json").write_text(json.dumps(floors))


def test_floors_have_a_row_for_each_variant_and_objective_and_leaks_are_on_top(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2), ("MLM+NSP", "LTR")))
    for seed, above in ((1, 0.01), (2, 0.03)):
        write_floors(directory / f"mlm+nsp-seed={seed}", mlm=(0.5, above, 0.003), nsp=(0.2, 0.004, 0.004))
    write_floors(directory / "ltr-seed=1", ltr=(2.0, -0.05, 0.02))
    results = load(directory)
    rows = {variant: list(row) for variant, row in floor_table(results).iterrows()}
    assert rows == {
        "MLM+NSP: mlm": ["2", "mlm", "0.5000", "0.5200", "0.0200 s.e. 0.0021", "4.00"],
        "MLM+NSP: nsp": ["2", "nsp", "0.2000", "0.2040", "0.0040 s.e. 0.0028", "2.00"],
        "LTR": ["1", "ltr", "2.0000", "1.9500", "-0.0500 s.e. 0.0200", "-2.50"],
    }
    assert [said for said in notices(results) if "fewer than 3 seeds" not in said] == []
    write_floors(directory / "ltr-seed=1", ltr=(2.0, -0.07, 0.02))
    page = html_page(load(directory))
    assert page.index("The loss of ltr is below its floor by more than 3 standard errors in ltr-seed=1") < page.index(
        "What this"
    )


def test_a_token_loss_next_to_nothing_is_a_leak_on_top(tmp_path):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM+NSP", "LTR")))
    for name in ("mlm+nsp-seed=1", "ltr-seed=1"):
        result = json.loads((directory / name / "result.json").read_text())
        result["metrics"]["valid"] |= {"mlm/loss": 0.009, "nsp/loss": 0.001, "ltr/loss": 0.011}
        (directory / name / "result.json").write_text(json.dumps(result))
        (directory / name / "data.json").write_text(
            json.dumps({"objectives": {"mlm" if "mlm" in name else "ltr": {"asks": "tokens"}}})
        )
    [notice] = notices(load(directory))
    assert notice.startswith("The loss of mlm is next to nothing in mlm+nsp-seed=1.")


def test_a_floor_that_is_a_lower_bound_looks_like_one(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2), ("MLM", "LTR")))
    for variant in ("mlm", "ltr"):
        write_floors(directory / f"{variant}-seed=1", **{variant: (1.25, 0.1, 0.01)})
    assert "≥" not in html_page(load(directory)) + notes(load(directory))[FLOORS]
    write_floors(directory / "ltr-seed=2", exact=False, ltr=(1.75, 0.1, 0.01))
    results = load(directory)
    assert list(floor_table(results)[FLOORS, "floor"]) == ["1.2500", "≥ 1.5000"]
    assert BOUND_NOTE in notes(results)[FLOORS]
    assert "≥ 1.5000" in html_page(results) and r"$\geq$ 1.5000" in latex(results)


def test_missing_runs_are_said_and_left_out(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2), ("MLM", "LTR")))
    shutil.rmtree(directory / "ltr-seed=1")
    (directory / "ltr-seed=2" / "result.json").unlink()
    (directory / "ltr-seed=2" / "failed.txt").write_text("RuntimeError: no")
    results = load(directory)
    text = html_page(results)
    said = "1 of 3 runs that were started failed (33 %, 95 % interval 1 to 91 %) and is left out of tables: ltr-seed=2"
    assert f"{said} (RuntimeError: no)." in text
    assert "1 of 4 runs is not finished and is left out of tables: ltr-seed=1." in text
    assert list(table(results)["", "seeds"]) == ["2", "0"]


def test_curves_of_one_pretraining_are_drawn_once_and_the_others_named(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study(variants=("MLM", "LTR", "biLM")))
    study = json.loads((directory / "study.json").read_text())
    for run in study["runs"]:
        if run["labels"]["objective"] == "biLM":
            run["shares"] = {"pretrain": f"ltr-seed={run['labels']['seed']}"}
    (directory / "study.json").write_text(json.dumps(study))
    results = load(directory)
    assert set(results.metrics["variant"]) == {"MLM", "LTR", "biLM"}
    assert set(curves(results)["variant"]) == {"MLM", "LTR"}
    page = html_page(results)
    assert "biLM (drawn as LTR).</p>" in page
    for seed in (1, 2):  # without a finished LTR its pretraining is drawn as biLM's
        shutil.rmtree(directory / f"ltr-seed={seed}" / "finetune")
    assert set(curves(load(directory))["variant"]) == {"MLM", "LTR", "biLM"}


def test_environments_that_differ_are_listed_by_run():
    rows = environment_rows(
        {
            "a": {"devices": ["cpu", "cpu"], "commit": "1", "changed": []},
            "b": {"devices": ["cpu", "cpu"], "commit": "2", "changed": []},
        }
    )
    assert rows == [("devices", "cpu × 2"), ("commit", "differs between runs: 1 (a); 2 (b)")]
    assert environment_rows({"a": {"memory_gb": 25, "git_commit": "1"}}) == [("memory (GB)", "25"), ("git commit", "1")]
    [(_, text)] = environment_rows({f"r{n}": {"commit": str(n // 7)} for n in range(12)})
    assert text == "differs between runs: 0 (7 runs, such as r0 and r6); 1 (r7, r8, r9, r10, r11)"


def test_files_and_terminal(study_directory, study_report):
    html, printed = study_report
    assert html == study_directory / "report.html"
    for name in (
        *(f"{name}.csv" for name in ("runs", "measurements", "curves", "table", "scores", "differences")),
        "table.tex",
        "figures/learning_curves.svg",
        "figures/learning_curves.png",
        "figures/downstream.svg",
        "figures/downstream.png",
    ):
        assert (study_directory / "report" / name).stat().st_size > 100, name
    assert "dc:date" not in (study_directory / "report" / "figures" / "downstream.svg").read_text(encoding="utf-8")
    assert "MLM+NSP" in printed and "4.39 M" in printed and "report: " in printed


def test_as_json_a_report_has_its_numbers(tmp_path, no_figures, capsys):
    directory = study_of(tmp_path / "s", MLM=[0.7, 0.74], LTR=[0.69, 0.70])
    assert main(["report", str(directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(directory / "report.html")
    [row] = [
        row
        for row in found["table"]
        if (row["variant"], row["task"], row["split"], row["metric"]) == ("MLM", "code_spans", "test", "f1")
    ]
    assert row == {
        **{"variant": "MLM", "stage": "finetune", "task": "code_spans", "split": "test", "metric": "f1"},
        **{"mean": pytest.approx(0.72), "sd": pytest.approx(statistics.stdev([0.7, 0.74])), "seeds": 2, "runs": 2},
    }


def test_report_of_a_single_run_and_of_one_in_progress(tmp_path, no_figures):
    write_run(tmp_path / "x", "MLM+NSP", 1, package=0.7)
    console = quiet()
    text = report(tmp_path / "x", console=console).read_text(encoding="utf-8")
    assert "package/accuracy on test is 70.0" in console.file.getvalue().replace("\n", " ")
    assert "One run says nothing about differences." in text
    place = Run(tmp_path / "x" / "finetune" / "package")
    place.config.write({"seed": 0, "transfer": {"random": False}, "metrics": {"package": "accuracy"}})
    place.most_frequent.write({split: {"package/accuracy": 0.3} for split in ("valid", "test")})
    tuned = report(place.directory, console=(alone := quiet())).read_text(encoding="utf-8")
    said = " ".join(alone.file.getvalue().split())
    assert "package/accuracy on test is 70.0 % (30.0 % by always giving the most frequent answer)" in said
    assert "package accuracy (%)" in said and "Validation losses" not in said and "not finished" not in tuned
    write_run(tmp_path / "y", "MLM", 1, finished=False)
    text = report(tmp_path / "y", console=quiet()).read_text(encoding="utf-8")
    assert "This run is not finished." in text and "mlm/loss (nats)" in text


def short_run(directory, tuned=False, points=2):
    """A run, or a fine-tuning, of so many held-out points, after as many of training."""
    write_run(directory, "MLM+NSP", 1)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    if tuned:
        lines = [{key: value for key, value in line.items() if not key.startswith("nsp")} | {"supervised": 0} for line in lines]
    valid, trained = ([line for line in lines if line["split"] == split] for split in ("valid", "train"))
    kept = [valid[0], *trained[:6], *valid[6 : 6 + points - 1]]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    result = Run(directory).result.read()
    if tuned:
        Run(directory).config.write({"seed": 1, "transfer": {"random": False}, "metrics": {"mlm": "accuracy"}})
        of = {"valid": {"mlm/accuracy": 0.9, "mlm/loss": 0.3}, "test": {"mlm/accuracy": 0.8, "mlm/loss": 0.4}}
        result |= {"supervised": 0, "metrics": of}
        for split, number in (("valid", 3), ("test", 12)):
            Run(directory).predictions(split).write('{"id": "0"}\n' * number)
    else:
        result["metrics"]["test"] = {"loss": 9.0, "mlm/loss": 8.0, "nsp/loss": 1.0}
    Run(directory).result.write(result)
    return load(directory)


def test_a_single_run_is_drawn_along_its_steps_with_its_training_if_little_else_was_measured(tmp_path):
    results = short_run(tmp_path / "x")
    for panel in (drawn := module.figures(results))["learning_curves"].axes:
        assert panel.get_xlabel() == "steps"
        assert [len(line.get_xdata()) for line in panel.get_lines()] == [2, 6], "held out, and in training"
    assert list(drawn) == ["learning_curves"], "a bar alone says no more than its number"
    page = html_page(results)
    assert page.count("<svg viewBox") == 2 and "The thin line with small dots is the loss in training." in page
    assert "measures of effort" not in page and "not comparable" in page and "Downstream tasks" not in page
    results = short_run(tmp_path / "y", points=5)
    assert {len(panel.get_lines()) for panel in module.figures(results)["learning_curves"].axes} == {1}
    assert "in training" not in html_page(results)


def test_a_single_pretraining_has_its_test_losses(tmp_path):
    frame = table(short_run(tmp_path / "x"))
    assert list(frame[TEST_LOSSES].columns) == ["mlm/loss", "nsp/loss"]
    assert frame[TEST_LOSSES].iloc[0].tolist() == ["8.000", "1.000"] and (LOSSES, "mlm/loss") in frame
    assert TEST_LOSSES not in table(load(study_of(tmp_path / "s", MLM=[0.7], LTR=[0.69])))


def test_a_page_says_only_what_it_shows_of_a_single_fine_tuning(tmp_path):
    results = short_run(tmp_path / "x", tuned=True)
    page = " ".join(html_page(results).split())
    for absent in ("upervised position", "Transfer is", "pretraining", "held-out", "segments", "not comparable", "Losses are"):
        assert absent not in page, absent
    assert "Loss on valid examples during fine-tuning." in page and "in this fine-tuning" in page
    assert "mlm/loss on valid examples went from" in page and "there are 3 valid and 12 test examples" in page
    frame = table(results)
    assert [frame[group].iloc[0].tolist() for group in (SCORES, VALID_SCORES)] == [["80.0"], ["90.0"]]


def test_a_cost_that_is_nothing_everywhere_has_no_column_and_no_panels(tmp_path):
    directory = study_of(tmp_path / "s", MLM=[0.7], LTR=[0.69])
    whole = load(directory)
    without = dataclasses.replace(
        whole,
        metrics=whole.metrics.assign(supervised=0),
        measurements=whole.measurements.assign(
            value=whole.measurements["value"].where(whole.measurements["metric"] != "supervised", 0)
        ),
    )
    assert (COST, "supervised positions") in table(whole) and (COST, "supervised positions") not in table(without)
    labels = lambda results: [panel.get_xlabel() for panel in module.figures(results)["learning_curves"].axes[:5]]
    assert labels(whole)[2].startswith("supervised") and not any("supervised" in label for label in labels(without))
    page = html_page(without)
    assert "against four measures of effort" in page and "supervised position" not in page.lower()


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (1500, "1,500"),
        (12_345, "12.3 k"),
        (4_386_178, "4.39 M"),
        (2.5e21, "2500 E"),
        (999_999, "1.00 M"),
        (9_996_000, "10.0 M"),
        (-0.2, "0"),
        (float("nan"), "–"),
    ],
)
def test_counts_in_three_figures(value, text):
    assert count_text(value) == text


@pytest.mark.parametrize(("scores", "widths"), [(1, [2]), (8, [9]), (10, [6, 5])])
def test_many_scores_stand_in_several_tables(scores, widths):
    columns = [("", "seeds"), *((SCORES, f"task {i}") for i in range(scores)), (LOSSES, "mlm/loss"), (COST, "steps")]
    frame = pd.DataFrame([range(len(columns))], columns=pd.MultiIndex.from_tuples(columns))
    parts = side_by_side(frame, (SCORES, LOSSES))
    assert [len(part) for part in parts] == widths and [*itertools.chain(*parts)] == columns[1:-1]
    assert side_by_side(frame, (SCALES,)) == []


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (71.43, 1, "71.4"),
        (-4.625, 3, "-4.625"),
        (999.96, 1, "1000.0"),
        (12345.678, 3, "12345.7"),
        (1434504308501.419, 3, "1.4345e+12"),
        (4.016e-10, 3, "4e-10"),
        (-0.0123, 1, "-0.012"),
        (-0.0, 1, "0.0"),
        (float("nan"), 1, "–"),
    ],
)
def test_numbers_have_their_decimals_or_enough_figures(value, digits, text):
    assert number(value, digits) == text
    assert number(value, digits, "+") == (text if text[0] in "-–" else f"+{text}")


@pytest.mark.parametrize(
    "mean, sd, text",
    [
        (71.4, 0.8, "71.4 ± 0.8"),
        (71.4, float("nan"), "71.4"),
        (71.4, 0.00003, "71.4 ± 0.0"),
        (-0.0004, 0.2, "0.0 ± 0.2"),
        (0.0, 0.0, "0.0 ± 0.0"),
        (-4.2e-10, 2.6e-10, "-4.2e-10 ± 2.6e-10"),
        (1434504308501.419, 246667218114.57, "1.4345e+12 ± 2.46667e+11"),
    ],
)
def test_a_mean_and_its_deviation_are_never_both_rounded_away(mean, sd, text):
    assert spread(mean, sd, 1) == text


def test_what_there_is_not_is_not_a_small_p_value():
    assert p_text(float("nan")) == "–" and p_text(0.0004) == "< 0.001" and p_text(1.0) == "1.000"
    assert seconds_text(0.25) == "0.25 s" and seconds_text(42.4) == "42 s"
    assert seconds_text(200_000) == "55.6 h" and seconds_text(4e7) == "463.0 days" and seconds_text(1e9) == "31.7 years"
    assert points(-0.0004, "sst2/accuracy") == "0.0 points", "tables have one decimal"


HOSTILE = [
    '<script>fetch("//evil")</script>',
    '"><img src=x onerror=alert(1)>',
    "</style><iframe src=//evil>",
    "\\g<0>&lt;b&gt;",
]


def test_nothing_of_a_run_directory_becomes_a_part_of_the_page(tmp_path):
    directory = write_study(
        tmp_path / "s", objectives_study((1, 2), ("MLM", "LTR")), per_run={"ltr-seed=2": {"finished": False}}
    )
    study = json.loads((directory / "study.json").read_text())
    study |= {"title": HOSTILE[0], "question": HOSTILE[1], "command": HOSTILE[2]}
    study["claims"] = [{"higher": HOSTILE[1], "lower": HOSTILE[3], "published": HOSTILE[0], "source": HOSTILE[2], "kinds": []}]
    study["published"] = {"source": HOSTILE[0], "columns": [HOSTILE[1]], "rows": {HOSTILE[2]: [1.5]}, "note": HOSTILE[0]}
    for run in study["runs"]:
        run["labels"]["objective"] = {"MLM": HOSTILE[1], "LTR": HOSTILE[3]}[run["labels"]["objective"]]
    (directory / "study.json").write_text(json.dumps(study))
    (directory / "ltr-seed=2" / "error.txt").write_text(HOSTILE[0])
    environment = json.loads((directory / "mlm-seed=1" / "environment.json").read_text())
    (directory / "mlm-seed=1" / "environment.json").write_text(json.dumps(environment | {HOSTILE[1]: HOSTILE[0]}))
    page = report(directory, console=Console(file=io.StringIO())).read_text(encoding="utf-8")
    assert "onerror" in page and "&lt;script&gt;" in page, "it is text there"
    elements = Elements(page).found
    assert not {tag for tag, *_ in elements} & {"script", "img", "iframe", "object", "embed", "form", "base", "b"}
    assert not [name for _, attributes, _ in elements for name in attributes if name.startswith("on")]
    targets = [
        attributes[name] for _, attributes, _ in elements for name in ("href", "src", "xlink:href") if name in attributes
    ]
    assert all(target.startswith(("#", "data:,")) for target in targets if target != "explore.html")
    first = next(attributes for tag, attributes, _ in elements if tag == "meta" and "http-equiv" in attributes)
    assert first["http-equiv"] == "Content-Security-Policy" and first["content"].startswith("default-src 'none'; style-src")


def test_latex_reads_no_label_as_an_option(tmp_path):
    assert escape_latex("[0,1] masks") == "{}[0,1] masks" and escape_latex("*") == "{}*"
    assert escape_latex("a[1]*") == "a[1]*"
    assert escape_latex("p < 0.001 > |x|") == r"p $<$ 0.001 $>$ \textbar{}x\textbar{}"
    assert escape_latex("-4.6 to -0.5 (-1), MLM-1") == "$-$4.6 to $-$0.5 ($-$1), MLM-1"
    study = objectives_study((1, 2), ("MLM", "LTR"))
    axes = {"objective": study.axes["objective"], "span": {"[0,1] < 2": {}}, "seed": [1, 2]}
    labels = {"MLM": "[0] a", "LTR": "* b"}
    directory = write_study(tmp_path / "s", dataclasses.replace(study, axes=axes))
    described = json.loads((directory / "study.json").read_text())
    for run in described["runs"]:
        run["labels"]["objective"] = labels[run["labels"]["objective"]]
    (directory / "study.json").write_text(json.dumps(described))
    text = latex(load(directory))
    assert "\n{}[0] a, [0,1] $<$ 2 & 2 &" in text and "\n{}* b, [0,1] $<$ 2 & 2 &" in text
    assert not re.search(r"(\\\\|rule)\s*[\[*]", text)
    assert "<" not in text.replace("$<$", "")


def test_latex_says_below_each_table_how_to_read_it(tmp_path):
    published = Published("Somebody 2019, table 5", ("MNLI",), {"LTR": (82.1,), "MLM": (84.4,)}, "dev_sets")
    study = dataclasses.replace(objectives_study((1, 2), ("MLM", "LTR")), published=published)
    directory = write_study(tmp_path / "s", study, per_run={"ltr-seed=1": {"data": "other"}})
    tables = latex(load(directory)).split(r"\end{tabular}")[1:]
    notes = [text[: text.find(r"\begin{tabular}")] if r"\begin{tabular}" in text else text for text in tables]
    first, of_published, of_differences, *_, of_cost = notes
    assert "Mean $\\pm$ standard deviation" in first and "do not compare losses" in first
    assert "did not read the same data" in first and "did not read" not in "".join(notes[1:])
    assert "Scales differ" in of_published and r"dev\_sets" in of_published
    assert "Paired by seed" in of_differences and r"95 \%" in of_differences
    assert "Cost is the mean over seeds" in of_cost
    assert all(note.count("{") == note.count("}") for note in notes)


def test_everything_is_a_csv_too_in_raw_units(tmp_path):
    published = Published("Somebody 2019, table 5", ("MNLI", "SQuAD F1"), {"LTR": (82.1, 77.8), "MLM": (84.4, None)})
    scores = {"MLM": (0.70, 0.74, 0.72), "LTR": (0.69, 0.70, 0.70), "biLM": (0.60, 0.61, 0.64)}
    directory = study_of(tmp_path / "s", published=published, **scores)
    shutil.rmtree(directory / "ltr-seed=3" / "finetune" / "code_spans")
    results = load(directory)
    written = csv_tables(results, compare_all(results))
    tables = ["runs", "measurements", "curves", "table", "scores", "rates", "score_curves", "differences", "published"]
    assert list(written) == tables
    written = {name: pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype=str) for name, frame in written.items()}
    seeds = written["table"].query("task == 'code_spans' and split == 'test' and metric == 'f1'").set_index("variant")["seeds"]
    assert seeds.to_dict() == {"MLM": "3", "LTR": "2", "biLM": "3"}
    table = written["differences"].set_index(["family", "variant", "other"])
    table = table.query("stage == 'finetune' and task == 'code_spans' and split == 'test' and metric == 'f1'")
    pairs = [("MLM", "LTR"), ("MLM", "biLM"), ("LTR", "biLM")]
    assert list(table.index) == [*(("all pairs", *pair) for pair in pairs), *(("first variant", *of[::-1]) for of in pairs[:2])]
    test = scipy.stats.ttest_rel(scores["MLM"], scores["biLM"])
    for row, sign, corrections in ((("all pairs", "MLM", "biLM"), 1, 3), (("first variant", "biLM", "MLM"), -1, 2)):
        found = table.loc[row]
        interval = sorted(sign * end for end in test.confidence_interval(1 - 0.05 / corrections))
        assert found[["mean", "low", "high", "p"]].astype(float).tolist() == pytest.approx(
            [sign * (2.16 - 1.85) / 3, *interval, test.pvalue]
        )
        assert found[["pairs", "corrections"]].tolist() == ["3", str(corrections)]
    assert table.loc["all pairs", "MLM", "LTR"]["pairs"] == "2", "only those that both have"
    curves = written["curves"]
    first = ["run", "variant", "objective", "seed", "step", "split", "tokens", "supervised", "flops", "seconds"]
    assert list(curves.columns) == [*first, "metric", "value"] and len(curves) == len(results.metrics)
    assert set(written["scores"]["task"]) == {"package", "code_spans"}
    assert written["published"].to_dict("records")[0] == {
        "variant": "LTR",
        "MNLI": "82.1",
        "SQuAD F1": "77.8",
        "source": "Somebody 2019, table 5",
    }
    assert pd.isna(written["published"].set_index("variant").loc["MLM", "SQuAD F1"])


def test_a_study_of_one_seed_has_no_file_of_differences(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1,), ("MLM", "LTR")))
    (directory / "report").mkdir()
    (directory / "report" / "differences.csv").write_text("of an earlier report")
    report(directory, console=quiet())
    assert {path.stem for path in directory.glob("report/*.csv")} == {"table", "runs", "measurements", "curves", "scores"}


def test_every_metric_and_every_figure_says_of_how_many_seeds_it_is(tmp_path, no_figures):
    directory = write_study(tmp_path / "s", objectives_study((1, 2, 3), ("MLM", "LTR", "biLM")))
    (directory / "ltr-seed=3" / "result.json").unlink()
    results = load(directory)
    rows = {metric: (seeds, cells) for metric, seeds, cells in all_metrics(results, summarise(results))}
    assert rows["package/accuracy"][0] == "3, 2, 3"
    assert rows["mlm/loss, valid"][0] == "3" and rows["mlm/loss, valid"][1][1:] == ["–", "–"]
    assert rows["rtl/loss, valid"][0] == "3", "of those that have it"
    page = html_page(results)
    for text in ("after fine-tuning (2 to 3 seeds)", "during pretraining (2 to 3 seeds)", "as a map (means of 2 to 3 seeds)"):
        assert text in page, text
    assert "package/accuracy 3, 2, 3" in " ".join(re.sub("<[^>]*>", " ", page).split())


def printed_table(width, labels, columns):
    console = Console(file=io.StringIO(), width=width)
    print_columns(console, labels, columns)
    lines = console.file.getvalue().rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    return [line.strip() for line in lines if line.strip("─ ")]


def test_long_labels_fold_and_numbers_stay():
    lines = printed_table(40, ["x" * 70, "short"], {"package accuracy (%)": ["71.4 ± 0.8", "70.0 ± 1.2"]})
    assert "".join(re.findall("x+", "".join(lines))) == "x" * 70
    rows = [line for line in lines if "±" in line]
    assert rows == ["x" * 16 + "  71.4 ± 0.8", "short".ljust(16) + "  70.0 ± 1.2"], "the head folds too"


def test_a_table_too_wide_is_printed_in_blocks_that_have_the_seeds():
    tasks = {f"task{i} accuracy (%)": [f"{i}1.4 ± 0.8", f"{i}0.0 ± 1.2"] for i in range(1, 8)}
    lines = printed_table(60, ["MLM", "LTR"], {"seeds": ["3", "2"], **tasks})
    heads = [line.split() for line in lines if line.startswith("variant")]
    assert len(heads) == 3 and all(head[1] == "seeds" for head in heads)
    rows = [line for line in lines if line.startswith("MLM")]
    assert all(row.split()[1] == "3" for row in rows)
    assert re.findall(r"\d+\.\d ± 0\.8", " ".join(rows)) == [f"{i}1.4 ± 0.8" for i in range(1, 8)]


def test_every_number_is_on_the_terminal_whatever_the_names_and_sizes(tmp_path):
    study = objectives_study((1, 2), ("MLM", "LTR"))
    name = "a very long variant name that says every key: model.norm_placement=pre & " + "y" * 50
    axes = {"objective": study.axes["objective"], "long": {name: {}}, "seed": [1, 2]}
    study = dataclasses.replace(study, axes=axes)
    per_run = {run.name: {"package": 1e-9 * int(run.labels["seed"])} for run in study.runs()}
    results = load(write_study(tmp_path / "s", study, per_run=per_run))
    console = Console(file=io.StringIO(), width=70)
    print_report(show(results), tmp_path / "report.html", console)
    printed = console.file.getvalue()
    assert "1.5e-07 ± 7.1e-08" in printed and "4.39 M" in printed
    assert not re.search(r"(?<!\d)-0\.0*(?![\d.])", printed)


@pytest.mark.parametrize(
    "mlm, ltr, says",
    [
        ((0.72, 0.74, 0.73), (0.69, 0.70, 0.70), "This agrees with the published"),
        ((0.69, 0.70, 0.70), (0.72, 0.74, 0.73), "This disagrees with the published"),
        ((0.70, 0.74, 0.69), (0.72, 0.71, 0.70), "Undecided here on package, code_spans."),
    ],
)
def test_a_published_finding_is_held_against_the_interval(mlm, ltr, says, tmp_path):
    study = dataclasses.replace(
        objectives_study((1, 2, 3), ("MLM", "LTR")), claims=(Claim("MLM", "LTR", "83.9 and 82.1", "table 5"),)
    )
    scores = {f"{name}-seed={i}": {"code_spans": x} for name, of in (("mlm", mlm), ("ltr", ltr)) for i, x in enumerate(of, 1)}
    results = load(write_study(tmp_path / "s", study, per_run=scores))
    first, *more = findings_of(results)
    assert says in first and "MLM is above LTR (83.9 and 82.1; table 5)." in first
    tokens = count_text(results.values(cost("tokens")).max())
    assert any(f"pretrained on more than {tokens} tokens" in text for text in more), "how small it was"


WITH_SEARCH = {"own": 1e-3, "candidates": {"mlm-seed=1-rate=0.001": 1e-3}, "runs": ["mlm-seed=1"]}
CLAIM = {"higher": "MLM", "lower": "LTR", "published": "1 against 2", "source": "a paper"}
PAPER = {"source": "a paper", "columns": ["a"], "rows": {"MLM": [1.0]}, "note": ""}
OTHER_STUDIES = {  # keys of study.json, and what is wrong with them
    "no runs": ({"runs": []}, "runs is empty"),
    "a run twice": (lambda study: {"runs": study["runs"] * 2}, "runs has 'mlm-seed=1' more than once"),
    "tasks of another kind": (
        lambda study: {"runs": [study["runs"][0] | {"downstream": {"package": 5}}]},
        "an object, not '5'",
    ),
    **{
        f"{key} is no number": (
            lambda study, key=key: {"runs": [study["runs"][0] | {"downstream": {"package": {key: ["x"]}}}]},
            f"{key} of run mlm-seed=1 must be a whole number, not \"['x']\"",
        )
        for key in ("init_step", "task_data.limit")
    },
    "claims are a number": ({"claims": 5}, "claims must be a list, not '5'"),
    "a claim without variants": ({"claims": [{"x": 1}]}, "claims.0.higher is missing"),
    "kinds are a number": ({"claims": [CLAIM | {"kinds": 5}]}, "claims.0.kinds must be a list, not '5'"),
    "contrasts are a number": ({"contrasts": 5}, "contrasts must be a list, not '5'"),
    "a contrast of three": ({"contrasts": [["MLM", "LTR", "MLM"]]}, "contrasts.0 must have two variants, not 3"),
    "a search without variant": ({"searches": [WITH_SEARCH], "rates": [1]}, "searches.0.variant is missing"),
    "a search without its rates": ({"searches": [{"variant": "MLM", **WITH_SEARCH}]}, "a candidate for each of rates"),
    "a rate of 0": (
        {"searches": [{"variant": "MLM", **WITH_SEARCH, "own": 0}], "rates": [1]},
        "searches.0 must have rates above 0",
    ),
    "published is a number": ({"published": 5}, "published must be an object or null, not '5'"),
    "published without source": ({"published": {"x": 1}}, "published.source is missing"),
    "a published row too long": (
        {"published": PAPER | {"rows": {"MLM": [1, 2]}}},
        "published.rows.MLM must have a value for each",
    ),
}
OTHER_STUDIES |= {
    f"a search without {key}": (
        {"searches": [{name: value for name, value in WITH_SEARCH.items() if name != key} | {"variant": "MLM"}], "rates": [1]},
        f"searches.0.{key} is missing",
    )
    for key in ("own", "runs")
}


def refused(directory, capsys):
    """The one line with which `bertlab report` refuses a directory."""
    assert main(["report", str(directory)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said.strip()


@pytest.mark.parametrize("other", OTHER_STUDIES)
def test_a_study_json_of_another_form_is_refused_in_one_sentence(other, tmp_path, capsys, no_figures):
    file = study_of(tmp_path / "s", MLM=[0.7], LTR=[0.6]) / "study.json"
    study, (change, wrong) = json.loads(file.read_text()), OTHER_STUDIES[other]
    file.write_text(json.dumps(study | (change(study) if callable(change) else change)))
    said = refused(file.parent, capsys)
    assert said.startswith(f"bertlab report: {file} is damaged: ") and wrong in said
    assert "; restore it, or " in said and not (file.parent / "report").exists()


@pytest.mark.parametrize("score", [1e308, -0.1, 10**400], ids=["large", "negative", "beyond floats"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_score_that_no_model_can_have_is_refused_in_one_sentence(split, score, tmp_path, capsys, no_figures):
    directory = study_of(tmp_path / "s", MLM=[0.7, 0.8], LTR=[0.6, 0.65])
    file = directory / "mlm-seed=1" / "finetune" / "code_spans" / "result.json"
    result = json.loads(file.read_text())
    result["metrics"][split]["code_spans/f1"] = score
    file.write_text(json.dumps(result))
    said = refused(directory, capsys)
    assert said.startswith(f"bertlab report: {file} is damaged: {split}/code_spans/f1 must be between 0 and 1, not ")
    assert said.endswith("; restore it, or delete it and run the sweep again") and len(said) < 400


def test_a_score_of_1_that_float32_rounded_up_is_one(tmp_path):
    scored = load(study_of(tmp_path / "s", "package", MLM=[1.0000001], LTR=[0.6]))
    assert scored.wide("package/accuracy")["package/accuracy"].max() == 1.0000001


@pytest.mark.parametrize(
    "name", ["report", "report/figures", "report.html", "explore.html", "report/table.tex", "report/runs.csv"]
)
def test_what_is_in_the_way_of_a_report_is_named(name, tmp_path, capsys, no_figures):
    path = study_of(tmp_path / "s", MLM=[0.7], LTR=[0.6]) / name
    path.parent.mkdir(exist_ok=True)
    folder = "." in name
    path.mkdir() if folder else path.write_text("mine")
    kinds = "a folder, and the report needs a file" if folder else "a file, and the report needs a folder"
    remedy = "move or delete it, and run the same command again"
    assert refused(tmp_path / "s", capsys) == f"bertlab report: {path} is {kinds} of this name; {remedy}"
    assert path.is_dir() if folder else path.read_text() == "mine"
    path.rmdir() if folder else path.unlink()
    assert report(tmp_path / "s", console=quiet()).exists()
