"""Pretrain a model from a config; the same command resumes.

bertlab train --config=experiments/pretrain/bert.py:size=tiny --workdir=runs/bert
"""

from bertlab.config import load_config


def add_arguments(parser):
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:key=value,key=value")
    parser.add_argument("--workdir", required=True, help="the run's directory")


def run(arguments, overrides):
    """Trains to the end, and scores what `config.evaluate` names."""
    config = load_config(arguments.config, argv=overrides)

    # JAX is imported here, so that `bertlab train --help` is quick.
    from bertlab.evals.evaluate import evaluate_run
    from bertlab.train import loop
    from bertlab.train.build import build_pretraining
    from bertlab.train.processes import join_processes

    join_processes()
    result = loop.run(build_pretraining(config), arguments.workdir, at_end=evaluate_run)
    print(f"finished: {arguments.workdir} after {result['step']} steps")
