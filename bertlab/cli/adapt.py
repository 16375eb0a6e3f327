"""Continue pretraining on a task's text, without its labels (ULMFiT's second stage).

bertlab adapt --run=runs/awd --task=trec --recipe=ulmfit --config.task_data.directory=trec \\
    --workdir=runs/awd/adapt/trec
"""


def add_arguments(parser):
    parser.add_argument("--run", required=True, help="a pretrained or imported run")
    parser.add_argument("--task", required=True, help="a name or FILE.py")
    parser.add_argument("--recipe", default="same", help="same, ulmfit or fitlam: the optimiser")
    parser.add_argument("--epochs", type=float, default=1.0, help="passes over the text")
    parser.add_argument("--workdir", required=True, help="the new run's directory")


def run(arguments, overrides):
    """Trains to the end."""
    from bertlab.cli.finetune import settings_of
    from bertlab.train.processes import join_processes
    from bertlab.transfer.finetune import adapt

    join_processes()
    settings, recipe = settings_of(overrides), arguments.recipe
    adapt(arguments.run, arguments.task, arguments.workdir, settings, recipe, arguments.epochs)
    print(f"finished: {arguments.workdir}")
