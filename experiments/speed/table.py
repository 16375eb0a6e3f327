"""Prints the benchmark's tables for README.md in this folder, from the files of `bertlab bench --out`.

python experiments/speed/table.py [FILE.json ...]
"""

import sys
from pathlib import Path

from bertlab.bench.table import device_tables, markdown
from bertlab.files import read_json

if __name__ == "__main__":
    results = Path(__file__).parent / "results"
    files = [Path(name) for name in sys.argv[1:]] or [results / "steps.json", results / "wholes.json"]
    found = [read_json(file) for file in files]
    for file in (file for file in found if "device" in file):
        print(device_tables(file))
    if of_cpu := [workload for file in found if "device" not in file for workload in file["workloads"]]:
        print(markdown(of_cpu))
