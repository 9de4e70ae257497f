"""Ray Tune searchers with a privacy guarantee."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privbo_plugins.algorithms.dp_fts_de import FederationConfig
    from raytune_searchers._answers import answering
    from raytune_searchers._local import ldp_trainable
    from raytune_searchers._trainable import report_public
    from raytune_searchers.dp_fts_de import DPFTSDESearch, agent_trials
    from raytune_searchers.dp_gibo import DPGIBOSearch
    from raytune_searchers.duets import DUETSSearch
    from raytune_searchers.ldp_gp_ucb import (
        LDPATAGPUCBSearch,
        LDPGPUCBSearch,
        LDPMoMAGPUCBSearch,
        LDPTGPUCBSearch,
    )
    from raytune_searchers.po_gp_ucb import POGPUCBSearch

__all__ = [
    "DPFTSDESearch",
    "DPGIBOSearch",
    "DUETSSearch",
    "FederationConfig",
    "LDPATAGPUCBSearch",
    "LDPGPUCBSearch",
    "LDPMoMAGPUCBSearch",
    "LDPTGPUCBSearch",
    "POGPUCBSearch",
    "agent_trials",
    "answering",
    "ldp_trainable",
    "report_public",
]

_HOMES = {
    "DPFTSDESearch": "raytune_searchers.dp_fts_de",
    "DPGIBOSearch": "raytune_searchers.dp_gibo",
    "DUETSSearch": "raytune_searchers.duets",
    "FederationConfig": "privbo_plugins.algorithms.dp_fts_de",
    "LDPATAGPUCBSearch": "raytune_searchers.ldp_gp_ucb",
    "LDPGPUCBSearch": "raytune_searchers.ldp_gp_ucb",
    "LDPMoMAGPUCBSearch": "raytune_searchers.ldp_gp_ucb",
    "LDPTGPUCBSearch": "raytune_searchers.ldp_gp_ucb",
    "POGPUCBSearch": "raytune_searchers.po_gp_ucb",
    "agent_trials": "raytune_searchers.dp_fts_de",
    "answering": "raytune_searchers._answers",
    "ldp_trainable": "raytune_searchers._local",
    "report_public": "raytune_searchers._trainable",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: a host's actor needs no Ray Tune and starts a second sooner."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
