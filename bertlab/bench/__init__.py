"""Benchmarks: named pieces of work, each done by bertlab and by a rival in turns, in processes of one tree."""
