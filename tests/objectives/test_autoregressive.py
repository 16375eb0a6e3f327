"""LTR and RTL equal a NumPy reference, and predict within documents only."""

import jax
import pytest

from tests.references import (
    assert_metrics,
    hidden_states,
    metrics_of,
    output_logits,
    random_params,
    sums_of,
    tiny_program,
    views_of,
)

CASES = {
    "gpt rtl": ("gpt", {"direction": "right-to-left"}, "rtl"),
    "bert ltr": ("bert", {"direction": "left-to-right"}, "ltr"),
    "elmo bilm": ("elmo", {}, "ltr+rtl"),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_accuracy_equal_numpy(case, packed_batch):
    family, model, names = CASES[case]
    program, batch = tiny_program(family, names, **model), packed_batch(rows=3, length=12)
    batch["documents"][0] = [1, 1, 2, 2, 2, 3, 4, 4, 0, 0, 0, 0]  # one is a single token
    params = random_params(program, batch)
    metrics = metrics_of(program, params, views_of(program, batch))

    encoded = hidden_states(program, params, batch)
    tokens, documents = batch["tokens"], batch["documents"]
    for name in names.split("+"):
        side, ahead = (encoded.forward, 1) if name == "ltr" else (encoded.backward, -1)
        pairs = [(row, t, t + ahead) for row in range(3) for t in range(12) if 0 <= t + ahead < 12 and documents[row, t]]
        asked = [(row, t, tokens[row, to]) for row, t, to in pairs if documents[row, t] == documents[row, to]]
        assert_metrics(metrics, name, sums_of(output_logits(params["body"], side[-1]), asked))


def test_families_have_the_output_layer_of_their_papers(packed_batch):
    batch = packed_batch()
    shapes = {family: jax.eval_shape(tiny_program(family, name).init, jax.random.key(0), batch)["body"].get("output", {})
              for family, name in (("gpt", "ltr"), ("elmo", "ltr"), ("bert", "mlm"))}  # fmt: skip
    assert {family: set(output) for family, output in shapes.items()} == {
        "gpt": set(),
        "elmo": {"kernel", "bias"},
        "bert": {"transform", "transform_norm", "bias"},
    }
