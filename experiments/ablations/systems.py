"""BERT, GPT, ELMo, ULMFiT and static vectors, each used as its paper uses it."""

from collections.abc import Callable, Mapping
from typing import Any

import ulmfit
from bertlab.studies.study import STAGES
from bertlab.transfer.recipes import RECIPES
from common import TEXTS, Claim, Setting, under

STATIC = ("skip_gram", "cbow", "glove")
UNIGRAM = {"data.tokenizer.kind": "unigram"}
SOURCE = "Devlin et al. 2019, tables 1 (GLUE, test) and 7 (CoNLL-2003, test)"
BESIDE = "SRL 84.6 and 81.4, with ELMo beside the task's word vectors and without"
PRETRAINING = "74.7 and 59.9, on average", "Radford et al. 2018, table 5"
TAGS = ("tagging",)
CLAIMS = (
    Claim("BERT", "GPT", "GLUE 79.6 and 75.1, on average", SOURCE, TEXTS),
    Claim("BERT", "ELMo", "GLUE 79.6 and 71.0, on average", SOURCE, TEXTS),
    Claim("GPT", "ELMo", "GLUE 75.1 and 71.0, on average", SOURCE, TEXTS),
    Claim("BERT", "ELMo", "NER 92.4 and 92.2", SOURCE, TAGS),
    Claim("ELMo", "static", BESIDE, "Peters et al. 2018, table 1", TAGS),
    Claim("GPT", "no pretraining (GPT)", *PRETRAINING, TEXTS),
    Claim("BERT", "no pretraining", PRETRAINING[0], f"{PRETRAINING[1]}, for GPT", TEXTS),
)
# Differences on the other kinds of task, and of systems that no paper compares.
CONTRASTS = [*dict.fromkeys((claim.higher, claim.lower) for claim in CLAIMS)]
CONTRASTS += [("ELMo", "no pretraining (ELMo)"), ("ULMFiT", "GPT"), ("ELMo", "ULMFiT")]

# Of the LSTM that GPT's paper compares its transformer with: V·W + 8·W² weights equal GPT's at the
# scale, V·D + 512·D + 12·D² per layer.
LSTM_WIDTHS = {"tiny": 200, "mini": 456, "small": 900, "base": 2246, "paper": 2048}
Systems = dict[str, dict[str, Any]]  # system -> its recipe ("config") and overrides


def as_used(
    setting: Setting,
    elmo_reads: str = "subwords",
    scales: Mapping[str, Mapping[str, Any]] | None = None,
) -> Systems:
    """Each system in the scale's own size, with its own optimiser and its paper's way to use it.
    The argument `static` is the objective of the static vectors; ELMo reads "subwords", as the
    others, or "characters", as published. `scales` has rows, pieces and steps by system (default:
    the setting's); the pieces are a unigram model's unless it has others."""
    transformer = {**setting.adam, **setting.transformer}
    own = setting.task_rates or setting.is_large
    rate = {} if own else {"finetune.optimizer.learning_rate": 5e-4}
    features = setting.finetuning("elmo")
    stages = {**ulmfit.adaptation(setting), **ulmfit.classifier(setting)}
    lstm = ulmfit.prose(setting)
    if setting.scale == "paper":
        groups = ("model.", "optimizer.")
        lstm |= {key: of for key, of in ulmfit.PAPER.items() if key.startswith(groups)}
    elmo = {"tokens": elmo_reads} if elmo_reads != "subwords" else {}
    bert = {**setting.finetuning("bert_paper" if setting.scale == "paper" else "bert"), **rate}
    # Long texts and documents have rows for BERT; the others keep their own.
    own_rows = _recipe_rows if setting.is_large else dict
    gpt = own_rows({**setting.finetuning("gpt"), **rate})
    pairs = {**transformer, "data.format": "segment_pair"}
    static = setting.recipe("static", objectives=setting.arguments["static"])
    found = {
        "BERT": (setting.recipe("bert", objectives="mlm+nsp"), {**pairs, **bert}),
        "GPT": (setting.recipe("gpt"), {**transformer, **gpt}),
        "ELMo": (setting.recipe("elmo", **elmo), {**setting.adam, **own_rows(features)}),
        "ULMFiT": (setting.recipe("awd_lstm"), {**lstm, **own_rows(stages)}),
        "static": (static, own_rows(features)),
    }
    scales = scales or dict.fromkeys(found, setting.pretraining)
    return {
        name: {"config": recipe, **UNIGRAM, **scales[name], **own}
        for name, (recipe, own) in found.items()
    }


def _recipe_rows(use: Mapping[str, Any]) -> dict[str, Any]:
    """A use, whose rows no task replaces."""
    recipe = RECIPES[use["finetune.recipe"]]
    rows = {"data.seq_len": recipe["data.seq_len"], "transfer.document_context": False}
    rows["data.buckets"] = list(recipe.get("data.buckets", ()))
    return {**under("finetune", rows), **use}


def gpt_lstm(setting: Setting) -> dict[str, Any]:
    """Overrides that replace GPT's transformer by one layer of AWD-LSTM without its regularisers
    (Radford et al. 2018, section 5)."""
    shape = under("model", family="awd_lstm", size="tiny", layers=1)
    return {**shape, "model.width": LSTM_WIDTHS[setting.scale], **ulmfit.NO_DROPOUT}


def gpt_finetuning(setting: Setting) -> dict[str, Any]:
    """Overrides of fine-tuning with recipe `gpt`; small models have a higher rate than the paper's
    6.25e-5."""
    rate = 6.25e-5 if setting.is_large else 5e-4
    return {**setting.finetuning("gpt"), "finetune.optimizer.learning_rate": rate}


def widths(family: str, setting: Setting) -> tuple[Callable[[int], Mapping[str, Any]], int]:
    """For `sized`: a width -> the keys that set it, and a width to begin with. GPT's feed-forward
    layers are widened, and an LSTM's states in the family's proportion."""
    numbers = setting.numbers(family)
    if family == "gpt":
        return lambda width: {"model.hidden": width}, numbers["width"]
    if family == "static":
        return lambda width: {"model.width": width}, 32
    ratio = numbers["hidden"] / numbers["width"]
    return lambda width: {"model.width": width, "model.hidden": round(ratio * width)}, 32


def static_and_contextual(setting: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
    """The labels of an axis of models that read the same rows of one text: static ones, and those
    with context."""
    transformer = {**setting.adam, **setting.transformer}
    names = zip(("skip-gram", "CBOW", "GloVe"), STATIC)
    static = {name: {"config": setting.recipe("static", objectives=of)} for name, of in names}
    return static, {
        "ELMo": {"config": setting.recipe("elmo"), **setting.adam},
        "GPT": {"config": setting.recipe("gpt"), **transformer},
        "BERT": {**setting.bert("mlm"), "data.format": "full_sentences", **transformer},
    }


def pretraining(system: Mapping[str, Any]) -> dict[str, Any]:
    """A system's recipe and overrides without those of its use."""
    return {key: value for key, value in system.items() if not key.startswith(STAGES)}


def with_random(found: Systems) -> Systems:
    """The systems, with BERT's, GPT's and ELMo's bodies without pretraining as the last."""
    for of in ("BERT", "GPT", "ELMo"):
        name = "no pretraining" + (f" ({of})" if of != "BERT" else "")
        found[name] = {key: value for key, value in found[of].items() if key != "train.tokens"}
        found[name]["train.steps"] = 0
    return found
