"""Tests of the Ray Tune searchers, on a real Ray."""
