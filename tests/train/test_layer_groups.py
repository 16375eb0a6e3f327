"""Groups of layers, their rates, and the stages in which they are trained: which parameters moved, and at what rate."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import FAMILIES
from bertlab.objectives import REGISTRY
from bertlab.train.layer_groups import applied_rates, layer_groups, parameter_name, stage_table
from bertlab.train.optimizers import build_optimizer, check_optimizer, evaluation_params, observe
from tests.references import quick_jit, tiny_program

# SGD without anything that mixes parameters: a movement is the rate times the gradient.
PLAIN = dict(name="sgd", learning_rate=0.5, decay="constant", warmup_steps=0, weight_decay=0.0, clip_norm=0.0)


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({**PLAIN, **changes})
    return optimizer


# Four groups: embeddings, two stacked layers, head.
TREE = {
    "body": {
        "token_embedding": np.ones((3, 2), np.float32),
        "blocks": {"kernel": np.ones((2, 3, 2), np.float32), "bias": np.ones((2, 1), np.float32)},
    },
    "heads_x": {"kernel": np.ones(4, np.float32)},
}


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), TREE) for _ in range(steps)]


def classifier(**model):
    """ULMFiT's model: an AWD-LSTM of three layers with a head."""
    return tiny_program("awd_lstm", "nsp", layers=3, **model)


def shapes_of(program, batch):
    return jax.eval_shape(program.init, jax.random.key(0), batch)


def named(tree):
    return {parameter_name(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def by_group(params):
    """Names of parameters by the name of their group; a stacked one is in several."""
    groups, names = layer_groups(params)
    found = {name: [] for name in names}
    for parameter, group in named(groups).items():
        for index in np.unique(group):
            found[names[index]].append(parameter.removeprefix("body/"))
    return found


# Groups.


def programs_of(family):
    """Programs that have between them every parameter that a family can have."""
    # gpt and modern are bert's body with other values.
    for direction in FAMILIES[family].directions if family not in ("gpt", "modern") else ():
        sides = ("any", *sides_of(family, direction))
        own = {name: o for name, o in REGISTRY.items() if family in (o.families or FAMILIES) and o.sees not in REGISTRY}
        yield tiny_program(family, "+".join(name for name, o in own.items() if o.reads in sides), direction=direction)
    shapes = {
        "bert": [dict(final_norm=True, position_encoding=positions) for positions in ("rotary", "relative", "disentangled")],
        "modern": [dict()],
        "gpt": [dict(size="gpt2", scan_layers=False), dict(tied=False, segments=3, output_bias=True)],
        "elmo": [dict(token_encoder="characters", filters=((1, 8), (2, 8)), highway_layers=1), dict(output_transform=True)],
        "awd_lstm": [dict(layers=3, tied=False)],
    }
    for shape in shapes.get(family, []):
        yield tiny_program(family, "mlm" if family in ("bert", "modern") else "ltr", **shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_every_family_has_a_group(family, packed_batch):
    batch = packed_batch(rows=2) | {"characters": np.zeros((2, 12, 50), np.int32)}
    for program in programs_of(family):
        params = shapes_of(program, batch)
        groups, names = layer_groups(params)
        layers = getattr(program.body.config, "layers", 0)
        assert names[: layers + 1] == ("embeddings", *(f"layer {i + 1}" for i in range(layers)))
        assert names[layers + 1 :] in ((), ("head",))
        seen = set()
        for path, group in jax.tree.leaves_with_path(groups):
            leaf = params
            for key in path:
                leaf = leaf[key.key]
            assert np.broadcast_shapes(group.shape, leaf.shape) == leaf.shape
            assert group.ndim in (0, leaf.ndim) and group.shape[1:] == (1,) * (group.ndim - 1)
            seen |= set(group.ravel().tolist())
        assert seen == set(range(len(names)))


def test_groups_are_embeddings_layers_from_the_bottom_and_head(packed_batch):
    """ULMFiT's five ([embeddings, three LSTMs, classifier]), and a transformer's, whose layers are stacked."""
    lstm = ["input_bias", "input_kernel", "recurrent_bias", "recurrent_kernel"]
    assert by_group(shapes_of(classifier(), packed_batch())) == {
        "embeddings": ["token_embedding"],
        **{f"layer {i + 1}": [f"layer_{i}/{name}" for name in lstm] for i in range(3)},
        "head": ["pooler/bias", "pooler/kernel", "heads_nsp/bias", "heads_nsp/kernel"],
    }
    params = shapes_of(tiny_program("bert", "mlm+nsp", layers=2, final_norm=True), packed_batch())
    found = {group: {name.split("/")[0] for name in names} for group, names in by_group(params).items()}
    embeddings = {"embedding_norm", "position_embedding", "segment_embedding", "token_embedding"}
    head = {"final_norm", "output", "pooler", "heads_nsp"}
    assert found == {"embeddings": embeddings, "layer 1": {"blocks"}, "layer 2": {"blocks"}, "head": head}
    np.testing.assert_array_equal(layer_groups(params)[0]["body"]["blocks"]["up"]["kernel"], [[[1]], [[2]]])


def test_an_unknown_parameter_is_named():
    with pytest.raises(UserError, match="parameter body/novelty/kernel"):
        layer_groups({"body": {"novelty": {"kernel": np.zeros(3)}, "token_embedding": np.zeros(3)}})


# Rates.


def test_ulmfits_rates_at_the_top_of_its_triangle(packed_batch):
    """fastai's imdb scripts: lr / 2.6^{4..0}; Howard and Ruder 2018, equation 3, for T = 1000."""
    params = shapes_of(classifier(), packed_batch())
    optimizer = settings(decay="slanted_triangular", learning_rate=0.01, layer_decay=1 / 2.6)
    rates = applied_rates(optimizer, 1000, params, 100)
    assert list(rates) == ["embeddings", "layer 1", "layer 2", "layer 3", "head"]
    np.testing.assert_allclose(list(rates.values()), [2.188e-4, 5.690e-4, 1.479e-3, 3.846e-3, 1e-2], rtol=2e-4)
    for step, rate in {0: 3.125e-4, 50: 0.00515625, 100: 0.01, 550: 0.00515625, 999: 0.01 * (1 + 31 / 900) / 32}.items():
        rates = applied_rates(optimizer, 1000, params, step)
        assert rates["head"] == pytest.approx(rate, rel=1e-3) and rates["layer 3"] == pytest.approx(rate / 2.6, rel=1e-3)


RATES = {
    "layer_decay": (dict(layer_decay=0.25), [4.0**-3, 4.0**-2, 4.0**-1, 1.0]),
    "group_rates": (dict(group_rates="0.5,0.125,1,2"), [0.5, 0.125, 1.0, 2.0]),
}


@pytest.mark.parametrize("rule", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("case", RATES)
def test_a_movement_is_the_plain_one_times_its_groups_factor(case, rule):
    """Powers of two, so that not a bit may differ; decoupled decay is part of the movement."""
    changes, factors = RATES[case]
    movement = []
    for more in ({}, changes):
        built = build_optimizer(settings(name=rule, weight_decay=0.1, clip_norm=1.0, **more), 10)
        movement.append(quick_jit(built.update)(*gradients(1), built.init(TREE), TREE)[0])
    expected = jax.tree.map(lambda group, move: np.float32(factors)[group] * move, layer_groups(TREE)[0], movement[0])
    jax.tree.map(np.testing.assert_array_equal, movement[1], expected)
    np.testing.assert_array_equal(list(applied_rates(settings(**changes), 10, TREE, 0).values()), np.multiply(0.5, factors))


# Stages: what is trained.

# 0 to 4 are ULMFiT's [embeddings, LSTM 1, LSTM 2, LSTM 3, head].
EVERY = {0, 1, 2, 3, 4}
STAGES = {
    "all": (dict(), [EVERY]),
    "head": (dict(thaw="head"), [{4}]),
    "last": (dict(thaw="last"), [{3, 4}]),
    "gradual": (dict(thaw="gradual"), [{4}, {3, 4}, {2, 3, 4}, {1, 2, 3, 4}, EVERY]),
    "fastai's script": (dict(thaw="gradual", thaw_stages=2), [{4}, {3, 4}, EVERY]),
    "chain": (dict(thaw="chain"), [{4}, {0}, {1}, {2}, {3}, EVERY]),
    "part of a chain": (dict(thaw="chain", thaw_stages=3), [{4}, {0}, {1}, EVERY]),
}


@pytest.mark.parametrize("case", STAGES)
def test_each_stage_has_the_groups_that_its_paper_says(case, packed_batch):
    changes, stages = STAGES[case]
    params, optimizer = shapes_of(classifier(), packed_batch()), settings(**changes, thaw_steps=2)
    for step in range(2 * len(stages) + 1):
        rates = list(applied_rates(optimizer, 20, params, step).values())
        expected = stages[min(step // 2, len(stages) - 1)]
        assert rates == ([0.5 * (i in expected) for i in range(5)] if changes else [0.5]), step


def test_a_model_without_a_head_thaws_from_its_top_layer(packed_batch):
    """A language model whose output layer is its embeddings (GPT's)."""
    params = shapes_of(tiny_program("gpt", "ltr", layers=2), packed_batch())
    assert layer_groups(params)[1] == ("embeddings", "layer 1", "layer 2")
    stages = lambda **changes: [
        {name for name, rate in applied_rates(settings(thaw_steps=1, **changes), 9, params, step).items() if rate}
        for step in range(5)
    ]
    everything = {"embeddings", "layer 1", "layer 2"}
    assert stages(thaw="gradual")[:3] == [{"layer 2"}, {"layer 1", "layer 2"}, everything]
    assert stages(thaw="chain")[:4] == [{"embeddings"}, {"layer 1"}, {"layer 2"}, everything]
    assert stages(thaw="last")[0] == {"layer 2"}
    with pytest.raises(UserError, match=r"config.optimizer.thaw='head': this model has no head, only embeddings, layer 1"):
        stages(thaw="head")


# Stages: what an optimiser knows of a parameter that it does not train.

RULES = {
    "BERT": ("gradual", dict(name="adam")),
    "Adam": ("chain", dict(name="adam", bias_correction="moments")),
    "GPT": ("gradual", dict(name="adam", bias_correction="rate")),
    "Adagrad": ("chain", dict(name="adagrad")),
    "SGD with coupled decay": ("gradual", dict(name="sgd", coupled_decay=True)),
    "Muon": ("chain", dict(name="muon", bias_correction="moments")),
}


def compiled(optimizer, steps):
    built = build_optimizer(optimizer, steps)
    return jax.tree.map(np.asarray, built.init(TREE)), quick_jit(built.update)


def followed(optimizer, grads, between=lambda state: state, program=None):
    """Parameters after each update."""
    (state, update), params, history = program or compiled(optimizer, len(grads)), TREE, [TREE]
    for grad in grads:
        updates, state = update(grad, between(state), params)
        params = jax.tree.map(np.add, params, updates)
        history.append(jax.tree.map(np.asarray, params))
    return history


@pytest.mark.parametrize("case", RULES)
def test_a_group_is_trained_as_by_an_optimiser_that_saw_only_its_own_updates(case):
    """A fresh one when it thaws, bias correction included; one that waited where it was frozen again."""
    thaw, rule = RULES[case]
    common = dict(rule, learning_rate=0.1, weight_decay=0.1, decay_exclude="")
    grads = gradients(12)
    history = followed(settings(**common, thaw=thaw, thaw_steps=2), grads)
    early = {"gradual": [{3}, {2, 3}, {1, 2, 3}], "chain": [{3}, {0}, {1}, {2}]}[thaw]
    (groups, names), plain = layer_groups(TREE), settings(**common)
    program = compiled(plain, 12)
    for group in range(len(names)):
        active = [s for s in range(12) if s // 2 >= len(early) or group in early[s // 2]]
        alone = followed(plain, [grads[s] for s in active], program=program)
        for step in range(13):
            done = sum(s < step for s in active)
            for leaf, now, then in zip(*map(jax.tree.leaves, (groups, history[step], alone[done])), strict=True):
                mine = np.broadcast_to(leaf == group, now.shape)
                # The same sums in another program may be fused otherwise; a wrong count would differ by percents.
                np.testing.assert_allclose(now[mine], then[mine], rtol=1e-6, atol=1e-6, err_msg=f"{names[group]} at {step}")
                assert done or np.array_equal(now[mine], then[mine])


def test_clipping_does_not_see_what_is_frozen():
    """Nor does anything else: the frozen gradients are infinite here."""
    wild = [jax.tree.map(lambda x: x * 5, grad) for grad in gradients(3)]
    for grad in wild:
        grad["body"] = jax.tree.map(lambda x: np.full_like(x, np.inf), grad["body"])
    end = followed(settings(thaw="head", name="sgd", clip_norm=1.0, weight_decay=0.1, decay_exclude=""), wild)[-1]
    head = np.ones(4, np.float64)
    for grad in wild:
        g = np.float64(grad["heads_x"]["kernel"])
        head -= 0.5 * (g / max(1, np.linalg.norm(g)) + 0.1 * head)
    np.testing.assert_allclose(end["heads_x"]["kernel"], head, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, end["body"], TREE["body"])


def test_frozen_names_are_never_trained():
    end = followed(settings(frozen="^body/blocks/.*kernel", name="adam", weight_decay=0.1, decay_exclude=""), gradients(4))[-1]
    moved = {name for name, leaf in named(end).items() if (leaf != 1).any()}
    assert moved == {"body/blocks/bias", "body/token_embedding", "heads_x/kernel"}
    both = settings(frozen="^body/blocks/.*kernel", thaw="gradual", thaw_steps=2, group_rates="1,1,1,0.5")
    history = followed(both, gradients(8))
    assert all((then["body"]["blocks"]["kernel"] == 1).all() for then in history)
    assert [bool((then["body"]["blocks"]["bias"][1] != 1).any()) for then in history] == [False] * 3 + [True] * 6


def test_what_is_frozen_has_an_average_too():
    optimizer = build_optimizer(settings(frozen="^body/", average_after=1), 9)
    state, params = optimizer.init(TREE), TREE
    for step, grad in enumerate(gradients(6)):
        updates, state = optimizer.update(grad, state, params)
        params = optax.apply_updates(params, updates)
        state = observe(state, float(step))
    averaged = evaluation_params(state, params)
    assert bool(state[-1].averaging)
    jax.tree.map(np.testing.assert_array_equal, averaged["body"], TREE["body"])
    assert (averaged["heads_x"]["kernel"] != params["heads_x"]["kernel"]).all()


# Schedules over stages.


def test_one_schedule_for_the_run_or_one_for_each_stage():
    common = dict(thaw="gradual", thaw_steps=10, thaw_stages=2, decay="slanted_triangular", learning_rate=0.01, ratio=8.0)
    over_run, restarted = settings(**common), settings(**common, thaw_restarts=True)
    head = lambda optimizer, steps: [applied_rates(optimizer, 120, TREE, step)["head"] for step in steps]
    np.testing.assert_allclose(head(over_run, [0, 12, 66]), [0.00125, 0.01, 0.005625], rtol=1e-6)
    # Two stages of 10 updates, whose tops are at 1, and one of 100, whose top is at its 10th.
    np.testing.assert_allclose(head(restarted, [0, 1, 10, 11, 20, 30, 75]), [0.00125, 0.01] * 3 + [0.005625], rtol=1e-6)
    grads = [jax.tree.map(np.ones_like, TREE)] * 120
    heads = [float(then["heads_x"]["kernel"][0]) for then in followed(restarted, grads)]
    np.testing.assert_allclose(-np.diff(heads), head(restarted, range(120)), atol=2e-7)


def test_the_table_of_stages():
    optimizer = settings(thaw="gradual", thaw_steps=10, layer_decay=0.5, learning_rate=0.01)
    assert stage_table(optimizer, 100, TREE) == [
        "steps 0 to 9: head 0.01",
        "steps 10 to 19: head 0.01, layer 2 0.005",
        "steps 20 to 29: head 0.01, layer 2 0.005, layer 1 0.0025",
        "steps 30 to 99: head 0.01, layer 2 0.005, layer 1 0.0025, embeddings 0.00125",
    ]
    assert stage_table(settings(), 100, TREE) == []
    assert stage_table(settings(frozen="^body/"), 9, TREE) == ["steps 0 to 8: all 0.5"]


# The state.


def test_restored_at_any_step_it_goes_on_bit_for_bit():
    """Also at the borders of stages, which nothing but the number of updates in the arrays of the state knows."""
    optimizer = settings(
        name="adam", bias_correction="moments", thaw="chain", thaw_steps=2, thaw_restarts=True, layer_decay=0.5,
        decay="slanted_triangular", cut_fraction=0.5,
    )  # fmt: skip
    out_and_in = lambda state: jax.tree.map(lambda x: jnp.asarray(np.array(x)), state)
    straight, restored = (followed(optimizer, gradients(12), between=between) for between in (lambda s: s, out_and_in))
    jax.tree.map(np.testing.assert_array_equal, straight, restored)


def test_stages_on_a_mesh():
    """Masks and factors of layers go with parameters that are divided; moments lie beside them."""
    optimizer = settings(name="adam", bias_correction="moments", thaw="gradual", thaw_steps=1, layer_decay=0.5, clip_norm=1.0)
    mesh = jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    whole, halves = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)) for spec in ((), ("fsdp",)))
    places = jax.tree.map(lambda x: whole if len(x) % 2 else halves, TREE)
    assert places["body"]["blocks"]["kernel"] == halves, "divided along its layers"
    built, params = build_optimizer(optimizer, 5), jax.device_put(TREE, places)
    state = built.init(params)
    placed = optax.tree.map_params(built, lambda _, place: place, state, places, transform_non_params=lambda _: whole)
    assert placed[0].inner[1].mu == placed[0].inner[1].nu == places
    update = quick_jit(built.update, out_shardings=(places, placed))
    state, alone = jax.device_put(state, placed), followed(optimizer, gradients(5))
    for grad, expected in zip(gradients(5), alone[1:], strict=True):
        updates, state = update(jax.device_put(grad, places), state, params)
        params = jax.tree.map(np.add, jax.device_get(params), jax.device_get(updates))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), params, expected)
        params = jax.device_put(params, places)


# Refusals.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_rates": "1,x"}, "config.optimizer.group_rates='1,x'"),
        ({"group_rates": "1,0"}, "config.optimizer.group_rates='1,0'"),
        ({"group_rates": "1,1", "layer_decay": 0.3}, "layer_decay=0.3 and group_rates='1,1'"),
        ({"thaw_stages": 2}, "config.optimizer.thaw_stages=2 .*thaw=gradual"),
        ({"thaw": "last", "thaw_restarts": True}, "config.optimizer.thaw_restarts=True"),
        ({"frozen": "("}, r"config.optimizer.frozen='\('"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_optimizer(settings(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_rates": "1,1,1"}, "has 3 factors, and this model 4 groups: embeddings, layer 1, layer 2, head; give one"),
        ({"thaw": "gradual"}, "config.optimizer.thaw='gradual' needs config.optimizer.thaw_steps"),
        ({"thaw": "gradual", "thaw_steps": 2, "thaw_stages": 4}, "thaw_stages=4, and thaw='gradual' has 3 stages before"),
        ({"thaw": "gradual", "thaw_steps": 4}, "3 stages of thaw_steps=4 before all are trained use up .*=12"),
        ({"thaw": "chain", "thaw_steps": 1, "thaw_restarts": True, "warmup_steps": 1, "decay": "linear"},
         r"thaw_restarts=True, in a stage of 1 steps \(smaller batches make more\): config.optimizer.warmup_steps=1"),
        ({"frozen": "^tail/"}, "config.optimizer.frozen='.tail/' matches no parameter; the model has body/blocks, body/token_"),
        ({"frozen": "."}, "config.optimizer.frozen='.' matches every parameter"),
    ],
)  # fmt: skip
def test_settings_that_the_model_does_not_go_with_are_refused_before_anything_is_computed(changes, message):
    optimizer = build_optimizer(settings(**changes), 12)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(optimizer.init, TREE)
