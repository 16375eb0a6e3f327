"""BabyLM's tasks: what each file asks, how answers are scored and judged, and what is written down. `make parity` compares with
the pipeline's rules in PyTorch."""

import json

import numpy as np
import pandas as pd
import pytest

from bertlab.cli import main
from bertlab.data.tokenizers import train_tokenizer
from bertlab.errors import UserError
from bertlab.interop.base import Imported, save_imported
from bertlab.transfer import babylm
from bertlab.transfer.babylm import (
    TASKS,
    Item,
    answer_scores,
    explained,
    read_items,
    read_reading,
    with_surprisals,
)
from bertlab.transfer.completions import pieces_before
from bertlab.transfer.evaluations import read_evaluations
from tests.transfer.test_likelihood import compile_quickly, ids_of, log_probabilities, masked_sum, model_of  # noqa: F401

RECORDS = {
    "blimp": ("blimp_filtered/x.jsonl", {"sentence_good": "a b", "sentence_bad": "b a", "field": "syntax", "UID": "u"}),
    "blimp_supplement": ("supplement_fast/turn.jsonl", {"sentence_good": "a b", "sentence_bad": "b a"}),
    "ewok": ("ewok_fast/p.jsonl", {"Context1": "a b", "Context2": "c", "Target1": "d", "Target2": "e f", "Domain": "p"}),
    "entity_tracking": ("entity_tracking/regular.jsonl", {"input_prefix": "a", "options": [" b", " c d", " e"], "numops": 2}),
    "comps": (
        "comps/comps_wugs.jsonl",
        {"prefix_acceptable": "a", "prefix_unacceptable": "b c", "property_phrase": "d e"},
    ),
    "wug_adj": ("wug_adj_nominalization/y.jsonl", {"sentences": "a b\tb a", "ratio": 0.25}),
    "wug_past": ("wug_past_tense/y.jsonl", {"sentences": "a\tb", "ratio": "0.75"}),
}
ITEMS = {
    "blimp": Item(("a b", "b a"), (0, 0), "u"),
    "blimp_supplement": Item(("a b", "b a"), (0, 0), "turn"),
    "ewok": Item(("a b d", "a b e f"), (3, 3), "p"),
    "entity_tracking": Item(("a b", "a c d", "a e"), (1, 1, 1), "regular_2_ops"),
    "comps": Item(("a d e", "b c d e"), (2, 4), "wugs"),
    "wug_adj": Item(("a b", "b a"), (0, 0), "y", 0.25),
    "wug_past": Item(("a", "b"), (0, 0), "y", 0.75),
}


def write(folder, records=RECORDS, copies=1):
    for name, record in records.values():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((json.dumps(record) + "\n") * copies)
    return folder


def reading(rows=40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = (*babylm.EYE_TRACKING, babylm.SELF_PACED, "Subtlex_log10", "length", "context_length", "prev_length")
    words = pd.DataFrame({"item": list("abcd" * (rows // 4)), "word": list("bcde" * (rows // 4))})
    words["prev_item"], words["prev_word"] = words["item"].shift(), words["word"].shift()
    return words.assign(**{name: rng.random(rows) for name in names})


def test_what_each_file_asks(tmp_path):
    write(tmp_path, copies=3)
    for name, task in TASKS.items():
        assert str(read_items(tmp_path, task)) == str([ITEMS[name]] * 3)  # a NaN is not equal to itself
        assert len(read_items(tmp_path, task, limit=2)) == 2
        assert read_items(tmp_path / "elsewhere", task) == []


@pytest.mark.parametrize("line", ["{", "[]", '{"sentence_good": "a", "sentence_bad": 1}', '{"sentence_good": "a"}'])
def test_what_is_no_record_is_refused_with_file_and_line(line, tmp_path):
    path = write(tmp_path) / RECORDS["blimp_supplement"][0]
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=r"turn\.jsonl:2: "):
        read_items(tmp_path, TASKS["blimp_supplement"])


def test_ties_are_shared_and_files_of_entity_tracking_weigh_alike():
    values = [np.array(of) for of in ([2, 1], [1, 1 + 1e-6], [0, 1e-4], [3, 3, 3])]
    items = [Item(("a", "b"), (0, 0), name, ratio) for name, ratio in [("u", 0.9), ("u", 0.5), ("v", 0.1), ("v", 0.6)]]
    judged = TASKS["blimp"].judge(items, values)
    assert judged["ties"] == 2 and judged["paradigms"] == {"u": 0.75, "v": pytest.approx(1 / 6)}
    assert judged["score"] == pytest.approx((0.75 + 1 / 6) / 2)
    names = ["regular_0_ops", "regular_1_ops", "move_contents_0_ops", "regular_1_ops"]
    items = [item._replace(paradigm=name) for item, name in zip(items, names)]
    # regular: 1 and (1/2 + 1/3) / 2; move_contents: 0.
    assert TASKS["entity_tracking"].judge(items, values)["score"] == pytest.approx((1 + 5 / 12) / 2 / 2)
    assert TASKS["wug_past"].judge(items, [*values[:3], np.array([1.0, 0.5])])["score"] == pytest.approx(1.0)


def score_one(model, text, start, kind, special_tokens):
    ((value,),), _ = answer_scores(model, [Item((text,), (start,), "")], kind, 4, special_tokens)
    return value


@pytest.mark.parametrize("special_tokens", babylm.SPECIAL_TOKENS)
def test_a_completion_is_scored_given_its_context(special_tokens):
    """By the chain rule, or its pieces masked in turn; the closing token counts on our terms only, from left to right only."""
    text, start, closing = "a bc d ef", 5, special_tokens == "bertlab"
    model = model_of("ltr", direction="left-to-right")
    ids, context = ids_of(model, text), ids_of(model, text[:start])
    found = log_probabilities(model, [ids], "forward")[0]
    asked = range(len(context) - 1, len(ids) - (not closing))
    expected = sum(found[place - 1, ids[place]] for place in asked)
    assert score_one(model, text, start, "left-to-right", special_tokens) == pytest.approx(expected, rel=1e-5)
    model = model_of("mlm")
    whole = [score_one(model, text, at, "pseudo", special_tokens) for at in (0, start)]
    assert whole[0] == pytest.approx(masked_sum(model, text, False), rel=1e-5)
    copies = np.tile(ids, (20, 1))
    places = range(len(context) - 1, len(ids) - 1)
    for place in places:
        copies[place, place] = 4
    found = log_probabilities(model, copies, "both")
    assert whole[1] == pytest.approx(sum(found[place, place, ids[place]] for place in places), rel=1e-5)


def test_a_space_of_its_own_belongs_to_the_context_only_if_the_completion_begins_after_it():
    """As in COMPS and in EWoK; the pipeline counts the pieces that end after the first character."""
    tokenizer = train_tokenizer("unigram", ["a bad cab ab face d deed aa bee."] * 50, 272, seed=0)
    pieces = [tokenizer.pieces()[index] for index in tokenizer.encode("a bad cab")]
    assert pieces == ["▁a", "▁b", "a", "d", "▁", "c", "a", "b"]
    assert [pieces_before("a bad cab", start, tokenizer) for start in (0, 1, 2, 5, 6)] == [0, 1, 1, 4, 5]


def test_one_hidden_piece_is_as_likely_in_any_order():
    model = model_of("mlm")
    kinds = ("pseudo", "pseudo-within-word", "any-order")
    first, *others = [score_one(model, "a b c d", 5, kind, "pipeline") for kind in kinds]
    assert others == pytest.approx([first, first], rel=1e-5)


def test_a_long_text_loses_the_beginning_of_its_context(monkeypatch):
    model = model_of("ltr", direction="left-to-right")
    room = len(ids_of(model, "c d e f"))
    whole = score_one(model, "c d e f", 3, "left-to-right", "pipeline")
    monkeypatch.setattr(type(model), "longest", room)
    (of,), cut = answer_scores(model, [Item(("a b c d e f", "c d e f"), (7, 3), "")], "left-to-right", 4, "pipeline")
    assert of == pytest.approx([whole, whole], rel=1e-5) and cut == 1


def test_surprisals_add_up_to_a_sentence():
    """Left to right and on our terms: of each word given those before it, a word of several pieces included."""
    model, words = model_of("ltr", direction="left-to-right"), ["a", "bc", "d"]
    table = pd.DataFrame({"item": [" ".join(words[:n]) for n in range(3)], "word": words, "prev_item": None, "prev_word": None})
    table.loc[2, ["prev_item", "prev_word"]] = ["a", "bc"]
    found = with_surprisals(model, table, "left-to-right", "bertlab")
    assert found["pred"].sum() == pytest.approx(-score_one(model, " ".join(words), 0, "left-to-right", "pipeline"), rel=1e-5)
    assert found["prev_pred"].isna().tolist() == [True, True, False] and found["prev_pred"][2] == found["pred"][1]
    after = with_surprisals(model, table, "left-to-right", "pipeline")["pred"]
    assert (after != found["pred"]).all(), "the closing token is shown before the word"


def test_explained_is_the_gain_in_r_squared():
    table = reading().assign(pred=np.random.default_rng(1).random(40))
    table.loc[3, "length"] = np.nan
    rows = table[["RTgopast", "length", "context_length", "pred"]].dropna()
    y, a, b, p = rows.to_numpy().T
    left = [y - x @ np.linalg.lstsq(x, y)[0] for x in (np.stack([y**0, a, b, a * b], 1), np.stack([y**0, a, b, a * b, p], 1))]
    squares = [1 - (of**2).sum() / ((y - y.mean()) ** 2).sum() for of in left]
    found = explained(table, "RTgopast", ("length", "context_length"))
    assert found == pytest.approx((squares[1] - squares[0]) / (1 - squares[0]), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="word"), "column word"),
        (lambda table: table.assign(word=None), "word is empty in row 2"),
        (lambda table: table.assign(length="x"), "column length"),
        (lambda table: pd.DataFrame(), "reading.csv: "),
    ],
)
def test_a_table_that_is_not_of_reading_times_is_refused(change, message, tmp_path):
    change(reading()).to_csv(tmp_path / "reading.csv", index=False)
    with pytest.raises(UserError, match=message):
        read_reading(tmp_path / "reading.csv")


@pytest.fixture
def run(tmp_path):
    model = model_of("ltr", direction="left-to-right")
    save_imported(Imported(model.config, model.params, model.tokenizer), tmp_path / "run", "huggingface", "nowhere")
    return tmp_path / "run"


def test_evaluate_writes_every_task_with_its_rule(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(babylm, "load", lambda run, step, together: model_of("ltr", direction="left-to-right"))
    data = write(tmp_path / "full_eval", copies=2)
    (data / "reading").mkdir()
    reading().to_csv(data / babylm.READING, index=False)
    given = ["evaluate", f"--run={run}", "--suite=babylm", f"--data={data}"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert printed.count("left-to-right") == 9
    assert printed.count("–") == 9, "two equal items tell no spread, and the others have no standard error"
    found = read_evaluations(run / "evaluation.json")["babylm"]
    assert {*found} == {*TASKS, "reading_eye_tracking", "reading_self_paced"}
    assert {entry["left-to-right"]["special_tokens"] for entry in found.values()} == {"pipeline"}
    assert [found[name]["left-to-right"]["items"] for name in ("blimp", "reading_self_paced")] == [2, 40]
    assert main([*given, "--special_tokens=bertlab"]) == 0
    again = read_evaluations(run / "evaluation.json")["babylm"]["blimp"]["left-to-right"]
    assert again["special_tokens"] == "bertlab" and again["text_hash"] != found["blimp"]["left-to-right"]["text_hash"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--data=.", "--suite=babylm"),
        ("--suite=babylm", "--data=DIR"),
        ("--suite=babylm --data=. --text=x", "--text"),
        ("--suite=babylm --data=nowhere", "--data=nowhere"),
        ("--suite=babylm --data=data", "data/blimp_filtered/x.jsonl is empty"),
    ],
)
def test_mistakes_are_refused(given, message, run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    write(run.parent / "data")
    (run.parent / "data/blimp_filtered/x.jsonl").write_text("\n")
    assert main(["evaluate", f"--run={run}", *given.split()]) == 2
    assert message in capsys.readouterr().err


def test_orders_are_refused_where_none_are_drawn(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(babylm, "load", lambda run, step, together: model_of("mlm"))
    data = write(tmp_path / "data")
    assert main(["evaluate", f"--run={run}", "--suite=babylm", f"--data={data}", "--orders=8"]) == 2
    assert "--orders=8 has no effect" in capsys.readouterr().err


def test_a_model_from_right_to_left_is_refused(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(babylm, "load", lambda run, step, together: model_of("rtl", direction="right-to-left"))
    data = write(tmp_path / "data")
    for kinds in ([], ["--kinds=right-to-left"]):
        assert main(["evaluate", f"--run={run}", "--suite=babylm", f"--data={data}", *kinds]) == 2
        assert "right-to-left" in capsys.readouterr().err
