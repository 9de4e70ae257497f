"""Optuna samplers with a privacy guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from optuna_samplers._base import PrivateSampler as PrivateSampler
    from optuna_samplers._federated import run_federated as run_federated
    from optuna_samplers._local import ldp_objective as ldp_objective
    from optuna_samplers._means import private_objective as private_objective
    from optuna_samplers.dp_fts_de import DPFTSDESampler as DPFTSDESampler
    from optuna_samplers.dp_gibo import DPGIBOSampler as DPGIBOSampler
    from optuna_samplers.duets import DUETSSampler as DUETSSampler
    from optuna_samplers.ldp_gp_ucb import LDPATAGPUCBSampler as LDPATAGPUCBSampler
    from optuna_samplers.ldp_gp_ucb import LDPGPUCBSampler as LDPGPUCBSampler
    from optuna_samplers.ldp_gp_ucb import LDPMoMAGPUCBSampler as LDPMoMAGPUCBSampler
    from optuna_samplers.ldp_gp_ucb import LDPTGPUCBSampler as LDPTGPUCBSampler
    from optuna_samplers.po_gp_ucb import POGPUCBSampler as POGPUCBSampler
    from optuna_samplers.po_gp_ucb import answer_trials as answer_trials
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig as FederationConfig
    from privbo_plugins.sessions.server import FederatedServer as FederatedServer
else:
    __getattr__, __dir__, __all__ = on_first_use(
        __name__,
        {
            "optuna_samplers._base": ["PrivateSampler"],
            "optuna_samplers._federated": ["run_federated"],
            "optuna_samplers._local": ["ldp_objective"],
            "optuna_samplers._means": ["private_objective"],
            "optuna_samplers.dp_fts_de": ["DPFTSDESampler"],
            "optuna_samplers.dp_gibo": ["DPGIBOSampler"],
            "optuna_samplers.duets": ["DUETSSampler"],
            "optuna_samplers.ldp_gp_ucb": [
                "LDPATAGPUCBSampler",
                "LDPGPUCBSampler",
                "LDPMoMAGPUCBSampler",
                "LDPTGPUCBSampler",
            ],
            "optuna_samplers.po_gp_ucb": ["POGPUCBSampler", "answer_trials"],
            "privbo_plugins.algorithms.dp_fts_de.config": ["FederationConfig"],
            "privbo_plugins.sessions.server": ["FederatedServer"],
        },
    )
