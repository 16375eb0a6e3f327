"""The modern switches (rotary positions, gated feed-forward, pre-norm, no biases, local-global attention) beside ModernBERT's.

transformers' ModernBERT has LayerNorm and none before its first attention; the test sets ours to LayerNorm and puts one there.
"""

import jax
import numpy as np
import torch
import transformers

from bertlab.config import base_config
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from tests.interop.published import batch
from tests.references import VOCABULARY, random_params

LAYERS, WIDTH, HEADS, HIDDEN, WINDOW = 4, 16, 2, 24, 6


def our_program() -> Program:
    config = base_config()
    config.model.update(family="modern", size="tiny", norm="layer_norm", local_window=WINDOW, global_every=3)
    config.model.update(layers=LAYERS, width=WIDTH, heads=HEADS, hidden=HIDDEN)
    return Program(build_body(model_shape(config.model, VOCABULARY.size)), {}, VOCABULARY)


def their_model(params) -> torch.nn.Module:
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY.size, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, local_attention=WINDOW, global_attn_every_n_layers=3,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ModernBertModel(config).eval()
    model.layers[0].attn_norm = torch.nn.LayerNorm(WIDTH, eps=config.norm_eps, bias=False)
    body, blocks = params["body"], params["body"]["blocks"]
    tensors = {
        "embeddings.tok_embeddings.weight": body["token_embedding"],
        "embeddings.norm.weight": body["embedding_norm"]["scale"],
        "final_norm.weight": body["final_norm"]["scale"],
    }
    for i in range(LAYERS):
        up, gate = blocks["up"]["kernel"][i], blocks["gate"]["kernel"][i]
        tensors |= {
            f"layers.{i}.attn_norm.weight": blocks["attention_norm"]["scale"][i],
            f"layers.{i}.attn.Wqkv.weight": blocks["attention"]["qkv_kernel"][i].reshape(WIDTH, 3 * WIDTH).T,
            f"layers.{i}.attn.Wo.weight": blocks["attention"]["out_kernel"][i].reshape(WIDTH, WIDTH).T,
            f"layers.{i}.mlp_norm.weight": blocks["feed_forward_norm"]["scale"][i],
            f"layers.{i}.mlp.Wi.weight": np.concatenate([up, gate], 1).T,
            f"layers.{i}.mlp.Wo.weight": blocks["down"]["kernel"][i].T,
        }
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(array)) for name, array in tensors.items()})
    return model


def their_layers(model, view) -> np.ndarray:
    """[n + 1, B, L, D] of rows of one document."""
    with torch.no_grad():
        out = model(torch.tensor(view["tokens"]), attention_mask=torch.tensor(view["documents"] > 0), output_hidden_states=True)
    return np.stack([*[state.numpy() for state in out.hidden_states[:-1]], out.last_hidden_state.numpy()])


def test_every_layer():
    program, view = our_program(), {name: field[:2] for name, field in batch().items()}
    params = random_params(program, view, scale=0.3)
    ours = np.stack(jax.jit(program.encode)(params, view).both)
    real = view["documents"] > 0
    # Float32 sums over four layers in another order.
    np.testing.assert_allclose(ours[:, real], their_layers(their_model(params), view)[:, real], rtol=0, atol=1e-5)
