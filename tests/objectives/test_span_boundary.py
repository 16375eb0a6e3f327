"""SBO's loss equals a NumPy reference, and neither it nor MLM sees what lies in a span."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.objectives import MaskedLanguageModel
from bertlab.objectives.span_boundary import SpanBoundary
from bertlab.train.checks import check_config
from tests.conftest import ROOT
from tests.references import (
    assert_metrics,
    dense,
    gelu,
    hidden_states,
    layer_norm,
    output_logits,
    quick_jit,
    random_params,
    summed,
    tiny_program,
)


@functools.cache
def compiled(family: str):
    """A program of MLM, which masks all of a span, and SBO; and what gives its view and its metrics."""
    mlm = MaskedLanguageModel(unit="span", rate=0.4, mask_share=1.0, random_share=0.0)
    objectives = {"mlm": mlm, "sbo": SpanBoundary(places=3, place_width=6)}
    program = dataclasses.replace(tiny_program(family, ""), objectives=objectives)
    return program, quick_jit(program.views), quick_jit(program.metrics)


@pytest.fixture(params=["bert", "elmo"])
def both(request, packed_batch):
    """The program, six rows, parameters, and functions of a batch and of a view."""
    program, views, metrics = compiled(request.param)
    batch = packed_batch(rows=6, length=24)
    params = random_params(program, batch)
    view = lambda batch: jax.tree.map(np.asarray, views(batch, jax.random.key(3))["mlm"])
    measure = lambda view: metrics(params, {"mlm": view})
    return SimpleNamespace(program=program, batch=batch, params=params, view=view, metrics=measure)


def test_loss_and_accuracy_equal_numpy(both):
    program, batch, params = both.program, both.batch, both.params
    assert program.groups == {"mlm": ("mlm", "sbo")}, "one pass for both"
    view, head = both.view(batch), params["heads_sbo"]
    metrics = both.metrics(view)

    hidden = hidden_states(program, params, view).both[-1]
    expected, deep = np.zeros(3), 0
    for row in range(6):
        chosen = {int(p) for p, w in zip(view["masked_positions"][row], view["masked_weights"][row]) if w}
        for position in chosen:
            before = max(p for p in range(position) if p not in chosen)
            after = min(p for p in range(position, 24) if p not in chosen)
            if position - before > 3:
                deep += 1
                continue
            h = np.concatenate([hidden[row, before], hidden[row, after], head["places"][position - before - 1]])
            for layer in ("first", "second"):
                h = layer_norm(gelu(dense(h, head[layer])), head[f"{layer}_norm"], 1e-12)
            expected += summed(output_logits(params["body"], h), batch["tokens"][row, position])
    assert expected[2] >= 10 and deep >= 3
    assert_metrics(metrics, "sbo", expected)


def test_neither_objective_sees_the_tokens_of_a_span(both):
    """With every span masked, two texts that differ there alone give the same view, and the same losses for any labels."""
    batch, view = both.batch, both.view(both.batch)
    rows, slots = np.nonzero(view["masked_weights"])
    changed = batch["tokens"].copy()
    changed[rows, view["masked_positions"][rows, slots]] = 5 + (view["masked_labels"][rows, slots] + 1) % 40
    other = both.view({**batch, "tokens": changed})
    assert (view["masked_labels"] != other["masked_labels"]).sum() > 20
    for field in view.keys() - {"masked_labels"}:
        np.testing.assert_array_equal(view[field], other[field], err_msg=field)

    views = view, {**other, "masked_labels": view["masked_labels"]}, {**view, "tokens": batch["tokens"]}
    one, same, leaked = map(both.metrics, views)
    for name in ("mlm/loss", "sbo/loss"):
        assert float(one[name][0]) == float(same[name][0]) != float(leaked[name][0])


def test_parameters_name_their_axes(packed_batch):
    axes = compiled("bert")[0].logical_axes(packed_batch())["heads_sbo"]
    kernels = axes["first"]["kernel"], axes["second"]["kernel"], axes["places"]
    assert [tuple(names) for names in kernels] == [(None, "embed"), ("embed", None), (None, None)]


def test_masks_that_are_no_spans_are_refused(small_config):
    recipe = f"{ROOT}/experiments/pretrain/bert.py:objectives="
    assert check_config(small_config(f"{recipe}sbo")) == check_config(small_config(f"{recipe}mlm+sbo"))
    with pytest.raises(UserError, match=r"objective sbo needs config\.objectives\.mlm\.unit='span', not 'token'"):
        check_config(small_config(f"{recipe}mlm+sbo", objectives__mlm__unit="token"))
    config = small_config(f"{recipe}sbo")
    with config.unlocked():
        del config.objectives.mlm
    with pytest.raises(UserError, match=r"objective sbo shares the view of mlm; .*objectives=mlm\+sbo"):
        check_config(config)


def test_cost_of_a_prediction_is_its_matrices_six_times(both):
    kernels = [x for path, x in jax.tree.leaves_with_path(both.params["heads_sbo"]) if "kernel" in jax.tree_util.keystr(path)]
    shape, asked = both.program.body.config, both.program.objectives
    extra = asked["sbo"].flops_per_prediction(shape) - asked["mlm"].flops_per_prediction(shape)
    assert len(kernels) == 2 and extra == 6 * sum(kernel.size for kernel in kernels)
