"""Optuna samplers with a privacy guarantee."""

from optuna_samplers._federated import run_federated
from optuna_samplers._local import ldp_objective
from optuna_samplers.dp_fts_de import DPFTSDESampler
from optuna_samplers.dp_gibo import DPGIBOSampler
from optuna_samplers.duets import DUETSSampler
from optuna_samplers.ldp_gp_ucb import (
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
)
from optuna_samplers.po_gp_ucb import POGPUCBSampler, answer_trials
from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.federation import FederatedServer

__all__ = [
    "DPFTSDESampler",
    "DPGIBOSampler",
    "DUETSSampler",
    "FederatedServer",
    "FederationConfig",
    "LDPATAGPUCBSampler",
    "LDPGPUCBSampler",
    "LDPMoMAGPUCBSampler",
    "LDPTGPUCBSampler",
    "POGPUCBSampler",
    "answer_trials",
    "ldp_objective",
    "run_federated",
]
