"""Benchmarks: fixed seeds, a JSON result and a picture each, the reference in the same run."""
