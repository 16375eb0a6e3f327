"""Write a study's report as HTML and Markdown, or publish the study in three files.

bertlab report runs/table5
bertlab report runs/table5 --publish=experiments/results/bert_table5_tiny
"""

from pathlib import Path


def add_arguments(parser):
    parser.add_argument("directory", help="a sweep, a run or a published study")
    parser.add_argument("--output", help="where report.html and report.md go (default: there)")
    parser.add_argument("--publish", help="folder for NAME.jsonl.zst, README.md and NAME.png")


def run(arguments, overrides):
    """Writes the files."""
    from bertlab.studies.records import read
    from bertlab.studies.report import publish, write_report

    results = read(arguments.directory)
    if arguments.publish:
        publish(results, Path(arguments.publish))
        print(f"published: {arguments.publish}")
    else:
        for path in write_report(results, Path(arguments.output or arguments.directory)):
            print(path)
