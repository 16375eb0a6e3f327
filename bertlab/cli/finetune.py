"""Fine-tune a pretrained run on a task: all of it, a part, or only the head.

bertlab finetune --run=runs/bert --task=sst2 --recipe=bert --config.task_data.directory=glue \\
    --workdir=runs/bert/finetune/sst2
"""


def add_arguments(parser):
    parser.add_argument("--run", required=True, help="a pretrained, imported or fine-tuned run")
    parser.add_argument("--task", required=True, help="a name or FILE.py; several joined by +")
    parser.add_argument("--recipe", default="small", help="a recipe of bertlab/transfer/recipes.py")
    parser.add_argument("--workdir", required=True, help="the new run's directory")


def run(arguments, overrides):
    """Trains to the end and prints the test scores."""
    from bertlab.train.processes import join_processes
    from bertlab.transfer.finetune import finetune

    join_processes()
    settings = settings_of(overrides)
    result = finetune(arguments.run, arguments.task, arguments.workdir, settings, arguments.recipe)
    scores = result["metrics"]["test"].items()
    shown = ", ".join(f"{name} {value:.4f}" for name, value in scores if value is not None)
    print(f"finished: {arguments.workdir}; test: {shown}")


def settings_of(overrides) -> dict[str, str]:
    """["--config.KEY=VALUE"] as {KEY: VALUE}."""
    pairs = (override.removeprefix("--config.").partition("=") for override in overrides)
    return {name: value for name, _, value in pairs}
