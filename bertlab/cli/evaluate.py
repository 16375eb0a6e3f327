"""Score text, minimal pairs or word vectors with a trained model: what config.evaluate names.

bertlab evaluate --run=runs/bert --config.evaluate.minimal_pairs=blimp.jsonl
bertlab keys evaluate
"""

from absl import flags
from ml_collections import config_flags

from bertlab.errors import UserError


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("--run", required=True, help="directory of a run or an import")
    parser.add_argument("--step", type=int, help="of a checkpoint (default: the last one)")


def run(arguments, overrides):
    """Measures, prints and adds to RUN/evaluation.json."""
    from bertlab.evals.evaluate import evaluate_run
    from bertlab.transfer.load import run_config

    config = overridden(run_config(arguments.run), overrides)
    found = evaluate_run(arguments.run, config.evaluate, arguments.step)
    if not found:
        raise UserError(
            f"{arguments.run} has no held-out text, or predicts no tokens; name a file by"
            " config.evaluate.text, minimal_pairs, words or analogies"
        )
    for text, metrics in found.items():
        print(text)
        for name, value in metrics.items():
            if value is not None:
                print(f"  {name:48} {value:.5g}")


def overridden(config, overrides):
    """The config with `--config.evaluate.KEY=VALUE` applied."""
    for override in overrides:
        if not override.startswith("--config.evaluate."):
            raise UserError(f"{override}: bertlab evaluate only takes keys of config.evaluate")
    values, command = flags.FlagValues(), ["bertlab", *overrides]
    config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=command)
    try:
        values(command)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(" ".join(str(error).split())) from None
    return values["config"].value
