"""NSP and SOP equal a NumPy reference, each read their own label, and leave out rows without one."""

import numpy as np
import pytest

from tests.references import (
    assert_metrics,
    dense,
    hidden_states,
    metrics_of,
    random_params,
    summed,
    tiny_program,
    views_of,
)

LABELS = {"nsp": ("pair_label", [0, 1, -1, 1, 0, -1, 1, 1]), "sop": ("order_label", [1, -1, 0, 0, -1, 1, 0, 1])}


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loss_and_accuracy_equal_numpy(family, packed_batch):
    program, batch = tiny_program(family, "mlm+nsp+sop"), packed_batch(rows=8)
    assert len(program.groups) == 1, "they share the masked view and its pass"
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
                summary = np.concatenate([encoded.forward[-1][row, last], encoded.backward[-1][row, 0]])
            logits = dense(np.tanh(dense(summary, params["body"]["pooler"])), params[f"heads_{name}"])
            expected += summed(logits, labels[row])
        assert expected[2] == 6
        assert_metrics(metrics, name, expected)
