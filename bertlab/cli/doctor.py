"""Look for anything that may make the numbers of a study or a run misleading.

bertlab doctor runs/table5
"""


def add_arguments(parser):
    parser.add_argument("directory", help="a sweep, a run or a published study")


def run(arguments, overrides):
    """Prints one line per finding."""
    from bertlab.studies.doctor import examine
    from bertlab.studies.records import read

    findings = examine(read(arguments.directory))
    for check, text in findings:
        print(f"{check}: {text}")
    if not findings:
        print("nothing found")
