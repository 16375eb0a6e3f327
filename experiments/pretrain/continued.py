"""Continued pretraining: a trained model goes on with another objective, and reads in the direction
that it needs.

    bertlab train --config=experiments/pretrain/continued.py:run=runs/gpt,objectives=mlm \
        --workdir=runs/gpt_masked
    bertlab train --config=experiments/pretrain/continued.py:run=runs/bert,objectives=diffusion \
        --workdir=runs/bert_diffusion
    bertlab train \
        --config=experiments/pretrain/continued.py:run=runs/gpt,objectives=masked_next_token \
        --config.objectives.masked_next_token.causal_share=0 --config.lora.rank=16 \
        --workdir=runs/both

Parameters, shape and tokenizer are the run's, and so are text, format, rows, batch and optimiser
unless you set others; warm-up is a tenth of the steps. `run` may also be a directory that `bertlab
import` wrote; it has no text and no optimiser, so give `corpus=`, and set what differs from
bertlab's defaults. A left-to-right model that goes on with `mlm` or `masked_next_token` attends to
both sides from the first step. Examples are Gisserot-Boukhlef et al. 2025 (masked after causal; the
study `clm_then_mlm.py` has both in one run) and LLM2Vec (BehnamGhader et al. 2024, arXiv
2404.05961, the last command: a decoder learns to see both sides with masked next tokens and
low-rank
updates).
"""

from bertlab.config import base_config, parse_arguments
from bertlab.errors import UserError
from bertlab.train.recipes import train_on
from bertlab.train.run_directory import RunDirectory


def get_config(arguments=None):
    values = parse_arguments(
        arguments, run="", objectives="mlm", corpus="", steps=1000, mask_rate=0.0
    )
    if not values["run"]:
        raise UserError(
            "run= is missing; write continued.py:run=RUN,objectives=mlm with the directory of a"
            " trained model"
        )
    before = RunDirectory(values["run"]).config()
    if not (values["corpus"] or before.get("data", {}).get("corpus")):
        raise UserError(
            f"run={values['run']} names no text (an import, or a fine-tuning); add corpus="
        )
    config = base_config()
    config.init_from = values["run"]
    config.model.family, config.model.direction = (
        before["model"]["family"],
        before["model"]["direction"],
    )
    for group in ("data", "optimizer"):
        config[group].update(before.get(group, {}))
    config.optimizer.warmup_steps = None
    if values["corpus"]:
        config.data.unique_tokens = 0
    config.train.steps = values["steps"]
    train_on(
        config,
        values["corpus"] or before["data"]["corpus"],
        values["objectives"],
        values["mask_rate"],
    )
    return config
