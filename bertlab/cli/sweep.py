"""Run a study: every run that is not finished, several at a time; the same command resumes.

bertlab sweep --study=experiments/ablations/objectives.py --workdir=runs/objectives --jobs=2
"""

import ast


def add_arguments(parser):
    parser.add_argument("--study", required=True, help="FILE.py or FILE.py:key=value,key=value")
    parser.add_argument("--workdir", required=True, help="the study's directory")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--launcher", default="local", choices=("local", "slurm", "ray"))
    parser.add_argument(
        "--launcher_options",
        default="",
        help="NAME=VALUE,NAME=VALUE: options of submitit's jobs (slurm) or of ray.remote",
    )
    parser.add_argument("--dry_run", action="store_true", help="check it, print its runs and cost")


def run(arguments, overrides):
    """Runs or prints the study; exit status 1 if a run failed."""
    import jax

    from bertlab.config.load import parse_pairs
    from bertlab.errors import UserError
    from bertlab.studies.study import load_study

    if overrides:
        raise UserError(f"{overrides[0]}: a study has no --config; set it in its file")
    jax.config.update("jax_platforms", "cpu")  # in this process: GPUs are for the runs
    study = load_study(arguments.study)
    if arguments.dry_run:
        from bertlab.studies.plan import dry_run

        dry_run(study, arguments.workdir)
        return
    from bertlab.studies.launchers import build_launcher
    from bertlab.studies.sweep import sweep

    pairs = parse_pairs(arguments.launcher_options)
    options = {name: literal(value) for name, value in pairs.items()}
    launcher = build_launcher(arguments.launcher, arguments.jobs, options)
    if not sweep(study, arguments.workdir, launcher):
        raise SystemExit(1)


def literal(text: str):
    """A number or list, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
