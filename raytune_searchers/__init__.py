"""Ray Tune searchers with a privacy guarantee: planned, none exists yet."""
