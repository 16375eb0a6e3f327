"""Entries of the layers that transformers have in common, and their tables.

Letters: D model width, H heads, K head width. A matrix is in x out; in torch's Linear, out x in.
"""

from collections.abc import Sequence

import numpy as np

from bertlab.interop.tensors import Entry, mapped, same

BLOCKS = "body/blocks"


def dense(theirs: str, ours: str, linear: bool = True) -> list[Entry]:
    """A dense layer [D, F]: torch's Linear, or GPT-2's Conv1D, which is in x out."""
    names = f"{theirs}.weight", f"{ours}/kernel"
    kernel = mapped(*names, np.transpose, np.transpose) if linear else same(*names)
    return [kernel, same(f"{theirs}.bias", f"{ours}/bias")]


def norm(theirs: str, ours: str) -> list[Entry]:
    """A layer norm."""
    return [same(f"{theirs}.weight", f"{ours}/scale"), same(f"{theirs}.bias", f"{ours}/bias")]


def attention(qkv: Sequence[str], out: str, heads: int, linear: bool = True) -> list[Entry]:
    """Query, key and value, here [D, 3, H, K], and the dense layer `out` after them, here
    [H, K, D]; `qkv` are three dense layers, or the one that has them side by side."""

    def turned(array):
        return array.T if linear else array

    def join(arrays):
        joined = np.concatenate([turned(array) for array in arrays], axis=-1)
        return [joined.reshape(*joined.shape[:-1], 3, heads, -1)]

    def split(arrays):
        joined = arrays[0].reshape(*arrays[0].shape[:-3], -1)
        return [turned(piece) for piece in np.split(joined, len(qkv), axis=-1)]

    ours = f"{BLOCKS}/attention"
    return [
        Entry(tuple(f"{name}.weight" for name in qkv), (f"{ours}/qkv_kernel",), join, split),
        Entry(tuple(f"{name}.bias" for name in qkv), (f"{ours}/qkv_bias",), join, split),
        mapped(
            f"{out}.weight",
            f"{ours}/out_kernel",
            lambda array: turned(array).reshape(heads, -1, turned(array).shape[1]),
            lambda array: turned(array.reshape(-1, array.shape[-1])),
        ),
        same(f"{out}.bias", f"{ours}/out_bias"),
    ]


def bert_table(body: str, head: str, transform: str, transform_norm: str, heads: int):
    """BERT's and RoBERTa's parameters, whose names differ in these arguments."""
    embeddings, layer = f"{body}.embeddings", f"{body}.encoder.layer.{{i}}"
    qkv = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
    return [
        same(f"{embeddings}.word_embeddings.weight", "body/token_embedding"),
        same(f"{embeddings}.position_embeddings.weight", "body/position_embedding"),
        same(f"{embeddings}.token_type_embeddings.weight", "body/segment_embedding"),
        *norm(f"{embeddings}.LayerNorm", "body/embedding_norm"),
        *attention(qkv, f"{layer}.attention.output.dense", heads),
        *norm(f"{layer}.attention.output.LayerNorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{layer}.intermediate.dense", f"{BLOCKS}/up"),
        *dense(f"{layer}.output.dense", f"{BLOCKS}/down"),
        *norm(f"{layer}.output.LayerNorm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{body}.pooler.dense", "body/pooler"),
        *dense(f"{head}.{transform}", "body/output/transform"),
        *norm(f"{head}.{transform_norm}", "body/output/transform_norm"),
        same(f"{head}.bias", "body/output/bias"),
    ]


def gpt_table(tokens: str, positions: str, heads: int) -> list[Entry]:
    """GPT's and GPT-2's parameters, whose names differ in the embeddings."""
    layer = "transformer.h.{i}"
    return [
        same(f"transformer.{tokens}.weight", "body/token_embedding"),
        same(f"transformer.{positions}.weight", "body/position_embedding"),
        *attention([f"{layer}.attn.c_attn"], f"{layer}.attn.c_proj", heads, linear=False),
        *norm(f"{layer}.ln_1", f"{BLOCKS}/attention_norm"),
        *dense(f"{layer}.mlp.c_fc", f"{BLOCKS}/up", linear=False),
        *dense(f"{layer}.mlp.c_proj", f"{BLOCKS}/down", linear=False),
        *norm(f"{layer}.ln_2", f"{BLOCKS}/feed_forward_norm"),
        *norm("transformer.ln_f", "body/final_norm"),
    ]


def modernbert_table(heads: int) -> list[Entry]:
    """ModernBERT's parameters; its Wi holds the activated layer, then the gate."""
    layer = "model.layers.{i}"
    wi = [
        Entry(
            (f"{layer}.mlp.Wi.{theirs}",),
            (f"{BLOCKS}/up/{ours}", f"{BLOCKS}/gate/{ours}"),
            lambda arrays: [array.T for array in np.split(arrays[0], 2)],
            lambda arrays: [np.concatenate([array.T for array in arrays])],
        )
        for theirs, ours in (("weight", "kernel"), ("bias", "bias"))
    ]
    return [
        same("model.embeddings.tok_embeddings.weight", "body/token_embedding"),
        *norm("model.embeddings.norm", "body/embedding_norm"),
        *norm(f"{layer}.attn_norm", f"{BLOCKS}/attention_norm"),
        *attention([f"{layer}.attn.Wqkv"], f"{layer}.attn.Wo", heads),
        *norm(f"{layer}.mlp_norm", f"{BLOCKS}/feed_forward_norm"),
        *wi,
        *dense(f"{layer}.mlp.Wo", f"{BLOCKS}/down"),
        *norm("model.final_norm", "body/final_norm"),
        *dense("head.dense", "body/output/transform"),
        *norm("head.norm", "body/output/transform_norm"),
        same("decoder.bias", "body/output/bias"),
    ]


def own_table(heads: int) -> list[Entry]:
    """Every parameter of a transformer, as modeling_bertlab.py names it."""
    layer = "model.blocks.{i}"
    entries = attention([f"{layer}.attention.qkv"], f"{layer}.attention.out", heads)
    for name in ("token_embedding", "position_embedding", "segment_embedding", "relative_bias"):
        entries.append(same(f"model.{name}.weight", f"body/{name}"))
    for name in ("attention_norm", "feed_forward_norm"):
        entries += norm(f"{layer}.{name}", f"{BLOCKS}/{name}")
    for name in ("up", "gate", "down"):
        entries += dense(f"{layer}.{name}", f"{BLOCKS}/{name}")
    for name in ("embedding_norm", "final_norm"):
        entries += norm(f"model.{name}", f"body/{name}")
    return [
        *entries,
        *dense("model.pooler", "body/pooler"),
        *dense("output.transform", "body/output/transform"),
        *norm("output.transform_norm", "body/output/transform_norm"),
        same("output.decoder.weight", "body/output/kernel"),
        same("output.decoder.bias", "body/output/bias"),
    ]
