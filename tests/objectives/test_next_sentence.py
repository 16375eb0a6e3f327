"""NSP equals a NumPy reference and leaves out rows without a pair."""

import numpy as np
import pytest

from tests.references import assert_metrics, dense, hidden_states, metrics_of, random_params, summed, tiny_program, views_of


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loss_and_accuracy_equal_numpy(family, packed_batch):
    program, batch = tiny_program(family, "mlm+nsp"), packed_batch(rows=8)
    batch["pair_label"] = np.array([0, 1, -1, 1, 0, -1, 1, 1], np.int32)
    params = random_params(program, batch)
    views = views_of(program, batch)
    metrics = metrics_of(program, params, views)

    encoded = hidden_states(program, params, views["mlm"])
    expected = np.zeros(3)
    for row in (0, 1, 3, 4, 6, 7):
        last = int((batch["documents"][row] > 0).sum()) - 1
        first_position = encoded.both[-1][row, 0]
        summary = (
            np.concatenate([encoded.forward[-1][row, last], encoded.backward[-1][row, 0]])
            if family == "elmo"
            else first_position
        )
        logits = dense(np.tanh(dense(summary, params["body"]["pooler"])), params["heads_nsp"])
        expected += summed(logits, batch["pair_label"][row])
    assert expected[2] == 6
    assert_metrics(metrics, "nsp", expected)

    batch["pair_label"][:] = -1
    without = metrics_of(program, params, views_of(program, batch))
    assert [float(x) for x in (*without["nsp/loss"], *without["nsp/accuracy"])] == [0.0] * 4
    assert float(without["mlm/loss"][0]) == float(metrics["mlm/loss"][0])
