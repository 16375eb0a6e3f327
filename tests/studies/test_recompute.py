"""experiments/recompute.py finds what the pages print, and notices what they do not.

Its statistics and bertlab's were written apart, so a page that bertlab makes from made-up records
checks both.
"""

import base64
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import zstandard
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from bertlab.studies import report
from bertlab.studies.records import read
from experiments import recompute

PAGES = Path(recompute.__file__).parent / "results"
SEEDS, RATES = ("1", "2", "3", "4", "5"), ("0.001", "0.003", "0.01")
COSTS = dict.fromkeys(("step", "parameters", "tokens", "supervised", "flops", "seconds"), 1.0)
SKILLS = {"A": 1.0, "B": 1.0, "C": 0.0, "D": 0.4}  # D's fine-tuning rate is at the edge
CLAIMS = (("A", "C"), ("C", "B"), ("A", "B"), ("D", "C"))


def write_study(folder: Path, sizes: np.ndarray) -> None:
    """Four variants, five seeds with three fine-tunings each, 200 sentences of `sizes` words."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    hardness, runs, lines = rng.normal(size=len(sizes)), [], []
    for variant, rate, tuning, seed in itertools.product(SKILLS, RATES, "123", SEEDS):
        name = f"{variant}-{rate}-{tuning}-{seed}"
        owner = f"{variant}-{RATES[0]}-1-{seed}"
        labels = {"v": variant, "finetune.rate": rate, "finetune.seed": tuning, "seed": seed}
        run = {"name": name, "variant": variant, "labels": labels, "config": "c.py"}
        run |= {"overrides": {}, "adapt": {}, "averages": [], "downstream": {"t": {}}}
        runs.append(run | {"shares": {} if name == owner else {"pretrain": owner}})
        best = RATES[-1] if variant == "D" else RATES[1]
        logits = SKILLS[variant] - hardness + 0.1 * rng.normal() - (rate != best)
        right = rng.random(sizes.sum()) < np.repeat(1 / (1 + np.exp(-logits)), sizes)
        packed = base64.b64encode(np.packbits(right).tobytes()).decode()
        answers = {"items": len(right), "hash": "h", "bits": packed, "sizes": sizes.tolist()}
        scores = {"valid": {"accuracy": float(rate == best)}, "test": {"accuracy": right.mean()}}
        tuned = {"config": {"metrics.t": "accuracy"}, "correct": {"test": answers}}
        tuned |= {"scores": scores, "linear": {"test": {"accuracy": 0.31}}}
        lines.append(line(name, "finetune", "t") | tuned)
        if name == owner:
            bits = {"test": {"bits_per_byte/left-to-right": 2 + rng.random()}}
            lines.append(line(name, "pretrain", "") | {"evaluation": bits})
    axes = {"v": [*SKILLS], "finetune.rate": RATES, "finetune.seed": [*"123"], "seed": SEEDS}
    study = {"name": "made", "title": "T", "question": "?", "axes": axes, "runs": runs}
    study |= {"seed_axes": ["finetune.seed", "seed"], "select": ["finetune.rate"], "tasks": ["t"]}
    pairs = [dict(zip(("higher", "lower"), pair)) for pair in CLAIMS]
    study["claims"] = [pair | {"published": "1", "source": "S", "kinds": []} for pair in pairs]
    study |= {"contrasts": [], "searches": [], "published": None}
    text = "\n".join(map(json.dumps, [study, *lines])) + "\n"
    path = folder / "made.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    (folder / "README.md").write_text(report.render(read(folder), "markdown", {}))


def line(run: str, stage: str, task: str) -> dict:
    of = {"run": run, "stage": stage, "task": task, "config": {}, "environment": {}, "curve": []}
    return of | COSTS | {"finished": True, "data_hash": "", "scores": {}, "correct": {}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_study(folder / "made", np.random.default_rng(1).integers(1, 20, 200))
    counts = "4 published findings: 2 have an interval right of zero, 1 left. 2 verdicts; 1, 1"
    (folder / "README.md").write_text(counts)
    return folder


def test_every_committed_page_has_the_numbers_of_its_raw_lines(capsys):
    assert recompute.main(PAGES) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert len(lines) == len([*PAGES.glob("*/README.md")]) + 1
    assert sum(int(of.split(": ")[1].split()[0]) for of in lines) > 800


@pytest.mark.parametrize("page", [*PAGES.glob("*/README.md")], ids=lambda page: page.parent.name)
def test_a_page_has_at_most_400_words_and_its_tables_before_the_fold(page):
    shown, _, _ = page.read_text().partition("<details>")
    assert len(" ".join(line for line in shown.split("\n") if line[:1] != "|").split()) <= 400


def test_a_page_made_by_bertlab_of_nested_fine_tunings_and_sentences_is_recomputed(made):
    page = (made / "made" / "README.md").read_text()
    verdicts = "agrees", "contradicts", "undecided", "undecided: rate at the edge"
    assert all(f"| {verdict} |" in page for verdict in verdicts)
    assert recompute.main(made) == 0


@pytest.mark.parametrize(
    "page, printed, planted",
    [
        ("bert_table7_tiny_wikipedia/README.md", "78.3 ± 0.6", "78.3 ± 0.7"),
        ("bert_table7_tiny_wikipedia/README.md", "−4.5 to 15.2", "4.5 to 15.2"),
        ("bert_table7_tiny_wikipedia/README.md", "| 0.083 |", "| 0.084 |"),
        ("made/README.md", "(17.8 to", "(17.7 to"),
        ("made/README.md", "| contradicts |", "| agrees |"),
        ("made/README.md", "| D | 0.01 |", "| D | 0.003 |"),
        ("README.md", "1 left", "2 left"),
        ("README.md", "3.4 points (2.7 to 4.2)", "9.4 points (2.7 to 9.2)"),
    ],
)
def test_one_planted_error_is_one_mismatch(page, printed, planted, made, tmp_path):
    for folder in (PAGES / "bert_table7_tiny_wikipedia", made / "made"):
        shutil.copytree(folder, tmp_path / folder.name)
    answer = read(tmp_path / "bert_table7_tiny_wikipedia").study["answer"]
    counts = "4 published findings: 2 have an interval right of zero, 1 left. 2 verdicts; 1, 1"
    (tmp_path / "README.md").write_text(f"{counts}\n{answer}")
    assert recompute.main(tmp_path) == 0
    text = (tmp_path / page).read_text()
    assert text.count(printed) == 1
    (tmp_path / page).write_text(text.replace(printed, planted))
    assert recompute.main(tmp_path) == 1


def test_numbers_of_an_answer_that_no_table_has_are_listed(made, tmp_path, capsys):
    shutil.copytree(made, tmp_path / "pages")
    path = tmp_path / "pages" / "made" / "made.jsonl.zst"
    first, rest = zstandard.decompress(path.read_bytes()).decode().split("\n", 1)
    study = json.loads(first) | {"answer": "17.8 and 123.4"}
    text = json.dumps(study) + "\n" + rest
    path.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    recompute.main(tmp_path / "pages")
    other, listed, *_ = capsys.readouterr().out.split("\n")
    assert other.endswith("not the file's") and listed.endswith("in no table: 123.4")


def test_the_crossed_design_is_that_of_an_analysis_of_variance():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(5, 1)) + rng.normal(size=(1, 40)) + rng.normal(size=(5, 40))
    frame = pd.DataFrame(values).melt(ignore_index=False, var_name="item").reset_index()
    table = anova_lm(ols("value ~ C(index) + C(item)", frame).fit())
    squares = (table["sum_sq"] / table["df"] * [1, 1, -1]).to_numpy()
    degrees = squares.sum() ** 2 / (squares**2 / table["df"]).sum()
    half = scipy.stats.t.ppf(0.975, degrees) * np.sqrt(squares.sum() / values.size)
    _, mean, low, high, _ = recompute.two_way(values)
    np.testing.assert_allclose([mean, low, high], values.mean() + half * np.array([0, -1, 1]))
