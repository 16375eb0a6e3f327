"""One side of a workload in a process of its own: does a round when it is told to, and says what came of it.

    python -m bertlab.bench.worker SIDE WORKLOAD [ROWS.npz]

SIDE is "ours", or "eager" or "compiled" for the rival, or "examples", which writes ROWS for the rival and ends. A line of
JSON says that it is ready; each line "N" on standard input is answered by a line about a round of N steps; the end of the
input by a last line.
"""

import json
import resource
import sys

from bertlab.bench.workloads import WORKLOADS


def main(side: str, name: str, rows: str = "") -> None:
    """Serves rounds until the input ends."""
    # Libraries print; the answers go where standard output was.
    answers, sys.stdout = sys.stdout, sys.stderr
    say = lambda value: print(json.dumps(value), file=answers, flush=True)
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    if side in ("ours", "examples"):
        from bertlab.bench import ours as of_side
    else:
        from bertlab.bench import rival as of_side
    if side == "examples":
        return say(of_side.write_examples(workload, rows))
    runner = of_side.Rows(workload) if workload.kind == "rows" else of_side.TrainingSteps(workload, rows, side)
    if workload.kind == "start":
        runner.round(1)
    say({**runner.facts, "ceiling": of_side.ceiling(workload.dtype) if workload.kind == "step" else 0.0})
    for line in sys.stdin:
        say(runner.round(int(line)))
    found = runner.close()
    found["peak_bytes"] = found["peak_bytes"] or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    say(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
