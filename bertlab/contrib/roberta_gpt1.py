"""Imports and exports RoBERTa and GPT-1 as transformers has them.

    bertlab import --from=bertlab.contrib.roberta_gpt1:load roberta-base/ --workdir=runs/roberta
    bertlab export runs/more --to=bertlab.contrib.roberta_gpt1:save exported/more

Parity with transformers is checked nightly (tests/parity). Exported by `--to=huggingface`, such
models get bertlab's own modelling file instead.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertlab.interop import huggingface
from bertlab.interop.base import Model
from bertlab.interop.kinds import BERT, GPT2, KINDS
from bertlab.interop.layers import bert_table, gpt_table
from bertlab.interop.tensors import Entry


def load(source: Path) -> Model:
    """Reads a directory."""
    return huggingface.load(source, ALL)


def save(model: Model, directory: Path) -> None:
    """Writes a directory, of the first kind that computes the model exactly."""
    huggingface.save(model, directory, ALL)


def _roberta_table(heads: int) -> list[Entry]:
    return bert_table("roberta", "lm_head", "dense", "layer_norm", heads)


def _read_roberta(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Positions count from the id of padding + 1."""
    offset = settings.get("pad_token_id", 1) + 1
    return {
        "position_offset": offset,
        "max_positions": settings["max_position_embeddings"] - offset,
    }


ROBERTA = dataclasses.replace(
    BERT,
    table=_roberta_table,
    prefix="roberta.",
    tied=("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    activations={"gelu": "gelu_erf"},  # the head always has it
    architectures={(True, False): "RobertaForMaskedLM", (False, False): "RobertaModel"},
    buffers=r"roberta\.embeddings\.(position_ids|token_type_ids)",
    read_more=_read_roberta,
    write_more=lambda shape: {
        "max_position_embeddings": shape.max_positions + shape.position_offset
    },
)


def _gpt1_table(heads: int) -> list[Entry]:
    return gpt_table("tokens_embed", "positions_embed", heads)


GPT1 = dataclasses.replace(
    GPT2,
    table=_gpt1_table,
    keys=GPT2.keys | {"activation": "afn"},
    tied=("transformer.tokens_embed.weight", "lm_head.weight"),
    fixed=GPT2.fixed | dict(norm_placement="post", final_norm=False),
    # modeling_openai.py's "gelu" is the tanh approximation.
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu"},
    defaults=dict(afn="gelu", layer_norm_epsilon=1e-5, initializer_range=0.02),
    only=dict(tie_word_embeddings=True),
    architectures={(True, False): "OpenAIGPTLMHeadModel", (False, False): "OpenAIGPTModel"},
    buffers=r"transformer\.(h\.\d+\.attn\.bias|position_ids)",
    read_more=lambda settings: {"hidden": 4 * settings["n_embd"]},
    write_more=lambda shape: {},
)

ALL = {"roberta": ROBERTA, "openai-gpt": GPT1, **KINDS}
