"""Look for what may make a study's or a run's numbers mislead.

bertlab doctor runs/table5
"""


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("directory", help="of a sweep, of a run, or of a published study")


def run(arguments, overrides):
    """Prints a line a finding."""
    from bertlab.studies.doctor import examine
    from bertlab.studies.records import read

    findings = examine(read(arguments.directory))
    for check, text in findings:
        print(f"{check}: {text}")
    if not findings:
        print("nothing found")
