"""Checks every config of a study and prints its runs with their cost; nothing is trained."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.models.flops import flops_per_token
from bertlab.models.presets import model_shape
from bertlab.studies.equal import pretraining_cost
from bertlab.studies.plan import make_plan
from bertlab.studies.study import Study
from bertlab.transfer.build import is_fixed


def dry_run(study: Study, workdir: str | Path) -> dict[str, Any]:
    """Checks a study and prints its runs with their tokens and FLOPs.

    Returns:
        `runs`: those still to do; their `tokens` and `flops`.
    """
    plan, workdir = make_plan(study, Path(workdir)), Path(workdir)
    total, waiting, known = [0.0, 0.0], [], {}
    for run in [*plan.candidates, *plan.runs]:
        cost = [0.0, 0.0]
        for stage, config in plan.configs[run.name].items():
            if stage[0] in run.shares:
                continue
            if id(config) not in known:
                count = finetuning_cost if stage[0] == "finetune" else pretraining_cost
                known[id(config)] = count(config)
            cost = [spent + more for spent, more in zip(cost, known[id(config)])]
        state = "to do" if run.unfinished(workdir) else "finished"
        if state == "to do":
            waiting.append(run.name)
            total = [spent + more for spent, more in zip(total, cost)]
        source = run.shares.get("pretrain") or run.config
        print(f"{run.name}  ({state})  {cost[0]:.3g} tokens, {cost[1]:.3g} FLOPs; {source}")
    count, candidates = len(plan.candidates) + len(plan.runs), len(plan.candidates)
    print(
        f"{study.name}: {count} runs ({candidates} of them candidates for rates), then"
        f" {', '.join(study.tasks) or 'no task'}; {len(waiting)} to do: {total[0]:.3g} tokens,"
        f" {total[1]:.3g} FLOPs (rows counted as full); nothing was started"
    )
    return {"runs": waiting, "tokens": total[0], "flops": total[1]}


def finetuning_cost(config: ConfigDict) -> tuple[float, float]:
    """(tokens, model FLOPs) of a fine-tuning by its config; rows count as full."""
    tokens = float(config.train.steps * config.data.batch_size * config.data.seq_len)
    flops = flops_per_token(model_shape(config.model, vocab_size=1), config.data.seq_len)
    share = 0.0 if config.transfer.features else 1 / 3 if is_fixed(config) else 1.0
    return tokens, share * tokens * flops
