"""The seven guarantees, a file each.

1. Every objective reads the same batches, at any number of processes and devices: test_batches.
2. No objective sees what it must predict: test_leaks; no loss is below its exact floor:
   tests/evals/test_floors.py.
3. A run that is stopped or killed ends bit for bit as one that is not: test_resume.
4. N devices train as one does, up to rounding: test_devices.
5. Models and weights equal the published implementations: tests/parity.
6. Scores equal the official scorers': tests/transfer/test_scorers.py.
7. Differences have intervals, and pages can be recomputed: tests/studies.
"""
