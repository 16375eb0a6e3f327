"""NSP and SOP equal NumPy, each read their own label, and leave out rows without one."""

import numpy as np
import pytest

from tests.references import (
    assert_metrics,
    dense,
    hidden_states,
    metrics_of,
    packed_batch,
    random_params,
    summed,
    tiny_program,
    views_of,
)

LABELS = {
    "nsp": ("pair_label", [0, 1, -1, 1, 0, -1, 1, 1]),
    "sop": ("order_label", [1, -1, 0, 0, -1, 1, 0, 1]),
}


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loss_and_accuracy_equal_numpy(family):
    program, batch = tiny_program(family, "mlm+nsp+sop"), packed_batch(rows=8)
    batch |= {field: np.array(labels, np.int32) for field, labels in LABELS.values()}
    params, views = random_params(program, batch), views_of(program, batch)
    metrics = metrics_of(program, params, views)
    encoded = hidden_states(program, params, views["mlm"])
    for name, (_, labels) in LABELS.items():
        expected = np.zeros(3)
        for row in np.flatnonzero(np.array(labels) >= 0):
            last = int((batch["documents"][row] > 0).sum()) - 1
            summary = encoded.both[-1][row, 0]
            if family == "elmo":
                ends = encoded.forward[-1][row, last], encoded.backward[-1][row, 0]
                summary = np.concatenate(ends)
            pooled = np.tanh(dense(summary, params["body"]["pooler"]))
            expected += summed(dense(pooled, params[f"heads_{name}"]), labels[row])
        assert_metrics(metrics, name, expected)


def test_packed_pairs_have_a_label_each():
    program, batch = tiny_program("bert", "nsp"), packed_batch(rows=3)
    batch["pair_label"] = np.array([[0, 1], [1, -1], [-1, 0]], np.int32)
    params = random_params(program, batch)
    states, expected = hidden_states(program, params, batch).both[-1], np.zeros(3)
    for row, pair in np.argwhere(batch["pair_label"] >= 0):
        first = states[row, np.argmax(batch["documents"][row] == pair + 1)]
        logits = dense(np.tanh(dense(first, params["body"]["pooler"])), params["heads_nsp"])
        expected += summed(logits, batch["pair_label"][row, pair])
    assert_metrics(metrics_of(program, params, {"batch": batch}), "nsp", expected)
