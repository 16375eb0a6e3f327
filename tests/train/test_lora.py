"""Low-rank updates: what they add to which kernel, what of a model they train, and how they are merged."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.train.layer_groups import layer_groups, parameter_name
from bertlab.train.lora import Lora, build_adapter
from bertlab.train.sharding import build_mesh, parameter_shardings
from tests.references import quick_jit, tiny_program

PAPER = base_config().lora.targets


def adapted(family="bert", names="mlm", lora=None, **model):
    return dataclasses.replace(tiny_program(family, names, **model), adapter=lora or Lora(2, 3.0, PAPER))


def named(tree):
    return {parameter_name(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def shapes_of(program, batch):
    shapes = jax.eval_shape(program.init, jax.random.key(0), batch)
    return {parameter_name(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(shapes)}


def randomised(program, batch, seed=0):
    """All parameters random, B too."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(program.init, jax.random.key(0), batch)
    return jax.tree.map(lambda s: rng.normal(scale=0.3, size=s.shape).astype(np.float32), shapes)


# alpha/r · A B with the kernels' axes spelled out; letters as in the module, g the gates.
PRODUCTS = {
    ("bert", "body/blocks/attention/out_kernel"): "nhkr,nrd->nhkd",
    ("bert", "body/blocks/up/kernel"): "ndr,nrf->ndf",
    ("elmo", "body/forward/input_kernel"): "ndr,nrgf->ndgf",
    ("elmo", "body/backward/projection"): "nfr,nrd->nfd",
    ("awd_lstm", "body/layer_0/recurrent_kernel"): "fr,rge->fge",
    ("bert", "body/output/transform/kernel"): "dr,rf->df",
}


@pytest.mark.parametrize(("family", "name"), PRODUCTS)
def test_merged_kernels_equal_numpys(family, name, packed_batch):
    objective = {"bert": "mlm", "elmo": "ltr+rtl", "awd_lstm": "ltr"}[family]
    program = adapted(family, objective, Lora(2, 3.0, f"^{name}$"), layers=2)
    params = randomised(program, packed_batch())
    plain, before = named(program.plain(params)), named(params)
    a, b = (before.pop(f"lora/{name}/{part}") for part in "ab")
    expected = before.pop(name) + 1.5 * np.einsum(PRODUCTS[family, name], np.float64(a), np.float64(b))
    np.testing.assert_allclose(plain.pop(name), expected, rtol=1e-5, atol=1e-6)
    assert plain.keys() == before.keys()
    for other, leaf in before.items():
        np.testing.assert_array_equal(plain[other], leaf, err_msg=other)


def test_queries_and_values_are_updated_apart_as_in_the_paper(packed_batch):
    program = adapted(layers=2)
    where, found = "lora/body/blocks/attention/qkv_kernel", shapes_of(program, packed_batch())
    assert {name: shape for name, shape in found.items() if name.startswith("lora/")} == {
        f"{where}/query/a": (2, 8, 2), f"{where}/query/b": (2, 2, 2, 4),
        f"{where}/value/a": (2, 8, 2), f"{where}/value/b": (2, 2, 2, 4),
    }  # fmt: skip
    params = randomised(program, packed_batch())
    kernel = np.float64(params["body"]["blocks"]["attention"]["qkv_kernel"])
    merged = np.asarray(program.plain(params)["body"]["blocks"]["attention"]["qkv_kernel"])
    updates = params["lora"]["body"]["blocks"]["attention"]["qkv_kernel"]
    for index, part in ((0, "query"), (2, "value")):
        change = 1.5 * np.einsum("ndr,nrhk->ndhk", *(np.float64(updates[part][x]) for x in "ab"))
        np.testing.assert_allclose(merged[:, :, index], kernel[:, :, index] + change, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(merged[:, :, 1], np.float32(kernel[:, :, 1]))


def test_an_update_begins_at_zero(packed_batch):
    program = adapted(layers=2)
    params = _base(randomised(program, packed_batch()))
    begun = program.adapter.add(params, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, program.plain(begun), params)
    updates = named(begun["lora"])
    for name, leaf in updates.items():
        assert np.any(leaf) == name.endswith("/a"), name
    query, value = (updates[f"body/blocks/attention/qkv_kernel/{part}/a"] for part in ("query", "value"))
    assert (query != value).all() and (query[0] != query[1]).all()


def test_a_program_computes_with_what_it_merges(packed_batch):
    """The merged parameters are those of a program that knows of no updates."""
    program, batch = adapted(lora=Lora(1, 1.0, "(value|transform/kernel)$"), layers=1), packed_batch()
    params, plain = randomised(program, batch), dataclasses.replace(program, adapter=None)
    merged = program.plain(params)
    view = {name: batch[name] for name in ("tokens", "segments", "documents", "positions")}
    encode = [quick_jit(p.encode) for p in (program, plain)]
    predict = [quick_jit(lambda params, view, p=p: p.token_logits(params, view, "mlm", "both")) for p in (program, plain)]
    for ours, theirs in (encode, predict):
        with_updates, without, base = (
            np.asarray(jax.tree.leaves(call(tree, view))[-1])
            for call, tree in ((ours, params), (theirs, merged), (theirs, _base(params)))
        )
        np.testing.assert_allclose(with_updates, without, rtol=1e-5, atol=1e-5)
        assert np.abs(with_updates - base).max() > 1e-2
    assert "lora" not in merged
    jax.tree.map(np.testing.assert_array_equal, program.plain(merged), merged)
    with pytest.raises(UserError, match=r"config\.lora"):
        plain.token_logits(params, view, "mlm", "both")


def _base(params):
    return {key: value for key, value in params.items() if key != "lora"}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "static"])
def test_every_update_has_axes_a_place_and_a_group(family, packed_batch):
    """With every kernel of the family targeted."""
    batch = packed_batch() | {"characters": np.zeros((4, 12, 50), np.int32)}
    model = dict(token_encoder="characters", filters=((1, 8),), highway_layers=1) if family == "elmo" else {}
    program = adapted(family, "mlm+nsp" if family in ("bert", "modern") else "ltr", Lora(2, 1.0, "."), layers=2, **model)
    shapes, axes = jax.eval_shape(program.init, jax.random.key(0), batch), program.logical_axes(batch)
    parameter_shardings(build_mesh({"data": 1, "fsdp": 2, "tensor": 2}), axes, shapes)  # refuses axes that do not fit
    groups, _ = layer_groups(shapes)
    by_name, spec = named(groups), lambda node: isinstance(node, PartitionSpec)
    named_axes = {parameter_name(path): tuple(leaf) for path, leaf in jax.tree.leaves_with_path(axes, is_leaf=spec)}
    updates = [name for name in by_name if name.startswith("lora/")]
    assert len(updates) > 4
    for name in updates:
        kernel = name.removeprefix("lora/").rpartition("/")[0]
        kernel = kernel if kernel in by_name else kernel.rpartition("/")[0]
        np.testing.assert_array_equal(by_name[name].ravel(), by_name[kernel].ravel(), err_msg=name)
        assert {axis for axis in named_axes[name] if axis} <= set(named_axes[kernel]), name
    rank = {"a": -1, "b": -2}
    assert {named_axes[name][rank["a"]] for name in updates if name.endswith("/a")} == {None}
    assert not [name for name in updates if "embedding" in name or "filter_" in name or "output/kernel" in name]


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (Lora(1, 1.0, "queries"), "config.lora.targets='queries' .*: body/blocks/att"),
        (Lora(9, 1.0, "up/kernel"), "config.lora.rank=9 .* body/blocks/up/kernel.* 8 to 12"),
    ],
)
def test_updates_that_the_model_cannot_have_are_refused(lora, message, packed_batch):
    with pytest.raises(UserError, match=message):
        shapes_of(adapted(lora=lora), packed_batch())


def test_settings():
    lora = base_config().lora
    assert build_adapter(lora) is None
    lora.update(rank=4, alpha=2.0)
    assert build_adapter(lora) == Lora(4, 2.0, PAPER)
    for key, value, message in (
        ("rank", -1, "config.lora.rank=-1"),
        ("alpha", 0.0, "config.lora.alpha=0.0"),
        ("targets", "(", r"config.lora.targets='\(' is not a valid pattern"),
    ):
        wrong = base_config().lora
        wrong.update({"rank": 4, key: value})
        with pytest.raises(UserError, match=message):
            build_adapter(wrong)
