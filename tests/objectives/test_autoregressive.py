"""LTR and RTL equal a NumPy reference, and predict within documents only."""

import jax
import numpy as np
import pytest

from tests.references import (
    assert_metrics,
    dense,
    gelu,
    hidden_states,
    layer_norm,
    metrics_of,
    random_params,
    summed,
    tiny_program,
    views_of,
)

CASES = {
    "gpt ltr": ("gpt", {}, "ltr"),
    "gpt rtl": ("gpt", {"direction": "right-to-left"}, "rtl"),
    "bert ltr": ("bert", {"direction": "left-to-right"}, "ltr"),
    "elmo bilm": ("elmo", {}, "ltr+rtl"),
}


def logits_of(program, params, state):
    """The family's output layer: GPT's tied product, BERT's head, ELMo's softmax."""
    body = params["body"]
    output = body.get("output", {})
    if "transform" in output:
        state = layer_norm(gelu(dense(state, output["transform"])), output["transform_norm"], 1e-12)
    table = output["kernel"] if "kernel" in output else body["token_embedding"]
    return state @ np.float64(table).T + output.get("bias", 0.0)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_accuracy_equal_numpy(case, packed_batch):
    family, model, names = CASES[case]
    program, batch = tiny_program(family, names, **model), packed_batch(rows=3, length=12)
    params = random_params(program, batch)
    metrics = metrics_of(program, params, views_of(program, batch))

    encoded = hidden_states(program, params, batch)
    tokens, documents = batch["tokens"], batch["documents"]
    for name in names.split("+"):
        side, ahead = (encoded.forward, 1) if name == "ltr" else (encoded.backward, -1)
        expected = np.zeros(3)
        for row in range(3):
            for t in range(12):
                target = t + ahead
                if 0 <= target < 12 and documents[row, t] > 0 and documents[row, target] == documents[row, t]:
                    expected += summed(logits_of(program, params, side[-1][row, t]), tokens[row, target])
        assert_metrics(metrics, name, expected)


def test_families_have_the_output_layer_of_their_papers(packed_batch):
    batch = packed_batch()
    shapes = {family: jax.eval_shape(tiny_program(family, name).init, jax.random.key(0), batch)["body"].get("output", {})
              for family, name in (("gpt", "ltr"), ("elmo", "ltr"), ("bert", "mlm"))}  # fmt: skip
    assert {family: set(output) for family, output in shapes.items()} == {
        "gpt": set(),
        "elmo": {"kernel", "bias"},
        "bert": {"transform", "transform_norm", "bias"},
    }


def test_weights_stay_within_documents_and_out_of_padding(packed_batch):
    batch = {k: v[:1] for k, v in packed_batch(length=12).items()}
    batch["documents"] = np.array([[1, 1, 2, 2, 2, 3, 4, 4, 0, 0, 0, 0]], np.int32)
    program = tiny_program("elmo", "ltr+rtl")
    params = random_params(program, batch)
    metrics = metrics_of(program, params, views_of(program, batch))
    for name in ("ltr", "rtl"):
        assert float(metrics[f"{name}/loss"][1]) == 1 + 2 + 0 + 1
