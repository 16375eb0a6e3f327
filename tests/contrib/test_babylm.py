"""BabyLM's tasks: completions, ties, records and tables; tests/parity has the pipeline's rules."""

import numpy as np
import pandas as pd
import pytest

from bertlab.contrib.babylm import zero_shot
from bertlab.contrib.babylm.reading import (
    CONTROLS,
    EYE_TRACKING,
    SELF_PACED,
    read_reading,
)
from bertlab.contrib.babylm.zero_shot import SUITES, Item, accuracy, read_items
from bertlab.contrib.zero_shot import pieces_before
from bertlab.data.tokenizers import train_tokenizer
from bertlab.errors import UserError
from bertlab.evals.questions import encode_all
from bertlab.transfer.tasks import find_task, load_task
from tests.evals.tiny import shared_scorer
from tests.transfer.tasks.test_published import lines, publish

pytestmark = pytest.mark.nightly


def score_one(name, text, start, kind):
    tiny = shared_scorer(name)
    item = Item((text,), (start,), "")
    (values,), cut = zero_shot.answer_scores(tiny, [item], kind)
    return float(values[0]), cut


def test_completions_of_a_text_add_up_to_it():
    """By the chain rule: log p(a b | ·) and log p(c d | a b) without the closing token."""
    tiny, (whole, _) = shared_scorer("ltr"), score_one("ltr", "a bc d e", 0, "left-to-right")
    score = tiny.score(encode_all(tiny.model, ["a bc d e"]), special=False)
    assert whole == pytest.approx(score.log_probability[0], rel=1e-5)
    last, _ = score_one("ltr", "a bc d e", 4, "left-to-right")
    first, _ = score_one("ltr", "a bc", 0, "left-to-right")
    assert first + last == pytest.approx(whole, rel=1e-5)


def test_a_long_text_loses_the_beginning_of_its_context(monkeypatch):
    model = shared_scorer("ltr").model
    whole, _ = score_one("ltr", "c d e f", 3, "left-to-right")
    room = len(encode_all(model, ["c d e f"])[0].tokens)
    monkeypatch.setattr(type(model), "longest", room)
    found, cut = score_one("ltr", "a b c d e f", 7, "left-to-right")
    assert found == pytest.approx(whole, rel=1e-5) and cut == 1


def test_ties_are_shared_and_files_of_entity_tracking_weigh_alike():
    values = [np.array(of) for of in ([2, 1], [1, 1 + 1e-6], [0, 1e-4], [3, 3, 3])]
    items = [Item(("a", "b"), (0, 0), name) for name in "uuvv"]
    judged = accuracy(items, values)
    assert judged["ties"] == 2 and judged["score"] == pytest.approx((0.75 + 1 / 6) / 2)
    errors = [np.std(of, ddof=1) / 2**0.5 for of in ([1, 0.5], [0, 1 / 3])]
    assert judged["standard_error"] == pytest.approx(np.hypot(*errors) / 2)
    names = ["regular_0_ops", "regular_1_ops", "move_contents_0_ops", "regular_1_ops"]
    items = [item._replace(paradigm=name) for item, name in zip(items, names)]
    # regular: 1 and (1/2 + 1/3) / 2; move_contents: 0.
    found = SUITES["entity_tracking"].judge(items, values)
    assert found["score"] == pytest.approx((1 + 5 / 12) / 2 / 2)


def test_a_space_of_its_own_belongs_to_the_context_only_if_the_completion_begins_after_it():
    tokenizer = train_tokenizer("unigram", ["a bad cab ab face d deed aa bee."] * 50, 272)
    pieces = [tokenizer.pieces()[index] for index in tokenizer.encode("a bad cab")]
    assert pieces == ["▁a", "▁b", "a", "d", "▁", "c", "a", "b"]
    starts = (0, 1, 2, 5, 6)
    assert [pieces_before("a bad cab", start, tokenizer) for start in starts] == [0, 1, 1, 4, 5]


def reading_table(rows=40):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"item": list("abcd" * (rows // 4)), "word": list("bcde" * (rows // 4))})
    table["prev_item"], table["prev_word"] = table["item"].shift(), table["word"].shift()
    names = (*EYE_TRACKING, SELF_PACED, *CONTROLS, "prev_length")
    return table.assign(**{name: rng.random(rows) for name in names})


def test_what_is_no_record_or_table_is_refused(tmp_path):
    publish(tmp_path, {"supplement_fast/turn.jsonl": lines({"sentence_good": "a"})})
    with pytest.raises(UserError, match=r"turn\.jsonl:1: "):
        read_items(tmp_path, SUITES["blimp_supplement"])
    table = reading_table()
    for changed, message in (
        (table.drop(columns="word"), "column word"),
        (table.assign(word=None), "word is empty in row 2"),
        (table.assign(length="x"), "column length"),
    ):
        changed.to_csv(tmp_path / "reading.csv", index=False)
        with pytest.raises(UserError, match=message):
            read_reading(tmp_path / "reading.csv")


def test_fine_tuning_tasks_have_the_pipeline_s_templates(tmp_path):
    record = {"text": "A b.", "span1_text": "A", "span2_text": "b", "label": 1}
    files = {f"wsc.{split}.jsonl": lines(record) for split in ("train", "valid")}
    data = load_task(find_task("bertlab.contrib.babylm.tasks:WSC"), publish(tmp_path, files))
    example = data.examples["valid"][0]
    assert example.texts == ('Does "b" refer to "A" in this passage?', "A b.")
    assert data.labels == ("0", "1") and example.label == 1
