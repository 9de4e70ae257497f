"""Optuna samplers with a privacy guarantee."""

from optuna_samplers._local import ldp_objective
from optuna_samplers.dp_gibo import DPGIBOSampler
from optuna_samplers.ldp_gp_ucb import (
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
)

__all__ = [
    "DPGIBOSampler",
    "LDPATAGPUCBSampler",
    "LDPGPUCBSampler",
    "LDPMoMAGPUCBSampler",
    "LDPTGPUCBSampler",
    "ldp_objective",
]
