"""`bertlab evaluate`: the sample of held-out sentences, minimal pairs by planted scores, and what is written down."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from bertlab.cli import main
from bertlab.config import base_config
from bertlab.data.corpora import open_corpus
from bertlab.data.splits import Splits, read_in_splits
from bertlab.data.tokenizers import WordPieceTokenizer
from bertlab.errors import UserError
from bertlab.interop.base import Imported, save_imported
from bertlab.transfer.evaluate import Pair, held_out_sentences, judge_pairs, read_pairs
from bertlab.transfer.evaluations import MEASURES, text_hash
from bertlab.transfer.likelihood import Score
from bertlab.transfer.load import Pretrained, load
from tests.references import random_params, tiny_program
from tests.transfer.test_likelihood import PIECES, ROW, VOCABULARY

ENTRY = dict.fromkeys(MEASURES["bits_per_byte"], 0) | {"text_hash": "", "lowercase": False}
PLANTED = {"x": -3.0, "y": -4.0, "z": -4.0}


def planted(texts, kind="pseudo", orders=4):
    return [Score(PLANTED[text], 1, kind) for text in texts]


def line(good: str, bad: str, paradigm: str, **more: str) -> str:
    return json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": paradigm, "field": "syntax", **more})


@pytest.fixture
def run(tmp_path) -> Path:
    """The directory of a tiny masked model of the letters a to h, trained on their own text."""
    words = " ".join("abcdefgh")
    documents = [f"Letters {words[i % 8 :]}. É{' é' * 500}. Text {i} a b." for i in range(60)]
    (tmp_path / "letters.txt").write_text("\n\n".join(documents), encoding="utf-8")
    config = base_config()
    config.data.update({"corpus": f"text:{tmp_path}/letters.txt", "valid_fraction": 0.1, "test_fraction": 0.3})
    config.model.update({"family": "bert", "size": "tiny", "width": 8, "layers": 1, "hidden": 12, "heads": 2})
    config.objectives.mlm = {"weight": 1.0}
    batch = ROW | {name: ROW["tokens"][:, 0] for name in ("pair_label",)}
    params = random_params(tiny_program("bert", "mlm", VOCABULARY), batch)
    save_imported(Imported(config, params, WordPieceTokenizer(PIECES, False)), tmp_path / "run", "huggingface", "nowhere")
    for name in ("imported.json", "files.json"):  # as if it had been trained here
        (tmp_path / "run" / name).unlink()
    return tmp_path / "run"


def test_the_more_likely_sentence_wins_ties_are_half_and_paradigms_weigh_alike():
    pairs = [Pair("x", "y", "one"), Pair("y", "x", "one"), Pair("y", "z", "one"), Pair("x", "z", "one")]
    judged = judge_pairs([*pairs, Pair("x", "y", "two"), Pair("x", "z", "two")], planted)
    one, two = judged["paradigms"]["one"], judged["paradigms"]["two"]
    assert one == {"accuracy": 0.625, "standard_error": pytest.approx((0.6875 / 3 / 4) ** 0.5), "pairs": 4}
    assert two == {"accuracy": 1.0, "standard_error": None, "pairs": 2}, "two of two right do not say that all are"
    assert judged["accuracy"] == 0.8125 and judged["pairs"] == 6
    assert judged["standard_error"] == pytest.approx(one["standard_error"] / 2)
    assert judge_pairs(pairs[:1], planted)["standard_error"] is None
    assert judge_pairs([pairs[0], pairs[3], Pair("y", "x", "two"), Pair("z", "x", "two")], planted)["standard_error"] is None


def test_a_phenomenon_is_the_mean_of_its_paradigms_and_leaves_the_whole_as_it_was():
    of_two = [Pair("x", "y", "one", "islands"), Pair("y", "x", "one", "islands"), Pair("x", "y", "two", "islands")]
    pairs = [*of_two, Pair("y", "z", "three", "binding"), Pair("y", "x", "four")]
    judged = judge_pairs(pairs, planted)
    assert {name: (of["accuracy"], of["pairs"]) for name, of in judged["phenomena"].items()} == {
        "islands": (0.75, 3),
        "binding": (0.5, 1),
    }
    without = [Pair(pair.good, pair.bad, pair.paradigm) for pair in pairs]
    assert judge_pairs(without, planted) == judged | {"phenomena": {}}
    assert judged["accuracy"] == (0.5 + 1 + 0.5 + 0) / 4


@pytest.mark.parametrize(("suffix", "opened"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_pairs_are_read_from_plain_and_compressed_lines(suffix, opened, tmp_path):
    path = tmp_path / f"pairs.jsonl{suffix}"
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(
            "\n".join(
                [
                    line("é", "b", "u"),
                    line("c", "d", "v"),
                    "",
                    line("e", "f", "u", linguistics_term="t"),
                    line("g", "h", "u"),
                    "",
                ]
            )
        )
    everything = [Pair("é", "b", "u"), Pair("c", "d", "v"), Pair("e", "f", "u", "t"), Pair("g", "h", "u")]
    assert read_pairs(path) == everything and read_pairs(path, limit=2) == everything[:3]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b'\n{"sentence_good": "a", "UID": "u"}', r'pairs.jsonl, line 2: expected a JSON object with a string "sentence_bad"'),
        (
            b'{"sentence_good": "a", "sentence_bad": 1, "UID": "u"}',
            r'line 1: expected a JSON object with a string "sentence_bad"',
        ),
        (b'["sentence_good"]', r'pairs.jsonl, line 1: expected a JSON object with a string "sentence_good"'),
        (b"{", r"pairs.jsonl, line 1: not valid JSON"),
        (b"\n", r"--minimal_pairs=.*pairs.jsonl has no pairs"),
        (b"\xff", r"--minimal_pairs=.*pairs.jsonl: byte 0 \(line 1\) is not UTF-8 text; convert the file"),
        (None, r"--minimal_pairs=.*pairs.jsonl: No such file or directory; give a UTF-8 file"),
    ],
)
def test_what_is_no_pair_is_refused_with_file_and_line(contents, message, tmp_path):
    if contents is not None:
        (tmp_path / "pairs.jsonl").write_bytes(contents)
    with pytest.raises(UserError, match=message):
        read_pairs(tmp_path / "pairs.jsonl")


def test_the_sample_is_of_the_test_split_and_depends_on_the_corpus_alone(run):
    sample = held_out_sentences(run, 12)
    config = json.loads((run / "config.json").read_text())
    test = [d for d in open_corpus(config["data"]["corpus"]).documents() if Splits(0.1, 0.4).of(d.id) == "test"]
    allowed = [sentence for document in test for sentence in document.sentences if len(sentence.encode()) <= 480]
    assert len(sample) == 12 and set(sample) <= set(allowed) and len(allowed) < sum(len(d.sentences) for d in test)
    assert sample != allowed[:12], "not the beginning of the corpus"
    assert 0 < sum(sentence.startswith("Text") for sentence in sample) < 12, "from anywhere in a document"
    assert held_out_sentences(run, 5) == sample[:5] and sorted(held_out_sentences(run, 10_000)) == sorted(allowed)
    config["data"] |= {"seed": 3, "seq_len": 64, "format": "full_sentences"}
    config["data"]["tokenizer"]["kind"] = "words"
    (run / "config.json").write_text(json.dumps(config))
    assert held_out_sentences(run, 12) == sample
    config["data"] |= {"corpus": "synthetic", "synthetic": config["data"]["synthetic"] | {"documents": 20}}
    (run / "config.json").write_text(json.dumps(config))
    assert held_out_sentences(run, 3)[0].startswith("w")
    config["data"]["test_fraction"] = 0.0
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"trained with config.data.test_fraction=0 and has no held-out text; give --text"):
        held_out_sentences(run, 3)
    (run / "imported.json").write_text("{}")
    with pytest.raises(UserError, match=r"was imported and has no held-out text; give --text=FILE"):
        held_out_sentences(run, 3)


def test_the_corpus_is_read_for_its_held_out_sentences_once_and_again_when_it_changes(run, tmp_path, monkeypatch):
    config = json.loads((run / "config.json").read_text())
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Document {i} has this sentence. This is not another one, {i}." for i in range(40)))
    config["data"] |= {"corpus": f"text:{text}", "directory": str(tmp_path / "cache")}
    (run / "config.json").write_text(json.dumps(config))
    reads = []
    read = lambda *given: reads.append(1) or read_in_splits(*given)
    monkeypatch.setattr("bertlab.transfer.evaluate.read_in_splits", read)
    first = held_out_sentences(run, 3)
    assert held_out_sentences(run, 3) == first == held_out_sentences(run, 6)[:3] and len(reads) == 1
    text.write_text(text.read_text().replace("his", "hat"))
    changed = held_out_sentences(run, 3)
    assert len(reads) == 2 and changed != first and not any("his" in sentence for sentence in changed)


def test_evaluate_prints_tables_and_merges_what_it_writes(run, tmp_path, monkeypatch, capsys):
    assert main(["evaluate", f"--run={run}", "--limit=3", "--kinds=pseudo"]) == 0
    printed = capsys.readouterr().out
    texts = held_out_sentences(run, 3)
    expected = load(run).bits_per_byte(texts, "pseudo")
    written = json.loads((run / "evaluation.json").read_text())
    assert list(written["bits_per_byte"]) == ["test split"]
    (pseudo,) = written["bits_per_byte"]["test split"].values()
    assert pseudo["value"] == pytest.approx(expected.value, rel=1e-6) and pseudo["texts"] == 3
    assert pseudo["unknown"] == expected.unknown > 0
    assert f"{expected.value:.4f}" in printed and "costs only one [UNK]" in printed and "drops capitals" not in printed

    (tmp_path / "pairs.jsonl").write_text("\n".join([line("x", "y", "u"), line("y", "x", "u"), line("x", "z", "v")]))
    monkeypatch.setattr(Pretrained, "score", lambda self, texts, kind, orders, closing: planted(texts, kind))
    assert main(["evaluate", f"--run={run}", f"--minimal_pairs={tmp_path / 'pairs.jsonl'}"]) == 0
    assert "75.0" in capsys.readouterr().out
    both = json.loads((run / "evaluation.json").read_text())
    (judged,) = both["minimal_pairs"].values()
    assert both["bits_per_byte"] == written["bits_per_byte"] and list(judged) == ["pseudo", "pseudo-within-word"]
    assert list(both["minimal_pairs"]) == [str(tmp_path / "pairs.jsonl")]
    assert judged["pseudo"]["accuracy"] == 0.75 and judged["pseudo"]["pairs"] == 3

    assert main(["evaluate", f"--run={run}", f"--minimal_pairs={tmp_path / 'pairs.jsonl'}", "--limit=1"]) == 0
    fewer = json.loads((run / "evaluation.json").read_text())["minimal_pairs"][str(tmp_path / "pairs.jsonl")]["pseudo"]
    assert fewer["pairs"] == 2 and fewer["text_hash"] != judged["pseudo"]["text_hash"], "another limit is another question"


def test_the_ends_of_texts_stand_beside_the_value_and_can_be_left_out(run, capsys):
    entries = []
    for more in ([], ["--noclosing"]):
        assert main(["evaluate", f"--run={run}", "--limit=2", "--kinds=any-order", *more]) == 0
        entries.append(json.loads((run / "evaluation.json").read_text())["bits_per_byte"]["test split"]["any-order"])
    whole, without = entries
    assert whole["closing"] > 0 == without["closing"] and whole["text_hash"] != without["text_hash"]
    assert whole["value"] - whole["closing"] == pytest.approx(without["value"], rel=1e-6)
    assert capsys.readouterr().out.count(f"any-order {whole['closing']:.4f}") == 1


def test_bounds_are_marked_and_left_out_of_minimal_pairs(run, tmp_path, capsys):
    assert main(["evaluate", f"--run={run}", "--limit=2", "--orders=3"]) == 0
    entry = json.loads((run / "evaluation.json").read_text())["bits_per_byte"]["test split"]["any-order"]
    printed = capsys.readouterr().out
    assert f"≤ {entry['value']:.4f}" in printed and "≤ " not in printed.split("any-order")[0]
    expected = load(run).bits_per_byte(held_out_sentences(run, 2), "any-order", 3)
    assert entry["value"] == pytest.approx(expected.value, rel=1e-6) and entry["order_error"] == expected.order_error > 0
    (tmp_path / "pairs.jsonl").write_text(line("a b", "b c", "u"))
    for asked, kinds in ((), ["pseudo", "pseudo-within-word"]), (("--kinds=any-order",), ["any-order"]):
        out = tmp_path / f"{len(kinds)}.json"
        main(["evaluate", f"--run={run}", f"--minimal_pairs={tmp_path / 'pairs.jsonl'}", f"--out={out}", *asked])
        (judged,) = json.loads(out.read_text())["minimal_pairs"].values()
        assert list(judged) == kinds


def test_a_text_of_its_own_leaves_the_test_split_alone(run, tmp_path):
    text, out = tmp_path / "some.txt", tmp_path / "new" / "some.json"
    text.write_text("a b c\r\n\nd e\n")
    asked = {"bits_per_byte": {"test split": {"pseudo": {**ENTRY, "value": 2.5}, "left-to-right": ENTRY}}}
    (run / "evaluation.json").write_text(json.dumps(asked))
    assert main(["evaluate", f"--run={run}", f"--text={text}", "--kinds=pseudo-within-word"]) == 0
    written = json.loads((run / "evaluation.json").read_text())["bits_per_byte"]
    assert written["test split"] == asked["bits_per_byte"]["test split"] and list(written) == ["test split", str(text)]
    of_file = written[str(text)]["pseudo-within-word"]
    assert (of_file["texts"], of_file["bytes"], of_file["tokens"], of_file["unknown"]) == (2, 8, 5, 0.0)
    assert main(["evaluate", f"--run={run}", f"--text={text}", "--kinds=pseudo-within-word", f"--out={out}"]) == 0
    assert json.loads(out.read_text()) == {"bits_per_byte": {str(text): {"pseudo-within-word": of_file}}}
    assert text_hash(["a b c", "d e"]) == of_file["text_hash"] != text_hash(["a b", "c d e"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--limit=-1", "--limit=-1 must be at least 0"),
        ("--orders=1", "--orders=1 must be 2 or more"),
        ("--kinds=left-to-right", "kind='left-to-right'"),
        ("--orders=8 --kinds=pseudo", "--orders=8 has no effect: what is scored is pseudo,"),
        ("--orders=8 --minimal_pairs=pairs.jsonl", "--orders=8 has no effect: what is scored is pseudo, pseudo-within-word,"),
        ("--special_tokens=bertlab", "--special_tokens=bertlab has no effect without --suite=babylm"),
        ("--text=long.txt", "long.txt:3: the line has 602 tokens"),
        ("--text=nothing.txt", "--text=nothing.txt: "),
        ("--out=x.txt", "--out=x.txt: the output is JSON"),
        ("--out=run/config.json", "--out=run/config.json: config.json belongs to the run run"),
        ("--out=old.json", "old.json: this file does not hold evaluations; name another"),
        ("--text=test split", "--text=test split: evaluation.json uses this name for the held-out sentences; rename the file"),
    ],
)
def test_evaluate_says_what_is_wrong_before_anything_is_scored(given, message, run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    Path("old.json").write_text(json.dumps({"bits_per_byte": {"pseudo": ENTRY}}))  # kinds without what they were asked about
    Path("pairs.jsonl").write_text(line("a b", "b c", "u"))
    Path("long.txt").write_text("a b\n\n" + "a " * 600 + "\n")
    asked = [given] if "test split" in given else given.split()
    assert main(["evaluate", "--run=run", *asked]) == 2
    assert message in capsys.readouterr().err
    assert not list(run.parent.glob("**/evaluation.json"))
