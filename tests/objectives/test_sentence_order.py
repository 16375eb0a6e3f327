"""SOP equals a NumPy reference, reads its own label and leaves out rows without one."""

import dataclasses

import numpy as np

from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.sentence_order import SentenceOrder
from tests.references import assert_metrics, dense, hidden_states, metrics_of, random_params, summed, tiny_program, views_of


def test_loss_and_accuracy_equal_numpy(packed_batch):
    objectives = {"mlm": MaskedLanguageModel(), "sop": SentenceOrder()}
    program = dataclasses.replace(tiny_program("bert", "mlm"), objectives=objectives)
    assert len(program.groups) == 1, "it shares the masked view and its pass"
    batch = packed_batch(rows=8)
    batch["pair_label"] = np.array([-1, -1, 1, 0, -1, 1, -1, -1], np.int32)
    batch["order_label"] = np.array([0, 1, -1, 1, 0, -1, 1, 1], np.int32)
    params = random_params(program, batch)
    views = views_of(program, batch)

    first = hidden_states(program, params, views["mlm"]).both[-1][:, 0]
    logits = dense(np.tanh(dense(first, params["body"]["pooler"])), params["heads_sop"])
    expected = sum(summed(logits[row], batch["order_label"][row]) for row in (0, 1, 3, 4, 6, 7))
    assert_metrics(metrics_of(program, params, views), "sop", expected)

    batch["order_label"][:] = -1
    without = metrics_of(program, params, views_of(program, batch))
    assert [float(x) for x in (*without["sop/loss"], *without["sop/accuracy"])] == [0.0] * 4
