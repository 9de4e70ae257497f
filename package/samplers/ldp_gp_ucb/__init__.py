"""The LDP GP-UCB family for OptunaHub: all of it is in :mod:`optuna_samplers`."""

from optuna_samplers import LDPATAGPUCBSampler, LDPGPUCBSampler, LDPTGPUCBSampler

__all__ = ["LDPATAGPUCBSampler", "LDPGPUCBSampler", "LDPTGPUCBSampler"]
