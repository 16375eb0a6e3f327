"""Tiny models with random parameters and a tokenizer of letters."""

import functools

import numpy as np
from ml_collections import ConfigDict

from bertlab.config.defaults import base_config
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.evals.code_length import Scorer
from bertlab.models.presets import FAMILIES, build_body, model_shape
from bertlab.objectives.autoregressive import LeftToRight, PrefixLanguageModel, RightToLeft
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.program import Program
from bertlab.transfer.load import Pretrained
from tests.references import random_params

IDS = {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4}
PIECES = [*"[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g ##a ##b ##c ##d".split()]
TOKENIZER = WordPieceTokenizer(PIECES, False)
EMPTY = {name: np.zeros((2, 6), np.int32) for name in ("tokens", "segments", "positions")}
EMPTY |= {"documents": np.ones((2, 6), np.int32), "pair_label": np.zeros(2, np.int32)}
EMPTY |= {"contexts": np.zeros((2, 6), np.int32), "counts": np.ones((2, 6), np.float32)}
EMPTY |= {"example_id": np.zeros((2, 2), np.int32), "visit": np.zeros(2, np.int32)}

MODELS = {
    "ltr": ("gpt", {"ltr": LeftToRight()}),
    "awd_lstm": ("awd_lstm", {"ltr": LeftToRight()}),
    "rtl": ("bert", {"rtl": RightToLeft()}),
    "bilm": ("elmo", {"ltr": LeftToRight(negatives=3), "rtl": RightToLeft()}),
    "mlm": ("bert", {"nsp": NextSentence(), "mlm": MaskedLanguageModel()}),
    "diffusion": ("bert", {"diffusion": MaskedDiffusion()}),
    "prefix": ("bert", {"prefix": PrefixLanguageModel()}),
    "masked_next_token": ("bert", {"masked_next_token": MaskedNextToken()}),
    "permutation": ("bert", {"permutation": PermutationLanguageModel()}),
    "unordered": ("bert", {"permutation": PermutationLanguageModel(context_in_order=False)}),
    "electra": ("bert", {"electra": ReplacedTokenDetection(generator_size=1.0)}),
}
DIRECTIONS = {"ltr": "left-to-right", "awd_lstm": "left-to-right", "rtl": "right-to-left"}


def model_of(family: str, objectives: dict, size: int = len(PIECES), **model) -> Pretrained:
    """A model of width 8 with one layer; `size` is of its vocabulary, `model` other settings."""
    config = base_config()
    sizes = FAMILIES[family].sizes
    config.model.update({"family": family, "size": next(iter(sizes))})
    tiny = {"width": 8, "layers": 1, "heads": 2, "hidden": 12}
    config.model.update({k: v for k, v in tiny.items() if k in sizes[config.model.size]})
    config.model.update(model)
    config.objectives = ConfigDict({name: {"weight": 1.0} for name in objectives})
    body = build_body(model_shape(config.model, size))
    vocabulary = Vocabulary(size, **IDS, counts=tuple(range(1, size + 1)))
    program = Program(body, objectives, vocabulary)
    params = random_params(program, EMPTY)
    return Pretrained(config, params, TOKENIZER, program)


@functools.cache
def shared_scorer(name: str) -> Scorer:
    """Of a model of MODELS, compiled once for all tests."""
    family, objectives = MODELS[name]
    direction = {"direction": DIRECTIONS[name]} if name in DIRECTIONS else {}
    return Scorer(model_of(family, objectives, **direction))
