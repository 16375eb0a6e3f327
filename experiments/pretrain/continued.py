"""Continued pretraining: a trained model goes on with another objective, and reads in the direction that it needs.

    bertlab train --config=experiments/pretrain/continued.py:run=runs/gpt,objectives=mlm --workdir=runs/gpt_masked
    bertlab train --config=experiments/pretrain/continued.py:run=runs/bert,objectives=diffusion --workdir=runs/bert_diffusion
    bertlab train --config=experiments/pretrain/continued.py:run=runs/gpt,objectives=masked_next_token --workdir=runs/both \
      --config.objectives.masked_next_token.causal_share=0 --config.lora.rank=16

Parameters, shape and tokenizer are the run's, and so are text, format, rows, batch and optimiser unless you set others; warm-up
is a tenth of the steps. `run` may also be a directory that `bertlab import` wrote; it has no text and no optimiser, so give
`corpus=`, and set what differs from bertlab's defaults. A left-to-right model that goes on with `mlm` or `masked_next_token`
attends to both sides from the first step. Examples are Gisserot-Boukhlef et al. 2025 (masked
after causal; the study `clm_then_mlm.py` has both in one run) and LLM2Vec (BehnamGhader et al. 2024, arXiv 2404.05961, the last
command: a decoder learns to see both sides with masked next tokens and low-rank updates).
"""

from pathlib import Path

from bertlab.config import base_config, is_finetuning, parse_arguments, train_on
from bertlab.errors import UserError
from bertlab.run import Run


def get_config(arguments=None):
    values = parse_arguments(arguments, run="", objectives="mlm", corpus="", steps=1000, mask_rate=0.0)
    if not values["run"]:
        raise UserError("run= is missing; write continued.py:run=RUN,objectives=mlm with the directory of a trained model")
    run, config = Run(Path(values["run"]).expanduser()), base_config()
    before = run.model_config()
    if is_finetuning(before):
        raise UserError(f"run={values['run']} is a fine-tuning and has no pretraining objective; give its pretraining run")
    if run.imported.exists() and not values["corpus"]:
        raise UserError(f"run={values['run']} is an import, which has no text; add corpus=")
    config.init_from = values["run"]
    config.model.family, config.model.direction = before["model"]["family"], before["model"]["direction"]
    for group in ("data", "optimizer"):
        config[group].update(before[group])
    config.optimizer.warmup_steps = None
    if values["corpus"]:
        config.data.unique_tokens = 0
    config.train.steps = values["steps"]
    train_on(config, values["corpus"] or before["data"]["corpus"], values["objectives"], values["mask_rate"])
    return config
