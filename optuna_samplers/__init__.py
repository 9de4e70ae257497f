"""Optuna samplers with a privacy guarantee."""

from optuna_samplers.dp_gibo import DPGIBOSampler

__all__ = ["DPGIBOSampler"]
