"""ELECTRA's losses equal NumPy for every task, its draws follow the generator, and nothing leaks from what was replaced."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models.presets import FAMILIES
from bertlab.objectives import electra
from bertlab.objectives.electra import GENERATORS, TASKS, ReplacedTokenDetection
from tests.models.test_transformer import ACTIVATIONS, encode_row
from tests.references import (
    VOCABULARY,
    dense,
    layer_norm,
    log_softmax,
    quick_jit,
    random_params,
    sigmoid,
    tiny_program,
    view_of,
)

RATE = 0.4


def program_of(family: str = "bert", layers: int = 1, positions: str = "", **settings):
    program = tiny_program(family, "", layers=layers, **({"position_encoding": positions} if positions else {}))
    return dataclasses.replace(program, objectives={"electra": ReplacedTokenDetection(rate=RATE, **settings)})


@pytest.fixture
def batch(packed_batch):
    """Four rows of two documents, with a [CLS] and a [SEP], so that not every token may be chosen."""
    made = packed_batch(rows=4, length=12)
    made["tokens"][:, 0], made["tokens"][:, 3] = VOCABULARY.cls_id, VOCABULARY.sep_id
    return made


def shown_by(objective, batch):
    """The objective's view as NumPy arrays that can be changed."""
    return jax.tree.map(np.array, view_of(objective, batch))


# What is shown does not depend on the task.
SMALL, UNIGRAM = ReplacedTokenDetection(rate=RATE), ReplacedTokenDetection(rate=RATE, generator="unigram")


@functools.cache
def compiled_metrics(family: str = "bert", **settings):
    """A function (params, view) -> metrics without the objective's name."""
    return quick_jit(functools.partial(metrics_of, program_of(family, **settings)))


def metrics_of(program, params, view):
    return {name.removeprefix("electra/"): pair for name, pair in program.metrics(params, {"electra": view}).items()}


@functools.cache
def compiled_gradient():
    """A function (params, view, share) -> metrics, and the gradient of the generator's loss or the discriminator's."""

    def loss(params, view, share):
        metrics = metrics_of(program_of(), params, view)
        return share * metrics["generator_loss"][0] + (1 - share) * metrics["discriminator_loss"][0], metrics

    gradient = quick_jit(jax.grad(loss, has_aux=True))
    return lambda params, view, share=1.0: gradient(params, view, jnp.float32(share))[::-1]


def discriminating(params, view):
    """The metrics of the default settings; one compilation for three tests."""
    return compiled_gradient()(params, view)[0]


def chosen_in(view):
    """Rows and positions of the tokens that may be replaced."""
    rows, slots = np.nonzero(view["masked_weights"])
    return rows, view["masked_positions"][rows, slots]


def generator_logits(program, params, view):
    """[B, P, V] float64: the body's embeddings, projected, through the generator's blocks, and back to the embeddings."""
    c, body, own = program.body.config, params["body"], params["heads_electra"]["generator"]
    small = electra.generator_config(c, 0.25)
    # The reference of the transformer, begun with rows that are already embedded.
    inner = dataclasses.replace(small, position_encoding=_without_learned(c), segments=0, embedding_norm=False)
    logits = np.zeros((*view["masked_positions"].shape, c.vocab_size))
    for row, positions in enumerate(view["masked_positions"]):
        fields = {name: view[name][row] for name in ("tokens", "segments", "documents", "positions")}
        embedded = encode_row(body, fields, c)[0]
        begin = {**own, "token_embedding": embedded @ own["projection"]["kernel"] + own["projection"].get("bias", 0.0)}
        hidden = encode_row(begin, {**fields, "tokens": np.arange(len(embedded))}, inner)[-1][positions]
        output = own["output"]
        transformed = hidden @ output["transform_both"]["kernel"] + output["transform_both"].get("bias", 0.0)
        state = _norm(ACTIVATIONS[c.activation](transformed), output["transform_both_norm"], c)
        logits[row] = state @ np.float64(body["token_embedding"]).T + output["bias"]
    return logits


def _without_learned(c):
    return "none" if c.position_encoding == "learned" else c.position_encoding


def _norm(x, p, c):
    if c.norm == "layer_norm":
        return layer_norm(x, p, c.epsilon)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + c.epsilon) * p["scale"]


def body_logits(program, params, hidden):
    """[V] float64 of the body's own output layer at one position."""
    c, output = program.body.config, params["body"]["output"]
    transformed = ACTIVATIONS[c.activation](hidden @ output["transform"]["kernel"] + output["transform"].get("bias", 0.0))
    return _norm(transformed, output["transform_norm"], c) @ np.float64(params["body"]["token_embedding"]).T + output["bias"]


def expected_metrics(program, params, view, shown, original):
    """The body's sums [loss, right, weight], those of replaced tokens [found, number], by position."""
    objective, head = program.objectives["electra"], params.get("heads_electra")
    sums, found = np.zeros(3), np.zeros(2)
    for row in range(len(shown)):
        fields = {name: view[name][row] for name in ("segments", "documents", "positions")}
        hidden = encode_row(params["body"], {**fields, "tokens": shown[row]}, program.body.config)[-1]
        asked = np.flatnonzero(view["documents"][row])
        if objective.task in ("discriminate_masked", "replace_mlm"):
            asked = view["masked_positions"][row][view["masked_weights"][row]]
        for t in asked:
            is_replaced = shown[row, t] != original[row, t]
            if objective.task.startswith("discriminate"):
                state = ACTIVATIONS[program.body.config.activation](dense(hidden[t], head["dense"]))
                replaced = sigmoid(dense(state, head["to_logit"])[0])
                right = (replaced > 0.5) == is_replaced
                sums += [-np.log(replaced if is_replaced else 1 - replaced), right, 1]
                found += [right and is_replaced, is_replaced]
                continue
            probability = np.exp(log_softmax(body_logits(program, params, hidden[t])))
            if objective.task == "all_tokens":
                copied = sigmoid(dense(hidden[t], head["to_copy_logit"])[0])
                probability = (1 - copied) * probability
                probability[shown[row, t]] += copied
            sums += [-np.log(probability[original[row, t]]), probability.argmax() == original[row, t], 1]
            found += [0, is_replaced]
    return sums, found


def close(pair, expected):
    np.testing.assert_allclose([float(x) for x in pair], expected, rtol=5e-5)


@pytest.mark.parametrize(
    ("family", "task"),
    [("bert", "discriminate"), ("modern", "discriminate_masked"), ("bert", "replace_mlm"), ("bert", "all_tokens")],
)
def test_losses_with_a_generator_equal_numpy(family, task, batch):
    program = program_of(family, task=task)
    params, view = random_params(program, batch, scale=0.4), shown_by(SMALL, batch)
    logits, used = generator_logits(program, params, view), view["masked_weights"]
    cumulative = np.exp(log_softmax(logits)).cumsum(-1)
    # The first choice of each row draws the original, which then counts as original.
    first = view["masked_labels"][:, 0]
    view["uniforms"][:, 0] = (cumulative[np.arange(4), 0, first - 1] + cumulative[np.arange(4), 0, first]) / 2
    shown = batch["tokens"].copy()
    shown[chosen_in(view)] = (cumulative <= view["uniforms"][..., None]).sum(-1)[used]
    assert 4 <= (shown != batch["tokens"]).sum() <= used.sum() - 4

    compute = discriminating if (family, task) == ("bert", "discriminate") else compiled_metrics(family, task=task)
    metrics = compute(params, view)
    sums, found = expected_metrics(program, params, view, shown, batch["tokens"])
    losses = -np.take_along_axis(log_softmax(logits), view["masked_labels"][..., None], -1)[..., 0]
    close(metrics["generator_loss"], [losses[used].sum(), used.sum()])
    close(metrics["generator_accuracy"], [(logits.argmax(-1) == view["masked_labels"])[used].sum(), used.sum()])
    close(metrics["accuracy"], sums[1:])
    close(metrics["replaced"], [found[1], sums[2]])
    asks_all, discriminates = task in ("discriminate", "all_tokens"), task.startswith("discriminate")
    assert sums[2] == ((batch["documents"] > 0).sum() if asks_all else used.sum())
    close(metrics["discriminator_loss" if discriminates else "token_loss"], [sums[0], sums[2]])
    if discriminates:
        close(metrics["recall"], found)
    total = sums[0] * (50 if discriminates else 1) + losses[used].sum() / (RATE if asks_all else 1)
    close(metrics["loss"], [total, sums[2]])


@pytest.mark.parametrize("positions", ["relative", "disentangled"])
def test_a_generator_has_its_own_distances(positions, batch):
    program = program_of(positions=positions, task="replace_mlm")
    params, view = random_params(program, batch, scale=0.4), shown_by(SMALL, batch)
    metrics, used = compiled_metrics(positions=positions, task="replace_mlm")(params, view), view["masked_weights"]
    logits = log_softmax(generator_logits(program, params, view))
    losses = -np.take_along_axis(logits, view["masked_labels"][..., None], -1)[..., 0]
    close(metrics["generator_loss"], [losses[used].sum(), used.sum()])


def test_losses_with_a_fixed_generator_equal_numpy(batch):
    program = program_of(generator="unigram")
    params, view = random_params(program, batch, scale=0.4), shown_by(UNIGRAM, batch)
    rows, places = chosen_in(view)
    view["tokens"][rows[0], places[0]] = batch["tokens"][rows[0], places[0]]
    metrics = compiled_metrics(generator="unigram")(params, view)
    sums, found = expected_metrics(program, params, view, view["tokens"], batch["tokens"])
    assert 0 < found[1] < len(rows)
    close(metrics["loss"], [sums[0], sums[2]])
    close(metrics["accuracy"], sums[1:])
    close(metrics["replaced"], [found[1], sums[2]])
    close(metrics["recall"], found)
    assert "generator_loss" not in metrics and "generator" not in params["heads_electra"]


def test_view_masks_as_mlm_for_a_generator_that_reads(batch):
    view, chosen = shown_by(SMALL, batch), np.zeros_like(batch["tokens"], bool)
    chosen[chosen_in(view)] = True
    np.testing.assert_array_equal(view["tokens"], np.where(chosen, VOCABULARY.mask_id, batch["tokens"]))
    np.testing.assert_array_equal(view["original_tokens"], batch["tokens"])
    np.testing.assert_array_equal(view["masked_labels"][view["masked_weights"]], batch["tokens"][chosen])
    lengths = (batch["documents"] > 0).sum(1)
    np.testing.assert_array_equal(chosen.sum(1), [min(round(RATE * n), n - 2) for n in lengths])
    assert not np.isin(batch["tokens"][chosen], [VOCABULARY.cls_id, VOCABULARY.sep_id]).any()
    assert ((view["uniforms"] >= 0) & (view["uniforms"] < 1)).all() and len(np.unique(view["uniforms"])) == 4 * 5
    assert all(len(field) == 4 for field in view.values())


def test_fixed_generator_draws_words_by_their_counts():
    ones = np.ones((2000, 20), np.int32)
    batch = {"tokens": ones * 7, "documents": ones, "segments": ones, "positions": ones, "pair_label": ones[:, 0]}
    view = shown_by(UNIGRAM, batch)
    drawn = view["tokens"][chosen_in(view)]
    assert len(drawn) == 2000 * 8 and (view["tokens"] != 7).sum() == (drawn != 7).sum() and (view["original_tokens"] == 7).all()
    assert_drawn_from(electra.unigram_probabilities(VOCABULARY), drawn)
    for counts in (VOCABULARY.counts, None):
        weights = np.array(counts or np.ones(50), float)
        weights[[0, 2, 3, 4]] = 0
        share = electra.unigram_probabilities(dataclasses.replace(VOCABULARY, counts=counts))
        np.testing.assert_allclose(share, weights / weights.sum(), rtol=1e-12)


def assert_drawn_from(share, drawn):
    """The numbers of draws are within 4.2 standard errors of their expectation, and 0 where that is 0."""
    number, expected = np.bincount(drawn, minlength=len(share)), len(drawn) * share
    assert len(number) == len(share) and not number[share == 0].any()
    assert np.abs((number - expected) / np.sqrt(expected * (1 - share) + 1e-9)).max() < 4.2


def test_draws_follow_the_generator():
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=(1, 3, 20)).astype(np.float32)
    logits[0, :, [0, 7, 19]] = -np.inf
    probability = np.exp(log_softmax(np.float64(logits[0])))
    uniforms = rng.random((4000, 3), np.float32)
    uniforms[0], uniforms[1] = 0, 1 - 2**-24
    drawn = np.asarray(quick_jit(electra.draw_tokens)(np.broadcast_to(logits, (4000, 3, 20)), uniforms))
    for slot in range(3):
        assert_drawn_from(probability[slot], drawn[:, slot])
    # Sums of float32 probabilities that miss 1 a little, and the largest number below 1.
    logits = rng.normal(size=(4000, 3, 20)).astype(np.float32)
    assert (quick_jit(electra.draw_tokens)(logits, np.full((4000, 3), 1 - 2**-24, np.float32)) < 20).all()


def test_copy_mechanism_is_a_distribution():
    rng = np.random.default_rng(1)
    logits, copy = rng.normal(scale=3, size=(5, 20)), rng.normal(scale=3, size=5)
    shown = np.array([0, 3, 19, 7, 3])
    mixture = np.exp(np.asarray(electra.copy_mixture(logits.astype(np.float32), copy.astype(np.float32), shown)))
    expected = (1 - sigmoid(copy))[:, None] * np.exp(log_softmax(logits)) + sigmoid(copy)[:, None] * np.eye(20)[shown]
    np.testing.assert_allclose(mixture, expected, rtol=1e-5)
    np.testing.assert_allclose(mixture.sum(-1), 1, rtol=1e-5)


def largest(tree) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def test_gradients_stay_with_their_network_but_for_the_embeddings(batch):
    params, view = random_params(program_of(), batch, scale=0.4), shown_by(SMALL, batch)
    of_generator, of_discriminator = (compiled_gradient()(params, view, share)[1] for share in (1, 0))
    of_head = of_discriminator["heads_electra"]
    assert largest(of_head["generator"]) == 0, "the draw lets no gradient through"
    assert min(largest(of_head["dense"]), largest(of_head["to_logit"]), largest(of_discriminator["body"]["blocks"])) > 0
    assert largest(of_generator["body"]["blocks"]) == 0
    assert min(map(largest, jax.tree.leaves(of_generator["heads_electra"]["generator"]))) > 0
    tables = ("token_embedding", "position_embedding", "segment_embedding")
    for table in tables:
        assert min(largest(of_generator["body"][table]), largest(of_discriminator["body"][table])) > 0, "shared"
    assert not set(tables) & set(params["heads_electra"]["generator"])


def test_discriminator_does_not_see_what_was_replaced(batch):
    """Two texts that differ only at positions where both are replaced get the same losses of the discriminator."""
    params, view = random_params(program_of(), batch, scale=0.4), shown_by(SMALL, batch)
    chosen = np.zeros_like(batch["tokens"], bool)
    chosen[chosen_in(view)] = True
    changed = 5 + (batch["tokens"] + 1) % 40
    texts = [np.where(where, changed, batch["tokens"]).astype(np.int32) for where in (chosen, ~chosen & (batch["tokens"] > 4))]
    views = [view, *(shown_by(SMALL, {**batch, "tokens": tokens}) for tokens in texts)]
    one, other, another = (discriminating(params, v) for v in views)
    replaced = [float(metrics["replaced"][0]) for metrics in (one, other)]
    assert replaced == [chosen.sum()] * 2, "every draw differs from both originals"
    assert float(one["generator_loss"][0]) != float(other["generator_loss"][0])
    assert float(one["discriminator_loss"][0]) == float(other["discriminator_loss"][0])
    assert float(one["discriminator_loss"][0]) != float(another["discriminator_loss"][0])


def matrix_products(jaxpr) -> tuple[int, float]:
    """How many products of attention there are, and the FLOPs of all matrix products, loops counted as often as they run."""
    attentions, flops = 0, 0.0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "dot_general":
            (contracted, _), (batched, _) = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[i] for i in contracted)
            attentions, flops = attentions + bool(batched), flops + 2 * inner * math.prod(equation.outvars[0].aval.shape)
        for value in equation.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                more = matrix_products(getattr(value, "jaxpr", value))
                attentions, flops = attentions + more[0], flops + times * more[1]
    return attentions, flops


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("generator", GENERATORS)
def test_passes_and_flops_are_those_of_the_program(task, generator, batch):
    program = program_of(layers=2, task=task, generator=generator)
    views = jax.eval_shape(program.views, batch, jax.random.key(0))
    params = jax.eval_shape(program.init, jax.random.key(0), batch)
    attentions, forward = matrix_products(jax.make_jaxpr(program.metrics)(params, views).jaxpr)
    assert attentions == (4 if generator == "small" else 2), "one pass of the body, and one of the generator"
    shape, objective = program.body.config, program.objectives["electra"]
    assert 3 * forward == 4 * (12 * shape.flops_per_token(12) + objective.extra_flops(shape, 12))


def test_size_of_the_generator():
    def numbers(size, **of_body):
        shape = dataclasses.replace(program_of().body.config, **of_body)
        small = electra.generator_config(shape, size)
        assert small.layers == shape.layers and small.width % (2 * small.heads) == 0
        return small.width, small.heads, small.hidden

    sizes = FAMILIES["bert"].sizes
    assert numbers(0.25, **sizes["base"]) == (192, 3, 768)
    assert numbers(0.33333, **sizes["base"]) == (256, 4, 1024)
    assert numbers(0.25, **sizes["tiny"]) == (32, 1, 128)
    assert numbers(1.0, **sizes["tiny"]) == (128, 2, 512)
    assert numbers(0.1, width=100, heads=5, hidden=44) == (10, 1, 4)
    assert numbers(0.3, width=100, heads=10, hidden=1) == (30, 3, 1)
