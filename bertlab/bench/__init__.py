"""Benchmarks: named workloads that bertlab and a rival run alternately, in processes of one tree."""
