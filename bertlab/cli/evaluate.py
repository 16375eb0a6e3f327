"""Score text, minimal pairs or word vectors with a trained model: what config.evaluate names.

bertlab evaluate --run=runs/bert --config.evaluate.minimal_pairs=blimp.jsonl
bertlab evaluate --run=runs/bert --config.evaluate.bytes=1_000_000
bertlab keys evaluate

In parentheses are 95 % intervals over what was scored (whole documents with evaluate.bytes).
"""

from bertlab.errors import UserError


def add_arguments(parser):
    parser.add_argument("--run", required=True, help="directory of a run or an import")
    parser.add_argument("--step", type=int, help="the checkpoint's step (default: the last one)")


def run(arguments, overrides):
    """Measures, prints and writes to RUN/evaluation.json."""
    from bertlab.cli.finetune import settings_of
    from bertlab.evals.evaluate import evaluate_run
    from bertlab.transfer.finetune import override
    from bertlab.transfer.load import run_config

    config = run_config(arguments.run)
    settings = settings_of(overrides)
    if other := [name for name in settings if not name.startswith("evaluate.")]:
        raise UserError(f"config.{other[0]}: bertlab evaluate only takes keys of config.evaluate")
    override(config, settings)
    found = evaluate_run(arguments.run, config.evaluate, arguments.step)
    if not found:
        raise UserError(
            f"{arguments.run} has no held-out text, or predicts no tokens; name a file by"
            " config.evaluate.text, minimal_pairs, words or analogies"
        )
    for text, metrics in found.items():
        print(text)
        for name, value in metrics.items():
            if value is None or name == "by_document" or name.startswith("standard_error/"):
                continue
            interval, error = "", metrics.get(f"standard_error/{name}")
            if error is not None:
                interval = f"  ({value - 1.96 * error:.4g} to {value + 1.96 * error:.4g})"
            print(f"  {name:48} {value:.5g}{interval}")
