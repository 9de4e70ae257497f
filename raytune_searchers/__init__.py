"""Ray Tune searchers with a privacy guarantee.

The searchers mirror :mod:`optuna_samplers` name by name; none has been released yet.
"""
