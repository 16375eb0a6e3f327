"""ELECTRA's losses equal NumPy for every task, its draws follow the generator, and no gradient
flows through them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models.flops import flops_per_token
from bertlab.models.presets import FAMILIES
from bertlab.objectives import electra
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.flops import objective_flops
from bertlab.objectives.masked import MaskedLanguageModel
from tests.references import (
    ACTIVATIONS,
    VOCABULARY,
    dense,
    linear,
    log_softmax,
    norm,
    packed_batch,
    quick_jit,
    random_params,
    sigmoid,
    tiny_program,
    transformer_row,
    view_of,
)

RATE = 0.4
FIELDS = ("tokens", "segments", "documents", "positions")
# The view does not depend on the task.
SMALL = ReplacedTokenDetection(rate=RATE)
UNIGRAM = ReplacedTokenDetection(rate=RATE, generator="unigram")


def program_of(family: str = "bert", layers: int = 1, **settings):
    objective = ReplacedTokenDetection(rate=RATE, **settings)
    program = tiny_program(family, "", layers=layers)
    return dataclasses.replace(program, objectives={"electra": objective})


def batch_of():
    """Rows with a [CLS] and a [SEP], which are never chosen."""
    batch = packed_batch()
    batch["tokens"][:, 0], batch["tokens"][:, 3] = VOCABULARY.cls_id, VOCABULARY.sep_id
    return batch


def writable_view(objective, batch):
    """The objective's view as NumPy arrays that can be changed."""
    return jax.tree.map(np.array, view_of(objective, batch))


def metrics_of(program, params, view):
    metrics = program.metrics(params, {"electra": view})[0]
    return {name.removeprefix("electra/"): pair for name, pair in metrics.items()}


def chosen_in(view):
    """Rows and positions of the chosen tokens."""
    rows, slots = np.nonzero(view["masked_weights"])
    return rows, view["masked_positions"][rows, slots]


def through(output, name, hidden, shape):
    """The output layer's transform."""
    transformed = ACTIVATIONS[shape.activation](linear(hidden, output[name]))
    return norm(transformed, output[f"{name}_norm"], shape)


def generator_logits(program, params, view):
    """[B, P, V]: the embeddings, projected, through the generator, back to the embeddings."""
    shape, body, own = program.body.shape, params["body"], params["heads_electra"]["generator"]
    # The reference of the transformer, which begins with rows that are already embedded.
    positions = "none" if shape.position_encoding == "learned" else shape.position_encoding
    inner = dataclasses.replace(
        electra.generator_shape(shape, 0.25),
        position_encoding=positions,
        segments=0,
        embedding_norm=False,
    )
    logits = np.zeros((*view["masked_positions"].shape, shape.vocab_size))
    for row, chosen in enumerate(view["masked_positions"]):
        fields = {name: view[name][row] for name in FIELDS}
        embedded = transformer_row(body, fields, shape)[0]
        begin = {**own, "token_embedding": linear(embedded, own["projection"])}
        fields["tokens"] = np.arange(len(embedded))
        hidden = transformer_row(begin, fields, inner)[-1][chosen]
        state = through(own["output"], "transform_both", hidden, shape)
        logits[row] = state @ np.float64(body["token_embedding"]).T + own["output"]["bias"]
    return logits


def expected_metrics(program, params, view, inputs, original):
    """The body's sums [loss, right, weight], and [found, number] of replaced tokens."""
    objective, shape = program.objectives["electra"], program.body.shape
    body, head = params["body"], params.get("heads_electra")
    sums, found = np.zeros(3), np.zeros(2)
    for row in range(len(inputs)):
        fields = {**{name: view[name][row] for name in FIELDS}, "tokens": inputs[row]}
        hidden = transformer_row(body, fields, shape)[-1]
        asked = view["masked_positions"][row][view["masked_weights"][row]]
        if objective.covers_all:
            asked = np.flatnonzero(view["documents"][row])
        for t in asked:
            is_replaced = inputs[row, t] != original[row, t]
            if objective.discriminates:
                state = ACTIVATIONS[shape.activation](dense(hidden[t], head["dense"]))
                chance = sigmoid(dense(state, head["to_logit"])[0])
                right = (chance > 0.5) == is_replaced
                sums += [-np.log(chance if is_replaced else 1 - chance), right, 1]
                found += [right and is_replaced, is_replaced]
                continue
            state = through(body["output"], "transform", hidden[t], shape)
            logits = state @ np.float64(body["token_embedding"]).T + body["output"]["bias"]
            chances = np.exp(log_softmax(logits))
            if objective.task == "all_tokens":
                copied = sigmoid(dense(hidden[t], head["to_copy_logit"])[0])
                chances = (1 - copied) * chances + copied * (np.arange(50) == inputs[row, t])
            label = original[row, t]
            sums += [-np.log(chances[label]), chances.argmax() == label, 1]
            found += [0, is_replaced]
    return sums, found


def close(pair, expected):
    np.testing.assert_allclose([float(x) for x in pair], expected, rtol=5e-5)


@pytest.mark.parametrize(
    "family, task",
    [
        ("bert", "discriminate"),
        pytest.param("modern", "discriminate_masked", marks=pytest.mark.slow),
        pytest.param("bert", "replace_mlm", marks=pytest.mark.slow),
        ("bert", "all_tokens"),
    ],
)
def test_losses_with_a_generator_equal_numpy(family, task):
    program, batch = program_of(family, task=task), batch_of()
    params, view = random_params(program, batch, scale=0.4), writable_view(SMALL, batch)
    logits, used = generator_logits(program, params, view), view["masked_weights"]
    cumulative = np.exp(log_softmax(logits)).cumsum(-1)
    # The first choice of each row draws the original, which then counts as original.
    first, rows = view["masked_labels"][:, 0], np.arange(4)
    view["uniforms"][:, 0] = cumulative[rows, 0, [first - 1, first]].mean(0)
    inputs = batch["tokens"].copy()
    inputs[chosen_in(view)] = (cumulative <= view["uniforms"][..., None]).sum(-1)[used]
    assert 4 <= (inputs != batch["tokens"]).sum() <= used.sum() - 4

    metrics = quick_jit(lambda params, view: metrics_of(program, params, view))(params, view)
    sums, found = expected_metrics(program, params, view, inputs, batch["tokens"])
    labels = view["masked_labels"]
    losses = -np.take_along_axis(log_softmax(logits), labels[..., None], -1)[..., 0]
    right = logits.argmax(-1) == labels
    close(metrics["generator_loss"], [losses[used].sum(), used.sum()])
    close(metrics["generator_accuracy"], [right[used].sum(), used.sum()])
    close(metrics["accuracy"], sums[1:])
    close(metrics["replaced"], [found[1], sums[2]])
    covers_all, discriminates = task in ("discriminate", "all_tokens"), "discriminate" in task
    assert sums[2] == ((batch["documents"] > 0).sum() if covers_all else used.sum())
    close(metrics["discriminator_loss" if discriminates else "token_loss"], sums[[0, 2]])
    if discriminates:
        close(metrics["recall"], found)
    total = losses[used].sum() / (RATE if covers_all else 1)
    close(metrics["loss"], [sums[0] * (50 if discriminates else 1) + total, sums[2]])


def test_losses_with_a_fixed_generator_equal_numpy():
    program, batch = program_of(generator="unigram"), batch_of()
    params, view = random_params(program, batch, scale=0.4), writable_view(UNIGRAM, batch)
    rows, positions = chosen_in(view)
    view["tokens"][rows[0], positions[0]] = batch["tokens"][rows[0], positions[0]]
    metrics = quick_jit(lambda params, view: metrics_of(program, params, view))(params, view)
    sums, found = expected_metrics(program, params, view, view["tokens"], batch["tokens"])
    assert 0 < found[1] < len(rows)
    close(metrics["loss"], sums[[0, 2]])
    close(metrics["replaced"], [found[1], sums[2]])
    close(metrics["recall"], found)
    assert "generator" not in params["heads_electra"]


def test_a_view_masks_as_mlm_for_a_generator_that_reads():
    batch = batch_of()
    view = writable_view(SMALL, batch)
    key, _ = jax.random.split(jax.random.key(0))
    mlm = MaskedLanguageModel(RATE, mask_share=1.0, random_share=0.0)
    for name, expected in view_of(mlm, batch, key=key).items():
        np.testing.assert_array_equal(view[name], expected, err_msg=name)
    np.testing.assert_array_equal(view["original_tokens"], batch["tokens"])
    assert len(np.unique(view["uniforms"])) == view["uniforms"].size


def assert_drawn_from(share, drawn):
    """Within 4.2 standard errors of the expected numbers, and 0 where that is 0."""
    number, expected = np.bincount(drawn, minlength=len(share)), len(drawn) * share
    assert len(number) == len(share) and not number[share == 0].any()
    assert np.abs((number - expected) / np.sqrt(expected * (1 - share) + 1e-9)).max() < 4.2


@pytest.mark.slow
def test_a_fixed_generator_draws_words_by_their_counts():
    ones = np.ones((2000, 20), np.int32)
    view = writable_view(UNIGRAM, {**dict.fromkeys(FIELDS, ones), "tokens": ones * 7})
    drawn = view["tokens"][chosen_in(view)]
    assert len(drawn) == 2000 * 8 and (view["tokens"] != 7).sum() == (drawn != 7).sum()
    for counts in (np.ones(50), np.array(VOCABULARY.counts, float)):
        counts[[0, 2, 3, 4]] = 0
        vocabulary = dataclasses.replace(
            VOCABULARY, counts=tuple(counts) if counts[5] > 1 else None
        )
        share = electra.unigram_probabilities(vocabulary)
        np.testing.assert_allclose(share, counts / counts.sum(), rtol=1e-12)
    assert_drawn_from(share, drawn)


def test_draws_follow_the_generator():
    rng, draw = np.random.default_rng(0), quick_jit(electra.draw_tokens)
    logits = rng.normal(scale=2, size=(1, 3, 20)).astype(np.float32)
    logits[0, :, [0, 7, 19]] = -np.inf
    uniforms = rng.random((4000, 3), np.float32)
    uniforms[0], uniforms[1] = 0, 1 - 2**-24
    drawn = np.asarray(draw(np.broadcast_to(logits, (4000, 3, 20)), uniforms))
    for slot in range(3):
        assert_drawn_from(np.exp(log_softmax(np.float64(logits[0, slot]))), drawn[:, slot])
    # Float32 probabilities whose sum misses 1 a little, and the largest number below 1.
    logits = rng.normal(size=(4000, 3, 20)).astype(np.float32)
    assert (draw(logits, np.full((4000, 3), 1 - 2**-24, np.float32)) < 20).all()


def largest(tree) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.mark.slow
def test_gradients_stay_with_their_network_except_for_the_embeddings():
    program, batch = program_of(), batch_of()
    params, view = random_params(program, batch, scale=0.4), writable_view(SMALL, batch)

    def loss(params, share):
        metrics = metrics_of(program, params, view)
        return share * metrics["generator_loss"][0] + (1 - share) * metrics["discriminator_loss"][0]

    gradient = quick_jit(jax.grad(loss))
    generator, discriminator = (gradient(params, jnp.float32(share)) for share in (1, 0))
    heads = generator["heads_electra"], discriminator["heads_electra"]
    assert largest(heads[1]["generator"]) == 0, "the draw lets no gradient through"
    assert largest(heads[1]["dense"]) > 0 and largest(discriminator["body"]["blocks"]) > 0
    assert largest(generator["body"]["blocks"]) == 0
    assert min(map(largest, jax.tree.leaves(heads[0]["generator"]))) > 0
    for table in ("token_embedding", "position_embedding", "segment_embedding"):
        assert largest(generator["body"][table]) > 0 and largest(discriminator["body"][table]) > 0
        assert table not in params["heads_electra"]["generator"], "shared"


def product_flops(jaxpr) -> float:
    """FLOPs of all matrix products, loops counted as often as they run."""
    flops = 0.0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = np.prod([equation.invars[0].aval.shape[i] for i in contracted])
            flops += 2.0 * inner * equation.outvars[0].aval.size
        for value in equation.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                flops += times * product_flops(getattr(value, "jaxpr", value))
    return flops


@pytest.mark.parametrize("task", electra.TASKS.split())
@pytest.mark.parametrize("generator", ["small", "unigram"])
def test_flops_are_those_of_the_programs_products(task, generator):
    program, batch = program_of(layers=2, task=task, generator=generator), batch_of()
    views = jax.eval_shape(program.views, batch, jax.random.key(0))
    params = jax.eval_shape(program.init, jax.random.key(0), batch)
    forward = product_flops(jax.make_jaxpr(program.metrics)(params, views).jaxpr)
    shape, objective = program.body.shape, program.objectives["electra"]
    rows = 4 * 12 * flops_per_token(shape, 12)
    assert 3 * forward == rows + objective_flops(objective, shape, 4, 12, 0)


def test_size_of_the_generator():
    def numbers(size, **body):
        shape = dataclasses.replace(program_of().body.shape, **body)
        small = electra.generator_shape(shape, size)
        assert small.layers == shape.layers and small.width % (2 * small.heads) == 0
        return small.width, small.heads, small.hidden

    sizes = FAMILIES["bert"].sizes
    assert numbers(0.25, **sizes["base"]) == (192, 3, 768)
    assert numbers(0.33333, **sizes["base"]) == (256, 4, 1024)
    assert numbers(0.25, **sizes["tiny"]) == (32, 1, 128)
    assert numbers(0.1, width=100, heads=5, hidden=44) == (10, 1, 4)
