"""SBO's loss equals NumPy, and neither it nor MLM sees the tokens of a span."""

import dataclasses

import numpy as np
import pytest

from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.span_boundary import SpanBoundary
from tests.references import (
    assert_metrics,
    dense,
    gelu,
    hidden_states,
    layer_norm,
    metrics_of,
    output_logits,
    packed_batch,
    random_params,
    summed,
    tiny_program,
    views_of,
)

# All of a span becomes [MASK].
MLM = MaskedLanguageModel(unit="span", rate=0.4, mask_share=1.0, random_share=0.0)
OBJECTIVES = {"mlm": MLM, "sbo": SpanBoundary(places=3, place_width=6)}


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loss_and_accuracy_equal_numpy(family):
    program = dataclasses.replace(tiny_program(family, ""), objectives=OBJECTIVES)
    batch = packed_batch(rows=6, length=24)
    params, views = random_params(program, batch), views_of(program, batch, seed=3)
    view, head = views["mlm"], params["heads_sbo"]
    hidden = hidden_states(program, params, view).both[-1]
    expected, deep = np.zeros(3), 0
    for row in range(6):
        chosen = set(view["masked_positions"][row][view["masked_weights"][row]].tolist())
        for position in chosen:
            before = max(p for p in range(position) if p not in chosen)
            after = min(p for p in range(position, 24) if p not in chosen)
            if position - before > 3:
                deep += 1
                continue
            own = head["places"][position - before - 1]
            h = np.concatenate([hidden[row, before], hidden[row, after], own])
            for layer in ("first", "second"):
                h = layer_norm(gelu(dense(h, head[layer])), head[f"{layer}_norm"], 1e-12)
            expected += summed(output_logits(params["body"], h), batch["tokens"][row, position])
    assert expected[2] >= 10 and deep >= 3
    assert_metrics(metrics_of(program, params, views), "sbo", expected)
