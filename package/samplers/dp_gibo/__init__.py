"""DP-GIBO for OptunaHub: all of it is in :mod:`optuna_samplers`."""

from optuna_samplers import DPGIBOSampler

__all__ = ["DPGIBOSampler"]
