"""Benchmarks: fixed seeds, a JSON result, and the reference beside it."""
