"""Imports of the first BERT's and GPT's own checkpoints.

    bertlab import --from=bertlab.contrib.checkpoints:google uncased_L-12_H-768_A-12 \
      --workdir=runs/bert
    bertlab import --from=bertlab.contrib.checkpoints:openai finetune-transformer-lm/model \
      --workdir=runs/gpt

`google` reads a directory of google-research/bert: bert_config.json, vocab.txt and one checkpoint,
by TensorFlow, which must be installed. `openai` reads model/ of openai/finetune-transformer-lm:
params_0.npy to params_9.npy are parts of one flat array, params_shapes.json lists the shapes of the
arrays in it, and the vocabulary is encoder_bpe_40000.json with vocab_40000.bpe.

Both give the arrays the names that transformers uses, and continue as its import does.
Checked: the same parameters as transformers' tensors by its conversion scripts' rules
(tests/contrib/test_checkpoints.py); the published files themselves: not verified.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tokenizers

from bertlab.contrib.roberta_gpt1 import GPT1
from bertlab.data.tokenizers import load_tokenizer
from bertlab.data.tokenizers.base import ROLES, Tokenizer, find_specials
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.interop.base import Model, only_file
from bertlab.interop.huggingface import assemble
from bertlab.interop.kinds import BERT

NOT_WEIGHTS = re.compile(r".*/adam_[mv]|global_step")
"""The optimiser's slots, two thirds of a pretraining checkpoint."""

HEAD_WIDTH = 64
LAYER = (
    *("attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b", "ln_1/g", "ln_1/b"),
    *("mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b", "ln_2/g", "ln_2/b"),
)
"""OpenAI's arrays of a layer, in their order."""


def google(source: Path) -> Model:
    """A directory of Google's."""
    index = only_file(source, "*.ckpt*.index")
    import tensorflow  # not a dependency of bertlab

    reader = tensorflow.train.load_checkpoint(str(index.with_suffix("")))
    names = [name for name in reader.get_variable_to_shape_map() if not NOT_WEIGHTS.fullmatch(name)]
    return from_variables({name: reader.get_tensor(name) for name in names}, source)


def from_variables(variables: Mapping[str, np.ndarray], source: Path) -> Model:
    """A model from Google's variables by name, and the files next to them."""
    settings = read_json(source / "bert_config.json") | {"layer_norm_eps": 1e-12}
    # modeling.py's gelu is the tanh approximation.
    if settings.get("hidden_act") == "gelu":
        settings["hidden_act"] = "gelu_new"
    tensors = dict(
        transformers_name(name, array)
        for name, array in variables.items()
        if not NOT_WEIGHTS.fullmatch(name)
    )
    return assemble(BERT, settings, tensors, load_tokenizer(source / "vocab.txt"), source)


def transformers_name(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """The name and array that transformers' conversion gives one of Google's variables."""
    if name.endswith("/kernel"):
        name, array = name.removesuffix("kernel") + "weight", array.T
    elif name.endswith("_embeddings"):
        name += "/weight"
    name = re.sub("/gamma$", "/weight", name)
    name = re.sub("/beta$", "/bias", name)
    name = name.replace("output_weights", "weight").replace("output_bias", "bias")
    return name.replace("/", ".").replace("layer_", "layer."), array


def openai(source: Path) -> Model:
    """The directory model/ of OpenAI's first GPT; heads are 64 wide, as in train.py."""
    path = source / "params_shapes.json"
    shapes = [tuple(shape) for shape in read_json(path)]
    flat = np.concatenate([np.load(source / f"params_{n}.npy").reshape(-1) for n in range(10)])
    ends, layers = np.cumsum([math.prod(shape) for shape in shapes]), (len(shapes) - 2) // 12
    if ends[-1] != flat.size or len(shapes) != 2 + len(LAYER) * layers:
        raise UserError(
            f"{path} lists {len(shapes)} arrays of {ends[-1]:,} numbers, and params_*.npy hold"
            f" {flat.size:,}; expected two embeddings, and {len(LAYER)} arrays per layer"
        )
    arrays = [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes)]
    tensors = {"positions_embed.weight": arrays[0], "tokens_embed.weight": arrays[1]}
    for number, array in enumerate(arrays[2:]):
        layer, place = divmod(number, len(LAYER))
        name = re.sub("/(w|g)$", "/weight", LAYER[place])
        name = re.sub("/b$", "/bias", name).replace("/", ".")
        # Kernels are convolutions of width 1.
        tensors[f"h.{layer}.{name}"] = array[0] if LAYER[place].endswith("/w") else array
    (positions, width), (vocabulary, _) = shapes[:2]
    settings = {"architectures": ["OpenAIGPTLMHeadModel"]}
    settings |= {"n_positions": positions, "n_embd": width, "n_layer": layers}
    settings |= {"n_head": width // HEAD_WIDTH, "vocab_size": vocabulary, "afn": "gelu"}
    settings |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1)
    tensors = {f"transformer.{name}": array for name, array in tensors.items()}
    return assemble(GPT1, settings, tensors, openai_tokenizer(source), source)


def openai_tokenizer(source: Path) -> Tokenizer:
    """Byte pairs with </w> at words' ends, of lower-cased text, as transformers' fast tokenizer."""
    ids = json.loads((source / "encoder_bpe_40000.json").read_text("utf-8"))
    lines = (source / "vocab_40000.bpe").read_text("utf-8").splitlines()[1:]
    merges = [tuple(line.split()) for line in lines if line.strip()]
    model = tokenizers.models.BPE(ids, merges, unk_token="<unk>", end_of_word_suffix="</w>")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.BPEDecoder(suffix="</w>")
    names = dict.fromkeys(ROLES) | {"unk": "<unk>"}
    return JsonTokenizer(backend.to_str(), find_specials(ids, names, source))
