"""Pretrain a model from a config; the same command resumes.

bertlab train --config=experiments/pretrain/bert.py:size=tiny --workdir=runs/bert
"""

from bertlab.config.load import load_config


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:key=value,key=value")
    parser.add_argument("--workdir", required=True, help="the run's directory")


def run(arguments, overrides):
    """Trains to the end."""
    config = load_config(arguments.config, argv=overrides)

    # JAX is imported here, so that `bertlab --help` is quick.
    from bertlab.train import loop, processes
    from bertlab.train.build import build_pretraining

    processes.join_processes()
    result = loop.run(build_pretraining(config), arguments.workdir)
    print(f"finished: {arguments.workdir} after {result['step']} steps")
