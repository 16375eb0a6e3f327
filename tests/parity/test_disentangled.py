"""Disentangled positions against transformers' DebertaV2Model: states and gradients with the same weights, and the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from bertlab.config import base_config
from bertlab.interop import huggingface
from bertlab.interop.base import flatten_tree, read
from bertlab.models.presets import body_shapes, build_body, model_shape
from bertlab.models.transformer import FARTHEST, log_buckets
from tests.interop.published import VOCAB
from tests.references import quick_jit

LAYERS, WIDTH, HEADS, HIDDEN = 2, 16, 2, 24
# The switches of the released deberta-v3-base, which are those of deberta-v2-xlarge but for its convolution.
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


def of_transformers(buckets: int) -> transformers.DebertaV2Model:
    """Random weights, of which no bias is 0 and no norm's scale 1."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": HIDDEN}
    sizes |= {"vocab_size": VOCAB, "type_vocab_size": 2, "position_buckets": buckets}
    model = transformers.DebertaV2Model(transformers.DebertaV2Config(**sizes, **RELEASED)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape) + name.endswith("LayerNorm.weight"))
    return model


def ours_of(tensors, buckets: int):
    """(our body, its parameters) of tensors by DebertaV2Model's names."""
    config = base_config()
    config.model.update(layers=LAYERS, width=WIDTH, heads=HEADS, hidden=HIDDEN, activation="gelu_erf", epsilon=1e-7)
    config.model.update(position_encoding="disentangled", position_buckets=buckets)
    table = [
        *huggingface.KINDS["bert"].table(HEADS),
        *huggingface._LINEAR.table("bert.encoder.rel_embeddings", "body/relative_embedding"),
        *huggingface._LINEAR.norm("bert.encoder.LayerNorm", "body/relative_norm"),
    ]
    named = {f"bert.{name.replace('_proj', '')}": tensor.numpy() for name, tensor in tensors.items()}
    params = read(table, named, body_shapes(config, VOCAB, predicts=False), "DebertaV2Model")["body"]
    return build_body(model_shape(config.model, VOCAB)), params


# Few buckets; so many that all distances of the row are their own; and a row with distances of every bucket.
@pytest.mark.parametrize(("buckets", "length"), [(4, 14), (256, 14), (256, 600), (32, 600)])
def test_states_and_gradients(buckets, length):
    theirs, rng = of_transformers(buckets), np.random.default_rng(1)
    lengths = np.array([length, length * 2 // 3])
    inside = np.arange(length) < lengths[:, None]
    view = {"tokens": np.where(inside, rng.integers(5, VOCAB, (2, length)), 0)}
    view |= {"segments": np.where(inside, rng.integers(0, 2, (2, length)), 0), "documents": inside}
    view = {name: array.astype(np.int32) for name, array in view.items()}
    view["positions"] = np.tile(np.arange(length, dtype=np.int32), (2, 1))
    weights = (rng.normal(size=(2, length, WIDTH)) * inside[..., None] / inside.sum()).astype(np.float32)

    names = (("input_ids", "tokens"), ("token_type_ids", "segments"), ("attention_mask", "documents"))
    given = {name: torch.tensor(view[ours], dtype=torch.long) for name, ours in names}
    states = theirs(**given, output_hidden_states=True).hidden_states
    (states[-1] * torch.tensor(weights)).sum().backward()
    body, params = ours_of({name: parameter.detach() for name, parameter in theirs.named_parameters()}, buckets)
    _, expected = ours_of({name: parameter.grad for name, parameter in theirs.named_parameters()}, buckets)

    def loss(params):
        encoded, _ = body.apply({"params": params}, view, True, {}, method="encode")
        return jnp.sum(encoded.both[-1] * weights), encoded.both

    found, layers = quick_jit(jax.grad(loss, has_aux=True))(params)
    for layer, state in zip(layers, states, strict=True):
        np.testing.assert_allclose(np.asarray(layer)[inside], state.detach().numpy()[inside], rtol=0, atol=1e-5)
    for (name, mine), right in zip(flatten_tree(found).items(), flatten_tree(expected).values(), strict=True):
        assert np.abs(right).max() > 0, name
        np.testing.assert_allclose(mine, right, rtol=0, atol=1e-4 * np.abs(right).max(), err_msg=name)


def test_rows_of_the_table_at_every_number_of_buckets():
    place = torch.zeros(1, 700, 1)
    behind = np.arange(700)[:, None] - np.arange(700)
    build = transformers.models.deberta_v2.modeling_deberta_v2.build_relative_position
    for buckets in (2, 3, 5, 31, 32, 100, 256, 512):
        theirs = build(place, place, buckets, FARTHEST)[0].numpy()
        np.testing.assert_array_equal(log_buckets(700, buckets)[behind + 699], np.clip(theirs + buckets, 0, 2 * buckets - 1))
