"""Fused attention gives what the written-out one gives, on packed rows; and the fastest is chosen among those that do."""

import dataclasses
import functools
import itertools
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.models import attention, attention_gpu, attention_kernel
from bertlab.models.presets import model_shape
from bertlab.models.transformer import attention_mask
from bertlab.train import choice
from bertlab.train.build import build_pretraining
from bertlab.train.checks import check_config
from bertlab.train.made_up import made_up_experiment
from bertlab.train.sharding import build_mesh
from tests.references import mesh_of, quick_jit, tiny_program, views_of

SHAPE = choice.Shape(batch=2, length=128, heads=2, head_width=64, dtype="float32", direction="left-to-right")
DIRECTIONS = ("bidirectional", "left-to-right", "right-to-left")


def of_numpy(query, key, value, mask):
    """[L, H, K] of one row, in float64."""
    scores = np.einsum("lhk,mhk->hlm", np.float64(query), np.float64(key)) / query.shape[-1] ** 0.5
    powers = np.where(mask, np.exp(scores), 0)
    return np.einsum("hlm,mhk->lhk", powers / powers.sum(-1, keepdims=True), value)


def both(shape, given):
    """Output and gradients of "xla" and of the kernels."""
    return [jax.jit(lambda *x, b=b: choice._output_and_gradients(b, shape, *x))(*given) for b in ("xla", "pallas")]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kernels_see_documents_and_direction(direction):
    """Sums in another order: within float32's rounding of values of about 1."""
    shape = dataclasses.replace(SHAPE, direction=direction)
    given = choice._packed(shape)
    documents = np.asarray(given[-1])
    assert 0 in documents and {1, 2, 3} & {*documents[0]}
    plain, fused = both(shape, given)
    for expected, found in zip(plain, fused, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    mask = np.asarray(attention_mask(given[-1], direction))
    for row in range(shape.batch):
        expected = of_numpy(*(np.asarray(x[row]) for x in given[:3]), mask[row, 0])
        np.testing.assert_allclose(fused[0][row], expected, rtol=1e-4, atol=2e-5)


def test_kernels_run_on_each_device_of_a_mesh():
    """Rows over data and fsdp, heads over tensor; what is computed stays, and nothing is gathered."""
    shape = dataclasses.replace(SHAPE, batch=4, heads=4)
    given = choice._packed(shape)
    alone = both(shape, given)[1]
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=2, fsdp=2, tensor=2)))):
        step = jax.jit(lambda *x: choice._output_and_gradients("pallas", shape, *x))
        for mine, expected in zip(step(*given), alone):
            np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "direction"), [("bert", "bidirectional"), ("gpt", "left-to-right"), ("modern", "bidirectional")]
)
def test_a_body_computes_the_same_with_either(family, direction, packed_batch):
    batch, found = packed_batch(rows=2, length=128), {}
    for backend in ("xla", "pallas"):
        layers = 2 if family == "modern" else 1  # of both kinds
        shape = dict(layers=layers, width=128, heads=2, local_window=20 if layers == 2 else 0)
        program = tiny_program(family, "ltr" if family == "gpt" else "mlm", attention=backend, dropout=0.0, **shape)
        params = program.init(jax.random.key(0), batch)
        view = next(iter(views_of(program, batch).values()))
        encode = jax.jit(program.encode).trace(params, view)
        found[backend] = encode.lower().compile()(params, view).widest()[1][-1]
        assert ("pallas_call" in str(encode.jaxpr)) == (backend == "pallas")
    real = batch["documents"] > 0
    np.testing.assert_allclose(found["pallas"][real], found["xla"][real], rtol=2e-4, atol=2e-5)


def test_a_kernel_that_refuses_without_a_word_is_not_taken(tmp_path):
    def seconds(backend, shape):
        if backend != "xla":
            raise NotImplementedError
        return 1.0

    assert choice.choose(SHAPE, attention.BACKENDS, tmp_path / "attention.json", seconds) == "xla"
    assert "refused: NotImplementedError()" in (tmp_path / "attention.json").read_text()


def test_the_fastest_is_measured_once_for_a_shape(tmp_path, capsys):
    asked = []

    def seconds(backend, shape):
        asked.append((backend, shape.length))
        return {"xla": 2.0, "cudnn": 3.0, "pallas": 1.0 if shape.length == 128 else 9.0}[backend]

    file, longer = tmp_path / "attention.json", dataclasses.replace(SHAPE, length=256)
    for _ in range(2):
        assert choice.choose(SHAPE, attention.BACKENDS, file, seconds) == "pallas"
        assert choice.choose(longer, attention.BACKENDS, file, seconds) == "xla"
    assert asked == [(b, 128) for b in attention.BACKENDS] + [(b, 256) for b in attention.BACKENDS]
    assert "attention: pallas (xla 2e+03 ms, cudnn 3e+03 ms, pallas 1e+03 ms;" in capsys.readouterr().out
    assert len(json.loads(file.read_text())) == 2


def test_where_nothing_works_xla_is_taken_and_a_want_of_memory_is_not_remembered(tmp_path):
    full, file = [True], tmp_path / "attention.json"

    def seconds(backend, shape):
        if full[0]:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return {"xla": 2.0, "cudnn": 1.0}[backend]

    assert choice.choose(SHAPE, ("xla", "cudnn"), file, seconds) == "xla"
    assert [*json.loads(file.read_text()).values()] == [{}]
    full[0] = False
    assert choice.choose(SHAPE, ("xla", "cudnn"), file, seconds) == "cudnn"


def test_what_passes_over_documents_is_never_taken(tmp_path, monkeypatch):
    kernel = attention._kernel
    blind = lambda sight: dataclasses.replace(sight, documents=jnp.ones_like(sight.documents))
    monkeypatch.setattr(attention, "_kernel", lambda qkv, sight, drop: kernel(qkv, blind(sight), drop))
    file = tmp_path / "attention.json"
    assert choice.choose(SHAPE, ("xla", "cudnn", "pallas"), file) == "xla"
    [found] = json.loads(file.read_text()).values()
    assert found["pallas"].startswith("refused: its results differ from xla's by")
    assert found["cudnn"].startswith("refused: ") and found["xla"] > 0  # there is no GPU


LOCAL = dataclasses.replace(SHAPE, batch=1, length=384, layers=3, local_layers=2, reach=20, direction="bidirectional")


def without_window(kernel, bands):
    return lambda qkv, sight, drop: kernel(qkv, dataclasses.replace(sight, window=None), drop), bands


def without_gradients_of_a_window(kernel, bands):
    def wrong(qkv, sight, drop):
        found = kernel(qkv, sight, drop)
        return found if sight.window is None else jnp.where(sight.window.here, jax.lax.stop_gradient(found), found)

    return wrong, bands


def one_position_further(kernel, bands):
    further = lambda window: dataclasses.replace(window, reach=window.reach + 1)
    return kernel, lambda qkv, sight, *given: bands(qkv, dataclasses.replace(sight, window=further(sight.window)), *given)


@pytest.mark.parametrize(
    ("wrong", "refused"),
    [
        (one_position_further, ["xla"]),
        pytest.param(without_window, ["pallas"], marks=pytest.mark.slow),
        pytest.param(without_gradients_of_a_window, ["pallas"], marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_in_local_layers_alone_is_not_taken_for_a_body_that_has_them(wrong, refused, tmp_path, monkeypatch):
    kernel, bands = wrong(attention._kernel, attention._in_bands)
    monkeypatch.setattr(attention, "_kernel", kernel)
    monkeypatch.setattr(attention, "_in_bands", bands)
    file = tmp_path / "attention.json"
    for shape in (LOCAL, dataclasses.replace(LOCAL, local_layers=0)):
        taken = choice.choose(shape, ("xla", "pallas"), file)
        assert taken not in (refused if shape is LOCAL else ())
    local, full = json.loads(file.read_text()).values()
    assert [backend for backend, found in local.items() if "differ from xla's by" in str(found)] == refused
    assert all(isinstance(found, float) for found in full.values())


def test_local_layers_are_timed_as_often_as_a_body_has_them(monkeypatch):
    """By a clock on which a layer that sees all takes ten seconds, and a local one one."""
    clock = [0.0]
    passes = lambda found: clock.append(1.0 if found else 10.0) or found
    monkeypatch.setattr(choice, "_output_and_gradients", lambda backend, shape, *given, drop: given[-1])
    monkeypatch.setattr(jax, "block_until_ready", passes)
    monkeypatch.setattr(choice.time, "perf_counter", lambda: sum(clock))
    for shape, seconds in ((LOCAL, 4.0), (dataclasses.replace(LOCAL, local_layers=0), 10.0)):
        assert choice.compiled("xla", shape)[0]() == pytest.approx(seconds)


def test_times_of_other_windows_are_not_those_of_a_body(tmp_path):
    fast, file = {"xla": 1.0, "pallas": 2.0}, tmp_path / "attention.json"
    choose = lambda shape: choice.choose(shape, ("xla", "pallas"), file, lambda backend, _: fast[backend])
    assert choose(LOCAL) == "xla"
    fast["xla"] = 3.0
    for change in (dict(reach=30), dict(local_layers=1), dict(layers=6), dict(local_layers=0)):
        assert choose(dataclasses.replace(LOCAL, **change)) == "pallas", change
    assert choose(LOCAL) == "xla"


def test_a_body_s_local_layers_are_what_is_measured(small_config, monkeypatch):
    windows = {"model__layers": 4, "model__local_window": 20, "model__global_every": 3}
    experiment = build_pretraining(small_config("modern", model__attention="auto", **windows))
    monkeypatch.setattr(choice, "build_mesh", lambda _: mesh_of(types.SimpleNamespace(platform="tpu")))
    asked = []
    monkeypatch.setattr(choice, "choose", lambda shape, *_: asked.append(shape) or "xla")
    choice.with_attention(experiment)
    assert [(shape.layers, shape.local_layers, shape.reach) for shape in asked] == [(4, 2, 10)]


def test_candidates():
    assert choice.candidates("cpu", SHAPE) == ["xla"]
    assert choice.candidates("tpu", SHAPE) == ["xla", "pallas"] == choice.candidates("gpu", SHAPE)
    half = dataclasses.replace(SHAPE, dtype="bfloat16", length=100)
    assert choice.candidates("gpu", half) == ["xla", "cudnn"]
    tiled = dataclasses.replace(half, length=128)
    assert choice.candidates("gpu", tiled) == ["xla", "cudnn", "pallas"]
    assert choice.candidates("gpu", dataclasses.replace(tiled, dropout=0.1)) == ["xla", "pallas"], "cuDNN's drops nothing"
    assert choice.candidates("gpu", tiled, "relative") == ["xla", "cudnn"]
    assert choice.candidates("gpu", tiled, "disentangled") == choice.candidates("tpu", SHAPE, "relative") == ["xla"]
    for unfit in (dict(length=8192 + 128), dict(heads=3), dict(head_width=80)):
        assert choice.candidates("tpu", dataclasses.replace(SHAPE, **unfit)) == ["xla"]
    for unfit in (dict(length=100), dict(head_width=80), dict(head_width=8)):
        assert choice.candidates("gpu", dataclasses.replace(SHAPE, **unfit)) == ["xla"]


def test_each_phase_takes_the_fastest_at_its_own_shape(small_config, monkeypatch):
    phases = "0.5 data.seq_len=16 data.batch_size=16; 0.5 data.seq_len=32"
    experiment = build_pretraining(small_config("bert", train__phases=phases, model__attention="auto", model__dropout=0.0))
    monkeypatch.setattr(choice, "build_mesh", lambda _: mesh_of(types.SimpleNamespace(platform="tpu")))
    asked = []
    fastest = lambda shape, backends, file: (
        asked.append((shape.batch, shape.length)),
        "pallas" if shape.length == 16 else "xla",
    )
    monkeypatch.setattr(choice, "choose", lambda *given: fastest(*given)[1])
    found = choice.with_attention(experiment)
    taken = [program.body.config.attention for program in (*(phase.program for phase in found.phases), found.program)]
    assert taken == ["pallas", "xla", "xla"]
    assert asked == [(16, 16), (8, 32)], "each shape once"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(model__attention="cudnn"), "cannot drop weights of the attention"),
        (dict(model__attention="pallas", model__dropout=0.0), "needs rows of a multiple of 128 positions, not 32"),
        (dict(model__attention="pallas", model__dropout=0.0, model__position_encoding="relative"), "cannot add .*'relative'"),
        *(
            (
                dict(model__attention=backend, model__dropout=0.0, model__position_encoding="disentangled"),
                f"attention='{backend}' cannot add position_encoding='disentangled' to the scores; set attention='auto'",
            )
            for backend in ("cudnn", "pallas")
        ),
        (dict(model__attention="fast"), "attention='fast'"),
    ],
)
def test_refusals(small_config, settings, message):
    with pytest.raises(UserError, match=message):
        check_config(small_config("bert", **settings))


@pytest.mark.parametrize(("platform", "width"), [("gpu", 48), ("tpu", 64), ("gpu", 64)])
def test_heads_that_a_device_s_kernel_has_no_tiles_for_are_refused(platform, width, small_config, monkeypatch):
    settings = {"model__attention": "pallas", "data__seq_len": 128, "model__width": width, "model__heads": 4}
    experiment = build_pretraining(small_config("bert", **settings))
    monkeypatch.setattr(choice, "build_mesh", lambda _: mesh_of(types.SimpleNamespace(platform=platform)))
    if (platform, width) == ("gpu", 64):
        assert choice.with_attention(experiment) is experiment, "with dropout too"
        return
    with pytest.raises(UserError, match=f"'pallas' has no tiles on a {platform.upper()} for 4 heads of {width // 4} numbers"):
        choice.with_attention(experiment)


def test_what_a_kernel_has_no_tiles_for_is_said():
    """Base's 12 heads of 64: two share a program of a TPU's kernel, so that a mesh of four parts leaves one too many."""
    shape = model_shape(load_config("experiments/pretrain/bert.py:size=base", {"model.attention": "pallas"}).model, 1)
    of = lambda parts, platform="tpu": mesh_of(types.SimpleNamespace(platform=platform), sequence=parts)
    for parts, length in ((1, 8192), (2, 512), (6, 512)):
        choice.check_device(shape, of(parts), length)
    with pytest.raises(UserError, match=r"on a TPU for 3 heads of 64 numbers a device, which is no multiple of 2; set 'auto'"):
        choice.check_device(shape, of(4), 512)
    choice.check_device(shape, of(4, "gpu"), 512)
    with pytest.raises(UserError, match=r"on a TPU for rows of 16,384 positions, more than 8,192; set 'auto'"):
        choice.check_device(shape, of(1), 16_384)


def test_only_the_lengths_that_phases_train_on_need_tiles(small_config, monkeypatch):
    """As in a plan; a TPU's kernel takes rows of at most 8,192."""
    monkeypatch.setattr(choice, "build_mesh", lambda _: mesh_of(types.SimpleNamespace(platform="tpu")))
    settings = {"model__attention": "pallas", "model__width": 128, "model__heads": 1, "data__batch_size": 2}
    settings |= {"model__max_positions": 16_384}
    made = lambda length, phases: made_up_experiment(
        small_config("bert", **settings, data__seq_len=length, train__phases=phases), batches=1
    )
    experiment = made(16_384, "1 data.seq_len=128")
    assert choice.with_attention(experiment) is experiment
    for length, phases in ((16_384, ""), (128, "1 data.seq_len=16384")):
        with pytest.raises(UserError, match="on a TPU for rows of 16,384 positions"):
            choice.with_attention(made(length, phases))


@pytest.mark.parametrize(
    ("platform", "dtype", "able"), [("gpu", "bfloat16", True), ("gpu", "float32", False), ("tpu", "bfloat16", False)]
)
def test_cudnn_needs_a_gpu_and_bfloat16(platform, dtype, able):
    settings = {"model.attention": "cudnn", "model.dropout": 0.0, "model.dtype": dtype}
    shape = model_shape(load_config("experiments/pretrain/bert.py:size=tiny", settings).model, 1)
    mesh = mesh_of(types.SimpleNamespace(platform=platform))
    if able:
        choice.check_device(shape, mesh, 512)
        return
    with pytest.raises(UserError, match=r"'cudnn' needs a GPU and config\.model\.dtype='bfloat16'; set 'auto'"):
        choice.check_device(shape, mesh, 512)


@pytest.mark.parametrize("names", ["permutation", "prefix", "mlm+prefix"])
def test_kernels_are_refused_where_an_order_keeps_them_from_all(names, small_config):
    recipe = f"experiments/pretrain/bert.py:objectives={names}"
    config = small_config(recipe, model__attention="pallas", model__dropout=0.0, data__seq_len=128)
    if "mlm" in names:
        check_config(config)
        return
    with pytest.raises(UserError, match=f"'pallas' .*objective {names}"):
        check_config(config)


GPU = [(direction, None, rate) for direction in DIRECTIONS for rate in (0.0, 0.1)]
GPU += [("left-to-right", 1, 0.0), ("bidirectional", 65, 0.1), ("right-to-left", 40, 0.1)]


@pytest.mark.parametrize(
    ("direction", "reach", "rate"),
    [pytest.param(*case, marks=pytest.mark.slow if case != ("bidirectional", 65, 0.1) else ()) for case in GPU],
)
def test_the_kernel_for_a_gpu_is_the_written_out_attention_with_the_same_mask(direction, reach, rate):
    """Triton's, interpreted: output and gradients, packed rows, direction, window and dropout, within float32's rounding."""
    length, random = 256, np.random.default_rng(2)
    *parts, of_output, documents = choice._packed(dataclasses.replace(SHAPE, length=length, head_width=16))
    qkv, words = jnp.stack(parts, axis=2), jnp.asarray(random.integers(0, 2**32, (2, 2, 2), dtype=np.uint32))
    spec = attention_kernel.spec_of(length, direction, rate, reach, 1.0)
    near = np.abs(np.arange(length) - np.arange(length)[:, None]) <= (length if reach is None else reach)
    stays = attention_kernel.kept_weights(words, spec.dropped, length)
    assert np.mean(stays) == pytest.approx(1 - rate, abs=0.005)
    drop = (lambda weights: jnp.where(stays, weights / (1 - spec.dropped / 2**16), 0)) if rate else None
    mask = attention_mask(documents, direction) & near
    far = jnp.int32(length if reach is None else reach)
    of_gpu = lambda qkv: attention_gpu.attention(qkv, documents, words, far, spec, interpret=True)
    written_out = lambda qkv: attention._written_out(qkv, mask, None, drop, jnp.float32)
    both = lambda f: quick_jit(lambda qkv: (lambda output, pull: (output, *pull(of_output)))(*jax.vjp(f, qkv)))(qkv)
    for mine, right in zip(both(of_gpu), both(written_out), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=2e-5)


def value_and_gradient(qkv, sight):
    output, pull = jax.vjp(lambda qkv: attention.attend("xla", qkv, sight), qkv)
    return output, pull(qkv[:, :, 0])[0]


@pytest.mark.parametrize(("direction", "reach"), [*((direction, 40) for direction in DIRECTIONS), ("bidirectional", 0)])
def test_blocks_of_a_window_give_what_all_scores_give(direction, reach):
    """A body's local layers, in rows of several documents whose length is no multiple of a block."""
    documents = np.asarray(choice._packed(dataclasses.replace(SHAPE, length=500))[-1])
    qkv = jnp.asarray(np.random.default_rng(1).normal(size=(2, 500, 3, 2, 16)), jnp.float32)
    distance = np.abs(np.arange(500) - np.arange(500)[:, None])
    for here in (True, False):
        mask = attention_mask(jnp.asarray(documents), direction) & jnp.asarray(distance <= (reach if here else 500))
        sight = attention.Sight(mask, jnp.asarray(documents), direction, window=attention.Window(reach, jnp.bool_(here), 2, 3))
        plain = attention.Sight(mask, jnp.asarray(documents), direction)
        found, expected = (jax.jit(functools.partial(value_and_gradient, sight=of))(qkv) for of in (sight, plain))
        for mine, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)
    computed = jax.jit(lambda x: attention._in_bands(x, sight, None, jnp.float32)).lower(qkv).cost_analysis()["flops"]
    width = 3 if direction == "bidirectional" else 2
    assert computed < 1.5 * 2 * 2 * 2 * 2 * 512 * width * 64 * 16, "products of 8 blocks, not of [500, 500]"


@pytest.mark.parametrize(("reach", "length"), [(1, 400), (64, 400), (65, 800), (100, 800), (127, 800), (129, 1200)])
def test_blocks_hold_what_a_window_reaches(reach, length):
    """All pairs whose distance is at most the reach are seen, and no others, whatever it leaves over from blocks of 64."""
    query, key, value = np.random.default_rng(1).normal(size=(3, length, 1, 8)).astype(np.float32)
    near = np.abs(np.arange(length) - np.arange(length)[:, None]) <= reach
    window = attention.Window(reach, jnp.bool_(True), 1, 1)
    sight = attention.Sight(None, jnp.ones((1, length), jnp.int32), "bidirectional", window=window)
    assert attention._is_short(sight, length)
    found = quick_jit(lambda qkv: attention._in_bands(qkv, sight, None, jnp.float32))(np.stack([query, key, value], 1)[None])
    np.testing.assert_allclose(found[0], of_numpy(query, key, value, near), rtol=1e-4, atol=2e-5)


def test_blocks_of_a_window_on_a_mesh_that_divides_rows():
    """Rows in parts become heads in parts and rows in parts again; each head draws what one device would."""
    documents = choice._packed(dataclasses.replace(SHAPE, length=512))[-1]
    random = np.random.default_rng(1)
    qkv, of_output = (jnp.asarray(random.normal(size=(2, 512, *of, 4, 8)), jnp.float32) for of in ((3,), ()))
    window = attention.Window(40, jnp.bool_(True), 1, 2)
    near = jnp.abs(jnp.arange(512) - jnp.arange(512)[:, None]) <= 40
    sight = attention.Sight(attention_mask(documents, "bidirectional") & near, documents, "bidirectional", window=window)
    assert attention._is_short(sight, 512)

    def attend(qkv):
        apart = attention.heads_apart(qkv, 3, positions=1)
        return attention.heads_together(attention.attend("xla", apart, sight, choice.Drawn(0.1)))

    def on(**sizes):
        with jax.set_mesh(build_mesh(ConfigDict(dict(data=1, fsdp=1, tensor=1) | sizes))):
            return quick_jit(lambda qkv: (lambda output, pull: (output, *pull(of_output)))(*jax.vjp(attend, qkv)))(qkv)

    for mine, expected in zip(on(data=2, tensor=2, sequence=2), on(), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def long_rows(monkeypatch):
    """Rows of more than 100 positions count as long, and 64 queries are computed at a time."""
    monkeypatch.setattr(attention_kernel, "LONGEST", 100)
    monkeypatch.setattr(attention, "_QUERIES", 64)


LONG = ["left-to-right", "window", "order and bias"]
LONG += [pytest.param(of, marks=pytest.mark.slow) for of in ("bidirectional", "right-to-left", "all")]


@pytest.mark.parametrize("of", LONG)
def test_some_queries_at_a_time_give_what_all_scores_give(of, monkeypatch):
    """Rows of several documents whose length is no multiple of a block; also layers whose window is a value."""
    random = np.random.default_rng(1)
    documents = jnp.asarray(choice._packed(dataclasses.replace(SHAPE, length=150))[-1])
    qkv = jnp.asarray(random.normal(size=(2, 150, 3, 2, 16)), jnp.float32)
    direction = of if of in DIRECTIONS else "bidirectional"
    mask = attention_mask(documents, direction)
    sight = attention.Sight(mask, documents, direction)
    if of in ("window", "all"):
        near = jnp.abs(jnp.arange(150) - jnp.arange(150)[:, None]) <= 40
        window = attention.Window(40, jnp.bool_(of == "window"), 1, 2)
        sight = attention.Sight(mask & (near if of == "window" else True), documents, direction, window=window)
    if of == "order and bias":
        hidden = mask & (random.random((2, 1, 150, 150)) < 0.5) | jnp.eye(150, dtype=bool)
        bias = jnp.asarray(random.normal(size=(1, 2, 150, 150)), jnp.float32)
        sight = attention.Sight(hidden, None, direction, bias)
    expected = jax.jit(functools.partial(value_and_gradient, sight=sight))(qkv)
    long_rows(monkeypatch)
    step = jax.jit(functools.partial(value_and_gradient, sight=sight)).lower(qkv)
    assert not re.search(r"tensor<2x2x150x150x", step.as_text()), "all scores are never there"
    for mine, right in zip(step.compile()(qkv), expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)


def as_on_a_gpu(monkeypatch):
    """The kernel for a GPU, interpreted, is what "pallas" takes."""
    monkeypatch.setattr(attention, "_platform", lambda: "gpu")
    monkeypatch.setattr(attention_gpu, "attention", functools.partial(attention_gpu.attention, interpret=True))


# Backend, length, reach, and how many queries and keys further on another block with the same layout is.
DROPPING = {
    "all scores": ("xla", 128, None, (64, 0)),
    "some queries": ("xla", 256, None, (64, 0)),
    "bands": ("xla", 384, 40, (64, 64)),
    "tpu": ("pallas", 128, None, (64, 0)),
    "gpu": ("pallas", 128, None, (64, 0)),
}


@pytest.mark.parametrize("way", DROPPING)
def test_each_row_and_head_drops_weights_of_its_own(way, monkeypatch):
    """With queries of zeros and values of the unit matrix, the output is the weights: 1 / keys seen, made larger, or 0."""
    backend, length, reach, (queries, keys) = DROPPING[way]
    if way == "some queries":
        long_rows(monkeypatch)
    if way == "gpu":
        as_on_a_gpu(monkeypatch)
    rate, ahead = 0.25, np.arange(length) - np.arange(length)[:, None]
    seen = np.abs(ahead) <= (length if reach is None else reach)
    window = None if reach is None else attention.Window(reach, jnp.bool_(True), 1, 1)
    documents = jnp.ones((2, length), jnp.int32)
    sight = attention.Sight(jnp.asarray(seen)[None, None], documents, "bidirectional", window=window)
    qkv = jnp.zeros((2, length, 3, 2, length)).at[:, :, 2].set(jnp.eye(length)[:, None])
    found = quick_jit(lambda qkv: attention.attend(backend, qkv, sight, choice.Drawn(rate)))(qkv)
    weights = np.moveaxis(np.asarray(found), 2, 1) * seen.sum(axis=1, keepdims=True)  # [B, H, queries, keys]
    kept = weights > 0.5
    np.testing.assert_allclose(weights, kept / (1 - rate), rtol=1e-5, atol=1e-6)
    masks = kept[..., seen].reshape(4, -1)
    assert np.abs(masks.mean(axis=1) - (1 - rate)).max() < 5 * (rate * (1 - rate) / masks.shape[1]) ** 0.5
    here, there = np.s_[..., : length - queries, : length - keys], np.s_[..., queries:, keys:]
    of_both = seen[here] & seen[there]
    pairs = [*itertools.combinations(masks, 2), (kept[here][..., of_both].ravel(), kept[there][..., of_both].ravel())]
    for one, other in pairs:  # independent ones correlate by 1 / √size
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / one.size**0.5
