"""Prints the benchmark's table for README.md in this folder, from the files of `bertlab bench --out`.

python experiments/speed/table.py [FILE.json ...]
"""

import sys
from pathlib import Path

from bertlab.bench.table import markdown
from bertlab.files import read_json

if __name__ == "__main__":
    results = Path(__file__).parent / "results"
    files = [Path(name) for name in sys.argv[1:]] or [results / "steps.json", results / "wholes.json"]
    print(markdown([workload for file in files for workload in read_json(file)["workloads"]]))
