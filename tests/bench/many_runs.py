"""A study of many runs that nothing was trained for, to time what reads a whole study.

python -m tests.bench.many_runs DIR                                # 10,000 finished runs of 100 variants
bertlab sweep --study=tests/bench/many_runs.py --workdir=DIR --dry_run
bertlab report DIR

On a machine of two cores with other work, of 10,000 runs: the dry run 18.3 CPU seconds and 555 MiB, the report 34.8 s and
1,137 MiB (of 2,000 runs 18.0 s and 594 MiB).
"""

import json
import random
import sys
from pathlib import Path

from bertlab.config import load_config, parse_arguments
from bertlab.run import Run, StudyDirectory
from bertlab.studies.study import Study
from bertlab.studies.sweep import describe
from bertlab.studies.worker import write_job

STEPS, LINES = 1000, 10  # of a run, and of its log for each split


def get_study(arguments: str | None) -> Study:
    """`rates` masking rates by `learning_rates` by `seeds`."""
    given = parse_arguments(arguments, rates=10, learning_rates=10, seeds=100)
    return Study(
        name="many runs",
        title="Many runs",
        question="How long does it take to read a study?",
        config="experiments/pretrain/bert.py:size=tiny,objectives=mlm,corpus=pydocs",
        axes={
            "objectives.mlm.rate": [round(0.05 * (i + 1), 2) for i in range(given["rates"])],
            "optimizer.learning_rate": [1e-4 * (i + 1) for i in range(given["learning_rates"])],
            "seed": list(range(given["seeds"])),
        },
        overrides={"train.steps": STEPS},
        downstream=["package"],
    )


def write(directory: Path, study: Study) -> None:
    """Writes what finished runs of the study leave, but for checkpoints."""
    runs, configs = study.runs(), {}
    StudyDirectory(directory).study.write(describe(study, runs))
    for run in runs:
        rng = random.Random(run.name)
        rates = (run.overrides["objectives.mlm.rate"], run.overrides["optimizer.learning_rate"])
        if rates not in configs:
            configs[rates] = json.loads(json.dumps(load_config(run.config, dict(run.overrides)).to_dict()))
        of = Run(directory / run.name)
        write_job(run, of.directory)
        seeds = {"seed": run.overrides["seed"], "data": {**configs[rates]["data"], "seed": run.overrides["data.seed"]}}
        of.config.path.write_text(json.dumps({**configs[rates], **seeds}))  # on one line: it is the largest of the files
        of.environment.write({"devices": ["cpu"], "commit": "3f2a9c1d", "versions": {"python": "3.11.9", "jax": "0.10.2"}})
        costs = lambda step: {"tokens": 832 * step, "supervised": 125 * step, "flops": 1e9 * step, "seconds": 0.05 * step}
        lines = []
        for step in range(STEPS // LINES, STEPS + 1, STEPS // LINES):
            losses = {"loss": 9 - step / STEPS, "mlm/loss": 9 - step / STEPS + rng.gauss(0, 0.1)}
            lines.append(
                {"step": step, "split": "train", **losses, **costs(step), "data_hash": f"{seeds['seed']:08x}{step:08x}"}
            )
            lines.append({"step": step, "split": "valid", **losses, **costs(step)})
        of.metrics.path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        result = {"step": STEPS, "parameters": 4_386_178, **costs(STEPS), "data_hash": lines[-2]["data_hash"]}
        of.result.write({**result, "metrics": {"valid": losses, "test": losses}})
        of.measured.write({})
        score = 0.7 + rates[0] / 10 + rng.gauss(0, 0.01)
        scores = {"loss": 0.9, "package/loss": 0.9, "package/accuracy": score}
        of.stage("finetune", "package").result.write(
            {"flops": 1.0, "seconds": 20.0, "metrics": {"valid": scores, "test": scores}}
        )


if __name__ == "__main__":
    write(Path(sys.argv[1]), get_study(sys.argv[2] if len(sys.argv) > 2 else None))
