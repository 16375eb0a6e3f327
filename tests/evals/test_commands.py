"""An objective from outside through the commands: it trains, and is scored by the default bound;
text, minimal pairs and words of a run are scored, its texts embedded and sampled."""

import csv
import json

import numpy as np
import pytest

from bertlab.cli.main import main

SMALL = {
    "data.format": "doc_sentences",
    "data.seq_len": 18,
    "data.batch_size": 16,
    "data.tokenizer.kind": "words",
    "data.tokenizer.vocab_size": 21,
    "data.synthetic.vocab_size": 16,
    "data.synthetic.documents": 200,
    "data.synthetic.sentence_words": (4, 4),
    "data.synthetic.document_sentences": (4, 4),
    "data.workers": 1,
    "model.heads": 2,
    "model.width": 16,
    "model.layers": 1,
    "model.hidden": 16,
    "optimizer.learning_rate": 1e-2,
    "train.steps": 60,
    "train.eval_every": 60,
    "train.eval_batches": 4,
    "evaluate.sentences": 24,
}
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
OWN = "tests.objectives.own_diffusion:OwnDiffusion"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of an objective that is one file of settings, view and loss, beside masked words."""
    folder = tmp_path_factory.mktemp("own")
    config = f"experiments/pretrain/bert.py:corpus=synthetic,objectives={OWN}"
    overrides = [f"--config.{name}={value}" for name, value in SMALL.items()]
    overrides.append(f"--config.data.directory={folder / 'cache'}")
    assert main(["train", f"--config={config}", f"--workdir={folder / 'run'}", *overrides]) == 0
    return folder / "run"


def read(run, name="evaluation"):
    return json.loads((run / f"{name}.json").read_text())


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_an_objective_of_one_file_trains_and_has_a_code_length(run):
    (before, *_, after) = [
        json.loads(line)["loss"]
        for line in (run / "metrics.jsonl").read_text().splitlines()
        if '"valid"' in line
    ]
    found = read(run)["test"]
    assert after < before
    # A word of a vocabulary of 16 has 2 or 3 bytes and its space.
    assert 0.3 < found["bits_per_byte/any-order"] < 4 / 2.5
    assert 1.0 < found["perplexity/pseudo"] < 17 and found["pieces/pseudo"] == 24 * 4


def test_text_pairs_and_words_are_scored(run, tmp_path, capsys):
    text, pairs, words = (tmp_path / name for name in ("text.txt", "pairs.jsonl", "words.txt"))
    text.write_text("w1 w2 w3\nw4\n")
    pair = {"sentence_good": "w1 w2", "sentence_bad": "w1 w3", "UID": "p"}
    pairs.write_text("".join(json.dumps(pair) + "\n" for _ in range(3)))
    words.write_text("w1 w2 3\nw2 w3 1\nw1 w4 2\nw1 unheard 2\n")
    keys = {"text": text, "minimal_pairs": pairs, "pairs": 2, "words": words, "kinds": "pseudo"}
    keys |= {"sentences": 0, "floors": False}
    arguments = [f"--config.evaluate.{name}={value}" for name, value in keys.items()]
    before = read(run)["test"]
    assert main(["evaluate", f"--run={run}", *arguments]) == 0
    found = read(run)
    assert found["test"] == before, "earlier measurements stay"
    assert found[str(text)]["bytes/pseudo"] == 10 and found[str(text)]["pieces/pseudo"] == 4
    assert found[str(text)].keys() >= {"bits_per_byte/pseudo", "unknown/pseudo"}
    assert found[str(pairs)]["pairs"] == 2 and found[str(pairs)]["accuracy/pseudo"] in (0, 1)
    assert (found[str(words)]["pairs"], found[str(words)]["scored"]) == (4, 3)
    ways = [name for name in found[str(words)] if name.startswith("similarity/")]
    assert ways == [f"similarity/alone, layer {n}" for n in (0, 1)]
    capsys.readouterr()
    assert main(["evaluate", f"--run={run}", "--config.evaluate.kinds=left-to-right"]) == 2
    assert "it has pseudo" in capsys.readouterr().err


def test_texts_are_embedded_and_sampled(run, tmp_path, capsys):
    text = tmp_path / "lines.txt"
    text.write_text("w1 w2 w3\nw4\n")
    embed = ["embed", f"--run={run}", f"--text={text}"]
    assert main([*embed, f"--out={tmp_path}/all.npz"]) == 0
    with np.load(tmp_path / "all.npz") as arrays:
        first, second = arrays["0"], arrays["1"]
    assert (first.shape, second.shape) == ((2, 3, 16), (2, 1, 16))
    assert main([*embed, f"--out={tmp_path}/mean.csv", "--layers=-1", "--pooling=mean"]) == 0
    rows = table(tmp_path / "mean.csv")
    assert [row["text"] for row in rows] == ["0", "1"] and rows[0].keys() >= {"layer", "d15"}
    assert main([*embed, f"--out={tmp_path}/states.csv"]) == 0
    rows = table(tmp_path / "states.csv")
    assert len(rows) == 2 * (3 + 1) and rows[0]["token"] == "w1"
    np.testing.assert_allclose(float(rows[0]["d3"]), first[0, 0, 3], rtol=1e-4)
    capsys.readouterr()
    assert main(["sample", f"--run={run}", "--number=3", "--length=4", "--prompt=w1"]) == 0
    texts = capsys.readouterr().out.splitlines()
    assert len(texts) == 3 and all(t.startswith("w1 ") and len(t.split()) == 4 for t in texts)
