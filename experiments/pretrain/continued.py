"""Continued pretraining: a trained model goes on with another objective and in its direction.

    bertlab train --config=experiments/pretrain/continued.py:run=runs/gpt,objectives=mlm \
        --workdir=runs/gpt_masked

Parameters, shape and tokenizer are the run's, and so are text, format, rows, batch and optimiser
unless you set others; warm-up is a tenth of the steps. `run` may also be a directory that `bertlab
import` wrote: give `corpus=`, and set what differs from bertlab's defaults. A left-to-right model
that goes on with `mlm` or `masked_next_token` attends to both sides from the first step
(`clm_then_mlm.py` has both stages in one run). LLM2Vec (BehnamGhader et al. 2024, arXiv 2404.05961)
is `--config.objectives.masked_next_token.causal_share=0 --config.lora.rank=16`.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.errors import UserError
from bertlab.train.recipes import train_on
from bertlab.train.run_directory import RunDirectory


def get_config(arguments=None):
    defaults = dict(run="", objectives="mlm", corpus="", steps=1000, mask_rate=0.0)
    values = parse_arguments(arguments, **defaults)
    if not values["run"]:
        raise UserError("run= is missing; write continued.py:run=RUN with a trained model's folder")
    before = RunDirectory(values["run"]).config()
    corpus = values["corpus"] or before.get("data", {}).get("corpus")
    if not corpus:
        raise UserError(f"run={values['run']} names no text; add corpus=")
    config = base_config()
    config.init_from = values["run"]
    config.model.update({key: before["model"][key] for key in ("family", "direction")})
    for group in ("data", "optimizer"):
        config[group].update(before.get(group, {}))
    config.optimizer.warmup_steps = None
    if values["corpus"]:
        config.data.unique_tokens = 0
    config.train.steps = values["steps"]
    train_on(config, corpus, values["objectives"], values["mask_rate"])
    return config
