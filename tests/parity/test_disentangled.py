"""Disentangled positions against transformers' DebertaV2Model: states, gradients, the buckets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bertlab.config.defaults import base_config
from bertlab.contrib.disentangled import FARTHEST, log_buckets
from bertlab.interop.kinds import KINDS
from bertlab.interop.layers import norm
from bertlab.interop.tensors import flatten, read, same
from bertlab.models.presets import body_shapes, build_body, model_shape
from tests.interop.published import VOCAB

LAYERS, WIDTH, HEADS, HIDDEN = 2, 16, 2, 24
# The switches of the released deberta-v3-base.
RELEASED = {
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "max_relative_positions": -1,
    "max_position_embeddings": FARTHEST,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
}


def deberta(buckets):
    """Random weights, of which no bias is 0 and no norm's scale 1."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": HIDDEN, "vocab_size": VOCAB, "type_vocab_size": 2}
    config = transformers.DebertaV2Config(**sizes, position_buckets=buckets, **RELEASED)
    model = transformers.DebertaV2Model(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = name.endswith("LayerNorm.weight")
            parameter.copy_(0.3 * torch.randn(parameter.shape) + scale)
    return model


def converted(tensors, buckets, directory):
    """(Our body, its parameters) of tensors by DebertaV2Model's names."""
    config = base_config()
    config.model.update(layers=LAYERS, width=WIDTH, heads=HEADS, hidden=HIDDEN, epsilon=1e-7)
    config.model.update(activation="gelu_erf", position_buckets=buckets)
    config.model.position_encoding = "bertlab.contrib.disentangled:Disentangled"
    table = [
        *KINDS["bert"].table(HEADS),
        same("bert.encoder.rel_embeddings.weight", "body/positions/table"),
        *norm("bert.encoder.LayerNorm", "body/positions/norm"),
    ]
    named = {f"bert.{n.replace('_proj', '')}": tensor.numpy() for n, tensor in tensors.items()}
    shape = model_shape(config.model, VOCAB)
    params = read(table, named, {"body": body_shapes(shape, predicts=False)}, directory)["body"]
    return build_body(shape), params


# Few buckets; so many that all distances are their own; distances of every bucket.
@pytest.mark.parametrize(("buckets", "length"), [(4, 14), (256, 14), (32, 600)])
def test_states_and_gradients(buckets, length, tmp_path):
    theirs, rng = deberta(buckets), np.random.default_rng(1)
    inside = np.arange(length) < np.array([[length], [length * 2 // 3]])
    view = {"tokens": np.where(inside, rng.integers(5, VOCAB, (2, length)), 0)}
    view |= {"segments": np.where(inside, rng.integers(0, 2, (2, length)), 0), "documents": inside}
    view = {name: array.astype(np.int32) for name, array in view.items()}
    view["positions"] = np.tile(np.arange(length, dtype=np.int32), (2, 1))
    weights = rng.normal(size=(2, length, WIDTH)) * inside[..., None] / inside.sum()
    weights = weights.astype(np.float32)

    names = {"input_ids": "tokens", "token_type_ids": "segments", "attention_mask": "documents"}
    given = {name: torch.tensor(view[ours], dtype=torch.long) for name, ours in names.items()}
    states = theirs(**given, output_hidden_states=True).hidden_states
    (states[-1] * torch.tensor(weights)).sum().backward()
    tensors = {name: parameter.detach() for name, parameter in theirs.named_parameters()}
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    body, params = converted(tensors, buckets, tmp_path)
    _, expected = converted(gradients, buckets, tmp_path)

    def loss(params):
        encoded, _ = body.apply({"params": params}, view, method="encode")
        return jnp.sum(encoded.both[-1] * weights), encoded.both

    found, layers = jax.jit(jax.grad(loss, has_aux=True))(params)
    for layer, state in zip(layers, states, strict=True):
        mine, right = np.asarray(layer)[inside], state.detach().numpy()[inside]
        np.testing.assert_allclose(mine, right, rtol=0, atol=1e-5)
    found, expected = flatten(found), flatten(expected)
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        largest = np.abs(right).max()
        np.testing.assert_allclose(found[name], right, rtol=0, atol=1e-4 * largest, err_msg=name)


def test_rows_of_the_table_at_every_number_of_buckets():
    place, positions = torch.zeros(1, 700, 1), np.arange(700)
    behind = positions[:, None] - positions
    build = transformers.models.deberta_v2.modeling_deberta_v2.build_relative_position
    for buckets in (2, 3, 5, 31, 32, 100, 256, 512):
        theirs = build(place, place, buckets, FARTHEST)[0].numpy()
        theirs = np.clip(theirs + buckets, 0, 2 * buckets - 1)
        np.testing.assert_array_equal(log_buckets(700, buckets)[behind + 699], theirs)
