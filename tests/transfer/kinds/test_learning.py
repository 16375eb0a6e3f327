"""Each kind, from examples to predictions: it learns a signal that is planted in the words of a few
examples, and what it answers depends neither on padding nor on the other rows of a batch."""

import jax
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from bertlab.objectives.program import Program
from bertlab.transfer.batches import Batches, by_row, joined, most_texts
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds import KINDS
from tests.references import quick_jit, random_params, tiny_program
from tests.transfer.letters import VOCABULARY, LetterTokenizer

SEQ_LEN, CLASSES = 16, ("no", "yes")
FAST = ("tagging", "span")
EVERY_KIND = [
    kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS
]


def data(buckets=(), batch_size=16):
    return ConfigDict({"seq_len": SEQ_LEN, "batch_size": batch_size, "buckets": buckets, "seed": 0})


def planted(kind, number, seed):
    """Examples whose label is where the letter z is."""
    rng = np.random.default_rng(seed)
    examples = []
    for index in range(number):
        letters = list(rng.choice(list("abcdefghij"), size=rng.integers(4, 10)))
        place, yes = int(rng.integers(len(letters))), bool(rng.integers(2))
        letters[place] = "z" if yes else "a"
        text = " ".join(letters)
        fields = {
            "classification": {"texts": (text,), "label": int(yes)},
            "regression": {"texts": (text,), "label": 1.5 * yes},
            "choice": {
                "texts": ("ab",),
                "choices": ("z", "c") if yes else ("d", "z"),
                "label": int(not yes),
            },
            "tagging": {
                "words": tuple(letters),
                "label": tuple(int(letter == "z") for letter in letters),
            },
            "span": {
                "texts": ("q", text.replace("a", "b") if yes else text),
                "answers": (Answer(letters[place], 2 * place),) if yes else (),
            },
        }[kind]
        examples.append(Example(str(index), f"f:{index}", **fields))
    return examples


def made(kind, examples):
    inputs = Inputs(LetterTokenizer(), "pair", SEQ_LEN)
    rows = KINDS[kind].rows(inputs, examples)
    settings = {**KINDS[kind].settings(), **HEADS.get(kind, {})}
    return rows, KINDS[kind].build_head(settings, classes=2, texts=most_texts(rows.rows))


HEADS = {"tagging": {"crf": True}}


def predicted(program, params, batches, examples, rows, kind):
    call = quick_jit(
        lambda params, view: program.call(params, "task", view, program.objectives["task"].outputs)
    )
    outputs = [{**call(params, batch), "row_number": batch["row_number"]} for batch in batches]
    labels = CLASSES if kind in ("classification", "tagging") else ()
    found = by_row(outputs)
    return KINDS[kind].predict(examples, labels, found, rows.about), found


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_kind_learns_a_planted_signal(kind):
    train, test = planted(kind, 128, 0), planted(kind, 64, 1)
    rows, head = made(kind, train)
    program = Program(tiny_program("static", "", VOCABULARY).body, {"task": head}, VOCABULARY)
    batches = Batches(rows.rows, data(), 0)
    params = program.init(jax.random.key(0), batches(0))
    optimizer = optax.adam(0.1)

    def loss(params, batch, key):
        metrics, _ = program.metrics(params, program.views(batch, key), key=key)
        total, weight = metrics["task/loss"]
        return total / weight

    @quick_jit
    def step(params, state, batch, key):
        updates, state = optimizer.update(jax.grad(loss)(params, batch, key), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for number in range(40):
        params, state = step(params, state, batches(number), jax.random.key(number))

    def lines_of(examples):
        rows, _ = made(kind, examples)
        evaluation = Batches(rows.rows, data(), 0)
        return predicted(program, params, evaluation, examples, rows, kind)[0]

    valid = lines_of(train)
    lines, _ = KINDS[kind].finish(lines_of(test), valid)
    assert [line["id"] for line in lines] == [example.id for example in test]
    if kind == "regression":
        both = [[line[name] for line in lines] for name in ("predicted", "gold")]
        assert np.corrcoef(*both)[0, 1] > 0.9
    else:
        gold = [line["gold"] for line in lines]
        if kind == "span":
            gold = [answers[0] if answers else "" for answers in gold]
        assert np.mean([line["predicted"] == x for line, x in zip(lines, gold)]) > 0.9


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_outputs_depend_neither_on_padding_nor_on_other_rows(kind):
    examples = planted(kind, 12, 2)
    rows, head = made(kind, examples)
    program = Program(tiny_program("bert", "", VOCABULARY).body, {"task": head}, VOCABULARY)
    wide = Batches(rows.rows, data(batch_size=12), 0)
    narrow = Batches(rows.rows, data(buckets=(8, 12), batch_size=5), 0)
    assert len({batch["tokens"].shape for batch in [*wide, *narrow]}) > 1
    params = random_params(program, wide[0])
    found = [
        predicted(program, params, batches, examples, rows, kind)[1] for batches in (wide, narrow)
    ]
    for row, one, other in zip(rows.rows, *found, strict=True):
        size = len(row.get("word_at", row["tokens"]))
        for name in one:
            a, b = one[name], other[name]
            if name in ("start", "end", "tags", "probabilities"):
                a, b = a[:size], b[:size]
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_several_tasks_share_batches_and_each_trains_on_its_own_rows():
    kinds = ("classification", "tagging", "choice")
    parts = {kind: made(kind, planted(kind, 4, 3)) for kind in kinds}
    heads = {
        kind: KINDS[kind].build_head(KINDS[kind].settings(), number=number, classes=2, texts=2)
        for number, kind in enumerate(kinds)
    }
    rows = joined([rows.rows for rows, _ in parts.values()])
    program = Program(tiny_program("static", "", VOCABULARY).body, heads, VOCABULARY)
    (batch,) = Batches(rows, data(batch_size=12), 0)
    assert batch["tokens"].shape == (12, 2 * SEQ_LEN)
    params = random_params(program, batch)
    metrics, _ = quick_jit(program.metrics)(params, {"batch": batch})
    for kind in kinds:
        (own,) = Batches(parts[kind][0].rows, data(batch_size=4), 0)
        head = KINDS[kind].build_head(KINDS[kind].settings(), classes=2, texts=2)
        single = Program(program.body, {kind: head}, VOCABULARY)
        own_params = {"body": params["body"], f"heads_{kind}": params[f"heads_{kind}"]}
        expected, _ = quick_jit(single.metrics)(own_params, {"batch": own})
        np.testing.assert_allclose(metrics[f"{kind}/loss"], expected[f"{kind}/loss"], rtol=1e-4)
