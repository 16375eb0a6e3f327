"""Every objective gives the views, metrics, gradients and FLOPs of bertlab/objectives."""

import dataclasses

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab import objectives as old
from bertlab.config import base_config
from bertlab.models import presets as old_presets
from bertlab.objectives.program import Program as OldProgram
from bertlab.spine import objectives as new
from bertlab.spine.models import presets
from bertlab.spine.objectives import flops
from bertlab.spine.objectives.program import Program
from tests.references import quick_jit, random_params

pytestmark = pytest.mark.nightly  # each case compiles two programs

VOCABULARY = dict(
    size=50,
    pad_id=0,
    unk_id=1,
    cls_id=2,
    sep_id=3,
    mask_id=4,
    counts=tuple(range(7, 57)),
    continues=tuple(number % 3 == 0 for number in range(50)),
)
ROWS, LENGTH = 4, 20
TINY = {"width": 8, "layers": 1, "heads": 2, "hidden": 12}
OLD_KEYS = ("products", "output_rows")
BIDIRECTIONAL_GPT = ("gpt", {"direction": "bidirectional"})
# (family, settings of the model), {objective: settings}
BERT, STATIC, MODERN = ("bert", {}), ("static", {}), ("modern", {})
CASES = {
    "mlm+nsp+sop": (BERT, {"mlm": {}, "nsp": {}, "sop": {}}),
    "nsp": (BERT, {"nsp": {}}),
    "mlm, independent, all": (BERT, {"mlm": {"exact": False, "predict": "all"}}),
    "mlm, words, final rate": (BERT, {"mlm": {"unit": "whole_word", "final_rate": 0.4}}),
    "mlm, static": (MODERN, {"mlm": {"static": True, "max_predictions": 2}}),
    "sbo": (BERT, {"mlm": {"unit": "span", "rate": 0.4}, "sbo": {"places": 2, "place_width": 6}}),
    "sbo, elmo": (("elmo", {}), {"mlm": {"unit": "span", "rate": 0.4}, "sbo": {}}),
    "electra": (BERT, {"electra": {}}),
    "electra, modern": (MODERN, {"electra": {"generator_size": 0.6, "exact": False}}),
    "electra, μP": (("bert", {"base_width": 4}), {"electra": {"task": "discriminate_masked"}}),
    "electra, replace": (BERT, {"electra": {"task": "replace_mlm", "rate": 0.3}}),
    "electra, copy": (BERT, {"electra": {"task": "all_tokens"}}),
    "electra, unigram": (BERT, {"electra": {"generator": "unigram"}}),
    "electra, unigram, replace": (
        BERT,
        {"electra": {"generator": "unigram", "task": "replace_mlm"}},
    ),
    "ltr, ar, tar": (("gpt", {}), {"ltr": {"negatives": 5}, "ar": {}, "tar": {}}),
    "rtl": (("awd_lstm", {"direction": "right-to-left"}), {"rtl": {}, "ar": {}, "tar": {}}),
    "bilm, stream": (("elmo", {"stateful": True}), {"ltr": {}, "rtl": {}}),
    "prefix": (BERT, {"prefix": {"min_share": 0.2, "max_share": 0.7}}),
    "span_corruption": (BIDIRECTIONAL_GPT, {"span_corruption": {"rate": 0.3, "max_spans": 3}}),
    "ul2": (BERT, {"span_corruption": {"denoisers": "R+S+X", "mode_tokens": True}}),
    "masked_next_token": (BERT, {"masked_next_token": {"final_rate": 0.5, "random_share": 0.2}}),
    "permutation": (BERT, {"permutation": {}}),
    "permutation, code": (
        MODERN,
        {"permutation": {"predict_one_in": 3, "context_in_order": False}},
    ),
    "diffusion": (BERT, {"diffusion": {}}),
    "diffusion, cosine": (BIDIRECTIONAL_GPT, {"diffusion": {"schedule": "cosine"}}),
    "skip_gram": (STATIC, {"skip_gram": {"window": 2, "subsample": 0.1}}),
    "cbow": (STATIC, {"cbow": {"subsample": 0.0}}),
    "glove": (("static", {"output_init": "uniform"}), {"glove": {"x_max": 10.0}}),
}

STOPPED_GRADIENTS = ("electra", "cbow")
"""Cases whose gradients are compared too."""


def programs(case):
    """The old and the new program of a case."""
    (family, settings), entries = CASES[case]
    config = base_config().model
    sizes = old_presets.FAMILIES[family].sizes
    config.update({"family": family, "size": next(iter(sizes))})
    config.update({key: value for key, value in TINY.items() if key in sizes[config.size]})
    config.update(settings)
    plain = ConfigDict({key: config[key] for key in config if key not in OLD_KEYS})
    shared = {"stream": "stream" in case, "stateful": "stream" in case}
    theirs = OldProgram(
        old_presets.build_body(old_presets.model_shape(config, VOCABULARY["size"])),
        {name: old.find(name)(**entry) for name, entry in entries.items()},
        old.Vocabulary(**VOCABULARY),
        **shared,
    )
    ours = Program(
        presets.build_body(presets.model_shape(plain, VOCABULARY["size"])),
        new.build(ConfigDict({name: dict(entry, weight=1.0) for name, entry in entries.items()})),
        new.Vocabulary(**VOCABULARY),
        **shared,
    )
    return theirs, ours


def batch_of(case, packed_batch):
    batch = packed_batch(rows=ROWS, length=LENGTH)
    tokens, positions = batch["tokens"], batch["positions"]
    tokens[(positions == 0) & (batch["documents"] > 0)] = VOCABULARY["cls_id"]
    tokens[(positions == 4) & (batch["documents"] > 0)] = VOCABULARY["sep_id"]
    if "stream" in case:
        rng = np.random.default_rng(1)
        batch |= {
            f"backward_{name}": batch[name][::-1]
            for name in ("tokens", "documents", "positions", "segments")
        }
        for name in ("next_tokens", "backward_next_tokens"):
            batch[name] = rng.integers(-1, 50, tokens.shape).astype(np.int32)
        batch["continues"] = np.array([1, 0, 1, 1], np.int32)
    return batch


def compare(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)

    def close(a, b):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * max(1, np.abs(b).max()))

    jax.tree.map(close, ours, theirs)


@pytest.mark.parametrize("case", CASES)
def test_views_metrics_gradients_and_flops(case, packed_batch):
    theirs, ours = programs(case)
    batch, key = batch_of(case, packed_batch), jax.random.key(3)
    params = random_params(theirs, batch)
    carry = jax.tree.map(lambda x: np.full(x.shape, 0.3, x.dtype), dict(ours.initial_carry(ROWS)))
    fresh = jax.eval_shape(ours.init, key, batch)
    assert jax.tree.map(np.shape, fresh) == jax.tree.map(np.shape, params)

    def run(program, metrics):
        def total(params):
            views = program.views(batch, key, 0.25)
            sums, after = metrics(params, views, carry)[:2]
            loss = sum(value for name, (value, _) in sums.items() if name.endswith("/loss"))
            return loss, (views, sums, after)

        if case in STOPPED_GRADIENTS:
            gradients, (views, *others) = quick_jit(jax.grad(total, has_aux=True))(params)
        else:
            gradients, (_, (views, *others)) = {}, quick_jit(total)(params)
        views = {("batch" if name == "clean" else name): view for name, view in views.items()}
        return views, gradients, others

    ours_result, theirs_result = run(ours, ours.metrics), run(theirs, theirs.metrics_and_carry)
    views, *_ = ours_result
    jax.tree.map(np.testing.assert_array_equal, views, theirs_result[0])
    compare(ours_result[1:], theirs_result[1:])
    for name, objective in ours.objectives.items():
        rival, shape, old_shape = theirs.objectives[name], ours.body.shape, theirs.body.config
        assert flops.prediction_flops(objective, shape) == rival.flops_per_prediction(old_shape)
        assert flops.extra_flops(objective, shape, LENGTH) == rival.extra_flops(old_shape, LENGTH)
        assert flops.supervised(objective) == (rival.asks in ("tokens", "positions"))


def test_every_objective_has_a_case_and_the_settings_of_before():
    assert (
        {name for _, entries in CASES.values() for name in entries}
        == set(new.REGISTRY)
        == set(old.REGISTRY)
    )
    for name, kind in new.REGISTRY.items():
        before = {field.name: field.default for field in dataclasses.fields(old.REGISTRY[name])}
        before.pop("time_conditioning", None)
        assert (
            new.default_settings(name) == (name, before) and kind.needs == old.REGISTRY[name].needs
        )
